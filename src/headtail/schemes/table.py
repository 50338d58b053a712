"""The table of schemes: one row per sampler, weighting, margin and loss.

Adding a sampler takes its class, a function below that builds it from a name's arguments, and a row
in `SAMPLERS`. Nothing else in headtail knows samplers by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headtail.core.margins import (
    Adaptive,
    Equalised,
    LogitAdjusted,
    Margin,
    Power,
    Unit,
)
from headtail.core.pieces import Piece, contrastive, hinge, logistic, squared_hinge
from headtail.core.score_margins import ArcFace, CosFace, ScoreMargin
from headtail.core.weightings import (
    Constant,
    FromMargin,
    Importance,
    InfoNCE,
    Relative,
    Tail,
    Weighting,
)
from headtail.errors import HeadtailError
from headtail.samplers import (
    Adversarial,
    Block,
    FourierKernel,
    Frequency,
    Hard,
    LogUniform,
    Mixture,
    ModelSoftmax,
    PartialFC,
    QuadraticKernel,
    Queue,
    Resampled,
    Sampler,
    Tilted,
    Uniform,
    WithinBatch,
)
from headtail.schemes import nested
from headtail.schemes.request import Request, SamplerRow


@dataclass(frozen=True)
class WeightingRow:
    """A weighting as schemes know it.

    Attributes:
        kind: its class, or that of the margin which the weights come from.
        build: from a request to the weighting.
        needs_q: whether it needs the q of the labels themselves.
    """

    kind: type[Weighting | Margin]
    build: Callable[[Request], Weighting]
    needs_q: bool = False


@dataclass(frozen=True)
class MarginRow:
    """A margin as schemes know it.

    Attributes:
        kind: its class.
        build: from a request to the margin.
    """

    kind: type[Margin]
    build: Callable[[Request], Margin]


def _uniform(request: Request) -> Sampler:
    request.number(None, ("excluded", "without-replacement"))
    return Uniform(request.labels, request.m, **_draws(request))


def _frequency(request: Request) -> Sampler:
    power = request.number(1.0, ("excluded", "without-replacement"))
    return Frequency(request.labels, request.m, power, **_draws(request))


def _log_uniform(request: Request) -> Sampler:
    request.number(None, ("excluded",))
    return LogUniform(request.labels, request.m, **_draws(request))


def _draws(request: Request) -> dict[str, bool]:
    options = {"exclude_target": True} if request.has("excluded") else {}
    return options | ({"replacement": False} if request.has("without-replacement") else {})


def _within_batch(request: Request) -> Sampler:
    request.number(None)
    return WithinBatch(request.labels, request.num_negatives)


def _partial_fc(request: Request) -> Sampler:
    request.number(None)
    return PartialFC(request.labels, request.m)


def _queue(request: Request) -> Sampler:
    capacity = queue_capacity(request)
    wanted = request.num_negatives
    return Queue(request.labels, capacity, None if wanted is None else min(wanted, capacity))


def queue_capacity(request: Request) -> int:
    """How many labels a queue remembers: its number, or else m."""
    capacity = request.number(float(request.m))
    if capacity != int(capacity):
        raise HeadtailError(
            f"`{request.call.name}` in `{request.text}` takes a whole number of labels to "
            f"remember, but got {capacity:g}."
        )
    return int(capacity)


def _model(request: Request) -> Sampler:
    request.number(None, ("masked",))
    return ModelSoftmax(request.labels, request.m, exclude_target=not request.has("masked"))


def _tilted(request: Request) -> Sampler:
    own = [arg for arg in request.call.args if arg != "masked"]
    margin = request.weighting.margin if isinstance(request.weighting, FromMargin) else Unit()
    if own:
        inner = request.inner(own, tuple(MARGINS), "margin")
        margin = MARGINS[inner.call.name].build(inner)
    excluded = len(own) == len(request.call.args)
    return Tilted(request.labels, request.m, margin, request.piece, exclude_target=excluded)


def _shared(
    kind: Callable[..., Sampler], *, takes_margin: bool = False, flags: tuple[str, ...] = ()
) -> Callable[[Request], Sampler]:
    """Samplers in which neighbours of a batch share a draw: the number is how many."""

    def build(request: Request) -> Sampler:
        share = request.number(32.0, flags)
        if share != int(share) or share < 1:
            raise HeadtailError(
                f"`{request.call.name}` in `{request.text}` takes the number of examples that "
                f"share a draw, but got {share:g}."
            )
        options: dict[str, Any] = {"inside": "uniform"} if request.has("uniform") else {}
        margin = request.separable_margin() if takes_margin else None
        if margin is not None:
            options["margin"] = margin
        return kind(request.labels, request.m, share=int(share), **options)

    return build


SAMPLERS: dict[str, SamplerRow] = {
    "uniform": SamplerRow(Uniform, _uniform),
    "frequency": SamplerRow(Frequency, _frequency),
    "log-uniform": SamplerRow(LogUniform, _log_uniform),
    "within-batch": SamplerRow(WithinBatch, _within_batch, "batch"),
    "queue": SamplerRow(Queue, _queue, "past batches"),
    "partial-fc": SamplerRow(PartialFC, _partial_fc),
    "mixture": SamplerRow(Mixture, lambda request: nested.mixture(request, SAMPLERS), "parts"),
    "model": SamplerRow(ModelSoftmax, _model),
    "tilted": SamplerRow(Tilted, _tilted),
    "hard": SamplerRow(Hard, lambda request: nested.hard(request, SAMPLERS)),
    "resampled": SamplerRow(
        Resampled, lambda request: nested.resampled(request, SAMPLERS), knows_q=False
    ),
    "block": SamplerRow(Block, _shared(Block, takes_margin=True, flags=("uniform",))),
    "quadratic-kernel": SamplerRow(QuadraticKernel, _shared(QuadraticKernel)),
    "fourier-kernel": SamplerRow(FourierKernel, _shared(FourierKernel, takes_margin=True)),
    "adversarial": SamplerRow(Adversarial, _shared(Adversarial)),
}
"""The samplers, in the order in which they are listed for people."""


def _logit_adjusted(request: Request) -> Margin:
    return LogitAdjusted(request.labels, request.number(1.0))


def _equalised(request: Request) -> Margin:
    power = request.number(1.0)
    return Equalised(request.labels, None if power == 1 else Power(power))


def _adaptive(request: Request) -> Margin:
    return Adaptive(request.labels, request.number(0.5))


def _unit(request: Request) -> Margin:
    request.number(None)
    return Unit()


MARGINS: dict[str, MarginRow] = {
    "logit-adjusted": MarginRow(LogitAdjusted, _logit_adjusted),
    "equalised": MarginRow(Equalised, _equalised),
    "adaptive": MarginRow(Adaptive, _adaptive),
    "unit": MarginRow(Unit, _unit),
}
"""The margins of all-label losses."""


def _arcface(request: Request) -> ScoreMargin:
    args = request.call.args
    numbers = [arg for arg in args if isinstance(arg, float)]
    easy = request.has("easy")
    if len(numbers) > 2 or len(numbers) + easy < len(args):
        raise HeadtailError(
            f"`arcface` in `{request.text}` takes an angle, perhaps a margin of the cosine, and "
            "`easy`, for example `arcface(0.5)`, `arcface(0.3,0.2)` or `arcface(0.5,easy)`."
        )
    return ArcFace(*numbers, easy=easy)


def _cosface(request: Request) -> ScoreMargin:
    return CosFace(request.number(0.35))


@dataclass(frozen=True)
class ScoreMarginRow:
    """A margin on the positive's score as schemes know it.

    Attributes:
        kind: its class.
        build: from a request to the margin.
    """

    kind: type[ScoreMargin]
    build: Callable[[Request], ScoreMargin]


SCORE_MARGINS: dict[str, ScoreMarginRow] = {
    "arcface": ScoreMarginRow(ArcFace, _arcface),
    "cosface": ScoreMarginRow(CosFace, _cosface),
}
"""Softmax losses on cosines with a margin on the positive's score."""

SCALE = 64.0
"""1 / temperature of these losses, unless one is given."""


def _plain(kind: Callable[[], Weighting]) -> Callable[[Request], Weighting]:
    """A weighting without arguments."""

    def build(request: Request) -> Weighting:
        request.number(None)
        return kind()

    return build


def _tail(request: Request) -> Weighting:
    return Tail(request.labels, request.number(1.0))


WEIGHTINGS: dict[str, WeightingRow] = {
    "constant": WeightingRow(Constant, _plain(Constant), needs_q=True),
    "importance": WeightingRow(Importance, _plain(Importance)),
    "relative": WeightingRow(Relative, _plain(Relative), needs_q=True),
    "tail": WeightingRow(Tail, _tail),
    "infonce": WeightingRow(InfoNCE, _plain(InfoNCE), needs_q=True),
    "equalised": WeightingRow(Equalised, lambda request: FromMargin(_equalised(request))),
    "adaptive": WeightingRow(Adaptive, lambda request: FromMargin(_adaptive(request))),
}
"""The weightings of negatives."""

LOSSES: dict[str, Piece | None] = {
    "softmax": None,
    "contrastive": contrastive(),
    "logistic": logistic,
    "hinge": hinge,
    "squared-hinge": squared_hinge,
}
"""The losses; None is the softmax, the others are decoupled."""

PAPER = tuple(
    f"{sampler}:{weighting}"
    for sampler in ("uniform", "within-batch")
    for weighting in ("constant", "importance", "relative", "tail")
)
"""The schemes of the paper's table."""
