"""The CUDA graphs of a head, for training loops that run eagerly: when they are made and kept."""

from __future__ import annotations

import warnings
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headtail.device.graphs import Pool, Record, record, stream_of
from headtail.losses.graph import Call, Graph, Replayed
from headtail.losses.modules import SampledLoss
from headtail.rows.link import TableLink, link_of
from headtail.samplers.fixed.partial_fc import PartialFC
from headtail.samplers.fixed.within_batch import WithinBatch

STEPS_BEFORE = 3
"""Equal calls that run eagerly first."""
MOST_SHAPES = 4
"""Shapes of batches whose graphs are kept."""
MOST_AT_ONCE = 4
"""Graphs of one shape: as many losses can wait for their backward pass at the same time."""
MOST_CAPTURES = 32
"""Captures after which a head that keeps changing runs eagerly."""
MODULE = frozenset(vars(nn.Module()))
"""Attributes that every module has. What they hold is looked at, not where it is held."""


class Watched:
    """A loss, and what may change in it between two calls. Its parts are found once."""

    def __init__(self, loss: SampledLoss, number: int) -> None:
        self.loss = loss
        self.number = number
        self.settings = loss.settings
        self.sampler = loss.sampler
        self._parameters = list(loss.parameters())
        self._buffers = list(loss.buffers())
        modules = list(loss.modules())
        self._within_batch = [m for m in modules if isinstance(m, WithinBatch | PartialFC)]
        self._sized = [vars(m) for m in modules if "num_negatives" in vars(m)]
        self._kept = [
            kept for m in modules for kept in (vars(m), m._parameters, m._buffers, m._modules)
        ]
        self._kept += _hooks(loss)
        self._sizes = [*map(len, self._kept)]
        self._points = [
            (kept, name)
            for kept in self._kept
            for name in kept
            if name not in MODULE and name != "num_negatives"
        ]
        self._parts = [kept[name] for kept, name in self._points]
        self.why_not = self._reason()

    def is_same(self, loss: SampledLoss) -> bool:
        """Whether this loss still has the same parts; `state` tells numbers of negatives apart."""
        if loss is not self.loss or [*map(len, self._kept)] != self._sizes:
            return False
        try:
            parts = [kept[name] for kept, name in self._points]
        except KeyError:
            return False
        return all(map(is_, parts, self._parts))

    @property
    def numbers(self) -> list[Tensor]:
        """Its parameters that have a gradient."""
        return [p for p in self._parameters if p.requires_grad]

    def state(self) -> tuple[Any, ...]:
        """Numbers of negatives, and where its tensors are."""
        return (
            self.number,
            *[kept["num_negatives"] for kept in self._sized],
            *[buffer.data_ptr() for buffer in self._buffers],
            *[(p.data_ptr(), p.requires_grad) for p in self._parameters],
        )

    def waits(self, num_targets: int) -> bool:
        """Whether a draw needs to know on the host how many targets count."""
        if self.settings.ignore_index is None:
            return False
        return any(
            part is not self.sampler or not part.takes_all(num_targets)
            for part in self._within_batch
        )

    def _reason(self) -> str | None:
        """What keeps all calls out of graphs."""
        if any(_hooks(self.loss)):
            return "its loss has hooks, which run eagerly"
        if type(self.loss).forward is not SampledLoss.forward:
            return "the loss is your own"
        if not self.loss.weighting.replayable:
            return "the weights are your own, or follow labels that are counted while they are used"
        if self.settings.reduction == "none":
            return 'a loss per example (`reduction="none"`) has no single gradient'
        batches = [part for part in self._within_batch if isinstance(part, WithinBatch)]
        if any(part.ranks is not None for part in batches):
            return "negatives come from the batches of all ranks"
        claims = self.sampler.claims
        if claims.memory or not claims.replayable:
            return f"`{self.sampler.name}` looks at the model, remembers batches or is your own"
        if not claims.shared:
            return "each example has its own negatives (`exclude_target=True`)"
        return None


def _hooks(loss: SampledLoss) -> list[dict[int, Any]]:
    return [loss._forward_hooks, loss._forward_pre_hooks, loss._backward_hooks]


class Captured(NamedTuple):
    """What a head has captured.

    Attributes:
        shapes: of hidden states.
        nbytes: memory that the graphs of its loss, and the gradients they fill, hold on the device;
            at most four shapes are kept.
    """

    shapes: list[tuple[int, ...]]
    nbytes: int


def tell_once(told: set[str], reason: str) -> None:
    """Say why a head is not captured, unless it was said before.

    Args:
        told: what was said; this is added.
        reason: the end of a sentence.
    """
    if reason in told:
        return
    told.add(reason)
    warnings.warn(
        f"This head's steps are not captured as CUDA graphs: {reason}. They run eagerly, one "
        "kernel after the other; `head.capture(False)` says that this is meant.",
        stacklevel=5,
    )


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
        self._watched: list[Watched] = []
        self._losses = 0
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None
        self._gave_up = False
        self._told: set[str] = set()

    def loss(self, call: Call) -> Tensor | None:
        """The loss of a call by a graph; None where it has to run eagerly."""
        if not self.serves(call.hidden):
            return None
        watched = self._watched_for(call)
        key = call.key(watched.state())
        graphs = self._graphs.get(key)
        if graphs is None:
            graph = self._first(key, call, watched)
        else:
            graph = graphs[0]
            if len(self._graphs) > 1 or graph.occupied:
                graph = self._free(graphs, key, call)
        if graph is None:
            return None
        return Replayed.apply(call.hidden, *graph.parameters, graph, call.target)  # pyright: ignore[reportReturnType]

    def serves(self, hidden: Any) -> bool:
        """Whether calls like this are captured at all."""
        if not (self.on and isinstance(hidden, Tensor)):
            return False
        kind = hidden.device.type
        return (
            kind in self.devices
            and torch.is_grad_enabled()
            and not torch.compiler.is_compiling()
            and not (kind == "cuda" and torch.cuda.is_current_stream_capturing())
        )

    def tell(self, reason: str) -> None:
        """Say once why something is not captured."""
        tell_once(self._told, reason)

    @property
    def captured(self) -> Captured:
        """Shapes that are captured, and the memory of their graphs."""
        held = [graph.nbytes for graphs in self._graphs.values() for graph in graphs]
        held += [room.nbytes for link in self._links() for room in link.fixed.values()]
        return Captured([tuple(key[0]) for key in self._graphs], sum(held))

    def free(self) -> None:
        """Free all graphs, and the room of the gradients that they fill."""
        for link in self._links():
            link.fixed.clear()
        self._clear()

    def _links(self) -> list[TableLink]:
        tables = [table for table in (self._weight, self._bias) if table is not None]
        return [link for link in map(link_of, tables) if link is not None]

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and deepcopy: a copy captures its own graphs."""
        return {"on": self.on, "record": self.record, "devices": self.devices}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """For pickle and deepcopy."""
        vars(self).update(state)
        self._clear()

    def _watched_for(self, call: Call) -> Watched:
        if call.weight is not self._weight or call.bias is not self._bias:
            self._graphs.clear()  # they fill the `.grad` of the tables they were made for
            self._seen.clear()
            self._pools.clear()
        self._weight = call.weight
        self._bias = call.bias
        for watched in self._watched:
            if watched.is_same(call.loss):
                return watched
        self._losses += 1
        self._watched = [*self._watched[1 - MOST_SHAPES :], Watched(call.loss, self._losses)]
        return self._watched[-1]

    def _free(self, graphs: list[Graph], key: Any, call: Call) -> Graph | None:
        """A graph that no other loss is waiting in."""
        if len(self._graphs) > 1:  # the one used last is the last to be dropped
            self._graphs[key] = self._graphs.pop(key)
        for graph in graphs:
            if not graph.occupied:
                return graph
        return self._capture(key, call) if len(graphs) < MOST_AT_ONCE else None

    def _first(self, key: Any, call: Call, watched: Watched) -> Graph | None:
        """A graph for calls of which there is none yet; all that decides this is in their key."""
        if any(link is not None and link.at_once for link in map(link_of, call.tables)):
            return None
        numbers = watched.numbers
        if not (call.tables or numbers or call.hidden.requires_grad):
            return None  # there is nothing to train
        reason = call.why_not() or watched.why_not
        if reason is None and watched.waits(call.num_targets):
            reason = (
                "the number of within-batch negatives depends on how many targets count; write "
                "`ignore_index=None` if all do"
            )
        if any(parameter._backward_hooks for parameter in (*call.tables, *numbers)):
            reason = "its parameters have hooks, which run eagerly"
        if reason is not None:
            self.tell(reason)
            return None
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
