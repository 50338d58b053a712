"""PrepareImages: from stored bytes to normalised network input, on the network's device."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from headtail.data.bag import Bag
from headtail.data.histories import Histories
from headtail.data.points import Points
from headtail.errors import HeadtailError
from headtail.kernels.dispatch import image_kernel

PAD = 4
"""Black pixels on each side of a small image before a crop of its own size is taken."""
SIDE = 2 * PAD + 1
PLACES = SIDE**2
"""Places that the crop can have."""
COUNTED_AT_ONCE = 2**24
"""Pixel values counted at a time."""
FILES_FOR_STATISTICS = 1024
"""Image files that are decoded for mean and deviation."""


class PrepareImages(nn.Module):
    r"""$x = (u - \mu) / \sigma$ per channel, u from 0 to 255, after pad, crop and flip in training.

    The augmentation is that of He et al. (2016), section 4.2: four pixels on each side, here black,
    a random crop of the image's own size, mirrored with probability 1/2. It is batched work on the
    device with one random number per image, so that a CUDA graph can hold it. Images in files
    are cropped and mirrored where they are decoded, not here.

    Args:
        augment: whether images are cropped and mirrored in training.

    >>> from headtail.core.targets import Ragged
    >>> prepare = PrepareImages(augment=False)
    >>> images = torch.randint(256, (50, 3, 8, 8), dtype=torch.uint8)
    >>> prepare.measure_channels(Points(images, Ragged.from_lists([[0]] * 50), num_labels=1))
    >>> x = prepare(images)
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
    def measure_channels(self, points: Points, at_once: int = COUNTED_AT_ONCE) -> None:
        """Take the mean and deviation of each channel from training images.

        Args:
            points: the images; of image files, about 1,024 spread over them are decoded.
            at_once: pixel values counted at a time.
        """
        images = points.features
        if isinstance(images, Bag | Histories):
            raise HeadtailError(
                "Images must be uint8 of shape [n, 3, height, width], but got sparse features."
            )
        if not isinstance(images, Tensor):
            ids = torch.arange(0, len(images), max(1, len(images) // FILES_FOR_STATISTICS))
            images = images.decoded(ids, train=False, seed=0)
        counts = torch.zeros(3, 256, dtype=torch.int64)
        for block in images.split(max(1, at_once // images[0].numel())):
            for channel in range(3):
                counts[channel] += torch.bincount(block[:, channel].flatten().long(), minlength=256)
        share = counts.double() / counts.sum(1, keepdim=True)
        value = torch.arange(256)
        mean = (share * value).sum(1)
        std = (share * (value - mean[:, None]) ** 2).sum(1).sqrt()
        self.mean.copy_(mean)
        self.std.copy_(torch.where(std > 0, std, 1.0))  # a constant channel is not scaled

    def forward(
        self, images: UInt8[Tensor, "n 3 h w"], dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "n 3 h w"]:
        """Normalised images, channels last in memory."""
        if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] != 3:
            raise HeadtailError(
                f"Images must be uint8 of shape [n, 3, height, width], but got {images.dtype} "
                f"of shape {list(images.shape)}."
            )
        chance = None
        if self.augment and self.training:
            chance = torch.randint(2 * PLACES, (len(images),), device=images.device)
        kernel = image_kernel(images)
        if kernel is not None:
            return kernel.prepared(images, chance, self.mean, self.std, PAD, dtype)
        return plain_prepared(images, chance, self.mean, self.std, dtype)


def plain_prepared(
    images: Tensor, chance: Tensor | None, mean: Tensor, std: Tensor, dtype: torch.dtype
) -> Tensor:
    """`PrepareImages` in torch's operations."""
    images = images if chance is None else moved(images, chance)
    x = (images - mean[:, None, None]) / std[:, None, None]
    return x.to(dtype, memory_format=torch.channels_last)


def moved(
    images: UInt8[Tensor, "n 3 h w"], chance: Int64[Tensor, " n"]
) -> UInt8[Tensor, "n 3 h w"]:
    """Move each image by up to four pixels each way, black at the new edges, and mirror some.

    Args:
        images: `[n, 3, h, w]`.
        chance: `[n]` from 0 to 161: one of nine rows, nine columns, and (from 81 on) mirrored.
    """
    n, _, height, width = images.shape
    chance = chance[:, None]
    image = torch.arange(n, device=images.device)
    column = torch.arange(width, device=images.device)
    # [n, h], in the padded image
    row = torch.arange(height, device=images.device) + chance % SIDE
    # [n, w]
    column = torch.where(chance >= PLACES, width - 1 - column, column) + chance // SIDE % SIDE
    padded = F.pad(images, (PAD, PAD, PAD, PAD))
    # Indices around a slice put it last: [n, h, w, 3], the layout that convolutions want.
    cut = padded[image[:, None, None], :, row[:, :, None], column[:, None, :]]
    return cut.permute(0, 3, 1, 2)
