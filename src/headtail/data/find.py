"""Which files of a folder hold the data, and what each of them is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from headtail.data.readers.cifar import find_cifar
from headtail.data.readers.image_lists import has_class_folders, is_bare, is_list, is_unlabelled
from headtail.data.shards import SHARD, part_of
from headtail.data.split import find_text, stem
from headtail.errors import HeadtailError

PARQUET = (".parquet", ".pq")
DENSE = (".safetensors", ".npz")
LISTS = (".txt", ".json")
EXPECTED = (
    "a Parquet file of sequences, interactions or pictures, `.safetensors` or `.npz` with "
    "`features` and `labels`, "
    "text lines such as `3,17 0:0.5 8:1.2`, CIFAR's python files, a list of lines such as "
    "`train/cat/1.jpg 0`, "
    "or a folder of pictures a label"
)
WHAT = f" Name a folder or a file: {EXPECTED}; or write `synthetic`."


BARE = (
    "`{0}` has no labels. To ask a model about its pictures, name the data it was trained on, and "
    "these with `--test`: "
    "`headtail predict RUN DATA --test {0}`."
)


class Files(NamedTuple):
    """What was found: text, Parquet, dense, images or CIFAR."""

    kind: str
    train: Path
    test: Path | None = None
    splits: tuple[Path, Path] | None = None
    validation: Path | None = None


def find(path: Path, asked: str) -> Files:
    """The files of a folder; training files first, else the only file, Parquet before dense before
    pictures before text.
    """
    if asked in ("auto", "cifar") and (cifar := find_cifar(path)) is not None:
        return Files("CIFAR", cifar[1])
    if path.is_file():
        return Files(kind_of(path, asked), path)
    for kind, endings in (("Parquet", PARQUET), ("dense", DENSE)):
        held = _with(path, endings) or (_with(path / "data", endings) if kind == "Parquet" else [])
        if not held or asked not in ("auto", *FORMATS[kind]):
            continue
        names = {part_of(one).lower(): one for one in held}  # one shard stands for all
        train, test, validation = _by_role(names)
        if train is None and len(names) == 1:
            train = next(iter(names.values()))
        if train is None or train == test:
            names = ", ".join(one.name for one in held)
            raise HeadtailError(
                f"`{path}` holds {names}, and none of them is called `train`. Name the training "
                "file itself."
            )
        for one in (train, test, validation):
            _check_one(one, held)
        return Files(kind, train, test, None, validation)
    if asked in ("auto", "images") and (images := _pictures_of(path)) is not None:
        return images
    if asked in FORMATS["text"] or (
        asked == "auto" and any(_is_text(one) for one in path.iterdir())
    ):
        return Files("text", *_text_files(path))
    if asked in ("auto", "images") and has_class_folders(path):
        return Files("images", path)
    if is_bare(path):
        raise HeadtailError(BARE.format(path))
    raise HeadtailError(
        f"`{path}` holds nothing to read{'' if asked == 'auto' else f' as {asked}'}. Expected is "
        f"{EXPECTED}."
    )


_TRAIN, _TEST, _VALIDATION = (
    rf"(^|[_.-])({names})(20\d\d)?$" for names in ("train|trn", "test|tst", "val|valid|validation")
)
FORMATS = {
    "Parquet": ("sequences", "interactions", "images"),
    "dense": ("dense",),
    "images": ("images",),
    "text": ("xc", "svmlight"),
}


def _with(folder: Path, endings: tuple[str, ...]) -> list[Path]:
    return [
        one for one in sorted(folder.glob("*")) if one.suffix.lower() in endings and one.is_file()
    ]


def _check_one(path: Path | None, held: list[Path]) -> None:
    """Refuse a part that is there both as shards and as a whole."""
    kin = [one for one in held if path is not None and part_of(one) == part_of(path)]
    first = next((one.name for one in kin if SHARD.fullmatch(one.name)), None)
    whole = next((one.name for one in kin if not SHARD.fullmatch(one.name)), None)
    if first and whole:
        raise HeadtailError(
            f"`{kin[0].parent}` holds {first} and {whole}, which are both {part_of(kin[0])}. Keep "
            "one."
        )


def _by_role(names: dict[str, Path]) -> tuple[Path | None, ...]:
    """What trains, tests and validates, by their names."""
    return tuple(
        next((one for name, one in names.items() if re.search(role, name)), None)
        for role in (_TRAIN, _TEST, _VALIDATION)
    )


def _pictures_of(folder: Path) -> Files | None:
    """Lists of pictures, else the folders `train` and `test` or `val` with a folder a label in
    them.
    """
    held = [
        (one.stem.lower(), one)
        for one in sorted(folder.iterdir())
        if one.suffix.lower() in LISTS and one.is_file()
    ]
    lists = {name: one for name, one in held if is_list(one)}
    if lists:  # one that is called a part and is damaged is read and told of, not left out
        lists = {
            name: one for name, one in held if any(_by_role({name: one})) and not is_unlabelled(one)
        } | lists
    trained = [one.name for name, one in lists.items() if re.search(_TRAIN, name)] or [
        one.name for one in lists.values()
    ]
    if len(trained) > 1:
        raise HeadtailError(
            f"`{folder}` holds {', '.join(trained)}. Name the list to train on, and the other with "
            "`test`."
        )
    if lists:
        _, test, validation = _by_role(lists)
        if folder / trained[0] in (test, validation):
            raise HeadtailError(
                f"`{folder}` holds {trained[0]}, which is not for training. Add a list called "
                "`train`."
            )
        return Files("images", folder / trained[0], test, None, validation)
    train, *others = _by_role(
        {one.name.lower(): one for one in sorted(folder.iterdir()) if one.is_dir()}
    )
    if train is None or not has_class_folders(train):
        return None
    for one in (one for one in others if one is not None and next(one.iterdir(), None) is None):
        raise HeadtailError(
            f"`{one}` is empty. Put a folder of pictures a label into it, or remove it."
        )
    test, validation = (
        one if one is not None and has_class_folders(one) else None for one in others
    )
    return Files("images", train, test, None, validation)


def _text_files(folder: Path) -> tuple[Path, Path | None, tuple[Path, Path] | None]:
    found = find_text(folder)
    return found.train, found.test, found.splits


def _is_text(path: Path) -> bool:
    return path.is_file() and stem(path) != path.name.lower()


def kind_of(path: Path, asked: str) -> str:
    """What a file is by its ending or first line, and a folder by what is in it; text may have any
    ending if it is asked for.
    """
    ending = path.suffix.lower()
    kind = "Parquet" if ending in PARQUET else "dense" if ending in DENSE else "text"
    listed = ending == ".json" or is_list(path)
    pictured = asked == "images" or (
        asked == "auto" and (listed or (path.is_dir() and has_class_folders(path)))
    )
    if kind == "text" and pictured:
        return "images"
    fits = asked in FORMATS[kind] if asked != "auto" else kind != "text" or _is_text(path)
    if kind == "text" and asked == "auto" and is_bare(path):
        raise HeadtailError(BARE.format(path))
    if not fits:
        what = "is not known" if asked == "auto" else f"does not fit the format {asked}"
        advice = " If it is text, pass the format xc." if asked == "auto" else ""
        raise HeadtailError(
            f"`{path}`: the ending {ending or 'of a name without one'} {what}. Expected is "
            f"{EXPECTED}.{advice}"
        )
    return kind
