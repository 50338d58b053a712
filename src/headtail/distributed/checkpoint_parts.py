"""What is trained on several ranks, by names: parameters, memories, optimisers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from headtail.distributed.sharded_head import ShardedLabelHead
from headtail.distributed.together import Beside
from headtail.errors import HeadtailError, check_kind
from headtail.rows.split import SplitOptimizer


@dataclass(frozen=True)
class Trained:
    """All that a checkpoint is of.

    Attributes:
        head: the table.
        optimizer: of the head.
        encoder: the same on all ranks, or made of DTensors (FSDP2). If the head is a part of it, it
            is saved once.
        encoder_optimizer: of the encoder.
    """

    head: ShardedLabelHead
    optimizer: Optimizer | None = None
    encoder: nn.Module | None = None
    encoder_optimizer: Optimizer | None = None

    def __post_init__(self) -> None:
        check_kind("head", self.head, ShardedLabelHead, "ShardedLabelHead(labels, dim, loss)")
        for name, optimizer in self.optimizers.items():
            check_kind(name, optimizer, Optimizer, "RowAdagrad(head.parameters())")
        if self.encoder is not None:
            check_kind("encoder", self.encoder, nn.Module, "DistributedDataParallel(encoder)")

    @property
    def optimizers(self) -> dict[str, Optimizer]:
        """Those that there are; those inside a `SplitOptimizer` are numbered."""
        named = {"optimizer": self.optimizer, "encoder_optimizer": self.encoder_optimizer}
        every: dict[str, Optimizer] = {}
        for name, optimizer in named.items():
            if optimizer is not None:
                every |= _inside(name, optimizer)
        return every

    def parameters(self) -> dict[str, nn.Parameter]:
        """Each once."""
        own = {id(p) for p in self.head.parameters()}
        named = {f"head.{name}": p for name, p in self.head.named_parameters()}
        if self.encoder is not None:
            inner = unwrapped(self.encoder).named_parameters()
            named |= {f"encoder.{name}": p for name, p in inner if id(p) not in own}
        return named

    def is_sharded(self, parameter: Tensor) -> bool:
        """Whether a parameter holds this rank's rows of the table."""
        return parameter is self.head.weight or parameter is self.head.bias

    def buffers(self) -> dict[str, Tensor]:
        """What modules remember beside their parameters, such as a queue's content."""
        return {
            f"{name}.{key}": buffer
            for name, module in self._modules()
            if name.startswith("encoder") or remembers(module)
            for key, buffer in module.named_buffers(recurse=False)
            if key not in module._non_persistent_buffers_set
        }

    def remembering(self) -> dict[str, nn.Module]:
        """Modules with state that is not in buffers, such as a queue with its fill level."""
        return {f"{name}.extra": module for name, module in self._modules() if remembers(module)}

    def _modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Those of the head that draw, and those of the encoder.

        The samplers of the head's loss are those of all labels, which no rank draws from.
        """
        if self.head.part is not None:
            yield from self.head.part.named_modules(prefix="head.part")
        if self.encoder is not None:
            own = {id(module) for module in self.head.modules()}
            for name, module in unwrapped(self.encoder).named_modules(prefix="encoder"):
                if id(module) not in own:
                    yield name, module


class RowsOfAll:
    """Describes this rank's rows as its part of those of all ranks.

    Args:
        head: the table.
        group: the ranks that hold its rows.
    """

    def __init__(self, head: ShardedLabelHead, group: Beside) -> None:
        self.num_labels = head.labels.num_labels
        self.own = len(head.share)
        self.group = group.group
        self._meshes: dict[str, DeviceMesh] = {}

    def __call__(self, rows: Tensor) -> DTensor:
        """`[L, …]` in the order of rows; nothing is copied."""
        kind = rows.device.type
        if kind not in self._meshes:
            self._meshes[kind] = DeviceMesh.from_group(self.group, kind)
        shape = torch.Size((self.num_labels, *rows.shape[1:]))
        stride = torch.empty(shape, device="meta").stride()
        mesh = self._meshes[kind]
        return DTensor.from_local(
            rows.detach(), mesh, [Shard(0)], run_check=False, shape=shape, stride=stride
        )

    def takes(self, state: Tensor) -> bool:
        """Whether a tensor has one row for each of this rank's."""
        return state.dim() > 0 and len(state) == self.own


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside `DistributedDataParallel`."""
    return module.module if isinstance(module, DistributedDataParallel) else module


def extra_of(name: str, module: nn.Module) -> Tensor:
    """The state of a module that is not in buffers."""
    state: Any = module.get_extra_state()
    if not isinstance(state, Tensor):
        raise HeadtailError(
            f"`{name}` is a {type(state).__name__}, but only tensors are saved. Let "
            f"`{type(module).__name__}.get_extra_state` return a tensor."
        )
    return state


def _inside(name: str, optimizer: Optimizer) -> dict[str, Optimizer]:
    if not isinstance(optimizer, SplitOptimizer):
        return {name: optimizer}
    every: dict[str, Optimizer] = {}
    for number, part in enumerate(optimizer.optimizers):
        every |= _inside(f"{name}.{number}", part)
    return every


def remembers(module: nn.Module) -> bool:
    """Whether a module has more state than its buffers, such as a queue with its fill level."""
    return type(module).get_extra_state is not nn.Module.get_extra_state
