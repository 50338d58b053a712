"""ResNets: 20, 32 and 56 layers for small images, 50 for large ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from headtail.encoders.convolution import convolve
from headtail.encoders.dropout import dropout
from headtail.encoders.norm import Norm
from headtail.encoders.prepare_images import PrepareImages
from headtail.errors import HeadtailError

SMALL = (20, 32, 56)
LARGE = (50,)
"""Depths of the networks for small images, and for large ones."""
Filters = Iterator[Tensor]
"""Weights of the convolutions still to come, in network order and in the precision of the step."""


class ResNet(nn.Module):
    """From uint8 images to hidden states (He et al., 2016, "Deep Residual Learning for Image
    Recognition").

    Depths 20, 32 and 56 are the paper's networks for CIFAR (section 4.2): three stages of 16, 32
    and 64 channels, shortcuts without parameters (option A: every other pixel, new channels zero),
    d = 64. Depth 50 has bottleneck blocks and projections, with the stride in the 3 × 3 convolution
    ("v1.5") and blocks that begin as the identity (Goyal et al., 2017, section 5.1), d = 2048.
    Convolutions start as in He et al. (2015), by fan-out.

    Args:
        depth: 20, 32, 56 or 50.
        augment: crop and mirror images in training, on the device.
        dropout: share of the hidden states dropped in training.
        narrow: compute in bfloat16 on a GPU; weights, statistics, sums and hidden states stay
            float32.

    >>> encoder = ResNet(20)
    >>> encoder(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape, encoder.dim
    (torch.Size([2, 64]), 64)
    """

    def __init__(
        self, depth: int, *, augment: bool = True, dropout: float = 0.0, narrow: bool = False
    ) -> None:
        super().__init__()
        if depth not in (*SMALL, *LARGE):
            depths = ", ".join(map(str, (*SMALL, *LARGE)))
            raise HeadtailError(f"`depth` must be one of {depths}, but got {depth!r}.")
        self.depth = depth
        self.dropout = dropout
        self.narrow = narrow
        self.prepare = PrepareImages(augment=augment)
        self.stem: nn.Module = SmallStem() if depth in SMALL else LargeStem()
        small = depth in SMALL
        blocks = small_blocks((depth - 2) // 6) if small else large_blocks((3, 4, 6, 3))
        self.blocks = nn.ModuleList(blocks)
        self.dim = 64 if depth in SMALL else 2048
        # The layout in which convolutions are fastest.
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def forward(self, images: UInt8[Tensor, "n 3 h w"]) -> Float[Tensor, "n d"]:
        """`[n, d]` float32 hidden states: the mean of the last block's output over all places."""
        weights = [module.weight for module in self.modules() if isinstance(module, Convolution)]
        dtype = self.dtype_on(images.device)
        filters = iter(weights if dtype == torch.float32 else narrowed(weights))
        x = self.stem(self.prepare(images, dtype), filters)
        for block in self.blocks:
            x = block(x, filters)
        return dropout(x.mean((2, 3), dtype=torch.float32), self.dropout, self.training)

    def dtype_on(self, device: torch.device) -> torch.dtype:
        """The precision in which layers compute: bfloat16 pays on a GPU only."""
        return torch.bfloat16 if self.narrow and device.type == "cuda" else torch.float32

    def extra_repr(self) -> str:
        """Depth and width."""
        return f"depth={self.depth}, dim={self.dim}"


class Convolution(nn.Module):
    """A convolution without bias that keeps the size, or halves it with stride 2.

    Its weight comes from the step's filters: these are converted to bfloat16 all at once.
    """

    def __init__(self, channels: int, out: int, size: int, stride: int = 1) -> None:
        super().__init__()
        self.stride = stride
        self.padding = size // 2
        self.weight = nn.Parameter(torch.empty(out, channels, size, size))
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor, filters: Filters) -> Tensor:
        """`[n, out, h / stride, w / stride]`."""
        return convolve(x, next(filters), self.stride, self.padding)


class SmallStem(nn.Module):
    """A 3 × 3 convolution to 16 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = Convolution(3, 16, 3)
        self.norm = Norm(16)

    def forward(self, x: Tensor, filters: Filters) -> Tensor:
        """`[n, 16, h, w]`."""
        return self.norm(self.conv(x, filters))


class LargeStem(nn.Module):
    """A 7 × 7 convolution to 64 channels and a pooling: a quarter of the height and width."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = Convolution(3, 64, 7, stride=2)
        self.norm = Norm(64)

    def forward(self, x: Tensor, filters: Filters) -> Tensor:
        """`[n, 64, h / 4, w / 4]`."""
        return F.max_pool2d(self.norm(self.conv(x, filters)), 3, stride=2, padding=1)


class Block(nn.Module):
    """Two 3 × 3 convolutions, and a shortcut without parameters."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.new = out - channels
        self.conv1 = Convolution(channels, out, 3, stride)
        self.norm1 = Norm(out)
        self.conv2 = Convolution(out, out, 3)
        self.norm2 = Norm(out)

    def forward(self, x: Tensor, filters: Filters) -> Tensor:
        """`[n, out, h / stride, w / stride]`."""
        shortcut = x
        if self.new or self.stride > 1:
            shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new))
            shortcut = shortcut.contiguous(memory_format=torch.channels_last)
        y = self.norm1(self.conv1(x, filters))
        return self.norm2(self.conv2(y, filters), shortcut)


class WideBlock(nn.Module):
    """1 × 1, 3 × 3 and 1 × 1 convolutions, four times as wide at their end.

    The shortcut is projected where the shape changes.
    """

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.conv1 = Convolution(channels, width, 1)
        self.norm1 = Norm(width)
        self.conv2 = Convolution(width, width, 3, stride)
        self.norm2 = Norm(width)
        self.conv3 = Convolution(width, out, 1)
        self.norm3 = Norm(out, gamma=0.0)
        same = channels == out and stride == 1
        self.project = None if same else Convolution(channels, out, 1, stride)
        self.project_norm = None if same else Norm(out, relu=False)

    def forward(self, x: Tensor, filters: Filters) -> Tensor:
        """`[n, 4 · width, h / stride, w / stride]`."""
        y = self.norm1(self.conv1(x, filters))
        y = self.norm2(self.conv2(y, filters))
        y = self.conv3(y, filters)
        if self.project is not None and self.project_norm is not None:
            x = self.project_norm(self.project(x, filters))
        return self.norm3(y, x)


def small_blocks(per_stage: int) -> Iterator[Block]:
    """Three stages of 16, 32 and 64 channels; the size halves where the channels double."""
    channels = 16
    for out in (16, 32, 64):
        for i in range(per_stage):
            yield Block(channels, out, stride=2 if i == 0 and out > 16 else 1)
            channels = out


def large_blocks(per_stage: Sequence[int]) -> Iterator[WideBlock]:
    """Four stages of 256, 512, 1024 and 2048 channels."""
    channels = 64
    for stage, blocks in enumerate(per_stage):
        for i in range(blocks):
            yield WideBlock(channels, 64 << stage, stride=2 if i == 0 and stage > 0 else 1)
            channels = 256 << stage


def narrowed(weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """All weights in bfloat16, by a few kernels instead of one each; so are their gradients."""
    return _Narrowed.apply(*weights)  # pyright: ignore[reportReturnType]


class _Narrowed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.weights = weights
        short = [torch.empty_like(weight, dtype=torch.bfloat16) for weight in weights]
        torch._foreach_copy_(short, list(weights))  # pyright: ignore[reportPrivateImportUsage]
        return tuple(short)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        # in the layout of the weight, for the optimiser
        wide = [torch.empty_like(weight) for weight in ctx.weights]
        torch._foreach_copy_(wide, list(grads))  # pyright: ignore[reportPrivateImportUsage]
        return tuple(wide)
