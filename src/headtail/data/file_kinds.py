"""Kinds of files: how a file is recognised, and how a folder of such files is searched."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headtail.data.reading import DataFiles
from headtail.data.shards import SHARD, part_of
from headtail.errors import HeadtailError

TRAIN, TEST, VALIDATION, HELD_OUT = (
    rf"(^|[_.-])({names})(20\d\d)?$"
    for names in ("train|trn", "test|tst", "val|valid|validation|dev", "eval|holdout")
)


@dataclass(frozen=True)
class FileKind:
    """A kind of files that readers read.

    Attributes:
        name: in errors; where two kinds share it, the parts of a data set may be of either.
        holds: whether a path that is named by itself is of this kind; the second argument says
            whether a format of this kind was requested, so that less has to be recognised.
        find: the files of a data set at this path, a file or a folder, or None if there are none of
            this kind; the second argument is as for `holds`.
        endings: files that end so are of this kind, whatever they hold.
    """

    name: str
    holds: Callable[[Path, bool], bool]
    find: Callable[[Path, bool], DataFiles | None]
    endings: tuple[str, ...] = ()


def kind_by_ending(name: str, endings: tuple[str, ...]) -> FileKind:
    """Files that are recognised by their endings, with a training file in each folder.

    Args:
        name: of the kind.
        endings: in small letters, with their dots.
    """

    def holds(path: Path, _: bool) -> bool:
        return path.suffix.lower() in endings

    def find(path: Path, _: bool) -> DataFiles | None:
        if path.is_file():
            return DataFiles(name, path) if holds(path, True) else None
        paths = [file for file in sorted(path.glob("*")) if file.is_file()]
        held = [file for file in paths if holds(file, True)]
        return with_roles(name, path, held) if held else None

    return FileKind(name, holds, find, endings)


def by_role(names: dict[str, Path]) -> tuple[Path | None, ...]:
    """The paths for training, testing and validation, by their names; what is held out is for
    testing, beside a test part for validation.
    """
    train, test, validation, held_out = (
        next((path for name, path in names.items() if re.search(role, name)), None)
        for role in (TRAIN, TEST, VALIDATION, HELD_OUT)
    )
    if test is None:
        return train, held_out, validation
    return train, test, validation or held_out


def with_roles(kind: str, folder: Path, held: list[Path]) -> DataFiles:
    """Training files by their name, or else the only file."""
    names = {part_of(file).lower(): file for file in held}  # one shard represents its part
    train, test, validation = by_role(names)
    if train is None and len(names) == 1:
        train = next(iter(names.values()))
    if train is None or train == test:
        listed = ", ".join(file.name for file in held)
        raise HeadtailError(
            f"`{folder}` holds {listed}, and none of them is called `train`. Name the training "
            "file itself."
        )
    for part in (train, test, validation):
        _check_written_once(part, held)
    used = {part_of(part) for part in (train, test, validation) if part is not None}
    unused = tuple(file.name for file in held if part_of(file) not in used)
    return DataFiles(kind, train, test, None, validation, unused)


def _check_written_once(path: Path | None, held: list[Path]) -> None:
    """Refuse a part that is there twice: as shards and as a whole, or in two formats."""
    if path is None:
        return
    same_part = [file for file in held if part_of(file) == part_of(path)]
    shards = [file.name for file in same_part if SHARD.fullmatch(file.name)]
    whole = [file.name for file in same_part if not SHARD.fullmatch(file.name)]
    twice = [*shards[:1], *whole]
    if len(twice) > 1:
        raise HeadtailError(
            f"`{path.parent}` holds {twice[0]} and {twice[1]}, which are both {part_of(path)}. "
            "Keep one of them."
        )
