"""Reading scheme names.

[LOSS/]SAMPLER[(args)]:WEIGHTING[(args)][@m]    a sampled loss: contrastive/frequency(0.75):tail@256
[LOSS/]MARGIN[(args)]                           an all-label loss: logit-adjusted
arcface[(args)][/…]                             a margin on the positive's score, as LOSS
softmax+post-hoc                                all labels, adjusted when predicting
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headtail.errors import HeadtailError, check_kind
from headtail.schemes.grammar import Call, check_known, read_call, split_count, text_of
from headtail.schemes.request import Source
from headtail.schemes.table import (
    LOSSES,
    MARGINS,
    PAPER,
    SAMPLERS,
    SCORE_MARGINS,
    WEIGHTINGS,
)

POST_HOC = "+post-hoc"


@dataclass(frozen=True)
class Scheme:
    """A scheme name that has been read.

    Attributes:
        text: as typed.
        loss: softmax or a decoupled loss.
        sampler: None for all-label losses.
        weighting: None for all-label losses.
        margin: the margin of an all-label loss, None for sampled ones.
        num_negatives: the number after @, if any.
        post_hoc: whether predictions are logit-adjusted afterwards.
        score_margin: a margin on the positive's score, if any.
    """

    text: str
    loss: str
    sampler: Call | None = None
    weighting: Call | None = None
    margin: Call | None = None
    num_negatives: int | None = None
    post_hoc: bool = False
    score_margin: Call | None = None

    @property
    def family(self) -> str:
        """What is written before the slash: the loss, or the margin on the positive's score."""
        return self.loss if self.score_margin is None else text_of(self.score_margin)

    @property
    def source(self) -> Source | None:
        """Where the negatives come from; None for all-label losses."""
        return None if self.sampler is None else SAMPLERS[self.sampler.name].source

    @property
    def unadjusted(self) -> str:
        """The name of the scheme that trains the same way and does not adjust predictions."""
        name = self.text.strip()
        return name[: -len(POST_HOC)] if self.post_hoc else name

    def negatives(self, default: int, batch: int) -> float | None:
        """m in batches of this size; None for all-label losses."""
        if self.sampler is None:
            return None
        wanted = self.num_negatives or default
        return float(min(wanted, batch) if self.source == "batch" else wanted)


def parse(text: str) -> Scheme:
    """Read a scheme name.

    >>> parse("contrastive/frequency(0.75):tail@256").sampler
    Call(name='frequency', args=(0.75,))
    >>> parse("within-bach:tail")
    Traceback (most recent call last):
    headtail.errors.HeadtailError: `within-bach` in `within-bach:tail` is not a sampler. ...
    """
    check_kind("text", text, str, "within-batch:tail")
    typed = text
    text = text.strip().lower().replace("_", "-")
    post_hoc = text.endswith(POST_HOC)
    rest, number = split_count(text.removesuffix(POST_HOC), text)
    loss, rest, by_score = _split_loss(text, rest)
    more: dict[str, Any] = {"post_hoc": post_hoc, "score_margin": by_score}
    if ":" not in rest:
        margin = _parse_margin(typed, text, rest, number)
        return Scheme(typed, loss, margin=margin, **more)
    sampler, weighting = (read_call(part, text) for part in rest.split(":", 1))
    check_known(sampler.name, tuple(SAMPLERS), "sampler", text)
    check_known(weighting.name, tuple(WEIGHTINGS), "weighting", text)
    if WEIGHTINGS[weighting.name].needs_q and not SAMPLERS[sampler.name].knows_q:
        write = f"{rest.split(':', 1)[0]}:importance"
        raise HeadtailError(
            f"`{typed}` chooses negatives from a pool, where the q of a label is unknown, but "
            f"{weighting.name} weights need it. Write weights that come from a margin, for "
            f"example `{write}`."
        )
    return Scheme(typed, loss, sampler, weighting, None, number, **more)


def _split_loss(text: str, rest: str) -> tuple[str, str, Call | None]:
    """The loss before the slash, what follows it, and the margin on scores that it may be."""
    first, slash, after = rest.partition("/")
    if not slash and (":" in rest or rest.partition("(")[0] not in SCORE_MARGINS):
        return rest if rest in LOSSES else "softmax", rest, None
    call = read_call(first, text)
    if call.name in SCORE_MARGINS:
        return "softmax", after if slash else "softmax", call
    check_known(first, (*LOSSES, *SCORE_MARGINS), "loss", text)
    return first, after, None


def _parse_margin(typed: str, text: str, rest: str, number: int | None) -> Call:
    margin = Call("unit") if rest in LOSSES else read_call(rest, text)
    if margin.name in SAMPLERS:
        raise HeadtailError(
            f"`{typed}` is not a scheme, only its sampler. Write a weighting too, for example "
            f"`{rest}:importance`."
        )
    check_known(margin.name, (*MARGINS, *LOSSES, *SCORE_MARGINS, *PAPER), "scheme", text)
    if number is not None:
        raise HeadtailError(
            f"`{text}` uses all labels, so `@{number}` has no meaning there. Drop it."
        )
    return margin
