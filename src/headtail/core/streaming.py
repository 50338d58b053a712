"""StreamingLabels: label frequencies estimated while the data pass by."""

from __future__ import annotations

from typing import Any, final

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from headtail.core.counts import as_counts
from headtail.core.frequencies import LabelFrequencies
from headtail.core.labels import Labels, check_labels
from headtail.core.targets import IGNORE_INDEX, Pairs, Target
from headtail.errors import HeadtailError, check_count, check_ids, check_number

_STATE = ("gap", "last", "seen", "clock")
SUMMED_EACH_TIME = 2**16
"""Labels up to which every batch sums over all of them."""
MOST_EXAMPLES = 2**62
"""Examples that the clock can count."""


@final
class StreamingLabels(LabelFrequencies):
    r"""Label frequencies that are unknown at first, or drift: π is estimated from the gaps
    between a label's appearances.

    The estimate is that of Yi et al. (2019), "Sampling-bias-corrected neural modeling for large
    corpus item recommendations": a label that comes every $B_y$ examples has $\pi_y = 1/B_y$. When
    it comes again, $\Delta$ examples after the last time,

    $$B_y \leftarrow (1 - \alpha)\,B_y + \alpha\,\Delta .$$

    Departures from the paper: time is counted in examples, not in steps, and a label that comes c
    times in a batch has had c gaps of $\Delta/c$, so that frequent labels are not capped at one per
    batch; the first $1/\alpha$ gaps are averaged plainly, so that nothing is left of a start value;
    and a label that stays away is taken to come now, where that makes it rarer, so that what
    vanished is forgotten.

    Use it wherever `Labels` is used, and call `observe` with every batch, before the loss.
    `WithinBatch`, `Queue`, margins and weightings follow it; `Frequency` and `LogUniform` hold
    tables and keep the frequencies they were made with. `log_prior` is a look-up, normalised by a
    sum over all labels; of more than 65,536, that sum is refreshed only after as many examples.

    Args:
        num_labels: L.
        rate: α; about 1/α appearances of a label are remembered.

    >>> labels = StreamingLabels(3, rate=0.05)
    >>> for _ in range(100):
    ...     labels = labels.observe(torch.tensor([0, 0, 1, 0]))
    >>> labels.log_prior(torch.tensor([0, 1])).exp()
    tensor([0.7481, 0.2494], dtype=torch.float64)
    """

    gap: Tensor
    last: Tensor
    seen: Tensor
    clock: Tensor
    sum: Tensor
    summed_at: int
    smoothing = 0.0
    unchanging = False

    def __init__(self, num_labels: int, rate: float = 0.01) -> None:
        size = check_count("num_labels", num_labels)
        if not 0 < check_number("rate", rate) <= 1:
            raise HeadtailError(
                f"`rate` must be above 0 and at most 1, but got {rate!r}. Write for example 0.01."
            )
        zeros = torch.zeros(size, dtype=torch.int64)
        self.rate = float(rate)
        self._set(
            gap=zeros.double(),
            last=zeros,
            seen=zeros.clone(),
            clock=torch.zeros((), dtype=torch.int64),
        )

    @classmethod
    def starting_from(cls, labels: LabelFrequencies, rate: float = 0.01) -> StreamingLabels:
        """Begin with known counts and their smoothing, as if so many examples had just passed by.

        >>> StreamingLabels.starting_from(Labels.from_counts([3, 1])).prior
        tensor([0.7500, 0.2500], dtype=torch.float64)
        """
        check_labels(labels)
        stream = cls(labels.num_labels, rate)
        counts = labels.counts.double() + labels.smoothing
        total = labels.total + labels.smoothing * labels.num_labels
        if total > MOST_EXAMPLES:
            raise HeadtailError(
                f"`labels` has {total:.3g} examples, more than a stream counts (2^62). Divide its "
                "counts first."
            )
        clock = torch.tensor(round(total), device=counts.device)
        seen = counts.ceil().long()
        gap = torch.where(seen > 0, total / counts.clamp(min=1e-300), 0.0)
        stream._set(gap=gap, last=torch.where(seen > 0, clock, 0), seen=seen, clock=clock)
        return stream

    def update(self, target: Target, ignore_index: int = IGNORE_INDEX) -> StreamingLabels:
        """Refused: `Labels.update` returns new labels, and a stream changes in place."""
        raise HeadtailError(
            "`StreamingLabels` has no `update`, because it changes in place. Write "
            "`labels.observe(target)`."
        )

    def observe(self, target: Target, ignore_index: int = IGNORE_INDEX) -> StreamingLabels:
        """Take in the labels of the next batch, in place, and return these labels."""
        pairs = Pairs.of(target, num_labels=self.num_labels, ignore_index=ignore_index)
        ids, count = pairs.label[~pairs.ignored].to(self.gap.device).unique(return_counts=True)
        self.clock.add_(count.sum())
        gaps = (self.clock - self.last[ids]).double() / count
        # The first 1/α gaps are averaged plainly, later ones fade.
        share = torch.maximum(
            1 - (1 - self.rate) ** count.double(), count / (self.seen[ids] + count)
        )
        self.gap[ids] = torch.lerp(self.gap[ids], gaps, share)
        self.last[ids] = self.clock
        self.seen[ids] += count
        if int(self.clock) - self.summed_at >= self.num_labels - SUMMED_EACH_TIME:
            self._sum_up()
        return self

    def _sum_up(self) -> None:
        self.sum = self._rates(self.gap, self.last, self.seen).sum()
        self.summed_at = int(self.clock)

    def _rates(self, gap: Tensor, last: Tensor, seen: Tensor) -> Float64[Tensor, ...]:
        """1/B; one that stays away is taken to come now if that makes it rarer, one that never came
        to be the next to come.
        """
        waited = (self.clock.to(gap.device) - last).double()
        gap = torch.maximum(gap, torch.lerp(gap, waited, self.rate))
        return 1 / torch.where(seen > 0, gap, waited + self.num_labels)

    def log_prior(self, ids: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """log π of any labels."""
        check_ids("ids", ids, self.num_labels)
        at = ids.long().to(self.gap.device)
        rates = self._rates(self.gap[at], self.last[at], self.seen[at])
        return (rates / self.sum).log().to(ids.device)

    def log_frequency(self, ids: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """log π of any labels: a stream is not smoothed."""
        return self.log_prior(ids)

    @property
    def prior(self) -> Float64[Tensor, " L"]:
        """`[L]` the estimate of now, normalised."""
        rates = self._rates(self.gap, self.last, self.seen)
        return rates / rates.sum()

    @property
    def counts(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """`[L]` π times the number of examples that passed by."""
        return self.prior * self.total

    @property
    def total(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of examples that passed by, at least 1."""
        return max(1.0, float(self.clock))

    @property
    def rarest(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The smallest prior."""
        return float(self.prior.min())

    @property
    def never_seen(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """0: any label may be the next to come."""
        return 0

    @property
    def num_labels(self) -> int:
        """L."""
        return len(self.gap)

    def fixed(self) -> Labels:
        """Labels with the frequencies of now, which stay."""
        return Labels(self.counts)

    def grow(self, counts: Any) -> StreamingLabels:
        """New labels behind the old ones, as if this many examples of them had just passed by,
        usually none.

        >>> StreamingLabels.starting_from(Labels.from_counts([2, 2])).grow([1]).prior
        tensor([0.4000, 0.4000, 0.2000], dtype=torch.float64)
        """
        more = as_counts(counts).tolist()
        added = StreamingLabels.starting_from(Labels.from_counts([*more, max(1.0, self.total)]))
        grown = StreamingLabels(self.num_labels + len(added.gap) - 1, self.rate)
        parts = {
            name: torch.cat([getattr(self, name), getattr(added, name)[:-1].to(self.gap.device)])
            for name in _STATE[:3]
        }
        # Examples of new labels came in between, so the gaps of old ones are longer.
        parts["gap"][: self.num_labels] *= 1 + sum(more) / max(1.0, self.total)
        parts["last"] = torch.where(parts["last"] > self.clock, self.clock, parts["last"])
        grown._set(**parts, clock=self.clock.clone())
        return grown

    def to(self, device: torch.device | str) -> StreamingLabels:
        """A copy on another device, which from then on is updated apart from this one."""
        moved = StreamingLabels(self.num_labels, self.rate)
        state = self.state_dict()
        moved._set(**{name: tensor.to(device, copy=True) for name, tensor in state.items()})
        return moved

    def state_dict(self) -> dict[str, Tensor]:
        """All that was learnt: tensors, for a checkpoint."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on where `state_dict` was taken."""
        for name in _STATE:
            own = getattr(self, name)
            loaded = state.get(name)
            if loaded is None or loaded.shape != own.shape:
                shape = None if loaded is None else list(loaded.shape)
                raise HeadtailError(
                    f"`state` has a `{name}` of shape {shape}, but {list(own.shape)} is needed."
                )
            own.copy_(loaded)
        self._sum_up()

    def _set(self, **tensors: Tensor) -> None:
        for name, tensor in tensors.items():
            setattr(self, name, tensor)
        self._sum_up()

    def __repr__(self) -> str:
        return (
            f"StreamingLabels(num_labels={self.num_labels}, rate={self.rate:g}, "
            f"examples={int(self.clock):,})"
        )
