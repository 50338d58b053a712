"""Parts of data in several files, as hubs write them (`train-00000-of-00002.parquet`, …), or as a
folder of them.
"""

from __future__ import annotations

import re
from pathlib import Path

from headtail.data.packed import ending_of, stem_of
from headtail.errors import HeadtailError, check_exists

TABLES = (
    ".parquet",
    ".pq",
    ".csv",
    ".tsv",
    ".tab",
    ".jsonl",
    ".ndjson",
    ".feather",
    ".arrow",
    ".ipc",
    ".inter",
)
"""Endings of files that hold tables, whatever is in them."""
SHARD = re.compile(
    r"(?P<part>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})(-[0-9a-f]{8,})?(\.[a-z]+){1,2}",
    re.IGNORECASE,
)
"""The name of such a file; some hubs write a digest behind its number."""


def part_of(path: Path) -> str:
    """The part that a file belongs to: its name without its ending and its number.

    >>> part_of(Path("train-00000-of-00002.parquet")), part_of(Path("train.csv.gz"))
    ('train', 'train')
    """
    shard = SHARD.fullmatch(path.name)
    if shard is not None:
        return shard["part"]
    return path.name if path.is_dir() else stem_of(path)


def shards_of(path: Path) -> list[Path]:
    """All files of the part that a file belongs to, in order; a file that is not a shard, alone; of
    a folder, its tables.
    """
    if path.is_dir():
        return tables_in(path)
    shard = SHARD.fullmatch(path.name)
    if shard is None:
        return [path]
    held = {}
    for file in sorted(path.parent.glob("*")):
        other = SHARD.fullmatch(file.name)
        if other and other["part"] == shard["part"]:
            held[file] = (int(other["number"]), int(other["total"]))
    total = int(shard["total"])
    missing = [f"{number:05}" for number in range(total) if (number, total) not in held.values()]
    if missing:
        more = f" and {len(missing) - 3:,} more" if len(missing) > 3 else ""
        numbers = ", ".join(missing[:3]) + more
        which, are = ("number", "is") if len(missing) == 1 else ("numbers", "are")
        raise HeadtailError(
            f"`{path.parent}` holds {total - len(missing)} of the {total} files of "
            f"{shard['part']}: {which} {numbers} of {total:05} {are} missing. Fetch what is "
            "missing, or rename a file that should be read alone."
        )
    if len(held) > total:
        names = ", ".join(file.name for file in held)
        raise HeadtailError(
            f"`{path.parent}` holds {names}: more than the {total} files of one {shard['part']}. "
            "Remove the others."
        )
    return [check_exists(file) for file in held]


def tables_in(folder: Path) -> list[Path]:
    """The files in a folder that hold tables, by their endings, sorted, without hidden ones."""
    files = sorted(folder.glob("[!._]*"))
    return [file for file in files if file.is_file() and ending_of(file) in TABLES]
