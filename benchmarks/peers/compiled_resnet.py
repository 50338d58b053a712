"""ResNet-56 for small images in plain PyTorch: channels last, autocast to bfloat16, for
`torch.compile`; run by `image_step.py`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headtail.encoders.prepare_images import PLACES, plain_prepared

BLOCKS_PER_STAGE = 9


class Block(nn.Module):
    """Two 3 × 3 convolutions and a shortcut without parameters."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.added = out - channels
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        """`[n, out, h / stride, w / stride]`."""
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        if self.added or self.stride > 1:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))
        return F.relu(y + x)


class CompiledResNet(nn.Module):
    """The network with a linear layer; its loss on uint8 images, augmented as headtail does."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        blocks = []
        channels = 16
        for out in (16, 32, 64):
            for i in range(BLOCKS_PER_STAGE):
                blocks.append(Block(channels, out, 2 if i == 0 and out > 16 else 1))
                channels = out
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(channels, labels)
        self.register_buffer("mean", torch.full((3,), 128.0))
        self.register_buffer("std", torch.full((3,), 64.0))
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def forward(self, images: Tensor, label: Tensor) -> Tensor:
        """The loss."""
        chance = torch.randint(2 * PLACES, (len(images),), device=images.device)
        x = plain_prepared(images, chance, self.mean, self.std, torch.bfloat16)
        with torch.autocast(images.device.type, torch.bfloat16):
            x = self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3), dtype=torch.float32)
        return F.cross_entropy(self.linear(x), label)
