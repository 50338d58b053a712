"""The one door to data: a folder, a file or generated data, whatever the format."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from headtail.data.catalogue import (
    KnownPictures,
    check,
    check_pictures,
    check_profile,
    recognise,
    recognise_pictures,
)
from headtail.data.find import WHAT, Files, find, kind_of
from headtail.data.longtail import Profile, long_tail
from headtail.data.points import DataSet, Progress
from headtail.data.readers.cifar import find_cifar, read_cifar
from headtail.data.readers.image_lists import is_bare, read_images
from headtail.data.readers.text import read_text
from headtail.data.shards import part_of, shards_of
from headtail.data.split import hold_out, read_xc, stem
from headtail.errors import HeadtailError, check_exists, check_number


@dataclass(frozen=True)
class Reading:
    """How data are read."""

    test: Path | None = None
    """File to test on. By default the test file in DATA, where that is a folder; else a part of the
    points is held out.
    """
    format: Literal[
        "auto", "xc", "svmlight", "sequences", "interactions", "dense", "images", "cifar"
    ] = "auto"
    """What the files hold; auto tells by their names, their columns and their first line."""
    skip_bad_lines: bool = False
    """Leave bad lines of text files out, and count them, instead of refusing the file."""
    split: int = 0
    """Which column of split files (*trSplit.txt, *tstSplit.txt) to use, from 0."""
    last: int = 10
    """For sequences: how many items before the next are looked at."""
    holdout: float = 0.2
    """Share kept for testing where there is no test file: of the points, or of each user's items.
    """
    profile: Literal["as-is", "exp", "step"] = "as-is"
    """For pictures: thin the training part so that label i keeps fewer the larger i is (exp), or
    the second half does (step).
    """
    imbalance: float = 100
    """For a profile: pictures of the most frequent label over those of the rarest."""
    root: Path | None = None
    """For lists of pictures: folder that their paths start from. By default the folder of the list.
    """
    skip_bad_images: bool = False
    """Leave missing and damaged pictures out, and count them, instead of refusing them; files are
    all decoded once for that.
    """


DEFAULTS = Reading()
MEANT_FOR = {
    "test": "files",
    "format": "files",
    "skip_bad_lines": "text",
    "split": "split files (`*trSplit.txt` and `*tstSplit.txt`)",
    "last": "sequences",
    "holdout": "data without a test part",
    "root": "lists of pictures",
    "skip_bad_images": "pictures in Parquet, lists and folders",
}
"""Options that only some data have a use for."""
LABELLED = (
    "Lines begin with labels, `3,17 0:0.5`; points that are only to be answered are a test file's."
)


def load(
    data: str | Path, reading: Reading = DEFAULTS, progress: Progress | None = None
) -> DataSet:
    r"""Read data for training and testing.

    Args:
        data: a folder with training and test files, the training file, or generated data:
            `synthetic`, or with its shape `synthetic:labels=500,points=2000`.
        reading: how.
        progress: told what is done, and the share of it that is done.

    >>> folder = getfixture("tmp_path")
    >>> getfixture("monkeypatch").setenv("HEADTAIL_CACHE", str(folder / "cache"))
    >>> _ = (folder / "train.txt").write_text("2 4 3\n0,2 1:0.5\n1 0:2\n"), (folder / "test.txt").write_text("1 4 3\n2 3:1\n")
    >>> data = load(folder)
    >>> len(data.train), len(data.test), data.train.num_labels
    (2, 1, 3)
    """
    if not 0 < check_number("holdout", reading.holdout) < 1:
        raise HeadtailError(
            f"`holdout` must be between 0 and 1, both excluded, but got {reading.holdout!r}."
        )
    if reading.profile == "as-is" and reading.imbalance != DEFAULTS.imbalance:
        raise HeadtailError(
            "`imbalance` shapes a profile, but none is asked for. Write `profile` exp or step too, "
            "or leave it."
        )
    if reading.root is not None:
        check_exists(reading.root)
    # Shown to people, and kept beside results: paths as they were typed.
    how = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in asdict(reading).items()
    }
    found = replace(_read(data, reading, progress), read_as={"path": str(data), **how})
    known = None if found.train.picture is None else recognise_pictures(found.train)
    if known is not None:
        found = replace(found, notes=(*found.notes, check_pictures(known, found)))
    return (
        found
        if reading.profile == "as-is"
        else _thinned(found, known, reading.profile, reading.imbalance)
    )


def _read(data: str | Path, reading: Reading, progress: Progress | None) -> DataSet:
    path = Path(data)
    if str(data).startswith("synthetic") and not path.exists():
        from headtail.data.synthetic import generate

        _refuse(reading, data, MEANT_FOR)
        return generate(str(data), progress)
    files = find(check_exists(path, WHAT), reading.format)
    if reading.test is not None:
        files = files._replace(test=check_exists(reading.test), splits=None)
        if files.validation is not None and any(
            one.samefile(reading.test) for one in shards_of(files.validation)
        ):
            # what is tested on must not choose the epoch too
            files = files._replace(validation=None)
        bare = files.kind == "images" and is_bare(reading.test)
        if not bare and kind_of(reading.test, reading.format) != files.kind:
            raise HeadtailError(
                f"`{reading.test}` is not of the same format as `{files.train}` ({files.kind}). "
                "Write both alike."
            )
    kind = (
        _parquet_format(files.train, files.test, reading.format)
        if files.kind == "Parquet"
        else files.kind
    )
    _refuse(reading, data, _useless(files, kind))
    parquet = partial(_read_parquet, kind)
    readers = {
        "text": _read_text,
        "Parquet": parquet,
        "dense": _read_dense,
        "images": _read_images,
        "CIFAR": _read_cifar,
    }
    found = readers[files.kind](files, reading, progress)
    if found.whole is None and not (kind == "interactions" and files.test is None):
        _refuse(reading, data, ["holdout"])
    if found.train.picture is not None and files.test is None and files.validation is not None:
        found = replace(
            found,
            notes=(
                *found.notes,
                f"There are no other test pictures than those of {files.validation.name}.",
            ),
        )
    return found


def _useless(files: Files, kind: str) -> list[str]:
    """Options that do nothing to such files."""
    used = {
        "skip_bad_lines": kind == "text",
        "split": files.splits is not None,
        "last": kind == "sequences",
        "root": files.kind == "images",
        "skip_bad_images": kind == "images",
    }
    return [name for name, is_used in used.items() if not is_used]


def _refuse(reading: Reading, data: str | Path, options: Iterable[str]) -> None:
    for name in options:
        if getattr(reading, name) != getattr(DEFAULTS, name):
            raise HeadtailError(
                f"`{name}` would do nothing to `{data}`: it is for {MEANT_FOR[name]}. Leave it out."
            )


def _read_text(files: Files, reading: Reading, progress: Progress | None) -> DataSet:
    skip = reading.skip_bad_lines
    if files.test is None and files.splits is None:
        file = read_text(files.train, skip_bad_lines=skip, progress=progress)
        train, test = hold_out(file.points, reading.holdout)
        note = (
            f"There is no test file: {reading.holdout:.0%} of the points are held out for testing."
        )
        mark = f"{file.digest}-{reading.holdout:g}"
        about = {"notes": (*file.notes, note), "digest": mark, "whole": file.points}
        data = DataSet(_name(files.train, stem(files.train)), train, test, **about)
    else:
        given = {
            "splits": files.splits,
            "split_column": reading.split,
            "skip_bad_lines": skip,
            "progress": progress,
        }
        data = read_xc(files.train, files.test, **given)
    if data.train.num_pairs == 0:
        raise HeadtailError(
            f"`{files.train}` has no label at all: nothing can be learnt. {LABELLED}"
        )
    known = recognise(data.train.num_features, data.train.num_labels)
    checked = () if known is None else (check(known, data.train, data.test),)
    return replace(
        data,
        notes=("Read as text: labels, then features with their values.", *data.notes, *checked),
    )


def _read_dense(files: Files, reading: Reading, progress: Progress | None) -> DataSet:
    from headtail.data.readers.dense import read_dense

    data = read_dense(files.train, files.test, holdout=reading.holdout, progress=progress)
    return replace(data, name=_name(files.train, data.name))


def _read_images(files: Files, reading: Reading, progress: Progress | None) -> DataSet:
    files = _tested(files)
    given = {
        "root": reading.root,
        "holdout": reading.holdout,
        "skip_bad_images": reading.skip_bad_images,
        "progress": progress,
    }
    data = read_images(files.train, files.test, files.validation, **given)
    return replace(data, name=_name(files.train, data.name))


def _read_cifar(files: Files, _: Reading, progress: Progress | None) -> DataSet:
    found = find_cifar(files.train)
    assert found is not None
    return read_cifar(*found, progress)


def _tested(files: Files) -> Files:
    """Pictures are tested on the validation part where there is no other."""
    return (
        files if files.test is not None else files._replace(test=files.validation, validation=None)
    )


def _thinned(
    data: DataSet, known: KnownPictures | None, profile: Profile, imbalance: float
) -> DataSet:
    thinned = long_tail(data, profile, imbalance)
    told = None if known is None else check_profile(known, profile, imbalance, len(thinned.train))
    return thinned if told is None else replace(thinned, notes=(*thinned.notes, told))


def _read_parquet(asked: str, files: Files, reading: Reading, progress: Progress | None) -> DataSet:
    if asked == "images":
        from headtail.data.readers.parquet_images import read_pictures

        files = _tested(files)
        given = {
            "holdout": reading.holdout,
            "skip_bad_images": reading.skip_bad_images,
            "progress": progress,
        }
        data = read_pictures(files.train, files.test, files.validation, **given)
    elif asked == "sequences":
        from headtail.data.readers.sequences import read_sequences

        data = read_sequences(files.train, files.test, last=reading.last, progress=progress)
    else:
        from headtail.data.readers.interactions import read_interactions

        data = read_interactions(
            files.train, files.test, holdout=reading.holdout, progress=progress
        )
    read = (files.train, files.test, files.validation if asked == "images" else None)
    parts = {part_of(path): len(shards_of(path)) for path in read if path is not None}
    told = [
        f"{part} is in {number:,} files, which are read in their order."
        for part, number in parts.items()
        if number > 1
    ]
    return replace(data, name=_name(files.train, part_of(files.train)), notes=(*data.notes, *told))


def _parquet_format(train: Path, test: Path | None, asked: str) -> str:
    """Sequences, interactions or pictures (images): what is asked for, or told by the columns."""
    from headtail.data.readers.parquet import Columns
    from headtail.data.readers.parquet_images import holds_pictures

    if asked != "auto":
        return asked
    first = Columns.of(train)
    if holds_pictures(first):
        return "images"
    second = first if test is None else Columns.of(test)
    if first.lists and second.lists:
        same_users = (
            test is not None and first.user and second.user and not (first.target or second.target)
        )
        return "interactions" if same_users else "sequences"
    for columns in (first, second):
        if not (columns.lists or (columns.user and columns.item)):
            raise HeadtailError(
                f"`{columns.path}` has the columns {columns.listed}. Write sequences as a list "
                "column `items`, interactions as "
                "the columns `user_id` and `item_id`, or pictures as the columns `image` and "
                "`label`."
            )
    return "interactions"


def _name(path: Path, name: str) -> str:
    """`beauty` for `beauty/train.parquet`, `beauty/data/train.parquet`, `beauty/sequences.parquet`
    and `beauty_train.npz`.
    """
    folder = path.resolve().parent
    above = folder.parent.name if folder.name == "data" else folder.name
    return (
        re.sub(r"(^|[_.-])(train|trn|data|sequences|interactions)(20\d\d)?$", "", name.lower())
        or above
    )


def told_apart(before: dict[str, Any], now: dict[str, Any]) -> tuple[str, str]:
    """The paths of two data sets (`DataSet.read_as`), each with the options that differ, as they
    are typed.

    >>> told_apart({"path": "shop", "last": 10}, {"path": "shop", "last": 5})
    ('`shop` `--last 10`', '`shop` `--last 5`')
    """
    names = ["path", *(one.name for one in fields(Reading))]
    other = [name for name in names if name == "path" or before.get(name) != now.get(name)]
    first, second = (
        " ".join(_typed(name, how.get(name)) for name in other) for how in (before, now)
    )
    return first, second


def _typed(name: str, value: Any) -> str:
    option = f"--{name.replace('_', '-')}"
    return (
        f"`{value}`"
        if name == "path"
        else f"without `{option}`"
        if value is None
        else f"`{option} {value}`"
    )
