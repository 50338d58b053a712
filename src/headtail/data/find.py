"""Finding the files of a data set, and recognising what they are."""

from __future__ import annotations

from pathlib import Path

from headtail.data.packed import ending_of
from headtail.data.readers.image_kinds import is_bare
from headtail.data.readers.table import readers_for
from headtail.data.reading import DataFiles
from headtail.errors import HeadtailError, PythonName, Setting

EXPECTED = (
    "a table (CSV, TSV, JSON lines, Parquet or Feather, also compressed), `.safetensors` or `.npz` "
    "with `features` and `labels`, text lines such as `3,17 0:0.5 8:1.2`, raw text such as "
    "`__label__cat my cat sleeps`, CIFAR's python files, a list of lines such as "
    "`train/cat/1.jpg 0`, or a folder of images per label"
)
WHAT = f" Name a folder or a file: {EXPECTED}; or write `synthetic`."


def find(path: Path, format_name: str) -> DataFiles:
    """The files of the data set at a path, by the first row of the table of readers that fits.

    Args:
        path: a file, or a folder that holds files for training and perhaps others.
        format_name: what they hold, or "auto".
    """
    requested = format_name != "auto"
    for reader in readers_for(path, format_name):
        if (files := reader.kind.find(path, requested)) is not None:
            return files
    raise _not_readable(path, format_name)


def kind_of(path: Path, format_name: str) -> str:
    """The kind of a file or folder that is named by itself, as the test part may be."""
    requested = format_name != "auto"
    for reader in readers_for(path, format_name):
        if reader.kind.holds(path, requested):
            return reader.kind.name
    raise _not_readable(path, format_name, named_by_itself=True)


def _not_readable(path: Path, format_name: str, *, named_by_itself: bool = False) -> HeadtailError:
    by_ending = path.is_file() or named_by_itself
    if (format_name == "auto" or not by_ending) and is_bare(path):
        return HeadtailError(
            f"`{path}` has no labels, so there is nothing to learn. A trained model can predict "
            "labels of its images as they are (",
            PythonName("headtail.training.open_model.open_rows"),
            ").",
        )
    if by_ending:
        if format_name != "auto":
            ending = ending_of(path) or "of a name without one"
            return HeadtailError(
                f"`{path}`: the ending {ending} does not fit the format {format_name}. Expected is "
                f"{EXPECTED}."
            )
        return HeadtailError(
            f"`{path}` is not recognised, neither by its ending nor by its first lines. Expected "
            f"is {EXPECTED}. If you know what its lines hold, pass the ",
            Setting("format"),
            ".",
        )
    as_format = "" if format_name == "auto" else f" as {format_name}"
    inside = [part.name for part in sorted(path.glob("[!.]*")) if part.is_dir()]
    folders = f", only the folders {', '.join(inside[:6])}: name one of them" if inside else ""
    return HeadtailError(
        f"`{path}` holds nothing to read{as_format}{folders}. Expected is {EXPECTED}."
    )
