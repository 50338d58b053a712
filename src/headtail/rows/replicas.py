"""Tables that every rank has a copy of: their row gradients, averaged over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.variable import Variable

from headtail.collectives.gather import gather_rows
from headtail.collectives.ranks import Ranks
from headtail.errors import HeadtailError
from headtail.kernels.gradient import RowGradient
from headtail.rows.decay import catch_up
from headtail.rows.gradients import as_sparse, is_accumulated, sparse_rows, whole_gradient
from headtail.rows.link import taker_of

DENSE = -1
"""In place of a number of rows, where a gradient has all of them."""


class Replicas:
    """Tables with row-sparse gradients, equal on all ranks.

    When a backward pass is over, each table's `.grad` is replaced by its mean over all ranks, as
    `DistributedDataParallel` does for dense gradients: what clips, unscales or applies gradients
    afterwards sees the mean. Only rows that have a gradient travel, as ids and values.
    """

    def __init__(self, ranks: Ranks, tables: Sequence[Tensor]) -> None:
        self.ranks = ranks
        self.tables = tables
        self._backward = -1

    def averaged_after(self, loss: Tensor, *, later: bool = False) -> Tensor:
        """The same loss; at the end of its backward pass, gradients are averaged, or in a later
        one.
        """
        for table in self.tables:
            taker = taker_of(table)
            if taker is not None and taker.at_once:
                raise HeadtailError(
                    "A table that is updated at once, inside backward, has no gradient that ranks "
                    "could average. Write `inside_backward()` without `at_once=True`."
                )
        learnt = [table for table in self.tables if table.requires_grad]
        return _AveragedAfter.apply(loss, None if later else self, *learnt)  # pyright: ignore[reportReturnType]

    def schedule(self) -> None:
        """Average when the running backward pass is over, once."""
        backward = torch._C._current_graph_task_id()
        if backward != self._backward:
            self._backward = backward
            Variable._execution_engine.queue_callback(self.average)  # pyright: ignore[reportAttributeAccessIssue]

    @torch.no_grad()
    def average(self) -> None:
        """Replace each table's gradient by its mean over all ranks.

        A mean of gradients that are already equal changes nothing, so gradients of earlier backward
        passes, averaged or not, may be among them.
        """
        gradients = [_local(table) for table in self.tables]
        device = self.tables[0].device
        self.ranks.check_device("table", self.tables[0])
        own = [DENSE if not grad.is_sparse else grad._nnz() for grad in gradients]
        every = zip(*self.ranks.numbers(own, device), strict=True)
        dense: list[tuple[Tensor, Tensor]] = []
        for table, gradient, sizes in zip(self.tables, gradients, every, strict=True):
            if DENSE in sizes:
                dense.append((table, gradient.to_dense() if gradient.is_sparse else gradient))
            elif any(sizes):
                mean = self._mean(gradient, list(sizes))
                # Ranks read different rows of their copies: all now receive the weight decay that
                # was due when one of them was read, so that copies stay equal to the last bit.
                catch_up(table, mean._indices()[0])
                table.grad = mean
        for dtype in sorted({gradient.dtype for _, gradient in dense}, key=str):
            self._average_dense([pair for pair in dense if pair[1].dtype == dtype])

    def _mean(self, gradient: Tensor, sizes: list[int]) -> Tensor:
        """The mean of sparse gradients with these numbers of rows, each row once.

        Ranks sum the same values in the same order, so that tables stay equal to the last bit.
        """
        rows = gather_rows(gradient._indices()[0], self.ranks, sizes)
        values = gather_rows(gradient._values(), self.ranks, sizes)
        mean = sparse_rows(rows, values, gradient.shape).coalesce()
        mean._values().div_(len(sizes))
        return mean

    def _average_dense(self, dense: list[tuple[Tensor, Tensor]]) -> None:
        """The means of dense gradients of one dtype, which travel together.

        They are always in the same places of one tensor, so that their sums have the same order of
        terms in every step, and in a resumed run.
        """
        total = torch.cat([gradient.reshape(-1) for _, gradient in dense])
        self.ranks.start_sum(total).wait()
        total.div_(self.ranks.size)
        parts = total.split([gradient.numel() for _, gradient in dense])
        for (table, _), mean in zip(dense, parts, strict=True):
            table.grad = mean.view_as(table)


def _local(table: Tensor) -> Tensor:
    """The gradient of this rank: dense, or sparse with each row once; without rows if there is
    none.
    """
    gradient = whole_gradient(table)
    if gradient is None:
        none = torch.empty(0, dtype=torch.int64, device=table.device)
        gradient = RowGradient(none, table.detach().new_empty(0, *table.shape[1:]))
    if isinstance(gradient, RowGradient):
        gradient = as_sparse(table, gradient)
    return gradient.coalesce() if gradient.is_sparse else gradient


class _AveragedAfter(torch.autograd.Function):
    """The loss as it is; its backward comes first, and asks for the mean at the end."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, replicas: Replicas | None, *tables: Tensor) -> Tensor:
        ctx.replicas = replicas
        ctx.num_tables = len(tables)
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        # Not under `torch.autograd.grad`, which leaves `.grad` alone.
        nodes = [node for node, _ in ctx.next_functions[1:]]
        if ctx.replicas is not None and any(map(is_accumulated, nodes)):
            ctx.replicas.schedule()
        return grads[0], None, *[None] * ctx.num_tables
