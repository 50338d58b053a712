"""What is known of a grid's schemes before any training."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from headtail.comparison.results import Row
from headtail.data.points import DataSet
from headtail.errors import HeadtailError
from headtail.implicit import explain
from headtail.schemes import parse, scheme
from headtail.training.config import Run
from headtail.training.held_out import split_validation, training_labels


def explain_rows(runs: Iterable[Run], data: DataSet) -> list[Row]:
    """What is known of each scheme before training, as rows."""
    rows = []
    for name, about in explain_schemes(runs, data).items():
        where = ("", data.name, "explain", parse(name).loss, name, about["m"], 0, 0, 0, "full")
        rows += [
            Row(*where, metric, about[metric])
            for metric in ("lean", "noise")
            if about.get(metric) is not None
        ]
    return rows


def explain_schemes(runs: Iterable[Run], data: DataSet) -> dict[str, dict[str, Any]]:
    """What each scheme optimises, where it leans and how noisy it is."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        if run.scheme in found:
            continue
        labels = training_labels(
            data.train, split_validation(data, run.validation)[0], run.smoothing
        )
        size = min(run.batch, int(labels.total))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what they warn of stands in the notes
                one = explain(scheme(run.scheme, labels, run.negatives), labels, batch_size=size)
        except HeadtailError as error:
            found[run.scheme] = {"m": None, "notes": [str(error)]}
            continue
        noise = max((x.noise for x in one.examples if x.noise is not None), default=None)
        found[run.scheme] = {
            "name": one.name,
            "equation": one.equation,
            "rho": one.rho,
            "leans": "tail" if parse(run.scheme).post_hoc else one.leans,
            "lean": one.lean,
            "noise": noise,
            "m": one.m,
            "notes": [*one.notes, *_batching_notes(run)],
        }
    return found


def _batching_notes(run: Run) -> list[str]:
    sampler = parse(run.scheme).sampler
    if (
        run.batching == "points"
        and sampler is not None
        and sampler.name in ("within-batch", "queue", "mixture")
    ):
        return [
            "Batches hold whole points, whose labels come together: q is then not the prior, and "
            "the loss not quite this one."
        ]
    return []


def negatives_of(run: Run) -> float | None:
    """m, at most the batch where its labels are the negatives; or None for an all-label loss."""
    parsed = parse(run.scheme)
    if parsed.sampler is None:
        return None
    wanted = parsed.num_negatives or run.negatives
    return float(min(wanted, run.batch) if parsed.sampler.name == "within-batch" else wanted)
