"""JSON lines: one object per line, plain or compressed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json

from headtail.data.cache import Store, cached
from headtail.data.digests import digest
from headtail.data.packed import MAX_EXPANSION, first_lines, unpacked
from headtail.data.tables.json_text import BLOCK, check_text
from headtail.data.tables.table import Source, in_pieces
from headtail.errors import HeadtailError


class JsonSource(Source):
    """A file of JSON lines; the types of its columns are those of its first block."""

    def __init__(self, path: Path, max_expansion: float = MAX_EXPANSION) -> None:
        self.path = path
        self.max_expansion = max_expansion
        self.name = str(path)
        self.guess = {}
        start = next((line for line in first_lines(path) if line.strip()), "")
        if not start.lstrip().startswith("{"):
            raise HeadtailError(
                f"`{path}` is not JSON lines: it begins with `{start.strip()[:20]}`. Write one "
                'object per line, `{"user": 3, "item": 17}`.'
            )
        recipe = {"reader": "json", "with": "checked text and depth"}
        self.rows = cached([path], recipe, self._count).facts["rows"]
        with unpacked(path, max_expansion) as (file, _):
            self.schema = _open(file).schema

    def batches(self, columns: list[str], at_once: int) -> Iterator[tuple[pa.RecordBatch, float]]:
        """As for `Source`."""
        for batch, share in self._read():
            for piece in in_pieces(batch.select(columns), at_once):
                yield piece, share

    def digest(self) -> str:
        """As for `Source`."""
        return digest(self.path)

    def files(self) -> list[Path]:
        """As for `Source`."""
        return [self.path]

    def _count(self, store: Store) -> None:
        check_text(self.path, self.max_expansion)
        store.facts["rows"] = sum(len(batch) for batch, _ in self._read())

    def _read(self) -> Iterator[tuple[pa.RecordBatch, float]]:
        size = max(1, self.path.stat().st_size)
        with unpacked(self.path, self.max_expansion) as (file, raw):
            try:
                for batch in _open(file):
                    self._check_lists(batch)
                    yield batch, raw.tell() / size
            except pa.ArrowException as error:
                why = " ".join(str(error).split())[:300].rstrip(".")
                raise HeadtailError(
                    f"`{self.path}` is not readable as JSON lines: {why}. Write one object per "
                    "line, with the same fields and types."
                ) from error

    def _check_lists(self, batch: pa.RecordBatch) -> None:
        """Refuse lists that begin with null: pyarrow loses it, and its lists then go beyond
        their values.
        """
        try:
            batch.validate()
        except pa.ArrowInvalid as error:
            raise HeadtailError(
                f"`{self.path}` has a list that begins with null, which cannot be read. Drop it."
            ) from error


def _open(file: object) -> Any:
    return pyarrow.json.open_json(
        pa.PythonFile(file, mode="r"),
        pyarrow.json.ReadOptions(use_threads=False, block_size=BLOCK),
    )
