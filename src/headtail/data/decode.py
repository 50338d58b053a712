"""Decoding an image to RGB pixels, and the crops of it for training and testing."""

from __future__ import annotations

import math
import os
import stat
import warnings
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from headtail.errors import HeadtailError, Sentence, Setting, need

if TYPE_CHECKING:
    from PIL.Image import Image

Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right, bottom, in pixels."""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "PPM", "TIFF")
"""Formats that are tried. Others are left out because some of them, such as EPS, start programs."""
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".ppm", ".tif", ".tiff")
MODES = ("RGB", "RGBA", "RGBX", "L", "LA", "P", "PA", "1", "CMYK", "YCbCr")
"""Pixel modes with one meaning in 8-bit RGB; transparency is dropped."""
AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
"""Share of an image's area, and width over height, of a random crop."""
TEST_SHARE = 224 / 256
"""Share of the shorter side that the centre crop keeps."""


def open_rgb(source: str | bytes, name: str) -> Image:
    """Decode an image, whatever its pixel mode, into 8-bit RGB; of several frames, the first.

    Args:
        source: path of the file, or its content.
        name: what errors call it.

    >>> open_rgb(b"GIF89a, or so it says", "cat.gif")
    Traceback (most recent call last):
    headtail.errors.HeadtailError: `cat.gif` cannot be decoded as an image (…).
    """
    need("pillow", module="PIL", extra="data", to="Decoding images")
    from PIL import Image, UnidentifiedImageError

    if isinstance(source, str) and _is_special(source):
        raise bad_image(name, "is not a file, but a folder, a pipe or a device")
    file = BytesIO(source) if isinstance(source, bytes) else source
    try:
        # What Pillow warns about, such as a camera's damaged metadata, does not change the pixels.
        with warnings.catch_warnings(action="ignore"), Image.open(file, formats=FORMATS) as image:
            if image.mode not in MODES:
                raise bad_image(
                    name, f"has pixels of mode {image.mode}, which have no meaning in 8-bit RGB"
                )
            width, height = image.size
            if width * height > (Image.MAX_IMAGE_PIXELS or math.inf):
                raise bad_image(name, f"has {width:,} × {height:,} pixels{_TOO_LARGE}")
            # A palette may hold transparent colours, which Pillow wants to convert first.
            if image.mode == "P":
                return image.convert("RGBA").convert("RGB")
            return image.convert("RGB")
    except HeadtailError:
        raise
    except UnidentifiedImageError as error:
        problem = "is empty" if _is_empty(source) else f"is not an image ({', '.join(FORMATS)})"
        raise bad_image(name, problem) from error
    except Image.DecompressionBombError as error:
        raise bad_image(name, f"has a huge number of pixels{_TOO_LARGE}") from error
    except FileNotFoundError as error:
        raise bad_image(name, "does not exist") from error
    except Exception as error:  # what a decoder raises about a damaged file depends on the damage
        if "truncated" in str(error).lower():
            raise bad_image(name, "is cut off before the image is complete") from error
        why = str(error).rstrip(".") or type(error).__name__
        raise bad_image(name, f"cannot be decoded as an image ({why})") from error


_TOO_LARGE = ", more than Pillow may decode (`PIL.Image.MAX_IMAGE_PIXELS`)"


def bad_image(name: str, problem: str) -> HeadtailError:
    """The error about an image that cannot be used; `problem_of` takes its first part back out."""
    return HeadtailError(f"`{name}` {problem}", _ADVICE)


_ADVICE = Sentence(
    ". Fix or remove it, or leave such images out (", Setting("skip_bad_images"), ")."
)


def problem_of(error: str) -> str:
    """What is wrong with an image, without the advice."""
    return error.removesuffix(_ADVICE)


def whole(image: Image) -> np.ndarray:
    """`[3, h, w]` uint8."""
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def cut(image: Image, box: Box, size: int, *, flipped: bool = False) -> np.ndarray:
    """`[3, size, size]` uint8: the part inside the box, resampled (bilinear, all its pixels)."""
    from PIL.Image import Resampling

    pixels = np.asarray(image.resize((size, size), Resampling.BILINEAR, box=box))
    return (pixels[:, ::-1] if flipped else pixels).transpose(2, 0, 1)


def centre_box(width: int, height: int) -> Box:
    """The centre crop: the shorter side is scaled to 256/224 of the size, the middle is kept.

    >>> centre_box(320, 256)
    (48.0, 16.0, 272.0, 240.0)
    """
    side = min(width, height) * TEST_SHARE
    left = (width - side) / 2
    top = (height - side) / 2
    return left, top, left + side, top + side


def random_box(width: int, height: int, rng: np.random.Generator) -> Box:
    """A random crop of 8 to 100% of the area, 3/4 to 4/3 as wide as high (Szegedy et al. 2015).

    Where ten tries do not fit into a very long image, the largest centred crop with an allowed
    ratio.
    """
    low, high = (math.log(r) for r in RATIO)
    for _ in range(10):
        area = width * height * rng.uniform(*AREA)
        ratio = math.exp(rng.uniform(low, high))
        w = max(1, round(math.sqrt(area * ratio)))
        h = max(1, round(math.sqrt(area / ratio)))
        if w <= width and h <= height:
            left = int(rng.integers(width - w + 1))
            top = int(rng.integers(height - h + 1))
            return left, top, left + w, top + h
    w = min(width, height * RATIO[1])
    h = min(height, width / RATIO[0])
    return (width - w) / 2, (height - h) / 2, (width + w) / 2, (height + h) / 2


def _is_special(path: str) -> bool:
    """Whether reading this path might wait for ever, or never end."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):  # Pillow's own error says more
        return False


def _is_empty(source: str | bytes) -> bool:
    return not source if isinstance(source, bytes) else Path(source).stat().st_size == 0
