"""Label counts from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headtail.errors import HeadtailError
from headtail.labels import Labels


def read_counts(path: Path, smoothing: float = 0.0) -> Labels:
    """Read how often each label occurs: a `.npy` array, or a text file with one number a line (label 0 first).

    Lines of a `.csv` or `.tsv` may hold several fields; the last one is the count, and a first line without a number is a header.
    """
    if not path.is_file():
        raise HeadtailError(f"`--counts {path}` is no file. Write a `.npy` array or a text file with one count a line.")
    counts = _from_npy(path) if path.suffix == ".npy" else _from_text(path)
    try:
        return Labels.from_counts(counts, smoothing)
    except HeadtailError as error:
        raise HeadtailError(f"{path}: {error}") from error


def _from_npy(path: Path) -> np.ndarray:
    try:
        counts = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise HeadtailError(
            f"{path} is not a readable `.npy` array of numbers. Save it with `numpy.save(path, counts)`."
        ) from error
    if counts.dtype.kind not in "iuf":
        raise HeadtailError(f"{path} holds {counts.dtype}, not numbers. Save an integer array of counts.")
    return counts.astype(np.int64) if counts.dtype.kind in "iu" else counts.astype(np.float64)


def _from_text(path: Path) -> np.ndarray:
    counts: list[float] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                field = line.replace(",", " ").replace("\t", " ").split()
                if not field:
                    continue
                try:
                    counts.append(float(field[-1]))
                except ValueError as error:
                    if number == 1:
                        continue
                    raise HeadtailError(f"{path}, line {number}: expected a count, but found {field[-1][:40]!r}.") from error
    except UnicodeDecodeError as error:
        raise HeadtailError(f"{path} is not text. Write one count a line, or save an array with `numpy.save`.") from error
    if not counts:
        raise HeadtailError(f"{path} holds no counts. Write one number a line, label 0 first.")
    array = np.array(counts)
    return array.astype(np.int64) if np.isfinite(array).all() and (array == np.round(array)).all() else array
