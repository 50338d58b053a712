"""One picture: from a file or its bytes to RGB pixels, and the crops that training and testing take
of it.
"""

from __future__ import annotations

import math
import warnings
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from headtail.errors import HeadtailError

if TYPE_CHECKING:
    from PIL.Image import Image

Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right, bottom, in pixels."""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "PPM", "TIFF")
"""What is tried. Others are left out because some of them, such as EPS, start programs."""
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".ppm", ".tif", ".tiff")
MODES = ("RGB", "RGBA", "RGBX", "L", "LA", "P", "PA", "1", "CMYK", "YCbCr")
"""Kinds of pixels that have one meaning in 8-bit RGB; transparency is dropped."""
AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
TEST_SHARE = 224 / 256
"""Of the shorter side, what the centre crop keeps."""


def open_rgb(source: str | bytes, name: str) -> Image:
    """Decode a picture, whatever its kind of pixels, into 8-bit RGB.

    Args:
        source: path of the file, or its content.
        name: what to call it in a sentence about it.

    >>> open_rgb(b"GIF89a, or so it says", "cat.gif")
    Traceback (most recent call last):
    headtail.errors.HeadtailError: `cat.gif` cannot be decoded as a picture (…).
    """
    from PIL import Image, UnidentifiedImageError

    file = BytesIO(source) if isinstance(source, bytes) else source
    try:
        # Whatever Pillow would warn of, such as damaged remarks of a camera, does not change the
        # pixels.
        with warnings.catch_warnings(action="ignore"), Image.open(file, formats=FORMATS) as image:
            if image.mode not in MODES:
                raise bad(
                    name, f"has pixels of mode {image.mode}, which have no meaning in 8-bit RGB"
                )
            # a palette may hold transparent colours, which Pillow wants to see first
            if image.mode == "P":
                return image.convert("RGBA").convert("RGB")
            return image.convert("RGB")
    except HeadtailError:
        raise
    except UnidentifiedImageError as error:
        raise bad(
            name, "is empty" if _is_empty(source) else f"is no picture ({', '.join(FORMATS)})"
        ) from error
    except FileNotFoundError as error:
        raise bad(name, "does not exist") from error
    except Exception as error:  # what a decoder raises about a damaged file depends on the damage
        if "truncated" in str(error).lower():
            raise bad(name, "is cut off before the picture is complete") from error
        raise bad(
            name,
            f"cannot be decoded as a picture ({str(error).rstrip('.') or type(error).__name__})",
        ) from error


def bad(name: str, what: str) -> HeadtailError:
    """The sentence about a picture that cannot be used."""
    return HeadtailError(
        f"`{name}` {what}. Mend or remove it, or leave such pictures out (`skip_bad_images`)."
    )


def whole(image: Image) -> np.ndarray:
    """`[3, h, w]` uint8."""
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def cut(image: Image, box: Box, size: int, *, flipped: bool = False) -> np.ndarray:
    """`[3, size, size]` uint8: the part inside the box, resampled (bilinear, over all pixels it
    covers).
    """
    from PIL.Image import Resampling

    pixels = np.asarray(image.resize((size, size), Resampling.BILINEAR, box=box))
    return (pixels[:, ::-1] if flipped else pixels).transpose(2, 0, 1)


def centre_box(width: int, height: int) -> Box:
    """What is left if the shorter side is scaled to 256/224 of the wanted size, and the middle cut
    out.

    >>> centre_box(320, 256)
    (48.0, 16.0, 272.0, 240.0)
    """
    side = min(width, height) * TEST_SHARE
    left = (width - side) / 2
    top = (height - side) / 2
    return left, top, left + side, top + side


def random_box(width: int, height: int, rng: np.random.Generator) -> Box:
    """A part of 8 to 100% of the area, of a ratio between 3/4 and 4/3, anywhere (Szegedy et al.
    2015, as everybody trains).

    Where ten tries do not fit into a picture that is very long, the largest part in the middle of
    an allowed ratio.
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


def _is_empty(source: str | bytes) -> bool:
    return not source if isinstance(source, bytes) else Path(source).stat().st_size == 0
