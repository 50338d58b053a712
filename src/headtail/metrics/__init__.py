"""Metrics by slice, exact, as functions of the best labels of every test point."""

from headtail.metrics.filtered import filtered_ranks, filtered_ratios
from headtail.metrics.label_errors import LabelErrors, label_errors
from headtail.metrics.over_points import hit_rate, mrr, ndcg, precision, psp, recall
from headtail.metrics.popularity import (
    coverage,
    inverse_propensity,
    most_popular,
    popularity,
    popularity_lift,
)
from headtail.metrics.ranked import DEEPEST as DEEPEST
from headtail.metrics.ranked import Ranked, Ratio
from headtail.metrics.ratios import ratios
from headtail.metrics.seeds import mean_and_deviation

__all__ = [
    "LabelErrors",
    "Ranked",
    "Ratio",
    "coverage",
    "filtered_ranks",
    "filtered_ratios",
    "hit_rate",
    "inverse_propensity",
    "label_errors",
    "mean_and_deviation",
    "most_popular",
    "mrr",
    "ndcg",
    "popularity",
    "popularity_lift",
    "precision",
    "psp",
    "ratios",
    "recall",
]
