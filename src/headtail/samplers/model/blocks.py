"""Two levels instead of one: a block of labels by what is known of it, then a label by its own
score.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int
from torch import Tensor

from headtail.core.draw import Draw
from headtail.core.labels import Labels, number_of
from headtail.core.margins import Separable, check_margin
from headtail.errors import HeadtailError, check_count
from headtail.kernels.dispatch import block_kernel
from headtail.samplers.model.by_score import added_up
from headtail.samplers.model.clusters import AT_A_TIME, lay_out, projection
from headtail.samplers.model.schedule import Scheduled, in_the_long_run
from headtail.samplers.sampler import Step
from headtail.samplers.scorer import Scorer, finite_rows

UNIFORM = 0.01
"""Share of uniform draws: every label can be drawn, and no weight exceeds 100 times a uniform
sampler's.
"""
NEVER = -1e4
"""log ρ of a label without a margin, but a number still."""
KMEANS_STEPS = 3
"""Of each summary: the one before is a good start."""


class Blocks(Scheduled):
    r"""Labels in about √L blocks: $q_{y} = P(B_y)\, r(y \mid B_y)$, both read off a summary of the
    table, in O(√L) an example.

    The summary (labels in fewer dimensions, laid out in blocks) is taken anew after 32 steps (√L /
    4, if that is more), then after twice as many, and at last every `refresh` steps. In between the
    table moves on, and q does not: it is that of the summary, so what is drawn and what is claimed
    agree exactly, whatever the table has become. Only the noise grows. A refresh costs O(L·(d +
    √L)), which is O(√L) a step in the long run, over the L / 64 steps it serves. In `eval()` mode
    nothing is taken anew.

    `share` neighbours of a batch get one draw, of the mean of their q: their negatives' rows are
    read and updated once. A draw looks into `visits` blocks and deals its m slots out to them, so
    slots are independent only if `visits` ≥ m.

    Args:
        labels: the label distribution, or just the number of labels.
        num_negatives: m.
        share: how many neighbours share a draw; 1 for each example its own.
        visits: blocks that a draw looks into; m / 16, and at least 4, by default (`Block`: m / 11,
            and at least 6).
        dim: k, dimensions to which hidden states and labels are projected.
        blocks: how many clusters of labels; √L by default (`Block`: twice as many).
        refresh: steps between summaries in the long run; L / 64, and at least 100, by default.
        margin: ρ of the softmax that the draws are meant for, by which labels weigh more or less;
            None for ρ = 1.
    """

    finer = 1
    least = 4
    slots = 16
    """How many times √L blocks there are; visits, at least, and negatives for which a visit is
    worth it: looking costs far more than drawing.
    """
    order: Tensor
    place: Tensor
    start: Tensor
    size: Tensor
    rows: Tensor
    offset: Tensor

    def __init__(
        self,
        labels: Labels | int,
        num_negatives: int,
        *,
        share: int,
        visits: int | None,
        dim: int,
        blocks: int | None = None,
        refresh: int | None = None,
        margin: Separable | None = None,
    ) -> None:
        super().__init__()
        self.num_labels = number_of(labels)
        if margin is not None:
            check_margin(margin, self.num_labels, Separable)
        self.margin = margin
        self.num_negatives = check_count("num_negatives", num_negatives)
        self.share = check_count("share", share)
        self.dim = check_count("dim", dim)
        visited = (
            max(self.least, num_negatives // self.slots)
            if visits is None
            else check_count("visits", visits)
        )
        self.visits = min(visited, num_negatives)
        default = min(self.finer * (math.isqrt(self.num_labels - 1) + 1), self.num_labels)
        self.clusters = (
            default if blocks is None else min(check_count("blocks", blocks), self.num_labels)
        )
        self.every = (
            in_the_long_run(self.num_labels) if refresh is None else check_count("refresh", refresh)
        )
        self.most = math.ceil(self.num_labels / self.clusters)
        self.blocks = self.clusters + math.ceil(self.num_labels / self.most)
        self._given = {
            "share": share,
            "visits": visits,
            "dim": dim,
            "blocks": blocks,
            "refresh": refresh,
        }
        self._given |= {} if margin is None else {"margin": margin}
        self._left = torch.empty(0, dim)
        every = torch.arange(self.num_labels)
        self.register_buffer("order", every)
        self.register_buffer("place", every.clone())
        self.register_buffer("start", torch.zeros(self.blocks, dtype=torch.int64))
        self.register_buffer("size", torch.zeros(self.blocks, dtype=torch.int64))
        self.register_buffer("rows", torch.zeros(self.num_labels, dim))
        self.register_buffer("offset", torch.zeros(self.num_labels))

    @abstractmethod
    def summarise(
        self, block: Int[Tensor, " L"], x: Float[Tensor, "p k"], temperature: float | Tensor
    ) -> None:
        """Take note of each block, from `rows` and `offset`; `block` tells that of each row, x are
        examples.
        """

    @abstractmethod
    def blocks_of(
        self, x: Float[Tensor, "p k"], temperature: float | Tensor
    ) -> Float[Tensor, "p K"]:
        """`[p, K]` the probability of each block, 0 if it is empty; x comes divided by the
        temperature.
        """

    @abstractmethod
    def labels_of(
        self, products: Float[Tensor, "*v S"], offset: Float[Tensor, "*v S"]
    ) -> Float[Tensor, "*v S"]:
        """The probability of each label inside its block, from ⟨x, w⟩ and bias, both over the
        temperature.

        Where there is no label, the offset is the least number there is, and what comes back must
        be 0. May work in place.
        """

    def pick(self, step: Step) -> Draw:
        """Visit blocks by their mass, then take labels inside by theirs."""
        model = step.scorer
        self._keep_up(model)
        x, chance = self._examples(model)
        of_group = self._mix(chance)
        groups = len(chance)
        visits = self.visits
        each = -(-self.num_negatives // self.visits)
        options = {"dtype": torch.float64, "device": x.device, "generator": step.generator}
        block = _invert(
            added_up(of_group), torch.rand(groups, visits, **options), self._last_block()
        )
        inside = self.inside_of(x, chance, block, model.temperature)
        at = _invert(
            added_up(inside),
            torch.rand(groups, visits, each, **options),
            (self.size[block] - 1)[..., None],
        )
        log_q = of_group.gather(1, block)[..., None].log() + inside.gather(2, at).log()
        ids = self.order[self.start[block][..., None] + at]
        # Slot j belongs to visit j modulo `visits`, so that each visit gets its share of any m.
        ids, log_q = (
            t.transpose(1, 2).reshape(groups, visits * each)[:, : self.num_negatives]
            for t in (ids, log_q)
        )
        label = step.pairs.label
        log_q_target = (
            self._log_q_target(x, chance, label, model.temperature) if step.tell_target else None
        )
        return Draw(
            self._of_each(ids, len(label)),
            self._of_each(log_q, len(label)),
            log_q_target,
            float(self.num_negatives),
        )

    def log_q_given(self, step: Step, ids: Int[Tensor, "*p n"]) -> Float64[Tensor, "p n"]:
        """log q of any labels for each example of a batch, in O(L)."""
        q = self._of_each(self._q(step.scorer), len(step.pairs.label))
        return (q.gather(1, ids) if ids.dim() == 2 else q[:, ids.reshape(-1)]).log()

    def variance_given(self, step: Step, term: Float64[Tensor, "p L"]) -> Float64[Tensor, " p"]:
        """Slots of one visit share its block: Σ over visits of n²·V[E(t | B)] + n·E[V(t | B)], n
        slots each.
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
        slots = torch.tensor(
            [len(range(t, self.num_negatives, self.visits)) for t in range(self.visits)]
        )
        return float((slots**2).sum()) * between + float(slots.sum()) * within

    def expected_m(self, batch_size: int | None = None) -> float:
        """m, whatever the batch."""
        return float(self.num_negatives)

    def independent(self, batch_size: int | None = None) -> bool:
        """If each slot has a visit of its own."""
        return self.visits == self.num_negatives

    def extra_repr(self) -> str:
        """Size and options."""
        margin = "" if self.margin is None else f", margin={type(self.margin).__name__}"
        sizes = f"num_labels={self.num_labels}, num_negatives={self.num_negatives}"
        return f"{sizes}, share={self.share}, visits={self.visits}{margin}"

    def for_labels(self, labels: Labels) -> Blocks:
        """The same over the grown label set; its first step takes a new summary."""
        given: dict[str, Any] = dict(self._given)
        if self.margin is not None:
            given["margin"] = self.margin.for_labels(labels)
        return type(self)(labels, self.num_negatives, **given)

    def get_extra_state(self) -> Tensor:
        """Steps taken, the next refresh, and the projection."""
        numbers = torch.tensor([self._taken, self._due, len(self._left)], dtype=torch.float64)
        return torch.cat([numbers, self._left.reshape(-1).double().cpu()])

    def set_extra_state(self, state: Tensor) -> None:
        """Restore them."""
        self._taken, self._due, d = (int(v) for v in state[:3])
        if len(state) - 3 != d * self.dim:
            raise HeadtailError(
                f"This is the state of a sampler with another `dim` than {self.dim}. Make both "
                "with the same."
            )
        if d:  # without a projection the next draw takes one
            self.note("_left", state[3:].reshape(d, self.dim).float().to(self._left.device))

    @torch.no_grad()
    def take_summary(self, model: Scorer) -> None:
        """Project the table, lay it out in blocks, and take note of each."""
        self.set_next_look()
        model = model.finite()
        weight = (
            F.normalize(model.weight.float(), dim=-1)
            if model.score == "cosine"
            else model.weight.float()
        )
        self.note("_left", projection(_hidden(model).float(), weight, self.dim))
        parts = weight.split(max(1, AT_A_TIME // weight.shape[1]))
        rows = torch.cat([finite_rows(part.float() @ self._left) for part in parts])
        # Along the last order, neighbours in score are neighbours in place: evenly spaced labels
        # are spread well.
        spread = (
            torch.arange(self.clusters, device=rows.device)
            * (self.num_labels - 1)
            // max(1, self.clusters - 1)
        )
        spread = self.order.to(rows.device)[spread]
        layout = lay_out(rows, rows[spread], KMEANS_STEPS, self.most, self.blocks)
        every = torch.arange(self.num_labels, device=rows.device)
        place = torch.empty_like(layout.order).scatter_(0, layout.order, every)
        bias = torch.zeros(self.num_labels, device=rows.device)
        if model.bias is not None:
            bias = model.bias.detach().reshape(-1).float().nan_to_num(0.0, 0.0, NEVER)
        if self.margin is not None:  # logits are divided by the temperature, margins are not
            bias = (
                bias
                + (self.margin.log_negative(every).clamp(min=NEVER) * model.temperature).float()
            )
        noted = {
            **layout._asdict(),
            "place": place,
            "rows": rows.index_select(0, layout.order),
            "offset": bias[layout.order],
        }
        for name, value in noted.items():
            self.note(name, value)
        self.summarise(self._block_of(every), self._project(model), model.temperature)

    def _keep_up(self, model: Scorer) -> None:
        """Take a summary where there is none, and in training where the present one has served its
        time.
        """
        if self.due:
            with self.telling():
                self.take_summary(model)
        self.passed()

    def _examples(self, model: Scorer) -> tuple[Float[Tensor, "G g k"], Float[Tensor, "G g K"]]:
        """Projected hidden states in groups, and the probability of each block for each.

        Both are 0 where a group has fewer examples, or one whose hidden state is not finite: it has
        no part in the draw of its neighbours.
        """
        x = self._project(model)
        chance = self.blocks_of(x, model.temperature)
        counts = chance.sum(1, keepdim=True) > 0  # 1, or not a number
        x = torch.where(counts, x, 0.0)
        chance = torch.where(counts, chance, 0.0)
        lacking = -len(x) % self.share
        x, chance = (F.pad(t, (0, 0, 0, lacking)) for t in (x, chance))
        groups = len(x) // self.share
        return x.view(groups, self.share, x.shape[1]), chance.view(
            groups, self.share, chance.shape[1]
        )

    def _project(self, model: Scorer) -> Float[Tensor, "p k"]:
        hidden = _hidden(model)
        if hidden.shape[-1] != len(self._left):
            raise HeadtailError(
                f"`{type(self).__name__}` has taken note of a table with rows of size "
                f"{len(self._left)}, but hidden states have "
                f"size {hidden.shape[-1]}. Make a new sampler for another model."
            )
        self.bring("_left", hidden.device)
        return hidden @ self._left.to(hidden.dtype) / model.temperature

    def _mix(self, chance: Float[Tensor, "G g K"]) -> Float64[Tensor, "G K"]:
        """The probability of each block for a group: the mean of its examples, and a share by size.

        By size alone where no example of the group counts.
        """
        of_group = chance.sum(1).double()
        total = of_group.sum(1, keepdim=True)
        by_size = self.size.double() / self.num_labels
        of_group = torch.where(total > 0, of_group / total, by_size)
        return (1 - UNIFORM) * of_group + UNIFORM * self.size.double() / self.num_labels

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
        place = torch.arange(self.most, device=x.device)
        held = place < self.size[block][..., None]
        at = (self.start[block][..., None] + place).clamp_(max=self.num_labels - 1)
        products = self.products(x, block, at)
        offset = torch.where(
            held, self.offset.to(x.dtype)[at] / temperature, torch.finfo(x.dtype).min
        )
        mass = self.labels_of(products, offset[:, :, None])
        weight = chance.gather(2, block[:, None].expand(-1, chance.shape[1], -1))
        # The sum is the number of examples that count; with none, only the uniform share is left.
        weight = weight / chance.sum((1, 2), keepdim=True).clamp(min=0.5)
        inside = (weight.transpose(1, 2)[:, :, None] @ mass).squeeze(2).double()
        inside = torch.where(held, (1 - UNIFORM) * inside + UNIFORM / self.num_labels, 0.0)
        return inside / inside.sum(2, keepdim=True)

    def products(
        self, x: Float[Tensor, "G g k"], block: Int[Tensor, "G T"], at: Int[Tensor, "G T S"]
    ) -> Float[Tensor, "G T g S"]:
        """⟨x, w⟩ of a group's examples and the labels of its blocks, without copying rows that lie
        side by side.
        """
        if x.device.type == "cpu":
            return self.by_block(x, block)
        products = block_kernel(x, self.rows)
        if products is None:
            return self.at_once(x, at)
        return products(x, self.rows, self.start[block], self.size[block], self.most)

    def at_once(
        self, x: Float[Tensor, "G g k"], at: Int[Tensor, "G T S"]
    ) -> Float[Tensor, "G T g S"]:
        """The same of rows that are copied."""
        return x[:, None] @ self.rows.to(x.dtype)[at].transpose(2, 3)

    def by_block(
        self, x: Float[Tensor, "G g k"], block: Int[Tensor, "G T"]
    ) -> Float[Tensor, "G T g S"]:
        """The same, block by block for all its visitors together, and 0 behind the last label of a
        block.
        """
        groups, visits = block.shape
        share = x.shape[1]
        ordered, visit = block.reshape(-1).sort()
        which, number = ordered.unique_consecutive(return_counts=True)
        found = x.new_zeros(len(visit) * share, self.most)
        rows = self.rows.to(x.dtype)
        by_visitors = (share * number).tolist()
        parts = zip(
            x[visit // visits].flatten(0, 1).split(by_visitors),
            found.split(by_visitors),
            strict=True,
        )
        places = zip(self.start[which].tolist(), self.size[which].tolist(), strict=True)
        for (some, into), (start, size) in zip(parts, places, strict=True):
            torch.mm(some, rows[start : start + size].T, out=into[:, :size])
        back = torch.empty_like(visit).scatter_(0, visit, torch.arange(len(visit)))
        return found.view(len(visit), share, self.most)[back].view(groups, visits, share, self.most)

    def _log_q_target(
        self, x: Tensor, chance: Tensor, label: Tensor, temperature: float | Tensor
    ) -> Float64[Tensor, " p"]:
        """log q of each positive: each group looks into the blocks of its own."""
        number = len(label)
        lacking = chance.shape[0] * chance.shape[1] - len(label)
        place = self.place[F.pad(label, (0, lacking)).view(chance.shape[:2])]
        block = self._block_of(place)
        inside = (
            self.inside_of(x, chance, block, temperature)
            .gather(2, (place - self.start[block])[..., None])
            .squeeze(2)
        )
        return (self._mix(chance).gather(1, block).log() + inside.log()).reshape(-1)[:number]

    def _q(self, model: Scorer) -> Float64[Tensor, "G L"]:
        """`[G, L]` q of every label for each group, some blocks at a time."""
        if self._due == 0:
            self.take_summary(model)
        x, chance = self._examples(model)
        of_group = self._mix(chance)
        found = []
        for block in torch.arange(self.blocks, device=x.device).split(
            max(1, AT_A_TIME // (self.most * x[0].numel()))
        ):
            inside = self.inside_of(x, chance, block.expand(len(x), -1), model.temperature)
            found.append(of_group[:, block, None] * inside)
        block = self._block_of(self.place)
        return torch.cat(found, 1).flatten(1)[:, block * self.most + self.place - self.start[block]]

    def _block_of(self, place: Int[Tensor, ...]) -> Int[Tensor, ...]:
        return torch.searchsorted(self.start + self.size, place, right=True)

    def _last_block(self) -> Int[Tensor, ""]:
        return self._block_of(self.place.new_full((), self.num_labels - 1))

    def _of_each(self, of_group: Tensor, number: int) -> Tensor:
        return of_group.repeat_interleave(self.share, 0)[:number]


def _hidden(model: Scorer) -> Tensor:
    wide = model.input.to(torch.promote_types(model.input.dtype, torch.float32))
    return F.normalize(wide, dim=-1) if model.score == "cosine" else wide


def _invert(
    cumulative: Float64[Tensor, "*v n"], points: Float64[Tensor, "*v t"], last: Tensor
) -> Int[Tensor, "*v t"]:
    """Where each point of [0, 1) falls on a line of cumulative mass; what rounding carries past the
    end falls on the last.
    """
    return torch.minimum(
        torch.searchsorted(cumulative, points * cumulative[..., -1:], right=True), last
    )
