"""Damage to a folder of files: to what a file holds, or to the file itself."""

from __future__ import annotations

import os
import random
from pathlib import Path

from tests.fuzz.mutate import BYTES, PACKERS, TEXT, bomb, packed
from tests.fuzz.structure import BY_ENDING


def damage_files(folder: Path, rng: random.Random, data: str = ".") -> str:
    """Damage one file of a folder, sometimes two, by what its ending promises.

    Args:
        folder: its files, and those in folders inside it, may be damaged.
        rng: decides everything.
        data: what is read afterwards.

    Returns:
        What is read instead, where the file that `data` names has another name now.
    """
    for _ in range(rng.choice((1, 1, 1, 2))):
        files = files_in(folder)
        if not files:
            return data
        path = rng.choice(files)
        chance = rng.random()
        if chance < 0.04:
            _odd_file(path, rng)
        elif chance < 0.14 and path.suffix not in PACKERS:
            ending = rng.choice(list(PACKERS))
            content = path.read_bytes()
            path.unlink()
            name = path.name + ending
            whole = bomb(PACKERS[ending], rng) if rng.random() < 0.1 else None
            path.with_name(name).write_bytes(whole or packed(content, ending, rng))
            if folder / data == path:
                data += ending
        else:
            damage_content(path, rng)
    return data


def damage_content(path: Path, rng: random.Random) -> None:
    """One to three mutations of a file's content: half of them blind, half by its format."""
    content = path.read_bytes()
    knowing = BY_ENDING.get(path.suffix.lower(), TEXT)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        content = rng.choice(BYTES if rng.random() < 0.4 else knowing)(content, rng)
    path.write_bytes(content)


def damage_bytes(path: Path, rng: random.Random) -> None:
    """What a disk does to a file: nothing that knows its format."""
    path.write_bytes(rng.choice(BYTES)(path.read_bytes(), rng))


def files_in(folder: Path) -> list[Path]:
    """The plain files of a folder and of folders inside it, sorted."""
    found = [Path(place) / name for place, _, names in os.walk(folder) for name in names]
    return sorted(path for path in found if path.is_file() and not path.is_symlink())


def _odd_file(path: Path, rng: random.Random) -> None:
    """A file that is missing, empty, a folder, a link to nowhere, a pipe or a device."""
    path.unlink()
    match rng.randrange(7):
        case 0:
            path.mkdir()
        case 1:
            path.symlink_to(path.name)
        case 2:
            os.mkfifo(path)
        case 3:
            path.symlink_to("/dev/zero")
        case 4:
            path.write_bytes(b"")
        case 5:
            path.write_bytes(rng.randbytes(200))
        case _:
            pass  # it is missing
