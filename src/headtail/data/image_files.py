"""Images that stay in their files, decoded when they are needed, in worker processes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from headtail.data.child import Limits, run
from headtail.data.decode import bad_image
from headtail.data.progress import Progress
from headtail.errors import HeadtailError, Setting, check_count

SIZE = 224
"""Pixels per side of what the network sees."""
CHECKED_AT_ONCE = 64
"""Images that a worker checks before it reports."""
LIMITS = Limits(memory=3 << 30, seconds=20.0)
"""Of a process that decodes images that may be damaged."""

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Image files of any size, as a network with one input size sees them.

    Attributes:
        paths: one file per image.
        size: pixels per side after cropping and resampling.

    >>> from PIL import Image
    >>> path = getfixture("tmp_path") / "red.png"
    >>> Image.new("RGB", (40, 30), (255, 0, 0)).save(path)
    >>> files = ImageFiles((str(path),) * 3, size=8)
    >>> len(files.rows(torch.tensor([2, 0])))
    2
    >>> files.decoded(torch.tensor([1]), train=False, seed=0)[0, :, 4, 4]
    tensor([255,   0,   0], dtype=torch.uint8)
    """

    paths: tuple[str, ...]
    size: int = SIZE

    def __len__(self) -> int:
        return len(self.paths)

    def rows(self, ids: Int64[Tensor, " k"]) -> ImageFiles:
        """These images, in this order."""
        return ImageFiles(tuple(self.paths[i] for i in ids.tolist()), self.size)

    def decoded(
        self, ids: Int64[Tensor, " k"], *, train: bool, seed: int
    ) -> UInt8[Tensor, "k 3 size size"]:
        """Decode these images in this process.

        Args:
            ids: `[k]` of the images.
            train: a random crop of each, flipped or not; else the centre crop.
            seed: decides, with the id of an image, how it is cropped. Pass another in each epoch.
        """
        from headtail.data.decode import centre_box, cut, open_rgb, random_box

        images = np.empty((len(ids), 3, self.size, self.size), np.uint8)
        for place, i in enumerate(ids.tolist()):
            image = open_rgb(self.paths[i], self.paths[i])
            if train:
                rng = np.random.default_rng([seed, i])
                box = random_box(*image.size, rng)
                flipped = bool(rng.random() < 0.5)
            else:
                box = centre_box(*image.size)
                flipped = False
            images[place] = cut(image, box, self.size, flipped=flipped)
        return torch.from_numpy(images)

    def stream(
        self, batches: Iterable[Int64[Tensor, " _"]], *, train: bool, seed: int, workers: int
    ) -> Iterator[UInt8[Tensor, "_ 3 size size"]]:
        """Decode batches in order, ahead of their use.

        Args:
            batches: ids of each batch.
            train: as for `decoded`.
            seed: as for `decoded`.
            workers: processes that decode; 0 decodes in this one.
        """
        decode = partial(self._decoded_or_error, train=train, seed=seed)
        for decoded in _ahead(decode, batches, workers):
            if isinstance(decoded, str):
                raise HeadtailError(decoded)
            yield decoded

    def undecodable(self, workers: int) -> Iterator[dict[int, str]]:
        """Decode every image once, in blocks; ids of those that cannot be, with their errors.

        Where an image takes a worker with it, the rest is decoded in child processes with limits,
        so that this image gets its sentence too.
        """
        blocks = torch.arange(len(self)).split(CHECKED_AT_ONCE)
        done = 0
        try:
            for errors in _ahead(self._errors, blocks, workers):
                yield errors
                done += 1
        except HeadtailError:  # a worker died
            yield from (self._errors_in_children(block) for block in blocks[done:])

    def _decoded_or_error(self, ids: Tensor, *, train: bool, seed: int) -> Tensor | str:
        """Errors are returned as text: an exception would leave a worker with a traceback in it."""
        try:
            return self.decoded(ids, train=train, seed=seed)
        except HeadtailError as error:
            return error.sentence

    def _errors(self, ids: Tensor) -> dict[int, str]:
        from headtail.data.decode import open_rgb

        errors = {}
        for i in ids.tolist():
            try:
                open_rgb(self.paths[i], self.paths[i])
            except HeadtailError as error:
                errors[i] = error.sentence
        return errors

    def _errors_in_children(self, ids: Tensor) -> dict[int, str]:
        """As `_errors`, but nothing here dies of a damaged image."""
        failure = run(partial(self._decode, ids), LIMITS)
        if failure is None:
            return {}
        if len(ids) > 1:
            return {i: e for one in ids.split(1) for i, e in self._errors_in_children(one).items()}
        path = self.paths[int(ids)]
        how = {
            "error": failure.about,
            "memory": bad_image(path, "takes too much memory to be decoded").sentence,
            "seconds": bad_image(path, "takes too long to be decoded").sentence,
        }
        died = bad_image(path, f"crashes the process that decodes it ({failure.about})").sentence
        return {int(ids): how.get(failure.reason, died)}

    def _decode(self, ids: Tensor, _: Progress) -> None:
        from headtail.data.decode import open_rgb

        for i in ids.tolist():
            open_rgb(self.paths[i], self.paths[i])


def _ahead(work: Callable[[Tensor], T], items: Iterable[Tensor], workers: int) -> Iterator[T]:
    """`work` on each item, in order, done ahead in worker processes."""
    if workers == 0:
        yield from map(work, items)
        return
    # Its own generator: the loader draws a number, and training draws from the default generator.
    loader = torch.utils.data.DataLoader(
        _Work(work),
        batch_size=None,
        sampler=items,
        num_workers=check_count("workers", workers),
        collate_fn=_unchanged,
        worker_init_fn=_ignore_interrupts,
        generator=torch.Generator(),
    )
    try:
        yield from loader
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise HeadtailError(
            "A worker process that decodes images died, probably because memory (or /dev/shm) is "
            "full: use fewer workers. If a damaged image is the cause, leave such images out (",
            Setting("skip_bad_images"),
            ").",
        ) from error


class _Work(torch.utils.data.Dataset, Generic[T]):
    """A function in the form that torch's loader needs."""

    def __init__(self, work: Callable[[Tensor], T]) -> None:
        self.work = work

    def __getitem__(self, index: Tensor) -> T:
        return self.work(index)


def _unchanged(result: T) -> T:
    return result


def _ignore_interrupts(_: int) -> None:
    # Ctrl-C is for the parent, which then stops its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
