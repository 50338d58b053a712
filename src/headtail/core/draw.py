"""Draw: the sampled negatives of one step, and how likely each was."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from headtail.core.lookup import Same
from headtail.errors import HeadtailError, check_count, check_ids

if TYPE_CHECKING:  # what a reader gets
    PerId = Float64[Tensor, "*b m"]
    PerTarget = Float64[Tensor, " b"]
else:  # what may be given
    PerId = Float64[Tensor, "*b m"] | Same
    PerTarget = Float64[Tensor, " b"] | Same


@dataclass(frozen=True, eq=False)
class Draw:
    r"""Negatives with the one promise every sampler keeps: for each label $y'$ other than the
    positive $y$,

    $$\mathbb{E}\big[\text{number of times } y' \text{ is in ids}\big] = m \cdot q_{y'} \cdot
    e^{-\text{log\_keep}}.$$

    Args:
        ids: `[m]` shared by the batch, or `[b, m]`.
        log_q: log q of each id, same shape; or `Same`, where all labels have the same: it is
            written out for each reader.
        log_q_target: `[b]` log q of each positive, or `Same`; None if it is unknown (only relative
            weights need it).
        m: the effective number of negatives. Not always `ids.shape[-1]`: see `WithinBatch`.
        log_keep: 0 where collisions are masked later; `[b]` log(1 − q_y) where the positive was
            excluded while drawing, and −log of the share of the batch in other groups (`groups`).
        slots: for within-batch negatives, the places of the batch they were taken from:
            `items[draw.slots]` are their embeddings in a two-tower model.
        start: the place of the first target, where targets are only a part of the batch.
        groups: for within-batch negatives, the group of each place: negatives of an example's own
            group do not count, which `log_keep` accounts for.
        void: `[m]` true for places that hold no negative, or None. A draw of a fixed size has them
            where a smaller one would need the host to wait; then m is a tensor on the device.
        marginal: False where `log_q` is not the probability of the label but still makes 1/(m·q)
            unbiased: see `Resampled`.
    """

    ids: Int[Tensor, "*b m"]
    log_q: PerId
    log_q_target: PerTarget | None
    m: float | Float64[Tensor, ""]
    log_keep: Float64[Tensor, " b"] | float = 0.0
    slots: Int[Tensor, " m"] | None = None
    marginal: bool = True
    groups: Int[Tensor, " n"] | None = None
    void: Bool[Tensor, " m"] | None = None
    start: int = 0
    _same: dict[str, Same] = field(init=False, repr=False)
    log_m: Float64[Tensor, ""] = field(init=False, repr=False)
    """log m, −inf where there are no negatives at all. A tensor, so that compiled code need not
    know its value; on the CPU, unless m is on the device, so that a GPU takes it as an argument
    instead of reading it.
    """

    def __post_init__(self) -> None:
        check_ids("ids", self.ids, None)
        if self.ids.dtype != torch.int64:
            object.__setattr__(self, "ids", self.ids.long())
        shape = self.log_q.shape
        if self.ids.dim() not in (1, 2) or shape != self.ids.shape:
            raise HeadtailError(
                "`ids` must have shape [m] or [b, m] and `log_q` the same, but got "
                f"{list(self.ids.shape)} and {list(shape)}. Pass one log-probability for each "
                "negative."
            )
        same = {}
        for name, value in (("log_q", self.log_q), ("log_q_target", self.log_q_target)):
            if isinstance(value, Same):
                same[name] = value
                object.__delattr__(self, name)  # it is written out for whoever reads it
        object.__setattr__(self, "_same", same)
        if not same:  # else the same holds for log m: kernels take it as a number
            object.__setattr__(self, "log_m", _log(self.m))

    @property
    def same_log_q(self) -> float | None:
        """The log q of every label where all have the same, so that a kernel can take weights as a
        number.
        """
        return self._same["log_q"].value if "log_q" in self._same else None

    @property
    def shared(self) -> bool:
        """Whether all examples of the batch see the same negatives."""
        return self.ids.dim() == 1

    @property
    def made_for(self) -> list[int]:
        """The numbers of targets that its parts were made for; empty where it suits any."""
        log_q_target = self._same.get("log_q_target") or self.log_q_target
        parts = [*([] if self.shared else [self.ids]), log_q_target, self.log_keep]
        return [part.shape[0] for part in parts if isinstance(part, Tensor | Same)]

    def arguments(self) -> dict[str, Any]:
        """What makes this draw again, without writing anything out."""
        names = [item.name for item in fields(Draw) if item.init]
        return {
            name: self._same[name] if name in self._same else getattr(self, name) for name in names
        }

    def for_rows(self, start: int, stop: int) -> Draw:
        """The draw as the targets from `start` to `stop` see it, with their own log q.

        >>> draw = Draw(torch.arange(3), torch.zeros(3).double(), torch.zeros(3).double(), 2.0)
        >>> draw.for_rows(1, 3).log_q_target
        tensor([0., 0.], dtype=torch.float64)
        """
        parts = {"log_q_target": self.log_q_target, "log_keep": self.log_keep}
        own: dict[str, Any] = {
            name: part[start:stop] for name, part in parts.items() if isinstance(part, Tensor)
        }
        if not self.shared:
            own |= {"ids": self.ids[start:stop], "log_q": self.log_q[start:stop]}
        own["start"] = self.start + start
        return Draw(**(self.arguments() | own))

    def with_certain(
        self, ids: Int[Tensor, " k"], slots: Int[Tensor, " k"], void: Bool[Tensor, " k"]
    ) -> Draw:
        """A shared draw and more negatives, such as hard ones, each of them drawn for certain:
        m·q = 1.

        Args:
            ids: `[k]` of the labels, or any negative number where a weighting does not look.
            slots: `[k]` their places in the batch.
            void: `[k]` which of them do not count.
        """
        assert self.slots is not None, "only negatives of the batch have places"
        # Without other negatives m has no other use, and log 0 is not finite.
        m = self.m if isinstance(self.m, Tensor) or self.m else 1.0
        log_q = 0.0 - _log(m).to(ids.device).expand(len(ids))
        before = torch.zeros_like(self.ids, dtype=torch.bool) if self.void is None else self.void
        more: dict[str, Any] = {
            "ids": torch.cat([self.ids, ids]),
            "log_q": torch.cat([self.log_q, log_q]),
            "m": m,
            "slots": torch.cat([self.slots, slots]),
            "void": torch.cat([before, void]),
        }
        return Draw(**(self.arguments() | more))


def log_of(m: float) -> float:
    """log m of a number of negatives, −inf for none."""
    return math.log(m) if m > 0 else -math.inf


def _log(m: float | Tensor) -> Float64[Tensor, ""]:
    return m.log() if isinstance(m, Tensor) else torch.full((), log_of(m), dtype=torch.float64)


def _written_out(draw: Draw, name: str) -> Tensor:
    """A new tensor for what a draw holds as a number, so that no reader changes what others
    read.
    """
    same = vars(draw).get("_same", {})
    if same and name == "log_m":
        return _log(draw.m)
    if name not in same:
        raise AttributeError(f"{type(draw).__name__!r} object has no attribute {name!r}")
    return same[name].tensor()


# For attributes that are missing. Outside the class, so that type checkers still know which exist.
Draw.__getattr__ = _written_out  # pyright: ignore[reportAttributeAccessIssue]


def every_label(num_labels: int, device: torch.device | None = None) -> Draw:
    """The draw that holds each label exactly once, m·q = 1: with it, a sampled loss is the exact
    one.

    >>> every_label(3).ids
    tensor([0, 1, 2])
    """
    ids = torch.arange(check_count("num_labels", num_labels), device=device)
    log_q = torch.full((num_labels,), -math.log(num_labels), dtype=torch.float64, device=device)
    return Draw(ids, log_q, None, float(num_labels))
