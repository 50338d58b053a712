"""Two draws instead of one: a block of labels by its summary, then a label by its own score."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int
from torch import Tensor

from headtail.core.draw import Draw
from headtail.core.labels import Labels
from headtail.core.margins import Separable
from headtail.errors import check_count
from headtail.kernels.dispatch import block_kernel
from headtail.samplers.model.by_score import added_up
from headtail.samplers.model.clusters import NUMBERS_AT_ONCE
from headtail.samplers.model.summary import Summarised, TableSummary
from headtail.samplers.sampler import Step
from headtail.samplers.scorer import Scorer

UNIFORM_SHARE = 0.01
"""Share of uniform draws: every label can be drawn, and no weight exceeds 100 times a uniform
sampler's.
"""


class Blocks(Summarised):
    r"""Labels in about √L blocks: $q_{y} = P(B_y)\, r(y \mid B_y)$, both from a summary of the
    table, in O(√L) per example.

    The summary (labels in fewer dimensions, laid out in blocks) is refreshed after 32 steps (√L /
    4, if that is more), then after twice as many, and in the long run every `refresh` steps. In
    between the table moves on, and q does not: it is that of the summary, so what is drawn and what
    is claimed agree exactly, however far the table has moved. Only the noise grows. A refresh costs
    O(L·(d + √L)), which is O(√L) per step in the long run, over the L / 64 steps it is used for. In
    `eval()` mode nothing is refreshed.

    `share` neighbours of a batch get one draw, from the mean of their q: the rows of their
    negatives are read and updated once. A draw visits `visits` blocks and distributes its m slots
    over them, so slots are independent only if `visits` ≥ m.

    Args:
        labels: the label distribution, or just the number of labels.
        num_negatives: m.
        share: how many neighbours share a draw; 1 if each example has its own.
        visits: blocks that a draw visits; m / 16, and at least 4, by default (`Block`: m / 11, and
            at least 6).
        summary: dimensions, number of blocks and steps between summaries.
        margin: ρ of the softmax that the draws are for; None for ρ = 1.
    """

    least_visits = 4
    slots_per_visit = 16
    """A block is visited for at least so many negatives: scoring its labels costs far more than
    drawing from them.
    """

    def __init__(
        self,
        labels: Labels | int,
        num_negatives: int,
        *,
        share: int,
        visits: int | None,
        summary: TableSummary,
        margin: Separable | None = None,
    ) -> None:
        super().__init__(labels, summary, margin)
        self.num_negatives = check_count("num_negatives", num_negatives)
        self.share = check_count("share", share)
        self._options: dict[str, Any] = {"share": share, "visits": visits, "summary": summary}
        if visits is None:
            visits = max(self.least_visits, num_negatives // self.slots_per_visit)
        self.visits = min(check_count("visits", visits), num_negatives)

    @abstractmethod
    def block_probabilities(
        self, x: Float[Tensor, "p k"], temperature: float | Tensor
    ) -> Float[Tensor, "p K"]:
        """`[p, K]` the probability of each block, 0 if it is empty; x is already divided by the
        temperature.
        """

    def label_probabilities(
        self, products: Float[Tensor, "*v S"], offset: Float[Tensor, "*#v S"]
    ) -> Float[Tensor, "*v S"]:
        """The probability of each label inside its block, by its logit.

        ⟨x, w⟩ and the offset, which is bias and margin, are already divided by the temperature.

        Places without a label have the least number of the dtype as offset, and the result there
        must be 0. May work in place.
        """
        return products.add_(offset).softmax(-1)

    def pick(self, step: Step) -> Draw:
        """Visit blocks by their probability, then draw labels inside by theirs."""
        model = step.scorer
        label = step.pairs.label
        self._refresh_if_due(model)
        x, chance = self._examples(model)
        of_group = self._mix(chance)
        groups = len(chance)
        visits = self.visits
        slots = -(-self.num_negatives // visits)  # per visit, rounded up
        options = {"dtype": torch.float64, "device": x.device, "generator": step.generator}
        points = torch.rand(groups, visits, **options)
        block = _invert(added_up(of_group), points, self._last_block())
        inside = self.inside_of(x, chance, block, model.temperature)
        points = torch.rand(groups, visits, slots, **options)
        at = _invert(added_up(inside), points, (self.size[block] - 1)[..., None])
        log_q = of_group.gather(1, block)[..., None].log() + inside.gather(2, at).log()
        ids = self.order[self.start[block][..., None] + at]
        # Slot j belongs to visit j modulo `visits`, so that each visit gets its share of any m.
        ids, log_q = (
            t.transpose(1, 2).reshape(groups, visits * slots)[:, : self.num_negatives]
            for t in (ids, log_q)
        )
        log_q_target = None
        if step.needs_target_q:
            log_q_target = self._log_q_target(x, chance, label, model.temperature)
        ids, log_q = (self._of_each(t, len(label)) for t in (ids, log_q))
        return Draw(ids, log_q, log_q_target, float(self.num_negatives))

    def log_q_given(self, step: Step, ids: Int[Tensor, "*p n"]) -> Float64[Tensor, "p n"]:
        """log q of any labels for each example of a batch, in O(L)."""
        return self._of_ids(self._q(step.scorer), step, ids).log()

    def variance_given(self, step: Step, term: Float64[Tensor, "p L"]) -> Float64[Tensor, " p"]:
        """Slots of one visit share its block: Σ over visits of n²·V[E(t | B)] + n·E[V(t | B)], with
        n slots each.
        """
        q = self._of_each(self._q(step.scorer), len(step.pairs.label))
        seen = torch.where(q > 0, term, 0.0)
        block = self._block_of(self.place).expand_as(q)
        mass, sums = (
            q.new_zeros(len(q), self.blocks).scatter_add_(1, block, t) for t in (q, q * seen)
        )
        mean = torch.where(mass > 0, sums / mass, 0.0)
        within = (q * (seen - mean.gather(1, block)) ** 2).sum(1)
        between = (mass * (mean - sums.sum(1, keepdim=True)) ** 2).sum(1)
        m = self.num_negatives
        slots = [len(range(visit, m, self.visits)) for visit in range(self.visits)]
        return float(sum(n**2 for n in slots)) * between + float(m) * within

    def expected_m(self, batch_size: int | None = None) -> float:
        """m, whatever the batch."""
        return float(self.num_negatives)

    def independent(self, batch_size: int | None = None) -> bool:
        """If each slot has its own visit."""
        return self.visits == self.num_negatives

    def extra_repr(self) -> str:
        """Size and options."""
        margin = "" if self.margin is None else f", margin={type(self.margin).__name__}"
        sizes = f"num_labels={self.num_labels}, num_negatives={self.num_negatives}"
        return f"{sizes}, share={self.share}, visits={self.visits}{margin}"

    def for_labels(self, labels: Labels) -> Blocks:
        """The same over the grown label set; its first step takes a new summary."""
        options = dict(self._options)
        if self.margin is not None:
            options["margin"] = self.margin.for_labels(labels)
        return type(self)(labels, self.num_negatives, **options)

    def _examples(self, model: Scorer) -> tuple[Float[Tensor, "G g k"], Float[Tensor, "G g K"]]:
        """Projected hidden states in groups, and the probability of each block for each.

        Both are 0 where a group has fewer examples, and for hidden states that are not finite: such
        an example has no part in the draw of its neighbours.
        """
        x = self._project(model)
        chance = self.block_probabilities(x, model.temperature)
        counts = chance.sum(1, keepdim=True) > 0  # the sum is 1, or NaN
        groups = -(-len(x) // self.share)
        missing = groups * self.share - len(x)
        x, chance = (F.pad(torch.where(counts, t, 0.0), (0, 0, 0, missing)) for t in (x, chance))
        shape = groups, self.share
        return x.view(*shape, x.shape[1]), chance.view(*shape, chance.shape[1])

    def _mix(self, chance: Float[Tensor, "G g K"]) -> Float64[Tensor, "G K"]:
        """The probability of each block for a group: the mean of its examples, and a share by size.

        By size alone if no example of the group counts.
        """
        of_group = chance.sum(1).double()
        total = of_group.sum(1, keepdim=True)
        by_size = self.size.double() / self.num_labels
        of_group = torch.where(total > 0, of_group / total, by_size)
        return (1 - UNIFORM_SHARE) * of_group + UNIFORM_SHARE * self.size.double() / self.num_labels

    def inside_of(
        self,
        x: Float[Tensor, "G g k"],
        chance: Float[Tensor, "G g K"],
        block: Int[Tensor, "G T"],
        temperature: float | Tensor,
    ) -> Float64[Tensor, "G T S"]:
        """r(y | B) of a group: the mean over its examples of P(B)·r(y | B), and the uniform share,
        normalised.
        """
        place = torch.arange(self.capacity, device=x.device)
        held = place < self.size[block][..., None]
        at = (self.start[block][..., None] + place).clamp_(max=self.num_labels - 1)
        products = self.products(x, block, at)
        offset = self.offset.to(x.dtype)[at] / temperature
        offset = torch.where(held, offset, torch.finfo(x.dtype).min)
        mass = self.label_probabilities(products, offset[:, :, None])
        weight = chance.gather(2, block[:, None].expand(-1, chance.shape[1], -1))
        # The sum is the number of examples that count; if there are none, only the uniform share is
        # left.
        weight = weight / chance.sum((1, 2), keepdim=True).clamp(min=0.5)
        inside = (weight.transpose(1, 2)[:, :, None] @ mass).squeeze(2).double()
        inside = (1 - UNIFORM_SHARE) * inside + UNIFORM_SHARE / self.num_labels
        inside = torch.where(held, inside, 0.0)
        return inside / inside.sum(2, keepdim=True)

    def products(
        self, x: Float[Tensor, "G g k"], block: Int[Tensor, "G T"], at: Int[Tensor, "G T S"]
    ) -> Float[Tensor, "G T g S"]:
        """⟨x, w⟩ of a group's examples and the labels of its blocks.

        Rows that are neighbours in memory are not copied where that can be avoided.
        """
        if x.device.type == "cpu":
            return self.by_block(x, block)
        products = block_kernel(x, self.rows)
        if products is None:
            return self.at_once(x, at)
        return products(x, self.rows, self.start[block], self.size[block], self.capacity)

    def at_once(
        self, x: Float[Tensor, "G g k"], at: Int[Tensor, "G T S"]
    ) -> Float[Tensor, "G T g S"]:
        """The same, with a copy of the rows."""
        return x[:, None] @ self.rows.to(x.dtype)[at].transpose(2, 3)

    def by_block(
        self, x: Float[Tensor, "G g k"], block: Int[Tensor, "G T"]
    ) -> Float[Tensor, "G T g S"]:
        """The same, each block once for all its visitors together, and 0 after the last label of a
        block.
        """
        groups, visits = block.shape
        share = x.shape[1]
        ordered, visit = block.reshape(-1).sort()
        visited, visitors = ordered.unique_consecutive(return_counts=True)
        products = x.new_zeros(len(visit) * share, self.capacity)
        rows = self.rows.to(x.dtype)
        lengths = (share * visitors).tolist()
        parts = zip(
            x[visit // visits].flatten(0, 1).split(lengths),
            products.split(lengths),
            self.start[visited].tolist(),
            self.size[visited].tolist(),
            strict=True,
        )
        for hidden, out, start, size in parts:
            torch.mm(hidden, rows[start : start + size].T, out=out[:, :size])
        back = torch.empty_like(visit).scatter_(0, visit, torch.arange(len(visit)))
        products = products.view(len(visit), share, self.capacity)[back]
        return products.view(groups, visits, share, self.capacity)

    def _log_q_target(
        self, x: Tensor, chance: Tensor, label: Tensor, temperature: float | Tensor
    ) -> Float64[Tensor, " p"]:
        """log q of each positive: each group visits the blocks of its own positives."""
        missing = chance.shape[0] * chance.shape[1] - len(label)
        place = self.place[F.pad(label, (0, missing)).view(chance.shape[:2])]
        block = self._block_of(place)
        inside = self.inside_of(x, chance, block, temperature)
        inside = inside.gather(2, (place - self.start[block])[..., None]).squeeze(2)
        log_q = self._mix(chance).gather(1, block).log() + inside.log()
        return log_q.reshape(-1)[: len(label)]

    def _q(self, model: Scorer) -> Float64[Tensor, "G L"]:
        """`[G, L]` q of every label for each group, some blocks at a time."""
        if not self.has_summary:
            self.take_summary(model)
        x, chance = self._examples(model)
        of_group = self._mix(chance)
        every = torch.arange(self.blocks, device=x.device)
        q = []
        for block in every.split(max(1, NUMBERS_AT_ONCE // (self.capacity * x[0].numel()))):
            inside = self.inside_of(x, chance, block.expand(len(x), -1), model.temperature)
            q.append(of_group[:, block, None] * inside)
        block = self._block_of(self.place)
        at = block * self.capacity + self.place - self.start[block]
        return torch.cat(q, 1).flatten(1)[:, at]


def _invert(
    cumulative: Float64[Tensor, "*v n"], points: Float64[Tensor, "*v t"], last: Tensor
) -> Int[Tensor, "*v t"]:
    """Which interval each point of [0, 1) falls into; where rounding carries it past the end, the
    last.
    """
    at = torch.searchsorted(cumulative, points * cumulative[..., -1:], right=True)
    return torch.minimum(at, last)
