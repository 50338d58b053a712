"""What is known of a grid's schemes before any training."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from headtail.core.slices import Slices
from headtail.data.points import DataSet
from headtail.data.slices import data_slices
from headtail.errors import HeadtailError
from headtail.implicit import explain
from headtail.losses import Loss, SampledLoss
from headtail.schemes import in_scheme_words, parse, scheme
from headtail.training.config import SettledRun
from headtail.training.held_out import split_validation, training_labels


def explain_schemes(
    runs: Iterable[SettledRun], data: DataSet, slices: Slices | None = None
) -> dict[str, dict[str, Any]]:
    """What each scheme of these runs optimises, its lean and its noise on an untrained model.

    A scheme that cannot be built has only notes: the reason. The slices are those of the data,
    unless others are given.
    """
    slices = data_slices(data) if slices is None else slices
    first_runs: dict[str, SettledRun] = {}
    for run in runs:
        first_runs.setdefault(run.scheme, run)
    return {name: _explain(run, data, slices) for name, run in first_runs.items()}


def _explain(run: SettledRun, data: DataSet, slices: Slices) -> dict[str, Any]:
    train, among, _ = split_validation(data, run.validation)
    labels = training_labels(train, among, run.smoothing, data.label_names)
    batch_size = min(run.batch, int(labels.total))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what they warn of is in the notes
            loss = scheme(run.scheme, labels, run.negatives)
            with in_scheme_words():
                explanation = explain(loss, labels, batch_size=batch_size, slices=slices)
    except HeadtailError as error:
        return {"m": None, "notes": [str(error)]}
    noises = [example.noise_untrained for example in explanation.examples]
    return {
        "name": explanation.name,
        "equation": explanation.equation,
        "rho": explanation.rho,
        "leans": "tail" if parse(run.scheme).post_hoc else explanation.leans,
        "lean": explanation.lean,
        "noise_untrained": max((n for n in noises if n is not None), default=None),
        "m": explanation.m,
        "notes": [*explanation.notes, *_batching_notes(run, loss)],
    }


def _batching_notes(run: SettledRun, loss: Loss) -> list[str]:
    draws_training_labels = isinstance(loss, SampledLoss) and loss.sampler.claims.source is not None
    if run.batching != "points" or not draws_training_labels:
        return []
    return [
        "Batches hold whole points, so the labels of a point come together: q is then not the "
        "prior, and the loss not quite this one."
    ]
