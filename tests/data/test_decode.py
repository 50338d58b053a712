"""One image: every kind of pixels that RGB can show, a sentence for everything else, and crops as
documented.
"""

from __future__ import annotations

import math
import os
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from headtail import HeadtailError
from headtail.data.decode import centre_box, cut, open_rgb, random_box, whole

RED = (250, 10, 20)


def encoded(image, kind="PNG", **more):
    file = BytesIO()
    image.save(file, kind, **more)
    return file.getvalue()


def red(mode):
    return Image.new("RGB", (6, 4), RED).convert(mode)


@pytest.mark.parametrize(
    ("content", "tolerance"),
    [
        (encoded(red("RGB")), 0),
        (encoded(red("RGBA")), 0),
        (encoded(red("P")), 60),  # a palette of web colours
        (encoded(red("P"), "GIF"), 60),
        (encoded(red("P"), transparency=bytes([0, 255] * 128)), 60),
        (encoded(red("CMYK"), "JPEG", quality=95), 12),
        (encoded(red("CMYK"), "TIFF"), 0),
        (encoded(red("RGB"), "WEBP", lossless=True), 0),
        (encoded(red("RGB"), "BMP"), 0),
    ],
    ids=[
        "rgb",
        "rgba",
        "palette",
        "gif",
        "transparent palette",
        "cmyk jpeg",
        "cmyk tiff",
        "webp",
        "bmp",
    ],
)
def test_red_stays_red_whatever_the_mode(content, tolerance, recwarn):
    pixels = whole(open_rgb(content, "red"))
    assert (pixels.shape, pixels.dtype) == ((3, 4, 6), np.uint8)
    assert np.abs(pixels.astype(int) - np.array(RED)[:, None, None]).max() <= tolerance
    assert not [str(one.message) for one in recwarn]


@pytest.mark.parametrize("mode", ["L", "LA", "1"])
def test_grey_becomes_three_equal_colours(mode):
    pixels = whole(open_rgb(encoded(Image.new("L", (3, 3), 255).convert(mode)), "grey"))
    assert (pixels == 255).all()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", r"`it` is empty"),
        (b"not an image at all", r"`it` is not an image \(JPEG, PNG"),
        (
            encoded(Image.fromarray(np.arange(9, dtype=np.uint16).reshape(3, 3))),
            r"`it` has pixels of mode I;16",
        ),
        (
            encoded(Image.fromarray(np.zeros((3, 3), np.float32)), "TIFF"),
            r"`it` has pixels of mode F",
        ),
        # would start a program
        (
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nquit\n",
            r"`it` is not an image",
        ),
    ],
    ids=["empty", "text", "16 bits", "floats", "eps"],
)
def test_what_has_no_meaning_in_rgb_is_reported(content, sentence, tmp_path):
    for source in (content, str(tmp_path / "file")):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(
            HeadtailError,
            match=sentence + r".*Fix or remove it, or leave such images out \(`skip_bad_images`\)",
        ):
            open_rgb(source, "it")


def test_an_image_cut_anywhere_is_reported(recwarn):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8))
    for kind in ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM"):
        content = encoded(noise, kind)
        for share in (0.02, 0.3, 0.6, 0.9):
            with pytest.raises(
                HeadtailError, match=r"`it` (is cut off|cannot be decoded|is not an image)"
            ) as message:
                open_rgb(content[: int(share * len(content))], "it")
            assert "\n" not in str(message.value)
    with pytest.raises(HeadtailError, match=r"`it` is cut off before the image is complete"):
        open_rgb(encoded(noise, "JPEG")[:-200], "it")
    assert not [str(one.message) for one in recwarn]


def test_a_missing_file_and_a_folder_are_reported(tmp_path):
    with pytest.raises(HeadtailError, match=r"`it` does not exist"):
        open_rgb(str(tmp_path / "nowhere.jpg"), "it")
    with pytest.raises(HeadtailError, match=r"`it` is not a file, but a folder"):
        open_rgb(str(tmp_path), "it")


def test_random_parts_have_the_area_and_the_ratio_that_they_should():
    rng = np.random.default_rng(0)
    boxes = np.array([random_box(400, 300, rng) for _ in range(4000)])
    width = boxes[:, 2] - boxes[:, 0]
    height = boxes[:, 3] - boxes[:, 1]
    assert boxes.min() >= 0
    assert boxes[:, 2].max() <= 400
    assert boxes[:, 3].max() <= 300
    area = width * height / (400 * 300)
    ratio = width / height
    assert 0.078 < area.min() < 0.1
    assert 0.9 < area.max() <= 1
    assert 0.74 < ratio.min() < 0.78
    assert 1.28 < ratio.max() < 1.35
    # Away from the largest areas, which not every ratio fits, areas are uniform and logarithms of
    # ratios symmetric.
    small = area < 0.5
    assert np.quantile(area[small], [0.25, 0.5, 0.75]) == pytest.approx(
        [0.185, 0.29, 0.395], abs=0.02
    )
    assert abs(np.log(ratio[small]).mean()) < 0.01
    assert boxes[small, 0].std() > 50  # they lie anywhere


def test_a_very_long_image_gives_the_largest_allowed_part_of_its_middle():
    rng = np.random.default_rng(0)
    left, top, right, bottom = random_box(10_000, 3, rng)
    assert (top, bottom, right - left, left) == (0, 3, 4, 4998)
    left, top, right, bottom = random_box(3, 10_000, rng)
    assert (left, right, bottom - top) == (0, 3, 4)


def test_the_middle_is_what_scaling_and_cropping_gives():
    ramp = np.add.outer(np.linspace(0, 200, 256), np.linspace(0, 50, 320))
    image = Image.fromarray(np.repeat(ramp[:, :, None], 3, 2).astype(np.uint8))
    found = cut(image, centre_box(*image.size), 28)
    # the shorter side to 256/224 · 28
    scaled = np.asarray(image.resize((40, 32), Image.Resampling.BILINEAR))
    wanted = scaled[2:30, 6:34].transpose(2, 0, 1)
    assert np.abs(found.astype(int) - wanted).max() <= 1
    assert np.array_equal(cut(image, centre_box(*image.size), 28, flipped=True), found[:, :, ::-1])
    assert math.isclose(centre_box(320, 256)[2] - centre_box(320, 256)[0], 224)


def test_an_image_with_a_huge_number_of_pixels_is_reported_before_it_is_decoded(monkeypatch):
    content = encoded(Image.new("RGB", (30, 40)))
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(HeadtailError, match=r"`it` has 30 × 40 pixels, more than Pillow may"):
        open_rgb(content, "it")
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 500)
    with pytest.raises(HeadtailError, match=r"`it` has a huge number of pixels, more than Pillow"):
        open_rgb(content, "it")
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", None)
    assert open_rgb(content, "it").size == (30, 40)


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "WEBP"])
def test_of_several_frames_the_first_is_decoded(kind):
    frames = [Image.new("RGB", (8, 8), (shade, shade, shade)) for shade in (255, 0, 0)]
    content = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
    assert open_rgb(content, "it").getpixel((4, 4)) == (255, 255, 255)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(HeadtailError, match=r"`it` is not a file, but a folder, a pipe or"):
        open_rgb(str(tmp_path / "pipe.jpg"), "it")
