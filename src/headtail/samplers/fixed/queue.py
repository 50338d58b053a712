"""Labels of past batches as negatives."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from headtail.core.draw import Draw
from headtail.core.labels import Labels, check_labels
from headtail.errors import HeadtailError, Setting, check_count
from headtail.samplers.fixed.within_batch import require_seen
from headtail.samplers.interfaces import FixedSampler, iid_variance
from headtail.samplers.sampler import Claims, Step


@final
class Queue(FixedSampler):
    r"""The last labels seen, from batches before this one: $q = \pi$, with more negatives than a
    small batch holds.

    Leans as within-batch does. The example's own slot is never in the past, so $m$ is simply the
    number of labels taken. At the first batch the queue is empty: there are no negatives, and the
    softmax loss is exactly 0. In `eval()` mode batches are not remembered.

    The queue's content is part of `state_dict`, so a resumed run goes on with the same negatives.

    Args:
        labels: q is their unsmoothed frequency.
        capacity: how many past labels are remembered.
        num_negatives: n, to take a random n of them; None takes them all.

    >>> queue = Queue(Labels.from_counts([5, 3, 2]), capacity=3)
    >>> queue.draw(torch.tensor([0, 1])).m
    0.0
    >>> queue.draw(torch.tensor([2, 2])).ids
    tensor([0, 1])
    """

    past: Tensor

    def __init__(self, labels: Labels, capacity: int, num_negatives: int | None = None) -> None:
        super().__init__()
        check_labels(labels)
        self.labels = labels
        self.num_labels = labels.num_labels
        self.capacity = check_count("capacity", capacity)
        self.num_negatives = (
            None if num_negatives is None else check_count("num_negatives", num_negatives)
        )
        if num_negatives is not None and num_negatives > capacity:
            raise HeadtailError(
                Setting("num_negatives"),
                f" is {num_negatives}, but the queue holds only {capacity}. Raise ",
                Setting("capacity"),
                ".",
            )
        self.register_buffer("past", torch.zeros(capacity, dtype=torch.int64))
        self._filled = 0
        # With the targets, from the first draw on: a CUDA graph sees it change.
        self._next = torch.zeros((), dtype=torch.int64, device="cpu")

    def pick(self, step: Step) -> Draw:
        """Take from the past."""
        device = step.pairs.label.device
        taken = self._taken()
        slots = torch.arange(taken, device=device)
        if taken < self._filled:
            slots = torch.randperm(self._filled, device=device, generator=step.generator)[:taken]
        self._move(device)
        return self.describe(self.past[slots], step.pairs.label, float(taken))

    def remember(self, step: Step) -> None:
        """Put this batch into the queue; in evaluation nothing is put there."""
        if self.training:
            pairs = step.pairs
            self._append(pairs.label if pairs.all_count else pairs.label[~pairs.ignored])

    @property
    def settled(self) -> bool:
        """Once the queue is full: as many labels are then taken in every step."""
        return self._filled == self.capacity

    def settle(self) -> None:
        """Treat the queue as full."""
        self._filled = self.capacity

    def m_given(self, step: Step) -> float:
        """The number taken from what is in the queue now."""
        return self.expected_m() if step.long_run else float(self._taken())

    def log_q(self, ids: Int[Tensor, ...], batch_size: int | None = None) -> Float64[Tensor, ...]:
        """log of the unsmoothed training frequency."""
        return self.labels.log_frequency(ids)

    def expected_m(self, batch_size: int | None = None) -> float:
        """The number taken once the queue is full."""
        return float(self.capacity if self.num_negatives is None else self.num_negatives)

    def variance_of_sum(
        self, term: Float64[Tensor, " L"], label: int, batch_size: int | None = None
    ) -> float | None:
        """m·V_π[t]: within one draw, the remembered labels are independent."""
        q = self.log_q(torch.arange(self.num_labels, device=term.device)).exp()
        return self.expected_m(batch_size) * iid_variance(q, term)[1]

    def extra_repr(self) -> str:
        """Size and number taken."""
        return (
            f"num_labels={self.num_labels}, capacity={self.capacity}, "
            f"num_negatives={self.num_negatives or 'all'}"
        )

    @property
    def claims(self) -> Claims:
        """One draw for the whole batch, without labels that have no example."""
        return Claims(may_miss=self.labels.never_seen > 0, memory=self.capacity, source="past")

    def for_labels(self, labels: Labels) -> Queue:
        """The same queue, content included, with the grown label set's frequencies."""
        grown = Queue(labels, self.capacity, self.num_negatives)
        grown.load_state_dict(self.state_dict())
        return grown

    def refresh(self, target: Int[Tensor, " n"]) -> None:
        """Replace the whole content by these labels."""
        self._filled = 0
        self._next.zero_()
        self._append(target)

    def get_extra_state(self) -> Tensor:
        """Fill level and write position."""
        return torch.tensor([self._filled, int(self._next)])

    def set_extra_state(self, state: Tensor) -> None:
        """Restore fill level and write position."""
        filled, place = (int(v) for v in state) if state.shape == (2,) else (-1, -1)
        if not (0 <= filled <= self.capacity and 0 <= place < self.capacity):
            raise HeadtailError(
                f"This is not the state of a queue of {self.capacity:,} labels. Load that of an "
                "equal queue."
            )
        self._filled = filled
        self._next.fill_(place)

    def _taken(self) -> int:
        return self._filled if self.num_negatives is None else min(self.num_negatives, self._filled)

    def _move(self, device: torch.device) -> None:
        if device == self.past.device == self._next.device:
            return
        with torch.inference_mode(False):  # or training could not write there later
            self.past = self.past.to(device)
            self._next = self._next.to(device)

    def _append(self, batch: Tensor) -> None:
        require_seen(batch, self.log_q(batch), "Queue")
        batch = batch[-self.capacity :].to(self.past.device)
        self._move(batch.device)
        slots = (torch.arange(len(batch), device=batch.device) + self._next) % self.capacity
        # In place: memory that is freed may be overwritten while another stream still reads it.
        self.past.index_copy_(0, slots, batch)
        self._next.add_(len(batch)).remainder_(self.capacity)
        self._filled = min(self._filled + len(batch), self.capacity)
