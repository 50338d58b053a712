"""The one door to data: a folder, a file or generated data, whatever the format."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from headtail.data.digests import content_of
from headtail.data.find import WHAT, find, kind_of
from headtail.data.guarded import fragile_files, read_in_child_first
from headtail.data.image_catalogue import (
    compare_images,
    compare_profile,
    recognise_images,
)
from headtail.data.in_memory import is_in_memory, read_object
from headtail.data.limits import check_limits, check_sizes, one_sentence
from headtail.data.longtail import long_tail
from headtail.data.points import DataSet, Progress
from headtail.data.readers.image_kinds import is_bare
from headtail.data.readers.raw_text_folder import as_texts
from headtail.data.readers.table import opened, reader_of
from headtail.data.readers.table_files import holds_table
from headtail.data.reading import DEFAULTS, LIMITS, SIZES, DataFiles, Reading
from headtail.data.shards import shards_of
from headtail.data.text_features import Trained
from headtail.errors import HeadtailError, Setting, check_exists, check_number, nearest, need

MEANT_FOR = {
    "test": "files",
    "format": "files",
    "skip_bad_lines": "text",
    "split_column": "split files (`*trSplit.txt` and `*tstSplit.txt`)",
    "last": "sequences",
    "user": "logs and lists of items",
    "item": "logs and lists of items",
    "time": "logs",
    "session": "logs",
    "rating": "logs",
    "min_rating": "logs",
    "label": "tables of labelled points",
    "label_separator": "tables of texts",
    "text": "tables of labelled points",
    "features": "tables of labelled points",
    "split": "logs and sequences without a test part",
    "holdout": "data without a test part",
    "root": "lists of images",
    "skip_bad_images": "images in Parquet, lists and folders",
    "text_features": "raw text",
    "max_terms": "raw text",
    "ngrams": "raw text",
    "max_memory": "files that are read in a process of their own (Parquet, Arrow, .npz, zstd)",
    "max_seconds": "files that are read in a process of their own (Parquet, Arrow, .npz, zstd)",
}
"""Options that only some data have a use for."""
SOME_READERS = tuple(
    name for name in MEANT_FOR if name not in ("test", "format", "holdout", *LIMITS)
)
"""Those that a reader uses or does not use, whatever its files hold."""

WHOLE = ("table", "text", "dense")
"""Kinds of files with nothing beside them that is read too."""


def load(
    data: Any,
    reading: Reading = DEFAULTS,
    progress: Progress | None = None,
    *,
    test: Any = None,
    trained: Trained | None = None,
    **options: Any,
) -> DataSet:
    r"""Read data for training and testing.

    Args:
        data: a folder with training and test files, the training file, or generated data:
            `synthetic`, or with its shape `synthetic:labels=500,points=2000`. Or an object: a
            pandas or polars DataFrame, an Arrow table, a data set of Hugging Face or several by the
            names of their parts, or a tuple of features (a matrix of scipy, or dense) and labels.
        reading: how.
        progress: called with what is being done and the share of it that is done.
        test: what to test on: a path, or an object of the same kind as `data`.
        trained: read texts for this model, with its terms and labels; files may then hold texts
            alone, one per line.
        **options: single options of `Reading`, for example `min_rating=4`.

    >>> folder = getfixture("tmp_path")
    >>> getfixture("monkeypatch").setenv("HEADTAIL_CACHE", str(folder / "cache"))
    >>> _ = (folder / "train.txt").write_text("2 4 3\n0,2 1:0.5\n1 0:2\n")
    >>> _ = (folder / "test.txt").write_text("1 4 3\n2 3:1\n")
    >>> data = load(folder)
    >>> len(data.train), len(data.test), data.train.num_labels
    (2, 1, 3)

    >>> import numpy as np
    >>> data = load((np.eye(10), np.arange(10) % 3), holdout=0.3)
    >>> len(data.train), len(data.test), data.train.num_labels
    (7, 3, 3)
    """
    reading = _with_options(reading, test, options)
    with one_sentence(data):
        _check(reading)
        return _load(data, reading, progress, test, trained)


def _load(
    data: Any, reading: Reading, progress: Progress | None, test: Any, trained: Trained | None
) -> DataSet:
    if is_in_memory(data):
        return _with_items(_read_object(data, test, reading, progress, trained), reading, progress)
    # Shown to people, and kept with results: paths as they were typed.
    kept = [name for name in asdict(reading) if name not in (*LIMITS, *SIZES)]
    options = {name: getattr(reading, name) for name in kept}
    how = {name: _written(value) for name, value in options.items()}
    if _is_generated(data):
        loaded = _generate(data, reading, progress)
        loaded = _with_items(loaded, reading, progress)
    else:
        _guard(data, reading, progress, trained)
        loaded = _read_files(data, reading, trained, progress)
    if loaded.train.num_labels == 1:
        loaded = _with_notes(loaded, "There is a single label: every answer is right.")
    loaded = replace(loaded, read_as={"path": str(data), **how, **loaded.read_as})
    known = None if loaded.train.image_size is None else recognise_images(loaded.train)
    if known is not None:
        loaded = _with_notes(loaded, compare_images(known, loaded))
    if reading.profile == "as-is":
        return loaded
    thinned = long_tail(loaded, reading.profile, reading.imbalance)
    if known is None:
        return thinned
    number = len(thinned.train)
    return _with_notes(thinned, compare_profile(known, reading.profile, reading.imbalance, number))


def _with_options(reading: Reading, test: Any, options: dict[str, Any]) -> Reading:
    """A reading with single options changed."""
    names = [field.name for field in fields(Reading)]
    for name in options:
        if name not in names:
            raise HeadtailError(f"`{name}` is not an option of reading.{nearest(name, names)}")
    if isinstance(test, str | Path):
        options["test"] = Path(test)
    for name in ("root", "item_features"):
        if isinstance(options.get(name), str):
            options[name] = Path(options[name])
    if "features" in options:
        named = options["features"]
        options["features"] = (named,) if isinstance(named, str) else tuple(named)
    return replace(reading, **options)


def _with_items(data: DataSet, reading: Reading, progress: Progress | None) -> DataSet:
    """Data with the features of their labels, where `reading` names them."""
    if reading.item_features is None:
        return data
    need("pyarrow", extra="data", to="Reading features of items")
    from headtail.data.readers.item_features import with_items

    return with_items(data, reading.item_features, progress, reading.max_expansion)


def _read_object(
    data: Any, test: Any, reading: Reading, progress: Progress | None, trained: Trained | None
) -> DataSet:
    tested_on = reading.test if test is None else test
    loaded, used = read_object(data, tested_on, reading, progress, trained)
    check_sizes(loaded, reading, "data", trained is not None)
    _refuse(reading, "data", sorted(set(MEANT_FOR) - used - {"test", "format"}))
    loaded.check()
    return loaded


def _written(value: Any) -> Any:
    """A setting as it is kept with results."""
    if isinstance(value, tuple):
        return list(value) or None
    return str(value) if isinstance(value, Path) else value


def _check(reading: Reading) -> None:
    if not 0 < check_number("holdout", reading.holdout) < 1:
        raise HeadtailError(
            Setting("holdout"),
            f" must be between 0 and 1, both excluded, but got {reading.holdout!r}.",
        )
    if reading.profile == "as-is" and reading.imbalance != DEFAULTS.imbalance:
        raise HeadtailError(
            Setting("imbalance"),
            " shapes a profile, but none is requested. Write ",
            Setting("profile", "exp"),
            " or ",
            Setting("profile", "step"),
            " too, or leave it out.",
        )
    check_limits(reading)
    for path in (reading.root, reading.item_features):
        if path is not None:
            check_exists(path)


def _is_generated(data: str | Path) -> bool:
    return str(data).startswith("synthetic") and not os.path.exists(data)


def _generate(data: str | Path, reading: Reading, progress: Progress | None) -> DataSet:
    from headtail.data.synthetic import generate

    _refuse(reading, data, MEANT_FOR)
    return generate(str(data), progress)


def _guard(
    data: str | Path, reading: Reading, progress: Progress | None, trained: Trained | None
) -> None:
    """Read files that may crash their reader in another process first, which fills the cache."""
    path = check_exists(Path(data), WHAT)
    fragile = fragile_files([path, reading.test, reading.item_features])
    if not fragile:
        _refuse(reading, data, LIMITS)
    purpose = "load" if trained is None else "load for a model"
    work = partial(_read_files, data, reading, trained)
    read_in_child_first(work, fragile, reading, progress, purpose=purpose)


def _read_files(
    data: str | Path, reading: Reading, trained: Trained | None, progress: Progress | None
) -> DataSet:
    return _with_items(_read(data, reading, progress, trained), reading, progress)


def _read(
    data: str | Path, reading: Reading, progress: Progress | None, trained: Trained | None
) -> DataSet:
    path = check_exists(Path(data), WHAT)
    if trained is not None and path.is_file():
        reading = as_texts(path, reading)
    files = find(path, reading.format)
    if reading.test is not None:
        test = check_exists(reading.test)
        how = reading if trained is None else as_texts(test, reading)
        files = _with_test(files, test, how.format)
    source = opened(files, reading, progress)
    reader = reader_of(source, reading)
    used = reader.used(source, reading)
    _refuse(reading, data, [name for name in SOME_READERS if name not in used])
    loaded = reader.read(source, reading, progress, trained)
    check_sizes(loaded, reading, data, trained is not None)
    # Interactions are held out; other readers hold out points, and `whole` has them all.
    if "holdout" not in used and (loaded.whole is None or files.kind == "table"):
        _refuse(reading, data, ["holdout"])
    if path.is_dir() and (filters := sorted(file.name for file in path.glob("filter_labels*"))):
        loaded = _with_notes(
            loaded,
            f"{' and '.join(filters)} {'is' if len(filters) == 1 else 'are'} not read: labels that "
            "repeat their point are ranked and measured like all others.",
        )
    if files.kind in WHOLE:
        content = {"content": content_of(_paths(files, reading))}
        loaded = replace(loaded, read_as=content)
    if files.unused:
        loaded = _with_notes(loaded, f"Files that are not read: {', '.join(files.unused)}.")
    if path.is_dir() and (beside := _folders_beside(path, files)):
        loaded = _with_notes(loaded, f"Folders that are not read: {', '.join(beside)}.")
    if loaded.train.image_size and files.test is None and files.validation is not None:
        name = files.validation.name
        return _with_notes(loaded, f"There are no other test images than those of {name}.")
    return loaded


def _folders_beside(folder: Path, files: DataFiles) -> list[str]:
    """The folders in a folder that hold nothing of what is read; those of images are all read."""
    if files.kind in ("images", "CIFAR"):
        return []
    read = [part for part in (files.train, files.test, files.validation) if part is not None]
    inside = [
        part for part in sorted(folder.glob("[!.]*")) if part.is_dir() and any(part.iterdir())
    ]
    return [part.name for part in inside if not any(path.is_relative_to(part) for path in read)]


def _paths(files: DataFiles, reading: Reading) -> list[Path]:
    """All files that are read."""
    parts = (files.train, files.test, files.validation, *(files.splits or ()))
    return [path for path in (*parts, reading.item_features) if path is not None]


def _with_test(files: DataFiles, test: Path, format_name: str) -> DataFiles:
    """These files with another test part."""
    files = files._replace(test=test, splits=None)
    validation = files.validation
    if validation is not None and any(shard.samefile(test) for shard in shards_of(validation)):
        # The test part must not choose the epoch too.
        files = files._replace(validation=None)
    without_labels = files.kind == "images" and is_bare(test)
    # A few lines may not show that they are a table.
    as_training = files.kind == "table" and holds_table(test, True)
    if not without_labels and not as_training and kind_of(test, format_name) != files.kind:
        raise HeadtailError(
            f"`{test}` is not of the same format as `{files.train}` ({files.kind}). Write both in "
            "one format."
        )
    return files


def _refuse(reading: Reading, data: str | Path, options: Iterable[str]) -> None:
    """Refuse options that would do nothing to these data."""
    for name in options:
        if getattr(reading, name) != getattr(DEFAULTS, name):
            raise HeadtailError(
                Setting(name),
                f" would do nothing to `{data}`: it is for {MEANT_FOR[name]}. Leave it out.",
            )


def _with_notes(data: DataSet, *notes: str | None) -> DataSet:
    return replace(data, notes=(*data.notes, *(note for note in notes if note is not None)))
