"""One CUDA graph of a head's loss and its gradients, and the node of autograd that replays it."""

from __future__ import annotations

from copy import copy
from typing import Any, NamedTuple, NoReturn
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from headtail.core.targets import Target
from headtail.device.graphs import Pool, Record, Replay, failed_captures, kept_random, stream_of
from headtail.kernels.dispatch import kernels_in_use
from headtail.kernels.gradient import RowGradient
from headtail.losses.fused import UNSCALED, graph_is_kept
from headtail.losses.modules import SampledLoss
from headtail.rows.fixed_gradient import fixed_gradient
from headtail.rows.gradients import as_sparse, is_accumulated
from headtail.rows.link import link_of, twin


class Call(NamedTuple):
    """What a head is asked to compute.

    Attributes:
        loss: with its sampler and weighting.
        hidden: `[b, d]` or `[B, T, d]`.
        target: ids.
        weight: the label table.
        bias: label biases, or None.
    """

    loss: SampledLoss
    hidden: Tensor
    target: Target
    weight: Tensor
    bias: Tensor | None

    @property
    def tables(self) -> list[Tensor]:
        """Those that have a gradient."""
        tables = [self.weight] if self.bias is None else [self.weight, self.bias]
        return [table for table in tables if table.requires_grad]

    @property
    def num_targets(self) -> int:
        """How many there are, those that do not count too."""
        return self.target.numel() if isinstance(self.target, Tensor) else 0

    def why_not(self) -> str | None:
        """What keeps this very call out of graphs."""
        target = self.target
        if not isinstance(target, Tensor) or target.is_nested:
            return "the number of labels changes from batch to batch; pass padded `[b, k]` targets"
        if target.dtype == torch.bool:
            return "targets are a boolean matrix; pass label ids"
        if not all(table.is_leaf for table in self.tables):
            return "its table is computed from other tensors"
        if _saved_by_hooks():
            return "tensors are saved by hooks, as checkpointing does"
        return None

    def key(self, of_loss: tuple[Any, ...]) -> tuple[Any, ...]:
        """Everything that a graph holds on to, and that decides whether there is one: shapes,
        addresses, settings, hooks and the loss.
        """
        of_batch = self.hidden.shape, self.hidden.requires_grad, _of_target(self.target)
        return *of_batch, failed_captures(), *self.key_of_any_batch(of_loss)

    def key_of_any_batch(self, of_loss: tuple[Any, ...]) -> tuple[Any, ...]:
        """What changes on all ranks at the same time, if at all: the same without the batch, and
        without what a single process has seen.
        """
        hidden = self.hidden
        device = hidden.device
        kind = device.type
        return (
            hidden.dtype,
            stream_of(device),
            torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind),
            torch._C._get_deterministic_algorithms(),
            torch._C._get_fp32_precision_getter("cuda", "matmul"),
            kernels_in_use(),
            _saved_by_hooks(),
            of_loss,
            _of_table(self.weight),
            None if self.bias is None else _of_table(self.bias),
        )


def _of_target(target: Target) -> tuple[torch.Size, torch.dtype] | None:
    """What a graph has to know of targets, which it takes as one tensor."""
    if not isinstance(target, Tensor) or target.is_nested:
        return None
    return target.shape, target.dtype


def _of_table(table: Tensor) -> tuple[Any, ...]:
    """Where a table and its pending decay are, and who asks for its gradient."""
    link = link_of(table)
    decay = None if link is None else link.decay
    return (
        table.data_ptr(),
        table.shape,
        table.dtype,
        table.requires_grad,
        bool(table._backward_hooks),
        None if decay is None else decay.address,
        link is not None and link.at_once,
    )


def _saved_by_hooks() -> bool:
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None  # pyright: ignore[reportAttributeAccessIssue]


class Graph:
    """One graph: hidden states and targets are copied in; loss and gradients come out.

    All of these are tensors outside the graph's own memory, so that graphs that run one after the
    other can share that.
    """

    def __init__(self, call: Call, record: Record, pool: Pool) -> None:
        assert isinstance(call.target, Tensor)
        self.hidden = torch.empty_like(
            call.hidden.detach(), memory_format=torch.contiguous_format
        ).requires_grad_(call.hidden.requires_grad)
        self.target = torch.empty_like(call.target)
        with torch.no_grad():
            self.hidden.copy_(call.hidden)
            self.target.copy_(call.target)
        tables = call.tables
        self._inside: ref[Inside] | None = None
        for table in tables:
            link = link_of(table)
            if link is not None and link.decay is not None:
                link.decay.settled = False  # rows catch up in every replay
        # A loss that waits for its backward pass keeps a node of each parameter alive, which
        # belongs to the stream of that loss: differentiating by it would draw that stream into the
        # capture.
        bias = None if call.bias is None else twin(call.bias)
        call = call._replace(
            hidden=self.hidden, target=self.target, weight=twin(call.weight), bias=bias
        )
        learned = {name: p for name, p in call.loss.named_parameters() if p.requires_grad}
        self.parameters = [*tables, *learned.values()]
        numbers = {name: twin(p) for name, p in learned.items()}
        with kept_random(self.hidden.device):
            first = _differentiated(call, numbers)
        self.results = [result.clone() for result in first]

        def work() -> None:
            for to, result in zip(self.results, _differentiated(call, numbers), strict=True):
                to.copy_(result)

        self._replay: Replay = record(work, self.hidden.device, pool)
        results = iter(self.results)
        self.loss = next(results)
        self.of_hidden = next(results) if self.hidden.requires_grad else None
        self.of_numbers = [next(results) for _ in numbers]
        stream = stream_of(self.hidden.device)
        self.of_tables = [OfTable(table, next(results), next(results), stream) for table in tables]

    def run(self, hidden: Tensor, target: Tensor) -> Tensor:
        """The loss; gradients stay here until the next run."""
        self.hidden.copy_(hidden)
        self.target.copy_(target)
        self._replay.run()
        return self.loss.clone()

    @property
    def nbytes(self) -> int:
        """Memory that it holds on the device."""
        held = [self.hidden, self.target, *self.results]
        return self._replay.nbytes + sum(tensor.nbytes for tensor in held)

    @property
    def occupied(self) -> bool:
        """Whether a loss still needs the gradients that are here."""
        return self._inside is not None and self._inside() is not None

    def occupy(self) -> Inside:
        """Keep the gradients as long as the returned object lives."""
        inside = Inside()
        self._inside = ref(inside)
        return inside


class Inside:
    """A loss whose gradients are in a graph's results."""


def _differentiated(call: Call, numbers: dict[str, Tensor]) -> list[Tensor]:
    """The loss; the gradients of the hidden states and of further parameters; rows and values of
    each table's gradient.
    """
    with torch.enable_grad(), _without_cached_casts(call.hidden.device.type):
        inputs = call.hidden, call.weight, call.target
        loss = functional_call(call.loss, numbers, inputs, {"bias": call.bias, "sparse": True})
    of_hidden = [call.hidden] if call.hidden.requires_grad else []
    dense = [*of_hidden, *numbers.values()]
    assert loss.grad_fn is not None, "something that the loss depends on has a gradient"
    loss.grad_fn.metadata[UNSCALED] = True
    gradients = torch.autograd.grad(loss, [*dense, *call.tables])
    entries: list[Tensor] = []
    for gradient in gradients[len(dense) :]:
        if not gradient.is_sparse:
            raise RuntimeError("the gradient of a table is not sparse")
        entries += [gradient._indices()[0], gradient._values()]
    return [loss.detach(), *gradients[: len(dense)], *entries]


def _without_cached_casts(device: str) -> torch.autocast:
    """Autocast as it is, but weights cast inside a graph are not remembered outside of it."""
    enabled = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device)
    return torch.autocast(device, dtype, enabled=enabled, cache_enabled=False)


class Replayed(torch.autograd.Function):
    """A graph in place of the loss: forward replays it, backward scales the gradients it left."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, *rest: Any) -> Tensor:
        """The loss."""
        graph: Graph = rest[-2]
        ctx.graph = graph
        ctx.inside = graph.occupy()
        return graph.run(hidden, rest[-1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Gradients of hidden states and parameters; those of tables are in their `.grad`."""
        if torch.is_grad_enabled():  # with `create_graph=True`, for a second derivative
            return _scaled_once(ctx, *grads)
        return _scaled(ctx, *grads)


def _scaled(ctx: Any, scale: Tensor) -> tuple[Any, ...]:
    """The gradients that a graph left, times the gradient of the loss."""
    if ctx.inside is None:
        refuse_second_pass()
    graph: Graph = ctx.graph
    of_hidden = None if graph.of_hidden is None else graph.of_hidden * scale
    of_tables = hand_over(graph.of_tables, scale, ctx.next_functions)
    of_numbers = [number * scale for number in graph.of_numbers]
    if not graph_is_kept():
        ctx.inside = None
    return of_hidden, *of_tables, *of_numbers, None, None


_scaled_once = once_differentiable(_scaled)


def refuse_second_pass() -> NoReturn:
    """Raise where gradients that were kept for one backward pass are asked for again."""
    raise RuntimeError(
        "The gradients of this loss are gone after its first backward pass. Write "
        "`retain_graph=True` there to differentiate a second time."
    )


def hand_over(of_tables: list[OfTable], scale: Tensor, nodes: Any) -> list[Tensor | None]:
    """Gradients of tables, the inputs of a node of autograd that follow the first one."""
    return [
        of_table.hand_over(scale, nodes[place][0]) for place, of_table in enumerate(of_tables, 1)
    ]


class OfTable:
    """A table's gradient in a graph's results.

    Args:
        table: `[T, d]`.
        rows: `[n]` the row of each entry, and
        values: `[n, d]` its values.
        stream: that of the graph.
    """

    def __init__(self, table: Tensor, rows: Tensor, values: Tensor, stream: int) -> None:
        self._table = table
        self._rows = rows
        self._values = values
        self._room = fixed_gradient(table, len(rows), stream)

    def copied(self) -> OfTable:
        """The same gradient elsewhere."""
        other = copy(self)
        other._rows = self._rows.clone()
        other._values = self._values.clone()
        return other

    def hand_over(self, scale: Tensor, node: Any) -> Tensor | None:
        """Put it times `scale` into the table's `.grad`; where that is not possible, return it to
        autograd, which adds it.
        """
        table = self._table
        takes = (
            not table._backward_hooks
            and not table._post_accumulate_grad_hooks
            and is_accumulated(node)
        )
        if takes and self._room.add(table, self._rows, self._values, scale):
            return None
        return as_sparse(table, RowGradient(self._rows.clone(), self._values * scale))
