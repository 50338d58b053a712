"""A probe: a model trained for a few epochs, on which sampled losses are compared with a target.

The study tried to predict gaps from it. They do not follow from a probe of this length.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch
from sampling_shift import Examples, SamplingShift, sampling_shifts

from headtail.core.slices import Slices
from headtail.data.facts import kind_of
from headtail.data.points import DataSet, Points
from headtail.encoders import Model
from headtail.errors import HeadtailError
from headtail.evaluation.topk import encoded_pairs, top_labels_by_tau
from headtail.losses import ExactLoss, SampledLoss
from headtail.machine.target import Target
from headtail.schemes import check_batch, scheme
from headtail.training.config import Run
from headtail.training.recipes import DEFAULTS
from headtail.training.trainer import Trainer

PROBE = "within-batch:importance"
"""The scheme of a probe: as cheap as sampling is, and closer to the softmax than uniform's."""
SHARE = 0.3
"""Epochs of a probe, as a share of the default number for the kind of data."""
DIM = 128
"""Size of a probe's hidden states."""
MOST_PAIRS = 2_000_000
"""Training pairs that a probe sees, at most: fewer epochs of large data."""
SMOOTHING = 0.01
"""Pseudo-count of a probe: a larger one would make the q of within-batch negatives wrong."""
MOST_TESTED = 5000
"""Test points on which the recall of a probe is measured."""
EXAMPLES = 4096
"""Examples on which losses are compared."""


def train_probe(data: DataSet, *, batch: int | None = None, device: str = "cpu") -> Model:
    """Train a probe with the default settings of its kind of data.

    Args:
        data: what to learn.
        batch: examples in a batch; None for the default.
        device: "cpu" or "cuda".
    """
    data = few_points(data)
    usual = round(SHARE * DEFAULTS[kind_of(data)].epochs)
    epochs = max(1, min(usual, MOST_PAIRS // max(1, data.train.num_pairs)))
    run = Run(
        scheme=PROBE, dim=DIM, batch=batch, epochs=epochs, validation=0.0, smoothing=SMOOTHING
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # labels without examples are never drawn
        return Trainer(run, data, device=device).fit().model


def few_points(data: DataSet) -> DataSet:
    """The data with as many training points, at random, as a probe sees at most."""
    train = data.train
    if train.num_pairs <= MOST_PAIRS:
        return data
    points = round(len(train) * MOST_PAIRS / train.num_pairs)
    chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:points]
    return replace(data, train=train.select(chosen.sort().values), read_as={})


def measure_probe(
    model: Model,
    data: DataSet,
    slices: Slices,
    target: Target,
    candidates: Sequence[tuple[str, int]],
    batch: int,
    seed: int = 0,
) -> dict[tuple[str, int], SamplingShift]:
    """What each sampler with so many negatives does to the target, by slice.

    A model that was trained on the logit-adjusted loss has scores that are lower by τ·log π than
    those of one trained on the softmax: so are the probe's.

    Args:
        model: the probe, or any model trained on these data.
        data: the data set.
        slices: head, torso and tail.
        target: the loss over all labels.
        candidates: samplers and numbers of negatives; those that the labels or the batch do not
            allow are left out.
        batch: examples in a batch.
        seed: of the examples and draws.
    """
    head = model.head
    head.flush()
    labels = head.labels
    exact = scheme(target.name, labels)
    assert isinstance(exact, ExactLoss), "a target is a loss over all labels"
    losses: dict[str, SampledLoss] = {}
    found: dict[str, tuple[str, int]] = {}
    for sampler, m in candidates:
        name = target.sampled(sampler, m)
        try:
            check_batch(name, batch)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                loss = scheme(name, labels)
        except HeadtailError:
            continue
        assert isinstance(loss, SampledLoss), "a sampler and a weighting make a sampled loss"
        losses[name] = loss.to(head.weight.device)
        found[name] = (sampler, m)
    torch.manual_seed(seed)
    with torch.no_grad():
        hidden, label = encoded_pairs(model, few_points(data).train, max(EXAMPLES, batch), seed)
        adjust = -target.tau * labels.prior.log().to(hidden) if target.tau else 0.0
        own = torch.zeros(()) if head.bias is None else head.bias.flatten().float()
        bias = (own.to(hidden) + adjust).expand(labels.num_labels).clone()
        bias[bias == math.inf] = 0.0
        examples = Examples(hidden, label, head.weight.detach(), bias, batch)
        shifts = sampling_shifts(exact.to(hidden.device), losses, examples, slices, repeats=2)
    return {found[name]: shift for name, shift in shifts.items()}


def recall_of(model: Model, points: Points, target: Target) -> float:
    """Recall@10 of the probe over all labels, adjusted as the target is."""
    few = points.select(torch.arange(min(MOST_TESTED, len(points))))
    [top] = top_labels_by_tau(model, few, 10, [target.tau or None])
    point = torch.arange(len(few)).repeat_interleave(few.labels.offsets.diff())
    hits = (top.cpu()[point] == few.labels.values.long()[:, None]).any(1)
    return float(hits.double().mean())
