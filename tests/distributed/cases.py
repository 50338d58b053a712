"""Every scheme that a sharded head supports: samplers, weightings, pieces, options, optimisers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from headtail import (
    Adaptive,
    ArcFace,
    Constant,
    CosFace,
    CustomSeparable,
    DecoupledLoss,
    Equalised,
    Frequency,
    FromMargin,
    Importance,
    InfoNCE,
    LogitAdjusted,
    LogUniform,
    Mixture,
    Pairwise,
    Queue,
    Relative,
    RowAdagrad,
    RowAdam,
    RowSGD,
    SampledDecoupledLoss,
    SampledSoftmaxLoss,
    SoftmaxLoss,
    Tail,
    Uniform,
    Unit,
    WithinBatch,
)
from headtail.functional import contrastive, hinge, logistic, squared_hinge
from headtail.losses import Loss
from headtail.samplers import Sampler
from tests.distributed import batches
from tests.distributed.batches import LABELS, Form, L

SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "uniform": lambda: Uniform(LABELS, 8),
    "uniform, without replacement": lambda: Uniform(LABELS, 8, replacement=False),
    "frequency": lambda: Frequency(LABELS, 8),
    "frequency 0.5": lambda: Frequency(LABELS, 8, 0.5),
    "frequency 0.5, without replacement": lambda: Frequency(LABELS, 8, 0.5, replacement=False),
    "log-uniform": lambda: LogUniform(LABELS, 8),
    "within-batch": lambda: WithinBatch(LABELS),
    "within-batch, 4": lambda: WithinBatch(LABELS, 4),
    "queue": lambda: Queue(LABELS, 12),
    "queue, 5": lambda: Queue(LABELS, 12, 5),
    "mixture": lambda: Mixture([Uniform(LABELS, 5), WithinBatch(LABELS)]),
    "mixture of three": lambda: Mixture(
        [Frequency(LABELS, 4, 0.5), Queue(LABELS, 9), WithinBatch(LABELS, 3)]
    ),
}
OF_BATCHES = ("within-batch", "within-batch, 4", "queue", "queue, 5")
"""Samplers that all ranks know the draws of: one process draws the same."""


def distant(y: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A margin that does not split."""
    return 0.02 * (y - other) ** 2 - 0.1 * y


DISTANCES = torch.arange(L**2, dtype=torch.float64).reshape(L, L).sin()


def looked_up(y: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A margin that does not split, from a table of all pairs."""
    return DISTANCES[y, other]


MARGINS = {
    "unit": Unit(),
    "logit-adjusted": LogitAdjusted(LABELS),
    "logit-adjusted, strength 0.4": LogitAdjusted(LABELS, 0.4),
    "equalised": Equalised(LABELS),
    "equalised with a square root": Equalised(LABELS, torch.sqrt),
    "adaptive": Adaptive(LABELS),
    "custom": CustomSeparable(torch.linspace(-1, 1, L), torch.linspace(1, -2, L)),
    "pairwise": Pairwise(distant),
}
WEIGHTINGS = {
    "constant": Constant(),
    "infonce": InfoNCE(),
    "relative": Relative(),
    "importance": Importance(),
    "tail": Tail(LABELS),
    "tail, strength 0.5": Tail(LABELS, 0.5),
    **{f"from {name}": FromMargin(margin) for name, margin in MARGINS.items()},
}
PIECES = {
    "logistic": logistic,
    "hinge": hinge,
    "squared hinge": squared_hinge,
    "contrastive": contrastive(0.3),
}


def sgd(parameters: Any) -> RowSGD:
    return RowSGD(parameters, lr=0.1, momentum=0.9)


def sgd_with_decay(parameters: Any) -> RowSGD:
    return RowSGD(parameters, lr=0.1, weight_decay=0.1)


def adagrad(parameters: Any) -> RowAdagrad:
    return RowAdagrad(parameters, lr=0.1)


def adagrad_per_row_with_decay(parameters: Any) -> RowAdagrad:
    return RowAdagrad(parameters, lr=0.1, per_row=True, weight_decay=0.1)


def adam(parameters: Any) -> RowAdam:
    return RowAdam(parameters, lr=0.01)


def adam_with_decay(parameters: Any) -> RowAdam:
    return RowAdam(parameters, lr=0.01, weight_decay=0.1)


@dataclass(frozen=True)
class Case:
    """What is trained on one process and on all ranks.

    Attributes:
        loss: made again for each head.
        optimizer: of the table.
        form: of its batches.
        bias: whether labels have biases.
        draws: whether negatives are given; else ranks and process draw from the same seed.
    """

    loss: Callable[[], Loss]
    optimizer: Callable[[Any], torch.optim.Optimizer] = adagrad
    form: Form = batches.ids
    bias: bool = True
    draws: bool = True


def softmax(sampler: str, weighting: str, **options: Any) -> Callable[[], SampledSoftmaxLoss]:
    return lambda: SampledSoftmaxLoss(SAMPLERS[sampler](), WEIGHTINGS[weighting], **options)


def decoupled(
    sampler: str, weighting: str, piece: str, **options: Any
) -> Callable[[], SampledDecoupledLoss]:
    cosine = {"score": "cosine"} if PIECES[piece].cosine else {}
    return lambda: SampledDecoupledLoss(
        SAMPLERS[sampler](), WEIGHTINGS[weighting], PIECES[piece], **cosine, **options
    )


def learns_temperature() -> SampledSoftmaxLoss:
    return softmax("within-batch", "relative", temperature=_learnt())()


def learns_temperature_of_cosines() -> SampledDecoupledLoss:
    return decoupled("uniform", "tail", "contrastive", temperature=_learnt())()


def _learnt() -> nn.Parameter:
    return nn.Parameter(torch.tensor(0.7, dtype=torch.float64))


def _products() -> dict[str, Case]:
    """Every sampler with every weighting, and every weighting with every piece."""
    cases = {
        f"{sampler}: {weighting}": Case(softmax(sampler, weighting))
        for sampler in SAMPLERS
        for weighting in WEIGHTINGS
    }
    names = list(SAMPLERS)
    for number, weighting in enumerate(WEIGHTINGS):
        for place, piece in enumerate(PIECES):
            sampler = names[(number + 3 * place) % len(names)]
            cases[f"{piece} of {sampler}: {weighting}"] = Case(decoupled(sampler, weighting, piece))
    return cases


def _exact() -> dict[str, Case]:
    cases = {
        f"exact softmax, {name}": Case(lambda m=m: SoftmaxLoss(m)) for name, m in MARGINS.items()
    }
    for place, (name, margin) in enumerate(MARGINS.items()):
        piece_name = list(PIECES)[place % len(PIECES)]
        piece = PIECES[piece_name]
        score = "cosine" if piece.cosine else "dot"
        cases[f"exact {piece_name}, {name}"] = Case(
            lambda m=margin, p=piece, s=score: DecoupledLoss(m, p, score=s)
        )
    return cases


def _optimizers() -> dict[str, Case]:
    tail = softmax("frequency 0.5", "tail")
    ways = (sgd, sgd_with_decay, adagrad, adagrad_per_row_with_decay, adam, adam_with_decay)
    cases = {f"optimiser {way.__name__}": Case(tail, way) for way in ways}
    decoupled_of_queue = decoupled("queue", "tail", "logistic")
    return cases | {
        f"{way.__name__}, decoupled": Case(decoupled_of_queue, way, bias=False)
        for way in ways[1::2]
    }


def _options() -> dict[str, Case]:
    def one(form: Form = batches.ids, sampler: str = "uniform", **options: Any) -> Case:
        return Case(softmax(sampler, "importance", **options), form=form)

    arc: dict[str, Any] = {"score": "cosine", "temperature": 0.1}
    hinge_of = decoupled("within-batch", "tail", "hinge")
    return {
        "no bias": Case(softmax("uniform", "importance"), bias=False),
        "cosine": one(score="cosine", temperature=0.2),
        "temperature": one(temperature=0.5),
        "learnt temperature": Case(learns_temperature),
        "learnt temperature of cosines, decoupled": Case(learns_temperature_of_cosines),
        "arcface": one(**arc, score_margin=ArcFace(0.3)),
        "cosface": one(**arc, score_margin=CosFace(0.2)),
        "label smoothing": one(label_smoothing=0.2),
        "label smoothing of ignored targets": one(batches.ignoring, "mixture", label_smoothing=0.1),
        "exact label smoothing": Case(lambda: SoftmaxLoss(MARGINS["unit"], label_smoothing=0.2)),
        "exact cosines": Case(lambda: SoftmaxLoss(MARGINS["logit-adjusted"], **arc)),
        "exact arcface": Case(lambda: SoftmaxLoss(**arc, score_margin=ArcFace(0.3))),
        "known positives": one(batches.with_known),
        "known positives with padding": one(batches.with_known_padded, "within-batch"),
        "exact loss with known positives": Case(SoftmaxLoss, form=batches.with_known),
        "known labels of multi-label targets": one(batches.ragged, collisions="known"),
        "no collisions": one(collisions="none"),
        "collisions of slots": one(batches.ignoring, "within-batch, 4", collisions="slot"),
        "collisions of targets": Case(softmax("within-batch", "infonce", collisions="target")),
        "weights of examples": one(batches.weighed),
        "weights of ragged examples": one(batches.ragged_with_weights),
        "summed weights": one(batches.weighed, reduction="sum"),
        "ignored targets": one(batches.ignoring, "frequency"),
        "ignored targets, pairwise": Case(
            lambda: SampledSoftmaxLoss(SAMPLERS["uniform"](), FromMargin(Pairwise(looked_up))),
            form=batches.ignoring,
        ),
        "ignored targets, exact, pairwise": Case(
            lambda: SoftmaxLoss(Pairwise(looked_up)), form=batches.ignoring
        ),
        "ignored targets, decoupled": Case(hinge_of, form=batches.ignoring),
        "another index is ignored": one(batches.ids, "within-batch", ignore_index=0),
        "ragged": one(batches.ragged),
        "ragged, within-batch": one(batches.ragged, "within-batch"),
        "padded": one(batches.padded, "log-uniform"),
        "padded, exact": Case(lambda: SoftmaxLoss(MARGINS["adaptive"]), form=batches.padded),
        "positions": one(batches.positions, "frequency 0.5"),
        "weights of positions": one(batches.weighed_positions, "within-batch"),
        "sum": one(reduction="sum"),
        "none": one(reduction="none"),
        "none, decoupled": Case(
            decoupled("queue", "tail", "logistic", reduction="none"), form=batches.weighed
        ),
        "none of positions": one(batches.positions, "within-batch", reduction="none"),
        "none of ragged targets": one(batches.ragged, reduction="none"),
        "groups": Case(softmax("within-batch", "tail"), form=batches.groups),
        "groups, part of the batch": Case(
            decoupled("within-batch, 4", "importance", "logistic"), form=batches.groups
        ),
    }


def _own_draws() -> dict[str, Case]:
    """Nothing is given: what all ranks know, they draw as one process does."""
    cases = {
        f"own draws of {sampler}": Case(softmax(sampler, "tail"), draws=False)
        for sampler in OF_BATCHES
    }
    own = {
        "ignored": batches.ignoring,
        "groups": batches.groups,
        "ragged": batches.ragged,
        "positions": batches.positions,
    }
    return cases | {
        f"own draws, {name}": Case(softmax("within-batch, 4", "importance"), form=form, draws=False)
        for name, form in own.items()
    }


PRODUCTS = _products()
"""Many and alike: few steps on two ranks, all of them in the long tests."""
OTHERS = _exact() | _optimizers() | _options() | _own_draws()
CASES = PRODUCTS | OTHERS
