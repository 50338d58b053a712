"""A summary of the label table: labels in fewer dimensions, laid out in blocks."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from headtail.core.labels import Labels, number_of
from headtail.core.margins import Separable, check_margin
from headtail.errors import HeadtailError, check_count
from headtail.samplers.model.clusters import NUMBERS_AT_ONCE, lay_out, projection
from headtail.samplers.model.schedule import Scheduled, default_interval
from headtail.samplers.scorer import Scorer, finite_rows

LEAST_OFFSET = -1e4
"""log ρ of a label with ρ = 0, as a finite number."""
KMEANS_STEPS = 3
"""Enough for each summary: the one before is a good start."""


@dataclass(frozen=True)
class TableSummary:
    """How samplers over blocks summarise the label table.

    Args:
        dim: k, dimensions to which hidden states and labels are projected; 128 by default (64 for
            `FourierKernel`, 32 for `QuadraticKernel`).
        blocks: how many clusters of labels; √L by default (twice as many for `Block`).
        refresh: steps between summaries in the long run; L / 64, and at least 100, by default.
    """

    dim: int | None = None
    blocks: int | None = None
    refresh: int | None = None


DEFAULT_SUMMARY = TableSummary()


class Summarised(Scheduled):
    """A sampler that keeps a projected copy of the table, block by block.

    Block B holds the labels `order[start[B] : start[B] + size[B]]`; `place` is the inverse of
    `order`, `rows` and `offset` are in its order.
    """

    default_dim = 128
    finer = 1
    """How many times √L clusters there are by default."""
    order: Tensor
    place: Tensor
    start: Tensor
    size: Tensor
    rows: Tensor
    offset: Tensor

    def __init__(
        self, labels: Labels | int, summary: TableSummary, margin: Separable | None
    ) -> None:
        super().__init__()
        self.num_labels = number_of(labels)
        if margin is not None:
            check_margin(margin, self.num_labels, Separable)
        self.margin = margin
        self.summary = summary
        self.dim = self.default_dim if summary.dim is None else check_count("dim", summary.dim)
        clusters = self.finer * (math.isqrt(self.num_labels - 1) + 1)
        if summary.blocks is not None:
            clusters = check_count("blocks", summary.blocks)
        self.clusters = min(clusters, self.num_labels)
        self.interval = default_interval(self.num_labels)
        if summary.refresh is not None:
            self.interval = check_count("refresh", summary.refresh)
        self.capacity = math.ceil(self.num_labels / self.clusters)  # of a block
        self.blocks = self.clusters + math.ceil(self.num_labels / self.capacity)
        self._projection = torch.empty(0, self.dim)
        every = torch.arange(self.num_labels)
        self.register_buffer("order", every)
        self.register_buffer("place", every.clone())
        self.register_buffer("start", torch.zeros(self.blocks, dtype=torch.int64))
        self.register_buffer("size", torch.zeros(self.blocks, dtype=torch.int64))
        self.register_buffer("rows", torch.zeros(self.num_labels, self.dim))
        self.register_buffer("offset", torch.zeros(self.num_labels))

    @abstractmethod
    def summarise_blocks(
        self, block: Int[Tensor, " L"], x: Float[Tensor, "p k"], temperature: float | Tensor
    ) -> None:
        """Store what is known about each block, from `rows` and `offset`.

        Args:
            block: `[L]` the block of each row.
            x: `[p, k]` examples.
            temperature: T.
        """

    @torch.no_grad()
    def take_summary(self, model: Scorer) -> None:
        """Project the table, lay it out in blocks, and summarise each."""
        self._schedule_next()
        model = model.finite()
        weight = model.weight.float()
        if model.score == "cosine":
            weight = F.normalize(weight, dim=-1)
        self._store("_projection", projection(hidden_of(model).float(), weight, self.dim))
        parts = weight.split(max(1, NUMBERS_AT_ONCE // weight.shape[1]))
        rows = torch.cat([finite_rows(part.float() @ self._projection) for part in parts])
        # Neighbours in the last order have similar rows, so labels evenly spaced in it are spread
        # well.
        cluster = torch.arange(self.clusters, device=rows.device)
        spread = cluster * (self.num_labels - 1) // max(1, self.clusters - 1)
        seeds = self.order.to(rows.device)[spread]
        layout = lay_out(rows, rows[seeds], KMEANS_STEPS, self.capacity, self.blocks)
        every = torch.arange(self.num_labels, device=rows.device)
        for name, value in layout._asdict().items():
            self._store(name, value)
        self._store("place", torch.empty_like(layout.order).scatter_(0, layout.order, every))
        self._store("rows", rows.index_select(0, layout.order))
        self._store("offset", self._offsets(model, every)[layout.order])
        self.summarise_blocks(self._block_of(every), self._project(model), model.temperature)

    def _offsets(self, model: Scorer, every: Int[Tensor, " L"]) -> Float[Tensor, " L"]:
        """Biases, and log ρ times the temperature: logits are divided by it, margins are not."""
        offset = torch.zeros(self.num_labels, device=every.device)
        if model.bias is not None:
            bias = model.bias.detach().reshape(-1).float()
            offset = bias.nan_to_num(0.0, 0.0, LEAST_OFFSET)
        if self.margin is None:
            return offset
        log_rho = self.margin.log_negative(every).clamp(min=LEAST_OFFSET)
        return offset + (log_rho * model.temperature).float()

    def get_extra_state(self) -> Tensor:
        """Steps done, the step of the next refresh, and the projection."""
        numbers = [self._steps_done, self._next_refresh, len(self._projection)]
        projected = self._projection.reshape(-1).double().cpu()
        return torch.cat([torch.tensor(numbers, dtype=torch.float64), projected])

    def set_extra_state(self, state: Tensor) -> None:
        """Restore them."""
        d = self._restore_schedule(state, 1, self.dim)
        if d:  # without a projection the next draw makes one
            saved = state[3:].reshape(d, self.dim).float()
            self._store("_projection", saved.to(self._projection.device))

    def _refresh_if_due(self, model: Scorer) -> None:
        """Take a summary if there is none yet, and in training on schedule; count the step."""
        if self.refresh_due:
            with self._warning_if_slow():
                self.take_summary(model)
        self.count_step()

    def _project(self, model: Scorer) -> Float[Tensor, "p k"]:
        hidden = hidden_of(model)
        if hidden.shape[-1] != len(self._projection):
            raise HeadtailError(
                f"`{type(self).__name__}` has summarised a table with rows of size "
                f"{len(self._projection)}, but hidden states have size {hidden.shape[-1]}. Create "
                "a new sampler for another model."
            )
        self._move("_projection", hidden.device)
        return hidden @ self._projection.to(hidden.dtype) / model.temperature

    def _block_of(self, place: Int[Tensor, ...]) -> Int[Tensor, ...]:
        return torch.searchsorted(self.start + self.size, place, right=True)

    def _last_block(self) -> Int[Tensor, ""]:
        return self._block_of(self.place.new_full((), self.num_labels - 1))


def hidden_of(model: Scorer) -> Float[Tensor, "p d"]:
    """Hidden states at least in float32, of length 1 for cosine scores."""
    wide = model.input.to(torch.promote_types(model.input.dtype, torch.float32))
    return F.normalize(wide, dim=-1) if model.score == "cosine" else wide
