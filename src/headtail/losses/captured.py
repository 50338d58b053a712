"""A head's loss and all its gradients as CUDA graphs, for training loops that run eagerly."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from headtail.core.targets import Target
from headtail.device.graphs import Pool, Record, Replay, kept_random, record, stream_of
from headtail.kernels.dispatch import kernels_in_use
from headtail.kernels.gradient import RowGradient
from headtail.losses.fused import UNSCALED, graph_is_kept
from headtail.losses.modules import SampledLoss
from headtail.rows.fixed_gradient import FixedGradient, fixed_gradient
from headtail.rows.gradients import as_sparse, is_accumulated
from headtail.rows.link import link_of, taker_of, twin

STEPS_BEFORE = 3
"""Equal calls that run eagerly first."""
MOST_SHAPES = 4
"""Shapes of batches whose graphs are kept."""
MOST_AT_ONCE = 4
"""Graphs of one shape: as many losses can wait for their backward pass at the same time."""
MOST_CAPTURES = 32
"""Captures after which a head that keeps changing runs eagerly."""


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

    def why_not(self) -> str | None:
        """What keeps this very call out of graphs."""
        target = self.target
        if not isinstance(target, Tensor) or target.is_nested:
            return "the number of labels changes from batch to batch; pass padded `[b, k]` targets"
        if target.dtype == torch.bool:
            return "targets are a boolean matrix; pass label ids"
        return None

    def key(self, watched: Watched) -> tuple[Any, ...]:
        """Everything that a graph holds on to: shapes, addresses, settings."""
        hidden = self.hidden
        target = self.target
        assert isinstance(target, Tensor)
        device = hidden.device.type
        return (
            (hidden.shape, hidden.dtype, hidden.requires_grad, target.shape, target.dtype),
            stream_of(hidden.device),
            torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None,
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
            kernels_in_use(),
            watched.state(),
            _address(self.weight),
            None if self.bias is None else _address(self.bias),
        )


def _address(table: Tensor) -> tuple[Any, ...]:
    link = link_of(table)
    decay = None if link is None or link.decay is None else link.decay.address
    return table.data_ptr(), table.shape, table.requires_grad, decay


class Watched:
    """A loss, and what may change in it between two calls. Its parts are found once."""

    def __init__(self, loss: SampledLoss) -> None:
        self.loss = loss
        self.settings = loss.settings
        self.sampler = loss.sampler
        self.weighting = loss.weighting
        self.numbers = [p for p in loss.parameters() if p.requires_grad]
        self._modules = list(loss.modules())
        self._parameters = list(loss.parameters())
        self.why_not = self._reason()

    def is_same(self, loss: SampledLoss) -> bool:
        """Whether this loss still has the same parts."""
        return (
            loss is self.loss
            and loss.settings is self.settings
            and loss.sampler is self.sampler
            and loss.weighting is self.weighting
        )

    def state(self) -> tuple[Any, ...]:
        """Numbers of negatives, and where its tensors are."""
        return (
            id(self),
            *[vars(module).get("num_negatives") for module in self._modules],
            *[b.data_ptr() for m in self._modules for b in m._buffers.values() if b is not None],
            *[(p.data_ptr(), p.requires_grad) for p in self._parameters],
        )

    def _reason(self) -> str | None:
        """What keeps all calls out of graphs."""
        if self.settings.reduction == "none":
            return 'a loss per example (`reduction="none"`) has no single gradient'
        claims = self.sampler.claims
        if claims.memory or not claims.replayable:
            return f"`{self.sampler.name}` looks at the model, remembers batches or is your own"
        if not claims.shared:
            return "each example has its own negatives (`exclude_target=True`)"
        return None


class Captured(NamedTuple):
    """What a head has captured.

    Attributes:
        shapes: of hidden states.
        nbytes: memory that the graphs of its loss hold on the device; at most four shapes are kept.
    """

    shapes: list[tuple[int, ...]]
    nbytes: int


class HeadGraphs:
    """The CUDA graphs of one head: for each shape of a batch one that draws, computes the loss and
    all its gradients.

    Attributes:
        on: whether to capture anything.
        record: makes graphs; another one stands in for it where there is no GPU.
        devices: kinds of devices it works on.
    """

    def __init__(self, on: bool = True) -> None:
        self.on = on
        self.record: Record = record
        self.devices: tuple[str, ...] = ("cuda",)
        self._clear()

    def _clear(self) -> None:
        self._seen: dict[Any, int] = {}
        self._graphs: dict[Any, list[Graph]] = {}
        self._pools: dict[int, Pool] = {}
        self._captures = 0
        self._watched: Watched | None = None
        self._gave_up = False
        self._told: set[str] = set()

    def serves(self, hidden: Any) -> bool:
        """Whether calls like this are captured at all."""
        return (
            self.on
            and isinstance(hidden, Tensor)
            and hidden.device.type in self.devices
            and torch.is_grad_enabled()
            and not torch.compiler.is_compiling()
            and not (hidden.device.type == "cuda" and torch.cuda.is_current_stream_capturing())
        )

    def loss(self, call: Call) -> Tensor | None:
        """The loss of a call by a graph; None where it has to run eagerly."""
        watched = self._watched
        if watched is None or not watched.is_same(call.loss):
            watched = self._watched = Watched(call.loss)
        tables = call.tables
        reason = watched.why_not or call.why_not()
        for parameter in (*tables, *watched.numbers):
            taker = taker_of(parameter)
            if taker is not None and taker.at_once:
                return None
            if parameter._backward_hooks:
                reason = "its parameters have hooks, which run eagerly"
        if reason is not None:
            self.tell(reason)
            return None
        graph = self._graph_for(call)
        if graph is None:
            return None
        return _Replayed.apply(call.hidden, *tables, *watched.numbers, graph, call.target)  # pyright: ignore[reportReturnType]

    def tell(self, reason: str) -> None:
        """Say once why something is not captured."""
        if reason in self._told:
            return
        self._told.add(reason)
        warnings.warn(
            f"This head's steps are not captured as CUDA graphs: {reason}. They run eagerly, one "
            "kernel after the other; `head.capture(False)` says that this is meant.",
            stacklevel=4,
        )

    @property
    def captured(self) -> Captured:
        """Shapes that are captured, and the memory of their graphs."""
        held = (graph.nbytes for graphs in self._graphs.values() for graph in graphs)
        return Captured([tuple(key[0][0]) for key in self._graphs], sum(held))

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and deepcopy: a copy captures its own graphs."""
        return {"on": self.on, "record": self.record, "devices": self.devices}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """For pickle and deepcopy."""
        vars(self).update(state)
        self._clear()

    def _graph_for(self, call: Call) -> Graph | None:
        """A graph of this shape that no other loss is waiting in."""
        assert self._watched is not None
        key = call.key(self._watched)
        graphs = self._graphs.get(key)
        if graphs is None:
            return self._first(key, call)
        if len(self._graphs) > 1:  # the one used last is the last to be dropped
            self._graphs[key] = self._graphs.pop(key)
        for graph in graphs:
            if not graph.occupied:
                return graph
        return self._capture(key, call) if len(graphs) < MOST_AT_ONCE else None

    def _first(self, key: Any, call: Call) -> Graph | None:
        if len(self._seen) > 4 * MOST_SHAPES:
            self._seen.clear()
        self._seen[key] = self._seen.get(key, 0) + 1
        return self._capture(key, call) if self._seen[key] > STEPS_BEFORE else None

    def _capture(self, key: Any, call: Call) -> Graph | None:
        if self._gave_up:
            return None
        if self._captures >= MOST_CAPTURES:
            self._gave_up = True
            self.tell(f"shapes or settings changed after each of {MOST_CAPTURES} captures")
            return None
        self._captures += 1
        pool = self._pools.setdefault(stream_of(call.hidden.device), Pool())
        try:
            graph = Graph(call, self.record, pool)
        except RuntimeError as error:
            self.tell(str(error))
            self._gave_up = True
            return None
        while len(self._graphs) >= MOST_SHAPES and key not in self._graphs:
            self._graphs.pop(next(iter(self._graphs)))
        self._graphs.setdefault(key, []).append(graph)
        return graph


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
            self._fill(call.hidden, call.target)
        self.tables = call.tables
        self._inside: ref[Inside] | None = None
        for table in self.tables:
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
        named = call.loss.named_parameters()
        numbers = {name: twin(p) for name, p in named if p.requires_grad}
        with kept_random(self.hidden.device):
            first = _differentiated(call, numbers)
        self.results = [result.clone() for result in first]

        def work() -> None:
            for to, result in zip(self.results, _differentiated(call, numbers), strict=True):
                to.copy_(result)

        self._replay: Replay = record(work, self.hidden.device, pool)
        rows = self.results[len(self.results) - 2 * len(self.tables) :: 2]
        stream = stream_of(self.hidden.device)
        self.rooms = [
            fixed_gradient(table, len(of_table), stream)
            for table, of_table in zip(self.tables, rows, strict=True)
        ]

    def run(self, hidden: Tensor, target: Tensor) -> Tensor:
        """The loss; gradients stay here until the next run."""
        self._fill(hidden, target)
        self._replay.run()
        return self.results[0].clone()

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

    def _fill(self, hidden: Tensor, target: Tensor) -> None:
        self.hidden.copy_(hidden)
        self.target.copy_(target)


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
    if loss.grad_fn is None:
        raise RuntimeError("nothing that the loss depends on has a gradient")
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


class _Replayed(torch.autograd.Function):
    """A graph in place of the loss: forward replays it, backward scales the gradients it left."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, *rest: Any) -> Tensor:
        *parameters, graph, target = rest
        loss = graph.run(hidden, target)
        ctx.graph = graph
        ctx.inside = graph.occupy()
        ctx.num_numbers = len(parameters) - len(graph.tables)
        ctx.save_for_backward(loss)  # so that autograd refuses a second backward pass
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert ctx.saved_tensors
        if torch.is_grad_enabled():  # with `create_graph=True`, for a second derivative
            return _scaled_once(ctx, *grads)
        return _scaled(ctx, *grads)


def _scaled(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    """The gradients that a graph left, times the gradient of the loss."""
    graph: Graph = ctx.graph
    scale = grads[0]
    results = iter(graph.results)
    next(results)  # the loss
    grad_hidden = next(results) * scale if graph.hidden.requires_grad else None
    numbers = [next(results) * scale for _ in range(ctx.num_numbers)]
    nodes = ctx.next_functions[1:]
    of_tables = [
        _hand_over(table, room, next(results), next(results), scale, node)
        for table, room, (node, _) in zip(graph.tables, graph.rooms, nodes, strict=False)
    ]
    if not graph_is_kept():
        ctx.inside = None
    return grad_hidden, *of_tables, *numbers, None, None


_scaled_once = once_differentiable(_scaled)


def _hand_over(
    table: Tensor,
    room: FixedGradient,
    rows: Tensor,
    values: Tensor,
    scale: Tensor,
    node: Any,
) -> Tensor | None:
    """Put a table's gradient into its `.grad`; where that is not possible, return it to autograd,
    which adds it.
    """
    takes = not table._post_accumulate_grad_hooks and is_accumulated(node)
    if takes and room.add(table, rows, values, scale):
        return None
    return as_sparse(table, RowGradient(rows.clone(), values * scale))
