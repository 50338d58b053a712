"""Dense features from arrays: `.safetensors` or `.npz`."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from headtail.core.targets import IGNORE_INDEX, Ragged, looks_multi_hot
from headtail.data.cache import Entry, Store, cached
from headtail.data.points import DataSet, Points, Progress
from headtail.data.split import hold_out
from headtail.errors import HeadtailError, check_number

AT_ONCE = 1 << 22
"""Numbers looked at or copied at once."""
SEED = 0


def read_dense(
    train: Path, test: Path | None = None, *, holdout: float = 0.2, progress: Progress | None = None
) -> DataSet:
    """Read `features`, floats `[N, D]`, and `labels` in one of these forms.

    * `[N]` ids, or `[N, k]` ids padded with −100 or −1;
    * a boolean matrix `[N, L]`, true where a point has a label;
    * instead of `labels`, `label_values` and `label_offsets`: point i has
      `label_values[label_offsets[i]:label_offsets[i + 1]]`.

    One file may hold both parts, with `train_` and `test_` before every name. Features that are
    float32 in a safetensors file are mapped into memory where they lie; all else is copied into the
    cache once. L is the width of a boolean matrix, else the largest label plus one. A label that
    repeats within a point counts once. Test points need no label (no array, or the id −1): those
    without are answered, but not measured.

    Args:
        train: `.safetensors` or `.npz` file.
        test: likewise, or None.
        holdout: share of the points that is kept for testing where there are no test points.
        progress: told what is done, and how much of it.

    >>> folder = getfixture("tmp_path")
    >>> getfixture("monkeypatch").setenv("HEADTAIL_CACHE", str(folder / "cache"))
    >>> np.savez(folder / "all.npz", features=np.eye(10), labels=np.arange(10) % 3)
    >>> data = read_dense(folder / "all.npz")
    >>> len(data.train), len(data.test), data.train.num_labels
    (8, 2, 3)
    """
    check_number("holdout", holdout, low=0, high=1)
    parts = _parts(train, test)
    recipe = {
        "reader": "dense",
        "parts": {name: [part.prefix, part.mapped] for name, part in parts.items()},
    }
    entry = cached([part.path for part in parts.values()], recipe, partial(_build, parts, progress))
    points = {name: _points(entry, name, part) for name, part in parts.items()}
    notes = ["Read as dense features."]
    digest = entry.key
    whole = None if "test" in points else points["train"]
    if whole is not None:
        points["train"], points["test"] = hold_out(whole, holdout, SEED)
        digest += f"-{holdout:g}"
        notes.append(
            f"There are no test points: {holdout:.0%} of the points are held out for testing."
        )
    return DataSet(
        train.stem, points["train"], points["test"], notes=tuple(notes), digest=digest, whole=whole
    )


@dataclass(frozen=True)
class _Part:
    """Training or test points in a file."""

    path: Path
    prefix: str

    @property
    def features(self) -> Tensor:
        """`[N, D]`, as they stand in the file."""
        return _array(self.path, f"{self.prefix}features")

    @property
    def mapped(self) -> bool:
        """Whether its features are used where they lie."""
        return _is_safetensors(self.path) and self.features.dtype == torch.float32

    def whole(self, name: str) -> Tensor:
        """An array of whole numbers, as int64; of booleans, as it stands."""
        array = _array(self.path, f"{self.prefix}{name}")
        if array.is_floating_point() or array.is_complex():
            raise self.wrong(
                name, f" must hold whole numbers, but holds {_kind(array)}. Save it as int64."
            )
        return array if array.dtype == torch.bool else array.long()

    def wrong(self, name: str, sentence: str) -> HeadtailError:
        """The sentence about an array of this part."""
        return HeadtailError(f"`{self.path}`, `{self.prefix}{name}`{sentence}")


def _parts(train: Path, test: Path | None) -> dict[str, _Part]:
    names = {path: _names(path) for path in (train, test) if path is not None}
    parts = {"train": _Part(train, "train_" if "train_features" in names[train] else "")}
    if test is not None or "test_features" in names[train]:
        path = test or train
        parts["test"] = _Part(path, "test_" if "test_features" in names[path] else "")
    for role, part in parts.items():
        held = {
            name.removeprefix(part.prefix)
            for name in names[part.path]
            if name.startswith(part.prefix)
        }
        labelled = "labels" in held or {"label_values", "label_offsets"} <= held
        if "features" not in held or not (
            labelled or (role == "test" and not held & {"label_values", "label_offsets"})
        ):
            found = ", ".join(f"`{name}`" for name in names[part.path]) or "no arrays"
            raise HeadtailError(
                f"`{part.path}` holds {found}, but `{part.prefix}features` and "
                f"`{part.prefix}labels` are needed."
            )
    return parts


def _is_safetensors(path: Path) -> bool:
    return path.suffix.lower() == ".safetensors"


def _names(path: Path) -> list[str]:
    with _told(path):
        if _is_safetensors(path):
            with safe_open(path, framework="pt") as file:
                return list(file.keys())
        with np.load(path, allow_pickle=False) as file:
            return file.files


def _array(path: Path, name: str) -> Tensor:
    """An array of a file; those of safetensors are mapped and cost no memory."""
    with _told(path):
        if _is_safetensors(path):
            with safe_open(path, framework="pt") as file:
                return file.get_tensor(name)
        with np.load(path, allow_pickle=False) as file:
            return torch.from_numpy(file[name])


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise HeadtailError(
            f"`{path}` is no file. Name a `.safetensors` or `.npz` file."
        ) from error
    except (
        SafetensorError,
        zipfile.BadZipFile,
        zlib.error,
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        EOFError,
    ) as error:
        what = f"`{path}` is no readable {path.suffix} file of plain arrays of numbers"
        raise HeadtailError(f"{what}: {str(error).rstrip('.')}. Write or copy it again.") from error


def _kind(array: Tensor) -> str:
    return str(array.dtype).removeprefix("torch.")


def _build(parts: dict[str, _Part], progress: Progress | None, store: Store) -> None:
    columns: dict[str, dict[str, int]] = {"features": {}, "labels": {}}
    store.facts["num_labels"] = 0
    for name, part in parts.items():
        features = part.features
        _write_features(name, part, features, store, progress)
        labels, width = _labels(part, len(features), may_lack=name == "test")
        columns["features"][name] = features.shape[1]
        columns["labels"] |= {name: width} if width else {}
        if name == "train" and not len(labels.values):
            raise part.wrong("labels", " holds no label at all, so there is nothing to learn.")
        highest = int(labels.values.max()) if len(labels.values) else -1
        store.facts["num_labels"] = max(store.facts["num_labels"], highest + 1, width or 0)
        store.append(f"{name}_labels", labels.values.int().numpy())
        store.append(f"{name}_offsets", labels.offsets.numpy())
    for what, of_part in columns.items():
        if len(set(of_part.values())) > 1:
            raise parts["test"].wrong(
                what, f" has {of_part['test']:,} columns, but training has {of_part['train']:,}."
            )


def _write_features(
    name: str, part: _Part, features: Tensor, store: Store, progress: Progress | None
) -> None:
    """Check features, and copy those that cannot be mapped, a block at a time."""
    if not features.is_floating_point() or features.dim() != 2 or 0 in features.shape:
        raise part.wrong(
            "features",
            f" must be floats of shape [N, D], but is {_kind(features)} of shape "
            f"{list(features.shape)}.",
        )
    mapped = part.mapped
    for start in range(0, len(features), rows := max(1, AT_ONCE // features.shape[1])):
        block = features[start : start + rows].float()
        if not bool((finite := block.isfinite().all(dim=1)).all()):
            row = start + int(finite.int().argmin())
            raise part.wrong(
                "features",
                f": row {row:,} (from 0) has a value that is NaN or infinite in float32. Mend or "
                "drop it.",
            )
        if not mapped:
            store.append(f"{name}_features", block.numpy())
        if progress is not None:
            progress(f"reading {part.path.name}", min(start + rows, len(features)) / len(features))


def _labels(part: _Part, number: int, may_lack: bool) -> tuple[Ragged, int | None]:
    """Labels of each point, rising and different, and L where the array tells it; with −1, a point
    that may lack one does.
    """
    names = _names(part.path)
    if f"{part.prefix}labels" not in names and f"{part.prefix}label_values" not in names:
        return Ragged(
            torch.zeros(0, dtype=torch.int64), torch.zeros(number + 1, dtype=torch.int64)
        ), None
    if f"{part.prefix}labels" not in names:
        return _ragged(part, number), None
    labels = part.whole("labels")
    if labels.dim() not in (1, 2) or len(labels) != number:
        raise part.wrong(
            "labels",
            f" has shape {list(labels.shape)} for {number:,} points. Write a label or a row for "
            "each.",
        )
    if labels.dim() == 1:
        row = (
            ((labels != IGNORE_INDEX) & (labels != -1)).nonzero().squeeze(1)
            if may_lack
            else torch.arange(number)
        )
        return _once(part, "labels", row, labels[row].long(), number), None
    if labels.dtype == torch.bool:
        row, label = labels.nonzero(as_tuple=True)
        return _once(part, "labels", row, label, number), labels.shape[1]
    if looks_multi_hot(labels):
        raise part.wrong(
            "labels",
            " looks like a 0/1 matrix with a column a label. Save it as booleans to say so.",
        )
    row, column = ((labels != IGNORE_INDEX) & (labels != -1)).nonzero(as_tuple=True)
    return _once(part, "labels", row, labels[row, column], number), None


def _ragged(part: _Part, number: int) -> Ragged:
    values = part.whole("label_values")
    offsets = part.whole("label_offsets").long()
    flat = values.dim() == offsets.dim() == 1 and len(offsets) == number + 1
    if (
        not flat
        or offsets[0] != 0
        or offsets[-1] != len(values)
        or bool((offsets.diff() < 0).any())
    ):
        wanted = (
            f" must be {number + 1:,} numbers, one more than points, that rise from 0 to "
            f"{values.numel():,}."
        )
        raise part.wrong("label_offsets", wanted)
    return _once(
        part,
        "label_values",
        torch.arange(number).repeat_interleave(offsets.diff()),
        values.long(),
        number,
    )


def _once(part: _Part, name: str, row: Tensor, label: Tensor, number: int) -> Ragged:
    """(Point, label) pairs as ragged labels, each label of a point once."""
    if len(bad := ((label < 0) | (label >= 2**31 - 1)).nonzero()):
        place = int(bad[0])
        raise part.wrong(
            name,
            f": row {int(row[place]):,} (from 0) has the label {int(label[place])}. Number labels "
            "from 0.",
        )
    most = int(label.max()) + 1 if len(label) else 1
    pairs = torch.unique_consecutive((row * most + label).sort().values)
    offsets = torch.zeros(number + 1, dtype=torch.int64)
    offsets[1:] = torch.bincount(pairs // most, minlength=number).cumsum(0)
    return Ragged(pairs % most, offsets)


def _points(entry: Entry, name: str, part: _Part) -> Points:
    features = part.features if part.mapped else entry.arrays[f"{name}_features"]
    return Points(
        features,
        Ragged(entry.arrays[f"{name}_labels"], entry.arrays[f"{name}_offsets"]),
        entry.facts["num_labels"],
    )
