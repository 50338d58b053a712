"""Pictures that stay in their files, decoded when they are wanted, in worker processes."""

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

from headtail.errors import HeadtailError, check_count

SIZE = 224
"""Pixels a side that the network sees."""
CHECKED_AT_ONCE = 64

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Picture files of any size, as a network of one input size sees them.

    Attributes:
        paths: one file a picture.
        size: the side of what comes out.

    >>> from PIL import Image
    >>> path = getfixture("tmp_path") / "red.png"
    >>> Image.new("RGB", (40, 30), (255, 0, 0)).save(path)
    >>> files = ImageFiles((str(path),) * 3, size=8)
    >>> len(files.rows(torch.tensor([2, 0]))), files.decoded(torch.tensor([1]), train=False, seed=0)[0, :, 4, 4]
    (2, tensor([255,   0,   0], dtype=torch.uint8))
    """

    paths: tuple[str, ...]
    size: int = SIZE

    def __len__(self) -> int:
        return len(self.paths)

    def rows(self, ids: Int64[Tensor, " k"]) -> ImageFiles:
        """These pictures, in this order."""
        return ImageFiles(tuple(self.paths[i] for i in ids.tolist()), self.size)

    def decoded(
        self, ids: Int64[Tensor, " k"], *, train: bool, seed: int
    ) -> UInt8[Tensor, "k 3 size size"]:
        """Decode these pictures in this process.

        Args:
            ids: which, `[k]`.
            train: a random part of each, flipped or not; else the middle.
            seed: decides, with the id of a picture, what is cut out of it. Give each epoch another.
        """
        from headtail.data.decode import centre_box, cut, open_rgb, random_box

        pictures = np.empty((len(ids), 3, self.size, self.size), np.uint8)
        for place, i in enumerate(ids.tolist()):
            image = open_rgb(self.paths[i], self.paths[i])
            if train:
                rng = np.random.default_rng([seed, i])
                pictures[place] = cut(
                    image, random_box(*image.size, rng), self.size, flipped=bool(rng.random() < 0.5)
                )
            else:
                pictures[place] = cut(image, centre_box(*image.size), self.size)
        return torch.from_numpy(pictures)

    def stream(
        self, batches: Iterable[Int64[Tensor, " _"]], *, train: bool, seed: int, workers: int
    ) -> Iterator[UInt8[Tensor, "_ 3 size size"]]:
        """Decode batch after batch, in order, ahead of whoever takes them.

        Args:
            batches: ids of each batch.
            train: as for `decoded`.
            seed: as for `decoded`.
            workers: processes that decode; 0 decodes in this one.
        """
        for found in _ahead(
            partial(self._decoded_or_told, train=train, seed=seed), batches, workers
        ):
            if isinstance(found, str):
                raise HeadtailError(found)
            yield found

    def bad(self, workers: int) -> Iterator[dict[int, str]]:
        """Decode every picture once, some at a time; ids of those that cannot be, each with a
        sentence.
        """
        yield from _ahead(self._complaints, torch.arange(len(self)).split(CHECKED_AT_ONCE), workers)

    def _decoded_or_told(self, ids: Tensor, *, train: bool, seed: int) -> Tensor | str:
        """A sentence is handed over as one: an exception would come out of a worker with a
        traceback in it.
        """
        try:
            return self.decoded(ids, train=train, seed=seed)
        except HeadtailError as error:
            return str(error)

    def _complaints(self, ids: Tensor) -> dict[int, str]:
        from headtail.data.decode import open_rgb

        found = {}
        for i in ids.tolist():
            try:
                open_rgb(self.paths[i], self.paths[i])
            except HeadtailError as error:
                found[i] = str(error)
        return found


def _ahead(work: Callable[[Tensor], T], items: Iterable[Tensor], workers: int) -> Iterator[T]:
    """`work` on each item, in order, done ahead in processes."""
    if workers == 0:
        yield from map(work, items)
        return
    # A generator of its own: the loader draws a number, and training draws from the default one.
    loader = torch.utils.data.DataLoader(
        _Work(work),
        batch_size=None,
        sampler=items,
        num_workers=check_count("workers", workers),
        collate_fn=_as_it_is,
        worker_init_fn=_begin,
        generator=torch.Generator(),
    )
    try:
        yield from loader
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise HeadtailError(
            "A process that decodes pictures died, probably for want of memory (or of room in "
            "/dev/shm). Use fewer of them."
        ) from error


class _Work(torch.utils.data.Dataset, Generic[T]):
    """A function in the shape that torch's loader wants."""

    def __init__(self, work: Callable[[Tensor], T]) -> None:
        self.work = work

    def __getitem__(self, index: Tensor) -> T:
        return self.work(index)


def _as_it_is(found: T) -> T:
    return found


def _begin(_: int) -> None:
    # Ctrl-C is for the parent, which then lets its workers go
    signal.signal(signal.SIGINT, signal.SIG_IGN)
