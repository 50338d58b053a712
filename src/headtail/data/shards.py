"""Parts of data that are written in several Parquet files, as hubs do it:
`train-00000-of-00002.parquet` and so on.
"""

from __future__ import annotations

import re
from pathlib import Path

from headtail.errors import HeadtailError

SHARD = re.compile(
    r"(?P<part>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})(-[0-9a-f]{8,})?\.(parquet|pq)"
)
"""The name of such a file; some hubs write a digest behind its number."""


def part_of(path: Path) -> str:
    """What a file is part of: its name without its ending and its number.

    >>> part_of(Path("train-00000-of-00002.parquet")), part_of(Path("train.parquet"))
    ('train', 'train')
    """
    found = SHARD.fullmatch(path.name)
    return path.stem if found is None else found["part"]


def shards_of(path: Path) -> list[Path]:
    """All files of the part that a file belongs to, in order; a file with a name of another kind is
    a part of its own.
    """
    asked = SHARD.fullmatch(path.name)
    if asked is None:
        return [path]
    every = [
        (found, one)
        for one in sorted(path.parent.glob("*"))
        if (found := SHARD.fullmatch(one.name))
    ]
    held = {
        one: (int(found["number"]), int(found["total"]))
        for found, one in every
        if found["part"] == asked["part"]
    }
    total = int(asked["total"])
    missing = [f"{number:05}" for number in range(total) if (number, total) not in held.values()]
    if missing:
        some = ", ".join(missing[:3]) + (
            f" and {len(missing) - 3:,} more" if len(missing) > 3 else ""
        )
        which = f"{'number' if len(missing) == 1 else 'numbers'} {some}"
        raise HeadtailError(
            f"`{path.parent}` holds {total - len(missing)} of the {total} files of "
            f"{asked['part']}: {which} of {total:05} "
            f"{'is' if len(missing) == 1 else 'are'} missing. Fetch what is missing, or rename a "
            "file that shall stand alone."
        )
    if len(held) > total:
        names = ", ".join(one.name for one in held)
        raise HeadtailError(
            f"`{path.parent}` holds {names}: more than the {total} files of one {asked['part']}. "
            "Remove others."
        )
    return list(held)
