"""The table of readers: a new format is a file in this folder and a row here.

The file has a function `read_files(files, reading, progress)` that returns a `DataSet`; for tables,
`read_tables(tables, reading, progress)`. The row has
the name of the format (which is listed in `Reading.format` too), the kind of files it is found in,
and the options that it uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from headtail.data.file_kinds import FileKind, kind_by_ending
from headtail.data.packed import ending_of
from headtail.data.points import DataSet, Progress
from headtail.data.readers.cifar import CIFAR
from headtail.data.readers.image_kinds import IMAGE_FOLDERS, IMAGE_LISTS
from headtail.data.readers.raw_text_folder import FASTTEXT, RAW_TEXT, SPARSE
from headtail.data.readers.table_files import find_tables, holds_table
from headtail.data.readers.text_folder import TEXT
from headtail.data.reading import DataFiles, Reading
from headtail.data.shards import TABLES
from headtail.data.text_features import Trained
from headtail.errors import HeadtailError, Setting, need

if TYPE_CHECKING:
    from headtail.data.tables.columns import DataTables


@dataclass(frozen=True)
class Reader:
    """One row.

    Attributes:
        format: what `Reading.format` calls it.
        kind: the files that it reads.
        module: the file of this folder that reads them, imported when it is needed: pyarrow is slow
            to import, and optional.
        options: the options of `Reading` that it uses, of those that not all readers use.
    """

    format: str
    kind: FileKind
    module: str
    options: tuple[str, ...] = ()

    def used(self, source: DataFiles | DataTables, reading: Reading) -> set[str]:
        """The options that do something to these data, of those that not all readers use."""
        if isinstance(source, DataFiles):
            return set(self.options) - ({"split_column"} if source.splits is None else set())
        from headtail.data.readers.table_formats import used_options

        return used_options(source, self.format, reading)

    def read(
        self,
        source: DataFiles | DataTables,
        reading: Reading,
        progress: Progress | None,
        trained: Trained | None = None,
    ) -> DataSet:
        """The data set in these files or tables; texts with the terms and labels of a `trained`
        model.
        """
        module = import_module(f"headtail.data.readers.{self.module}")
        files = isinstance(source, DataFiles)
        if trained is None:
            read = module.read_files if files else module.read_tables
            return read(source, reading, progress)
        self._check_text(source.train if files else source.train.path)
        read = module.read_for_model if files else module.read_tables_for_model
        return read(source, reading, progress, trained)

    def _check_text(self, source: Path | str) -> None:
        """Refuse other data than texts for a model that was trained on texts."""
        if "text_features" not in self.options:
            raise HeadtailError(
                f"The model was trained on raw text, but `{source}` is read as {self.format}. "
                "Pass texts: one per line, or files in the format that it was trained on."
            )


def opened(files: DataFiles, reading: Reading, progress: Progress | None) -> DataFiles | DataTables:
    """These files; if they are tables, opened: text is then read once for its types."""
    if files.kind != TABLE.name:
        return files
    need("pyarrow", extra="data", to="Reading tables")
    from headtail.data.tables.columns import Columns, DataTables

    train = Columns.of(files.train, reading=reading, progress=progress)
    others = (
        path and Columns.of(path, reading=reading, progress=progress).like(train)
        for path in (files.test, files.validation)
    )
    return DataTables(train, *others)


def _with_ending(path: Path, _: bool) -> bool:
    return ending_of(path) in TABLES


def _find_by_ending(path: Path, requested: bool) -> DataFiles | None:
    is_text = path.is_file() and not _with_ending(path, requested)
    return None if is_text else find_tables(path, requested)


_CLAIMED = tuple(ending for ending in TABLES if ending not in (".jsonl", ".ndjson"))
"""JSON lines may also be records of raw text."""
TABLE = FileKind("table", holds_table, find_tables, _CLAIMED)
IMAGE_TABLE = FileKind("table", _with_ending, _find_by_ending, _CLAIMED)
"""Lines of text may list images, so they are not taken for a table of them."""
DENSE = kind_by_ending("dense", (".safetensors", ".npz"))

TEXT_OPTIONS = ("text_features", "max_terms", "ngrams")

# In the order in which a folder is searched.
READERS = (
    Reader("cifar", CIFAR, "cifar"),
    Reader("fasttext", FASTTEXT, "raw_text_files", TEXT_OPTIONS),
    Reader("raw-text", RAW_TEXT, "raw_text_files", TEXT_OPTIONS),
    Reader("xc", SPARSE, "sparse_matrices"),
    Reader("images", IMAGE_TABLE, "parquet_images"),
    Reader("sequences", TABLE, "sequences"),
    Reader("interactions", TABLE, "interactions"),
    Reader("triples", TABLE, "triples"),
    Reader("raw-text", TABLE, "text_table", TEXT_OPTIONS),
    Reader("dense", DENSE, "dense"),
    Reader("dense", TABLE, "table_dense"),
    Reader("images", IMAGE_LISTS, "image_lists", ("root", "skip_bad_images")),
    Reader("xc", TEXT, "text_parts", ("skip_bad_lines", "split_column")),
    Reader("svmlight", TEXT, "text_parts", ("skip_bad_lines", "split_column")),
    Reader("images", IMAGE_FOLDERS, "image_lists", ("root", "skip_bad_images")),
)


def readers_for(path: Path, format_name: str) -> list[Reader]:
    """The rows that may read a path: a file with an ending that a kind claims is of that kind."""
    ending = ending_of(path)
    claimed = path.is_file() and any(ending in reader.kind.endings for reader in READERS)
    return [
        reader
        for reader in READERS
        if format_name in ("auto", reader.format) and (not claimed or ending in reader.kind.endings)
    ]


def reader_of(source: DataFiles | DataTables, reading: Reading) -> Reader:
    """The row that reads these data; of tables, the columns decide where no format is requested."""
    if isinstance(source, DataFiles):
        rows = [reader for reader in READERS if reader.kind.name == source.kind]
        return next(row for row in rows if reading.format in ("auto", row.format))
    from headtail.data.readers.table_formats import format_of

    if source.train.table.rows == 0:
        raise HeadtailError(f"`{source.train.path}` has no rows, so there is nothing to learn.")
    wanted = format_of(source, reading) if reading.format == "auto" else reading.format
    tables = {row.format: row for row in READERS if row.kind.name == TABLE.name}
    if wanted not in tables:
        raise HeadtailError(
            Setting("format", wanted),
            f" does not fit a table. Tables hold {', '.join(tables)}.",
        )
    return tables[wanted]
