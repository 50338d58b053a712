"""Finding the tables of a data set: a file, files called train and test, or folders of shards."""

from __future__ import annotations

import re
from pathlib import Path

from headtail.data.file_kinds import by_role, with_roles
from headtail.data.packed import ending_of, first_lines
from headtail.data.readers.image_kinds import is_bare, is_list
from headtail.data.reading import DataFiles
from headtail.data.shards import TABLES, part_of, tables_in
from headtail.data.text_kinds import holds_json_lines, is_json_array, text_kind
from headtail.errors import HeadtailError, need

NAME = "table"
MAIN = re.compile(r"ratings?|interactions?|sequences?|events?|clicks?|u|data|log")
"""The table of a folder that has others beside it, as MovieLens has."""
BINARY = (".parquet", ".pq", ".feather", ".arrow", ".ipc")
_TEXT = (".txt", ".dat", ".data", ".json")
_OTHER_TEXT = re.compile(r"readme|licen[cs]e|.*split$|filter_labels|inv_prop")
_NUMBERED = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4,12})+|\d+")


def holds_table(path: Path, requested: bool) -> bool:
    """Whether a file is a table by its ending, or by its first lines."""
    if not path.is_file():
        return path.is_dir() and bool(tables_in(path))
    ending = ending_of(path)
    if ending in TABLES:
        return True
    if ending == ".json":
        return holds_json_lines(path) or is_json_array(path)
    if is_bare(path) or is_list(path):
        return False
    return text_kind(path) == "table" or (requested and bool(first_lines(path)))


def find_tables(path: Path, requested: bool) -> DataFiles | None:
    """The tables at a path, a file or a folder; None if there are none."""
    if path.is_file():
        return DataFiles(NAME, path) if holds_table(path, requested) else None
    for folder in (path, path / "data"):
        if not folder.is_dir():
            continue
        inside = [part for part in sorted(folder.iterdir()) if part.is_dir() and tables_in(part)]
        train, test, validation = by_role({part.name.lower(): part for part in inside})
        if train is not None:
            beside = tuple(file.name for file in tables_in(folder))
            return DataFiles(NAME, train, test, None, validation, beside)
        if held := _tables_of(folder, requested):
            return _among(folder, held)
    return None


def _tables_of(folder: Path, requested: bool) -> list[Path]:
    """The tables in a folder; text that is called train counts more than a CSV file that is not."""
    held = tables_in(folder)
    if _train_of(held) or any(ending_of(file) in BINARY for file in held):
        return held
    files = [file for file in sorted(folder.glob("[!.]*")) if file.is_file()]
    text = [file for file in files if ending_of(file) in _TEXT]
    text = [file for file in text if not _OTHER_TEXT.match(part_of(file).lower())]
    train = _train_of(text)
    if train is not None:
        # The other parts are what training is: a few lines may not show it.
        named = [file for file in text if any(by_role({part_of(file).lower(): file}))]
        return named if holds_table(train, requested) else []
    return held or [file for file in text if holds_table(file, False)]


def _train_of(files: list[Path]) -> Path | None:
    return by_role({part_of(file).lower(): file for file in files})[0]


def _among(folder: Path, held: list[Path]) -> DataFiles:
    """Those called train and test, the one that is known to be the main one, or all as shards."""
    names = {part_of(file).lower(): file for file in held}
    train, test, validation = by_role(names)
    if train is None and len(names) > 1:
        main = [file for name, file in names.items() if MAIN.fullmatch(name)]
        if len(main) == 1:
            used = (main[0], test, validation)
            unused = tuple(file.name for file in names.values() if file not in used)
            return DataFiles(NAME, main[0], test, None, validation, unused)
        if test is None and len({_NUMBERED.sub("", name) for name in names}) == 1:
            return DataFiles(NAME, folder)
        if test is None and held == tables_in(folder) and same_columns(held):
            return DataFiles(NAME, folder)
    return with_roles(NAME, folder, held)


def same_columns(files: list[Path]) -> bool:
    """Whether these files can be read as one table."""
    need("pyarrow", extra="data", to="Reading tables")
    from headtail.data.tables.open import open_table

    try:
        names = [set(open_table(file).schema.names) for file in files]
    except HeadtailError:
        return False
    return all(held == names[0] for held in names)
