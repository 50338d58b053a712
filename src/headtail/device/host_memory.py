"""Tables in host memory that a GPU reads and writes where they are.

How a GPU gets at them is decided in one function, `_seen_from`, and in no other place. It makes an
ordinary CUDA tensor over the host's own addresses:

* Under unified addressing (64-bit Linux) a kernel reaches memory that `cudaHostRegister` has mapped
  at the address that the host has for it.
* `torch.as_tensor` makes a CUDA tensor at any such address from `__cuda_array_interface__`: without
  a device it asks `cudaPointerGetAttributes`, which refuses only memory that is *not* registered
  (`getDeviceFromPtr` in torch's `CUDADevice.h`); with one, from torch 2.9 on, it takes that.
  vLLM's `get_cuda_view_from_cpu_tensor` makes the same tensor in C++ for weights that do not fit.
* Triton asks the driver for the device's address of each pointer and accepts registered memory
  (`cuPointerGetAttribute` in its launcher), so it takes the CUDA tensor and would take the CPU one.

So all code that trains a table on a GPU (kernels, torch's own operators, autograd, CUDA graphs,
optimisers) sees a CUDA parameter, and work on it is ordered by streams. A CPU parameter would be
read while a GPU is still writing to it, and torch refuses to give it a gradient on a GPU.

The memory is a map and not `pin_memory()`: torch's own pinned memory is rounded up to a power of
two. The map is shared, so that a forked process neither copies pinned pages nor loses them.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from headtail.errors import HeadtailError

PORTABLE_AND_MAPPED = 1 | 2
"""`cudaHostRegisterPortable | cudaHostRegisterMapped`: for kernels of every device."""


class HostTensor(nn.Parameter):
    """A table that stays in host memory, whichever device it is used on.

    On the CPU it is an ordinary tensor. Moved to a GPU, it is a CUDA tensor over the same memory.
    Copies and pickles hold its values, and are in host memory again.

    Attributes:
        host: the same numbers as a CPU tensor. Call `settle()` before you read or write it.
    """

    host: Tensor
    _memory: _Map

    @classmethod
    def empty(
        cls,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device | str | None = None,
        requires_grad: bool = True,
    ) -> HostTensor:
        """A new table, all zeros, used on this device."""
        memory, host = _mapped(shape, dtype)
        table = cls(host, requires_grad)
        table.host = host
        table._memory = memory
        table.move(torch.empty(0, device=device).device)
        return table

    @classmethod
    def of(cls, values: Tensor, device: torch.device, requires_grad: bool = False) -> HostTensor:
        """A copy of these values in host memory."""
        table = cls.empty(values.shape, values.dtype, device, requires_grad)
        table.host.copy_(values.detach())
        return table

    @property
    def is_far(self) -> bool:
        """Whether the device that uses it reads it over a bus."""
        return self.device.type != "cpu"

    def settle(self) -> Tensor:
        """Wait until its device has written all that it was asked to write; returns `host`."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.host

    def move(self, device: torch.device) -> None:
        """Use it on this device from now on; its memory stays where it is."""
        if device.type not in ("cpu", "cuda"):
            raise HeadtailError(
                f"A table in host memory is used by a CPU or a CUDA device, but got {device}. "
                'Write `placement="device"`.'
            )
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        if device != self.device:
            self.settle()
            self.data = (
                self.host if device.type == "cpu" else _seen_from(self.host, self._memory, device)
            )

    def follow(self, moved: Any) -> None:
        """Go where a function of `nn.Module._apply` takes tensors; the type must stay."""
        probe = moved(self.detach()[:0])
        if probe.dtype != self.dtype:
            raise HeadtailError(
                f"A table in host memory stays {self.dtype}, but got {probe.dtype}. Write "
                f"`dtype={probe.dtype}` where you make its head."
            )
        grad = None if self.grad is None else moved(self.grad)
        self.grad = None
        self.move(probe.device)
        self.grad = grad

    def alias(self) -> HostTensor:
        """A leaf that autograd takes for another one, in the same memory."""
        other = type(self)(self.detach(), self.requires_grad)
        other.host = self.host
        other._memory = self._memory
        return other

    def append(self, rows: Tensor) -> None:
        """Put rows behind its own; needs memory for both tables while it copies."""
        memory, host = _mapped((len(self) + len(rows), *self.shape[1:]), self.dtype)
        host[: len(self)] = self.settle()
        host[len(self) :] = rows.detach().cpu()
        device = self.device
        self.data = self.host = host
        self._memory = memory
        self.move(device)

    def __deepcopy__(self, memo: dict[int, Any]) -> HostTensor:
        """A copy in host memory, without what the table shares with others."""
        if id(self) not in memo:
            memo[id(self)] = type(self).of(self.settle(), self.device, self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """For pickle: the values, and an empty tensor that goes to the device to use it on."""
        own = ("host", "_memory")
        more = {name: value for name, value in vars(self).items() if name not in own}
        device = torch.empty(0, device=self.device)
        return _again, (self.settle(), device, self.requires_grad, more)


def _again(values: Tensor, device: Tensor, requires_grad: bool, more: dict[str, Any]) -> HostTensor:
    """What `HostTensor.__reduce_ex__` saved."""
    table = HostTensor.of(values, device.device, requires_grad)
    vars(table).update(more)
    return table


def is_far(table: Tensor) -> bool:
    """Whether reading a row of it passes a bus, so that rows should be read once."""
    return isinstance(table, HostTensor) and table.is_far


def on_host(tensor: Tensor) -> Tensor:
    """The numbers of a table in host memory as a CPU tensor, when they are all written; any other
    tensor as it is.
    """
    return tensor.settle() if isinstance(tensor, HostTensor) else tensor


class _Map(mmap.mmap):
    """Anonymous memory, which is unmapped when no tensor needs it any more.

    Attributes:
        registered_at: its address, once CUDA knows it; else 0.
        devices: all that may have work on it under way.
    """

    registered_at = 0
    devices: frozenset[torch.device] = frozenset()

    def register(self, address: int, device: torch.device) -> None:
        """Let a device use it: pin it, once, and map it into the address space of all devices."""
        self.devices |= {device}
        if self.registered_at:
            return
        error = _cudart().cudaHostRegister(address, len(self), PORTABLE_AND_MAPPED)
        if int(error) != 0:
            raise HeadtailError(
                f"CUDA cannot pin {len(self) / 2**30:.1f} GiB of host memory (error {int(error)}). "
                'Choose fewer labels, a smaller `dim`, or write `placement="device"`.'
            )
        self.registered_at = address

    def __del__(self) -> None:
        if self.registered_at:
            with suppress(Exception):  # at the end of a process, CUDA may be gone already
                for device in self.devices:
                    torch.cuda.synchronize(device)
                _cudart().cudaHostUnregister(self.registered_at)


def _cudart() -> Any:
    """CUDA's runtime, as torch has loaded it."""
    return torch.cuda.cudart()


def _mapped(shape: Sequence[int], dtype: torch.dtype) -> tuple[_Map, Tensor]:
    """A memory map, and all of it as a CPU tensor of zeros."""
    count = math.prod(shape)
    nbytes = count * dtype.itemsize
    try:
        memory = _Map(-1, max(1, nbytes))
    except OSError as error:
        raise HeadtailError(
            f"A table of {nbytes / 2**30:.1f} GiB does not fit into host memory ({error.strerror})."
            " Choose fewer labels, a smaller `dim` or `dtype=torch.bfloat16`."
        ) from error
    if count == 0:
        return memory, torch.empty(*shape, dtype=dtype, device="cpu")
    return memory, torch.frombuffer(memory, dtype=dtype, count=count).reshape(*shape)


class _Exposed:
    """The bytes of a CPU tensor, as libraries on a GPU show theirs to each other. A tensor that is
    made of it keeps it, and so the memory.
    """

    def __init__(self, host: Tensor) -> None:
        self.host = host
        self.__cuda_array_interface__ = {
            "shape": (host.nbytes,),
            "typestr": "|u1",  # the protocol has no bfloat16
            "data": (host.data_ptr(), False),
            "version": 3,
        }


def _seen_from(host: Tensor, memory: _Map, device: torch.device) -> Tensor:
    """A tensor of a GPU over the memory of a CPU tensor: see the beginning of this file."""
    if host.numel() == 0:
        return torch.empty_like(host, device=device)
    with torch.cuda.device(device):
        memory.register(host.data_ptr(), device)
        seen = torch.as_tensor(_Exposed(host), device=device)
    if seen.data_ptr() != host.data_ptr():  # torch would have copied it from another device
        raise HeadtailError(
            f"torch {torch.__version__} cannot use host memory on {device}. Write "
            '`placement="device"`.'
        )
    return seen.view(host.dtype).view(host.shape)


# A parameter may be saved by itself, and `torch.load` refuses unknown functions.
torch.serialization.add_safe_globals([_again])
