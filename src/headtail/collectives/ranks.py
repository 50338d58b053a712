"""Ranks: the processes that train together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from headtail.errors import HeadtailError, Setting

_RENAMED = hasattr(dist, "all_gather_single")  # in torch 2.13
GATHER_INTO = "all_gather_single" if _RENAMED else "all_gather_into_tensor"
SUM_INTO = "reduce_scatter_single" if _RENAMED else "reduce_scatter_tensor"
"""Functions of `torch.distributed` that gather and sum tensors of one size."""
LARGEST_MESSAGE = 2**24
"""Numbers that are sent at a time where a whole table is sent."""


@dataclass(frozen=True)
class Ranks:
    """The processes of a group. It holds the group's name, so that modules that hold it can be
    copied and saved.

    Attributes:
        name: as torch knows the group; None for all processes.
    """

    name: str | None = None

    @classmethod
    def of(cls, group: Any = None) -> Ranks:
        """The ranks of a process group or of a mesh with one dimension; None and "world" are all
        processes.
        """
        if isinstance(group, Ranks):
            return group
        if isinstance(group, DeviceMesh):
            if group.ndim != 1:
                raise HeadtailError(
                    f"A mesh must have one dimension, but this one has {group.ndim}. Pass one of "
                    "them: `mesh[name]`, or flatten it."
                )
            if group.get_coordinate() is None:
                raise HeadtailError(
                    f"This process, rank {dist.get_rank()}, is not part of the mesh, which has the "
                    f"ranks {group.mesh.tolist()}. Call it on those ranks only, or pass a mesh of "
                    "all."
                )
            group = group.get_group()
        if group is None or group == "world":
            return cls()
        if not isinstance(group, dist.ProcessGroup):
            raise HeadtailError(
                Setting("group"),
                f" must be a process group that this process belongs to, but got {group!r}. Write ",
                Setting("group", "world"),
                " for all processes.",
            )
        return cls() if group is dist.group.WORLD else cls(group.group_name)

    @property
    def group(self) -> dist.ProcessGroup:
        """The group."""
        _require_group()
        if self.name is None:
            world = dist.group.WORLD
            assert world is not None
            return world
        resolve = dist.distributed_c10d._resolve_process_group  # pyright: ignore[reportPrivateImportUsage]
        return resolve(self.name)  # pyright: ignore[reportArgumentType]

    @property
    def size(self) -> int:
        """How many processes there are."""
        return dist.get_world_size(self.group)

    @property
    def rank(self) -> int:
        """The number of this process among them."""
        return dist.get_rank(self.group)

    def reaches(self, device: torch.device) -> bool:
        """Whether tensors on such a device can be sent."""
        return any(kind.type == device.type for kind in self.group._device_types)

    def check_device(self, name: str, tensor: Tensor) -> None:
        """Refuse a tensor that is where the group cannot read it."""
        if not self.reaches(tensor.device):
            raise HeadtailError(
                Setting(name),
                f" is on {tensor.device}, but the process group has the backend "
                f"{dist.get_backend(self.group)!r}, which does not reach it. Move the model, or "
                'write `init_process_group("cpu:gloo,cuda:nccl")`.',
            )

    def numbers(self, own: list[int], device: torch.device) -> list[list[int]]:
        """As many whole numbers of each rank; the host waits for them."""
        mine = torch.tensor(own, dtype=torch.int64, device=self.meeting_place(device))
        return self.gather(mine).tolist()

    def gather(self, tensor: Tensor) -> Tensor:
        """`[ranks, …]` tensors of one shape."""
        every = tensor.new_empty(self.size, *tensor.shape)
        dist.all_gather(list(every.unbind()), tensor.contiguous(), group=self.group)
        return every

    def gather_into(self, every: Tensor, own: Tensor) -> None:
        """Gather the tensors of all ranks, in their order, into an existing tensor."""
        getattr(dist, GATHER_INTO)(every, own, group=self.group)

    def sum_into(self, own: Tensor, every: Tensor, times: int = 1) -> None:
        """Sum a tensor over all ranks and write this rank's part of it, multiplied by `times`, into
        an existing tensor.
        """
        if every.dtype.itemsize < torch.float32.itemsize:
            # A sum that travels is rounded at every rank. As many bytes bring all terms here.
            terms = torch.empty_like(every)
            dist.all_to_all_single(terms, every, group=self.group)
            own.copy_(terms.view(self.size, *own.shape).float().sum(0) * times)
            return
        getattr(dist, SUM_INTO)(own, every, group=self.group)
        if times != 1:
            own.mul_(times)

    def reduce_(self, tensor: Tensor, *, highest: bool = False) -> None:
        """Replace a tensor by its sum over all ranks, or by the highest of each number."""
        operation = dist.ReduceOp.MAX if highest else dist.ReduceOp.SUM
        dist.all_reduce(tensor, operation, group=self.group)

    def start_sum(self, tensor: Tensor) -> dist.Work:
        """Begin to sum a tensor over all ranks in place; `wait()` for it before it is read."""
        work = dist.all_reduce(tensor, group=self.group, async_op=True)
        assert work is not None
        return work

    @torch.no_grad()
    def copy_first(self, tensor: Tensor) -> None:
        """Give a tensor the values that it has on the first rank, wherever it is."""
        place = self.meeting_place(tensor.device)
        whole = tensor.detach().contiguous()  # itself, or a copy of filters in channels-last order
        for part in whole.view(-1).split(LARGEST_MESSAGE):
            sent = part.to(place)
            dist.broadcast(sent, group=self.group, group_src=0)
            part.copy_(sent)
        if whole.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(whole)

    def meeting_place(self, device: torch.device) -> torch.device:
        """This device if the group reaches it, else one that it reaches."""
        if self.reaches(device):
            return device
        kind = self.group._device_types[0]
        return torch.device(kind.type, torch.accelerator.current_device_index())


def _require_group() -> None:
    if not (dist.is_available() and dist.is_initialized()):
        raise HeadtailError(
            "There is no process group yet: call `torch.distributed.init_process_group()` first, "
            "in a program that `torchrun` starts."
        )


def refuse_reducer(table: Tensor) -> None:
    """Refuse to train a sparse table that `DistributedDataParallel` averages, which it cannot."""
    if torch.compiler.is_compiling():
        return
    wrapper = DistributedDataParallel._get_active_ddp_module()
    if wrapper is not None and any(p is table for p in wrapper._module_parameters):
        raise HeadtailError(
            "`DistributedDataParallel` cannot average the sparse gradients of a label table. Write "
            "`headtail.distributed.replicate(model)` before you wrap that very `model`."
        )


def is_accumulating() -> bool:
    """Whether `DistributedDataParallel` leaves gradients as they are (`no_sync`), because more of
    them follow.
    """
    wrapper = DistributedDataParallel._get_active_ddp_module()
    if wrapper is not None and wrapper._join_config.enable:
        raise HeadtailError(
            "Ranks that have run out of batches cannot take part in the sums of a label head, so "
            "`join()` does not work with it. Give every rank the same number of batches."
        )
    return wrapper is not None and not wrapper.require_backward_grad_sync
