"""Images that stay in their files: the same pixels whoever decodes them, in order, and sentences
for the rest.
"""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import torch
from PIL import Image

from headtail import HeadtailError
from headtail.data import decode
from headtail.data.image_files import ImageFiles


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(12):
        size = (20 + i, 30 - i, 3)
        Image.fromarray(rng.integers(0, 256, size, dtype=np.uint8)).save(tmp_path / f"{i}.png")
    return ImageFiles(tuple(str(tmp_path / f"{i}.png") for i in range(12)), size=8)


BATCHES = [
    torch.tensor([3, 1, 7]),
    torch.tensor([0]),
    torch.tensor([11, 11, 2, 5]),
    torch.tensor([4, 6]),
]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("train", [True, False])
def test_a_stream_is_what_decoding_one_batch_after_the_other_gives(files, workers, train):
    found = list(files.stream(iter(BATCHES), train=train, seed=5, workers=workers))
    assert [list(one.shape) for one in found] == [[len(ids), 3, 8, 8] for ids in BATCHES]
    for ids, one in zip(BATCHES, found, strict=True):
        assert one.dtype == torch.uint8
        assert torch.equal(one, files.decoded(ids, train=train, seed=5))


def test_what_is_cut_out_follows_from_the_seed_and_the_image_alone(files):
    ids = torch.arange(12)
    first = files.decoded(ids, train=True, seed=1)
    assert torch.equal(files.decoded(ids.flip(0), train=True, seed=1), first.flip(0))
    torch.manual_seed(99)
    assert torch.equal(files.decoded(ids, train=True, seed=1), first)
    again = files.decoded(ids, train=True, seed=2)
    assert all(not torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert torch.equal(
        files.decoded(ids, train=False, seed=1), files.decoded(ids, train=False, seed=2)
    )


def test_about_half_of_the_training_images_are_flipped(tmp_path):
    ramp = np.repeat(np.linspace(0, 255, 64).astype(np.uint8)[None, :, None], 64, 0).repeat(3, 2)
    Image.fromarray(ramp).save(tmp_path / "ramp.png")
    files = ImageFiles((str(tmp_path / "ramp.png"),) * 200, size=8)
    images = files.decoded(torch.arange(200), train=True, seed=0).int()
    rising = (images[:, 0, 4, 7] > images[:, 0, 4, 0]).float().mean()
    assert 0.4 < rising < 0.6


def test_decoding_ahead_leaves_the_random_numbers_of_training_alone(files):
    torch.manual_seed(0)
    wanted = torch.rand(3)
    torch.manual_seed(0)
    list(files.stream(BATCHES, train=True, seed=0, workers=1))
    assert torch.equal(torch.rand(3), wanted)


def test_rows_keep_their_order(files):
    some = files.rows(torch.tensor([5, 0]))
    assert (len(some), some.size, some.paths) == (2, 8, (files.paths[5], files.paths[0]))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_image_in_a_stream_is_a_sentence_that_names_the_file(files, workers):
    with open(files.paths[11], "r+b") as file:
        file.truncate(200)
    stream = files.stream(BATCHES, train=True, seed=0, workers=workers)
    assert len(next(stream)) == 3
    assert len(next(stream)) == 1
    with pytest.raises(HeadtailError) as message:
        next(stream)
    assert str(message.value).startswith(f"`{files.paths[11]}` is cut off")
    assert "\n" not in str(message.value)


class DeadlyFiles(ImageFiles):
    def decoded(self, ids, *, train, seed):
        os.kill(os.getpid(), signal.SIGKILL)


def test_the_death_of_a_worker_is_a_sentence(files):
    deadly = DeadlyFiles(files.paths, files.size)
    with pytest.raises(HeadtailError, match=r"A worker process that decodes images died"):
        list(deadly.stream(BATCHES, train=False, seed=0, workers=1))


@pytest.mark.parametrize("workers", [0, 2])
def test_every_bad_file_is_found(files, workers, tmp_path):
    open(files.paths[3], "w").close()
    os.unlink(files.paths[9])
    found = {i: message for part in files.undecodable(workers) for i, message in part.items()}
    assert set(found) == {3, 9}
    assert "is empty" in found[3]
    assert "does not exist" in found[9]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_image_that_kills_its_process_is_among_those_that_cannot_be_decoded(
    files, monkeypatch, workers
):
    here = os.getpid()
    real = decode.open_rgb

    def fatal(source, name):
        if os.getpid() != here and source.endswith("/7.png"):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(source, name)

    monkeypatch.setattr(decode, "open_rgb", fatal)
    monkeypatch.setattr("headtail.data.image_files.CHECKED_AT_ONCE", 4)
    with open(files.paths[3], "wb") as file:
        file.write(b"no image")
    errors = {i: error for some in files.undecodable(workers) for i, error in some.items()}
    assert list(errors) == [3, 7]
    assert "is not an image" in errors[3]
    assert "7.png` crashes the process that decodes it (SIGKILL)" in errors[7]
