"""Finding the files of a listing, and leaving out those that are missing or cannot be decoded."""

from __future__ import annotations

import hashlib
import os
from multiprocessing import current_process
from pathlib import Path
from stat import S_ISREG

import numpy as np

from headtail.data.cache import Store, cached
from headtail.data.decode import problem_of
from headtail.data.image_files import CHECKED_AT_ONCE, ImageFiles
from headtail.data.points import Progress
from headtail.data.readers.image_listing import Listing
from headtail.errors import HeadtailError, Sentence, Setting

REPORT_EVERY = 10_000
"""Files between two reports of progress."""


def files_of(
    listing: Listing,
    root: Path | None,
    skip: bool,
    progress: Progress | None,
    *,
    report_every: int = REPORT_EVERY,
) -> tuple[ImageFiles, np.ndarray, str, list[str]]:
    """The files of a listing, their places in it, a mark of their content, and notes.

    Args:
        listing: names and labels.
        root: where relative paths are looked up first.
        skip: leave out images that are missing or cannot be decoded.
        progress: called with what is being done and the share of it that is done.
        report_every: files between two reports.
    """
    paths, sizes, times = _located(listing, root, progress, report_every)
    missing = np.flatnonzero(sizes < 0)
    if len(missing) and not skip:
        raise HeadtailError(_about_missing(listing, missing, root))
    kept = np.flatnonzero(sizes >= 0)
    notes = []
    if len(missing):
        first = f"the first is `{listing.names[int(missing[0])]}`"
        notes.append(
            f"Left out {len(missing):,} of {len(paths):,} images of {listing.where.name} that do "
            f"not exist; {first}."
        )
    if skip and len(kept):
        files = ImageFiles(tuple(paths[i] for i in kept))
        facts = _mark(listing, kept, [sizes, times])
        bad, first = _undecodable(files, facts, progress)
        if len(bad):
            notes.append(
                f"Left out {len(bad):,} of {len(paths):,} images of {listing.where.name}; the "
                f"first: {first}."
            )
        kept = np.delete(kept, bad)
    if not len(kept):
        raise HeadtailError(
            f"`{listing.where}`: none of its {len(paths):,} images can be used. {' '.join(notes)}"
        )
    return ImageFiles(tuple(paths[i] for i in kept)), kept, _mark(listing, kept, [sizes]), notes


def _located(
    listing: Listing, root: Path | None, progress: Progress | None, report_every: int
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Where each file is, its size (−1 where it is not) and its time."""
    bases = [str(base) for base in (root, listing.base) if base is not None]
    paths = []
    sizes = np.full(len(listing.names), -1)
    times = np.zeros(len(listing.names), np.int64)
    for i, name in enumerate(listing.names):
        candidates = [os.path.join(base, name) for base in bases]
        for path in candidates:
            try:
                stat = os.stat(path)
            except (OSError, ValueError):
                continue
            if not S_ISREG(stat.st_mode):  # a pipe would make the reader wait for ever
                continue
            sizes[i] = stat.st_size
            times[i] = stat.st_ctime_ns  # which an edit changes, whatever time it sets
            break
        else:
            path = candidates[0]
        paths.append(path)
        if progress is not None and i % report_every == 0:
            progress(f"looking for the images of {listing.where.name}", i / len(listing.names))
    return paths, sizes, times


def _about_missing(listing: Listing, missing: np.ndarray, root: Path | None) -> Sentence:
    where = f"not in `{listing.base}`"
    first = os.path.join(listing.base if root is None else root, listing.names[int(missing[0])])
    if "\0" not in first and os.path.exists(first):
        where = "not a file, but a folder, a pipe or a device"
    elif root is not None:
        where = f"neither in `{root}` nor in `{listing.base}`"
    more = f", and {len(missing) - 1:,} more of its {len(listing.names):,}"
    return Sentence(
        f"`{listing.where}` names `{listing.names[int(missing[0])]}`, which is {where}"
        f"{more if len(missing) > 1 else ''}. Pass the folder that paths start from (",
        Setting("root"),
        "), or leave such images out (",
        Setting("skip_bad_images"),
        ").",
    )


def _undecodable(files: ImageFiles, mark: str, progress: Progress | None) -> tuple[np.ndarray, str]:
    """Places of the files that cannot be decoded, and what is wrong with the first.

    They are searched for once; then they come from the cache.
    """

    def build(store: Store) -> None:
        errors: dict[int, str] = {}
        workers = _cores() if len(files) > 4 * CHECKED_AT_ONCE else 1
        if current_process().daemon:  # which may have no workers
            workers = 0
        for done, some in enumerate(files.undecodable(workers)):
            errors |= some
            if progress is not None:
                share = min(1.0, done * CHECKED_AT_ONCE / len(files))
                progress("decoding every image once", share)
        store.append("bad", np.array(sorted(errors), np.int64))
        store.facts["first"] = problem_of(errors[min(errors)]) if errors else ""

    entry = cached([], {"reader": "image check", "of": mark}, build)
    return entry.arrays["bad"].numpy(), entry.facts["first"]


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _mark(listing: Listing, kept: np.ndarray, numbers: list[np.ndarray]) -> str:
    """Changes with the names, labels and sizes of the files; their content would take too long."""
    names = "\n".join(listing.names[i] for i in kept)
    mark = hashlib.blake2b(names.encode("utf-8", "surrogateescape"), digest_size=16)
    for array in (listing.labels, *numbers):
        mark.update(np.ascontiguousarray(array[kept], np.int64).tobytes())
    return mark.hexdigest()
