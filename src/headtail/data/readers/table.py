"""The table of readers: a new format is a file in this folder and a row here.

The file has a function `read_files(files, reading, progress)` that returns a `DataSet`. The row has
the name of the format (which is listed in `Reading.format` too), the kind of files it is found in,
and the options that it uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from headtail.data.file_kinds import FileKind, kind_by_ending
from headtail.data.points import DataSet, Progress
from headtail.data.readers.cifar import CIFAR
from headtail.data.readers.image_kinds import IMAGE_FOLDERS, IMAGE_LISTS
from headtail.data.readers.raw_text_folder import FASTTEXT, RAW_TEXT, SPARSE
from headtail.data.readers.text_folder import TEXT
from headtail.data.reading import DataFiles, Reading
from headtail.data.text_features import Trained
from headtail.errors import HeadtailError, need


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

    def read(self, files: DataFiles, reading: Reading, progress: Progress | None) -> DataSet:
        """The data set in these files."""
        if self.kind is PARQUET:
            _need_pyarrow()
        module = import_module(f"headtail.data.readers.{self.module}")
        return module.read_files(files, reading, progress)

    def read_for_model(
        self, files: DataFiles, reading: Reading, progress: Progress | None, trained: Trained
    ) -> DataSet:
        """The texts in these files, with the terms and labels of a model."""
        if "text_features" not in self.options:
            raise HeadtailError(
                f"The model was trained on raw text, but `{files.train}` is read as {self.format}. "
                "Pass texts: one per line, or files in the format that it was trained on."
            )
        module = import_module(f"headtail.data.readers.{self.module}")
        return module.read_for_model(files, reading, progress, trained)


def _need_pyarrow() -> None:
    need("pyarrow", extra="data", to="Reading Parquet files")


def _parquet_format(files: DataFiles) -> str:
    _need_pyarrow()
    from headtail.data.readers.parquet_formats import format_of

    return format_of(files.train, files.test)


PARQUET = kind_by_ending(
    "Parquet", (".parquet", ".pq"), folders=(".", "data"), format_of=_parquet_format
)
DENSE = kind_by_ending("dense", (".safetensors", ".npz"))

TEXT_OPTIONS = ("text_features", "max_terms", "ngrams")

# In the order in which a folder is searched.
READERS = (
    Reader("cifar", CIFAR, "cifar"),
    Reader("images", PARQUET, "parquet_images", ("skip_bad_images",)),
    Reader("sequences", PARQUET, "sequences", ("last",)),
    Reader("interactions", PARQUET, "interactions", ("holdout",)),
    Reader("fasttext", FASTTEXT, "raw_text_files", TEXT_OPTIONS),
    Reader("raw-text", RAW_TEXT, "raw_text_files", TEXT_OPTIONS),
    Reader("xc", SPARSE, "sparse_matrices"),
    Reader("dense", DENSE, "dense"),
    Reader("images", IMAGE_LISTS, "image_lists", ("root", "skip_bad_images")),
    Reader("xc", TEXT, "text_parts", ("skip_bad_lines", "split")),
    Reader("svmlight", TEXT, "text_parts", ("skip_bad_lines", "split")),
    Reader("images", IMAGE_FOLDERS, "image_lists", ("root", "skip_bad_images")),
)


def readers_for(path: Path, format_name: str) -> list[Reader]:
    """The rows that may read a path: a file with an ending that a kind claims is of that kind."""
    ending = path.suffix.lower()
    claimed = path.is_file() and any(ending in reader.kind.endings for reader in READERS)
    return [
        reader
        for reader in READERS
        if format_name in ("auto", reader.format) and (not claimed or ending in reader.kind.endings)
    ]


def reader_of(files: DataFiles, format_name: str) -> Reader:
    """The row that reads these files; "auto" is recognised by their columns, where these decide."""
    rows = [reader for reader in READERS if reader.kind.name == files.kind]
    format_of = rows[0].kind.format_of
    if format_name == "auto" and format_of is not None:
        format_name = format_of(files)
    return next(reader for reader in rows if format_name in ("auto", reader.format))
