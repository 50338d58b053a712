"""Explanation: what `explain` returns, and how a notebook shows it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from headtail.core.html import HtmlCell, frame, percent, sentences, table
from headtail.core.margins import Margin
from headtail.implicit.examples import Example

MOST_SHOWN = 10
"""Examples that a notebook shows."""


@dataclass(frozen=True)
class Explanation:
    """The result of `explain`.

    Attributes:
        family: "softmax", or the piece of a decoupled loss.
        sampler: its name, or "all labels".
        weighting: its name.
        m: effective number of negatives.
        margin: the implied ρ; `margin.log_positive` and `margin.log_negative` are its two vectors
            if it splits.
        name: the implicit loss, if it has a name.
        rho: ρ as a formula.
        equation: the implicit loss as an equation.
        lean: log ρ(t, h) − log ρ(h, t) for labels of median count in tail and head, in nats.
        leans: "tail", "head" or "neither".
        never_drawn: number of labels that are never negatives.
        scores: "given", or "untrained" where there were none: then all figures of the examples, and
            q*, are those of a model with all scores equal, and do not apply to a trained one.
        examples: bias and noise, for a median label of each slice or for the scores given.
        notes: what does not hold here, in words.
        sampled_share: share of the negatives that fall on head, torso and tail.
        optimal_share: the same for the minimum-variance q* of the first example.
        unbiased_with: the weighting that would make this sampler unbiased; None for all-label
            losses.
        logit_adjusted_with: the weighting that would make it logit-adjusted.
    """

    family: str
    sampler: str
    weighting: str
    m: float | None
    margin: Margin = field(repr=False)
    name: str | None
    rho: str
    equation: str
    lean: float
    leans: str
    never_drawn: int
    scores: Literal["untrained", "given"]
    examples: list[Example]
    notes: list[str]
    sampled_share: dict[str, float]
    optimal_share: dict[str, float]
    unbiased_with: str | None
    logit_adjusted_with: str | None

    def to_dict(self) -> dict[str, Any]:
        """For JSON: everything but the margin's vectors; NaN and infinities become None."""
        fields = asdict(self)
        del fields["margin"]
        return _finite(fields)

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        title = self.name or "A loss without a name"
        sampling = self.sampler if self.m is None else f"{self.sampler}, m = {self.m:,.6g}"
        scheme = sampling if self.weighting == "none" else f"{sampling}, {self.weighting} weights"
        leans = "leans to neither side"
        if self.leans != "neither":
            leans = f"leans to the {self.leans} by {abs(self.lean):.3g} nats"
        facts = [f"ρ(y, y') = {self.rho}, {leans}"]
        if self.never_drawn:
            facts.append(f"{self.never_drawn:,} labels are never drawn")
        tables = [sentences([self.equation, *facts]), self._shares(), self._examples()]
        return frame(title, f"– {scheme}", *tables, sentences(self.notes))

    def _shares(self) -> str:
        """Where negatives fall, and where they should."""
        if not self.sampled_share:
            return ""
        shares = {"this sampler": self.sampled_share, "least noise": self.optimal_share}
        rows = [
            [name, *(HtmlCell(percent(share), share) for share in by_slice.values())]
            for name, by_slice in shares.items()
        ]
        return table(["share of the negatives", *self.optimal_share], rows)

    def _examples(self) -> str:
        """Bias and noise of a few examples."""
        rows = [
            [
                f"{example.slice}, label {example.label}".removeprefix("given, "),
                f"{example.unsampled_loss:.3f}",
                f"{example.implicit_loss:.3f}",
                f"{example.bias:+.3f}".replace("-", "−"),
                "–" if (noise := _noise_of(example)) is None else f"{noise:.2g}",
            ]
            for example in self.examples[:MOST_SHOWN]
        ]
        more = len(self.examples) - len(rows)
        rest = sentences([f"and {more:,} more examples"] if more else [])
        scores = "all scores equal" if self.scores == "untrained" else "scores as given"
        heading = [f"examples, {scores}", "softmax", "this loss", "difference", "noise"]
        if self.family != "softmax":
            heading[1] = "without ρ"
        return table(heading, rows) + rest


def _noise_of(example: Example) -> float | None:
    return example.noise_untrained if example.noise is None else example.noise


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list) else value
