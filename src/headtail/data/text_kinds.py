"""What the lines of a text file are, by the first of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Literal

from headtail.data.packed import ending_of, first_lines
from headtail.data.tables.dialects import dialect_of

TextKind = Literal["xc", "fasttext", "table"]
_FEATURE = re.compile(r"(^|\s)\d+:[-+.\d]")
_LOOKED_AT = 1000
"""Lines that are looked at."""


def text_kind(path: Path) -> TextKind | None:
    r"""Lines of labels and features, of fastText, of columns, or None.

    >>> path = getfixture("tmp_path") / "points.txt"
    >>> _ = path.write_text("3,17 0:0.5 8:1.2\n")
    >>> text_kind(path)
    'xc'
    """
    lines = [line for line in first_lines(path)[:_LOOKED_AT] if line.strip()]
    if any("\0" in line for line in lines):
        return None
    if any(line.lstrip().startswith("__label__") for line in lines):
        return "fasttext"
    if any(_FEATURE.search(line) for line in lines):
        return "xc"
    if len(lines) > 1 and dialect_of(lines, ending_of(path)) is not None:
        return "table"
    return None


def holds_json_lines(path: Path) -> bool:
    """Whether the first line of a file is a JSON object; a list of images is one object too."""
    first = next((line for line in first_lines(path) if line.strip()), "")
    try:
        row = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and not {"annotations", "images"} & row.keys()


def is_json_array(path: Path) -> bool:
    """Whether a file is one JSON array, which tables are not read from, but are taken for."""
    return next((line for line in first_lines(path) if line.strip()), "").lstrip().startswith("[")
