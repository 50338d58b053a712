"""Prepare: pictures as they are stored, made ready for a network where the network is."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from headtail.data.points import Bag, Points
from headtail.errors import HeadtailError
from headtail.kernels.compiled import HAS_TRITON

PAD = 4
"""Black pixels around a small picture before a part of its own size is cut out of it."""
SIDE = 2 * PAD + 1
PLACES = SIDE**2
"""Where a picture can move to."""
AT_ONCE = 2**24
"""Numbers of pictures that are counted at a time."""
ENOUGH = 1024
"""Pictures that tell mean and deviation of files, which must be decoded first."""


class Prepare(nn.Module):
    r"""$x = (u - \mu) / \sigma$ by channel, u from 0 to 255, with pad, crop and flip before it in
    training.

    The augmentation is that of He et al. (2016), section 4.2: four pixels on each side, here black,
    a random part of the picture's own size, mirrored every other time. It is batched work on the
    device, with one random number a picture of its own generator, so that a CUDA graph holds it
    too. Pictures of files are cut and mirrored where they are decoded, and not here.

    Args:
        augment: whether pictures are cut and mirrored in training.

    >>> from headtail.core.targets import Ragged
    >>> prepare, pictures = Prepare(augment=False), torch.randint(256, (50, 3, 8, 8), dtype=torch.uint8)
    >>> prepare.measure(Points(pictures, Ragged.from_lists([[0]] * 50), num_labels=1))
    >>> x = prepare(pictures)
    >>> bool(x.mean().abs() < 1e-5), bool((x.std() - 1).abs() < 1e-3)
    (True, True)
    """

    mean: Tensor
    std: Tensor

    def __init__(self, *, augment: bool = True) -> None:
        super().__init__()
        self.augment = augment
        self.register_buffer("mean", torch.full((3,), 128.0))
        self.register_buffer("std", torch.full((3,), 64.0))

    @torch.no_grad()
    def measure(self, points: Points) -> None:
        """Take mean and deviation of each channel from training pictures; of files, from about
        1,024 spread over them.
        """
        counts = torch.zeros(3, 256, dtype=torch.int64)
        pictures = points.features
        if isinstance(pictures, Bag):
            raise HeadtailError(
                "Sparse features are no pictures. Pass uint8 numbers of shape [n, 3, height, "
                "width]."
            )
        if not isinstance(pictures, Tensor):
            ids = torch.arange(0, len(pictures), max(1, len(pictures) // ENOUGH))
            pictures = pictures.decoded(ids, train=False, seed=0)
        for block in pictures.split(max(1, AT_ONCE // pictures[0].numel())):
            for channel in range(3):
                counts[channel] += torch.bincount(block[:, channel].flatten().long(), minlength=256)
        share = counts.double() / counts.sum(1, keepdim=True)
        value = torch.arange(256)
        mean = (share * value).sum(1)
        std = (share * (value - mean[:, None]) ** 2).sum(1).sqrt()
        self.mean.copy_(mean)
        self.std.copy_(torch.where(std > 0, std, 1.0))  # a channel of one value says nothing

    def forward(
        self, pictures: UInt8[Tensor, "n 3 h w"], dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "n 3 h w"]:
        """Normalised pictures, channels last in memory."""
        if pictures.dtype != torch.uint8 or pictures.dim() != 4 or pictures.shape[1] != 3:
            raise HeadtailError(
                f"Pictures must be uint8 of shape [n, 3, height, width], but got {pictures.dtype} "
                f"of shape {list(pictures.shape)}."
            )
        chance = None
        if self.augment and self.training:
            chance = torch.randint(2 * PLACES, (len(pictures),), device=pictures.device)
        if (
            HAS_TRITON
            and pictures.is_cuda
            and pictures.is_contiguous()
            and not torch.compiler.is_compiling()
        ):
            from headtail.kernels.triton import images as cuda_pictures

            return cuda_pictures.prepared(pictures, chance, self.mean, self.std, PAD, dtype)
        return plain_prepared(pictures, chance, self.mean, self.std, dtype)


def plain_prepared(
    pictures: Tensor, chance: Tensor | None, mean: Tensor, std: Tensor, dtype: torch.dtype
) -> Tensor:
    """The same in torch's operations."""
    pictures = pictures if chance is None else moved(pictures, chance)
    x = (pictures - mean[:, None, None]) / std[:, None, None]
    return x.to(dtype, memory_format=torch.channels_last)


def moved(
    pictures: UInt8[Tensor, "n 3 h w"], chance: Int64[Tensor, " n"]
) -> UInt8[Tensor, "n 3 h w"]:
    """Each picture moved by up to four pixels each way, black where nothing was, and mirrored from
    81 on.

    Args:
        pictures: `[n, 3, h, w]`.
        chance: `[n]` from 0 to 161: one of nine rows, nine columns, and two directions.
    """
    n, _, height, width = pictures.shape
    chance = chance[:, None]
    picture = torch.arange(n, device=pictures.device)
    column = torch.arange(width, device=pictures.device)
    # [n, h], in the padded picture
    row = torch.arange(height, device=pictures.device) + chance % SIDE
    # [n, w]
    column = torch.where(chance >= PLACES, width - 1 - column, column) + chance // SIDE % SIDE
    padded = F.pad(pictures, (PAD, PAD, PAD, PAD))
    # Indices around a slice put it last: [n, h, w, 3], the layout that convolutions want.
    return padded[picture[:, None, None], :, row[:, :, None], column[:, None, :]].permute(
        0, 3, 1, 2
    )
