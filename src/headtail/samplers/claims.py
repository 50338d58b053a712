"""Claims: what a sampler promises about its draws."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Claims:
    """What callers need to know of a sampler before it draws.

    Attributes:
        looks_at_model: drawing reads hidden states and the label table, which must be up to date.
        shared: all examples of a batch get the same negatives, `ids` of shape `[m]`.
        marginal: the log q of a draw is that of the label itself, which weights that do not come
            from a margin need.
        knows_every_q: log q can be asked for any label, not only for those drawn.
        may_miss: some label may have q = 0.
        excludes_target: the positive is never drawn, and q of the others is divided by 1 − q_y.
        group: how many neighbours of a batch get one draw, from the mean of their q.
        memory: how many labels of past batches are remembered.
        source: "batch" or "past" if negatives are labels of training examples, so that a label
            without examples is never drawn.
    """

    looks_at_model: bool = False
    shared: bool = True
    marginal: bool = True
    knows_every_q: bool = True
    may_miss: bool = False
    excludes_target: bool = False
    group: int = 1
    memory: int = 0
    source: str | None = None
