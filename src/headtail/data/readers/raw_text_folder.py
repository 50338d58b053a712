"""Finding raw texts, their labels and the names of labels among the files of a folder."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from headtail.data.file_kinds import FileKind, by_role
from headtail.data.packed import line_blocks
from headtail.data.reading import DataFiles, Reading
from headtail.errors import HeadtailError, Setting

_ENDINGS = re.compile(r"(\.(txt|ft|json|jsonl|npz))*(\.(gz|bz2|xz|zst))?$")
_LINES = re.compile(r"\.(txt|ft|train|trn|test|tst|valid|val)(\.(gz|bz2|xz|zst))?$")
_JSON = re.compile(r"\.jsonl?(\.(gz|bz2|xz|zst))?$")
_ROLES = (("trn", "train"), ("tst", "test"), ("val", "valid", "validation"), ("",))
_ROLE = "|".join(role for roles in _ROLES for role in roles if role)
_TEXTS = re.compile(
    rf"(?P<role>{_ROLE})_(x|x_raw|raw|(raw_)?texts?)|x_(?P<role_after>{_ROLE})|x|texts?"
)
_LABELS = ("{role}_x_y", "x_y_{role}", "{role}_y", "y_{role}", "{role}_labels", "labels_{role}")
_NAMES = ("lbl", "lbl_raw", "label_names", "labels_names", "label_map", "output_items", "y")
_MATRICES = ("trn_x_xf", "train_x_xf")
LOOKED_AT = 1 << 16
"""Bytes at the start of a file that show what it holds."""


def plain_name(path: Path) -> str:
    """A file's name without its endings, in small letters, its words joined by `_`.

    >>> plain_name(Path("X.trn.txt.gz")), plain_name(Path("trn.raw.txt"))
    ('x_trn', 'trn_raw')
    """
    return re.sub(r"[.-]", "_", _ENDINGS.sub("", path.name.lower()))


def part_name(path: Path) -> str:
    """What a file of texts is called without what says that it holds texts.

    >>> part_name(Path("X.trn.txt")), part_name(Path("pets_train.txt"))
    ('trn', 'pets_train')
    """
    return _role(path) or plain_name(path)


def labels_file(texts: Path) -> Path | None:
    """The file with the labels of these texts, line by line, in the same folder; or None."""
    role = _role(texts)
    roles = next((same for same in _ROLES if role in same), ("",))
    wanted = [name.format(role=role).strip("_") for name in _LABELS for role in roles]
    return _first(texts.parent, wanted, but=texts)


def names_file(folder: Path, but: Path | None = None) -> Path | None:
    """The file with the names of the labels in a folder, other than `but`; or None."""
    return _first(folder, _NAMES, but)


def is_name_file(path: Path) -> bool:
    """Whether a file's name is that of a file of label names."""
    return plain_name(path) in _NAMES


def holds_records(path: Path) -> bool:
    """Whether these are JSON lines with the labels of each text, or the labels themselves."""
    is_labels = plain_name(path) == "lbl"
    return bool(_JSON.search(path.name.lower())) and (is_labels or b'"target_ind"' in _start(path))


def is_lines(path: Path) -> bool:
    """Whether a file has the name of a file of lines."""
    return bool(_LINES.search(path.name.lower()))


def holds_fasttext(path: Path, requested: bool) -> bool:
    """Whether lines have labels such as `__label__cat`."""
    if not path.is_file():
        return False
    start = _start(path)
    return requested or bool(re.search(rb"(^|\s)__label__\S", start))


def as_texts(path: Path, reading: Reading) -> Reading:
    """How a file is read for a model that was trained on texts: other lines are texts too, but
    lines of features are not.
    """
    features = re.match(rb"(\d+(,\d+)*)? ?\d+:[-+.\d]+(\s|$)", _start(path))
    if reading.format != "auto" or features:
        return reading
    return replace(reading, format="raw-text")


def _holds_raw_text(path: Path, requested: bool) -> bool:
    if not path.is_file():
        return False
    if _JSON.search(path.name.lower()):
        return holds_records(path)
    return requested or (_is_texts(path) and labels_file(path) is not None)


def _find_fasttext(path: Path, requested: bool) -> DataFiles | None:
    if path.is_file():
        return DataFiles("raw text", path) if holds_fasttext(path, requested) else None
    held = [
        file
        for file in _files(path)
        if _LINES.search(file.name.lower()) and holds_fasttext(file, False)
    ]
    return _by_role("raw text", path, held)


def _find_raw_text(path: Path, requested: bool) -> DataFiles | None:
    if path.is_file():
        return DataFiles("raw text", path) if _holds_raw_text(path, requested) else None
    files = _files(path)
    held = [file for file in files if holds_records(file) and not is_name_file(file)] or [
        file for file in files if _is_texts(file) and (_role(file) or labels_file(file))
    ]
    found = _by_role("raw text", path, held)
    features = [file for file in files if plain_name(file) in ("train", "trn", *_MATRICES)]
    others = [file.name for file in features if file not in held]
    if found is not None and others and not requested:
        raise HeadtailError(
            f"`{path}` holds raw text ({found.train.name}) and features ({others[0]}). Choose by ",
            Setting("format", "raw-text"),
            " or ",
            Setting("format", "xc"),
            ".",
        )
    return found


def matrix_of_labels(features: Path) -> Path:
    """`trn_X_Y.txt` for `trn_X_Xf.txt`."""
    name = re.sub("_xf", "_Y", features.name, flags=re.IGNORECASE)
    labels = features.with_name(name)
    if not labels.is_file():
        raise HeadtailError(
            f"`{features}` holds features, but `{name}`, the labels of its points, is not there. "
            "Add it."
        )
    return labels


def _holds_matrix(path: Path, requested: bool) -> bool:
    return path.is_file() and plain_name(path).endswith("_x_xf")


def _find_matrices(path: Path, requested: bool) -> DataFiles | None:
    if path.is_file():
        return DataFiles("sparse matrices", path) if _holds_matrix(path, requested) else None
    train = _first(path, _MATRICES, but=None)
    test = _first(path, ("tst_x_xf", "test_x_xf"), but=None)
    return None if train is None else DataFiles("sparse matrices", train, test)


def _by_role(kind: str, folder: Path, held: list[Path]) -> DataFiles | None:
    if not held:
        return None
    roles = {part_name(file): file for file in held}
    train, test, validation = by_role(roles)
    if train is None and len(held) == 1:
        train, test, validation = held[0], None, None
    if train is None or len(roles) < len(held):
        listed = ", ".join(sorted(file.name for file in held))
        raise HeadtailError(
            f"`{folder}` holds {listed}, and not exactly one of them is for training. Name the "
            "training file itself."
        )
    return DataFiles(kind, train, test, None, validation).tested_on_validation()


def _role(path: Path) -> str:
    """`trn` for `X.trn.txt`, nothing where a name has no role."""
    match = _TEXTS.fullmatch(plain_name(path))
    return "" if match is None else match["role"] or match["role_after"] or ""


def _is_texts(path: Path) -> bool:
    return bool(_LINES.search(path.name.lower()) and _TEXTS.fullmatch(plain_name(path)))


def _files(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")
    )


def _first(folder: Path, names: Iterable[str], but: Path | None) -> Path | None:
    """The file with the first of these plain names that one has."""
    files = {plain_name(path): path for path in _files(folder) if path != but}
    return next((files[name] for name in names if name in files), None)


def _start(path: Path) -> bytes:
    """The first bytes of a file, unpacked."""
    with closing(line_blocks(path, LOOKED_AT)) as blocks:
        return next(blocks, (b"", 1.0))[0]


FASTTEXT = FileKind("raw text", holds_fasttext, _find_fasttext)
RAW_TEXT = FileKind("raw text", _holds_raw_text, _find_raw_text)
SPARSE = FileKind("sparse matrices", _holds_matrix, _find_matrices)
