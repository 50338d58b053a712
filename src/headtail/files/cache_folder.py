"""Where the cache is, and whether others may have written there.

What is in the cache is believed: arrays of data sets are trained on, and compiled kernels, which
numba keeps as pickles, are run. A folder is therefore used only if it belongs to the user, or to
root, and no one else may write to it. The folder itself is what counts, not those above it: whoever
replaces it leaves one that is theirs, which is refused.

New folders are made for the user alone. A folder of the user that the group may write to is common
where every user has a group of their own (umask 002); as no one else is in that group, it is
tightened and used. In all other cases its content may have been changed already, so that tightening
it would not help: it is refused.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from headtail.errors import HeadtailError

INSTEAD = "set HEADTAIL_CACHE to a folder of your own"


def cache_folder() -> Path:
    """`$HEADTAIL_CACHE`, or `headtail` in the user's cache folder; one that others may write to is
    refused.
    """
    if chosen := os.environ.get("HEADTAIL_CACHE"):
        return own_folder(Path(chosen))
    return own_folder(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headtail")


@lru_cache
def own_folder(path: Path, instead: str = INSTEAD, below: bool = False) -> Path:
    """A folder that no one else can have written to; made if there is none. Once found to be safe,
    it is not looked at again in this process.

    Args:
        path: of the folder.
        instead: what to do if it is refused, beside making it safe.
        below: look at all that is in it, too.
    """
    with suppress(OSError):  # whoever writes there says why it cannot be made
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        _check(path, instead)  # fails where links go round in circles
        _check_links(path, instead)
        for folder, names, files in os.walk(path) if below else ():
            for name in (*names, *files):
                with suppress(FileNotFoundError):  # removed meanwhile; the others still count
                    _check_below(Path(folder, name), instead)
    except FileNotFoundError:
        pass  # there is nothing to believe
    except OSError as error:
        raise HeadtailError(
            f"The cache folder `{path}` cannot be inspected: {error.strerror}. Make it readable, "
            f"or {instead}."
        ) from error
    return path


def _check_links(path: Path, instead: str) -> None:
    """Refuse a link of another user, and one that leads to such a link."""
    place = path
    while place.is_symlink():
        if why := _doubt(place.lstat(), is_link=True):
            how = "is" if place == path else f"leads to `{place}`,"
            raise _refused(path, f"{how} a link that {why}", instead)
        place = place.parent / place.readlink()


def _check_below(path: Path, instead: str) -> None:
    """Refuse links too: what they lead to is not walked through."""
    if path.is_symlink():
        raise _refused(path, "is a link, which may lead to files of others", instead)
    _check(path, instead)


def _check(path: Path, instead: str) -> None:
    found = path.stat()
    why = _doubt(found)
    if why is None:
        return
    if found.st_uid == os.geteuid() and not found.st_mode & stat.S_IWOTH and _is_own_group(found):
        path.chmod(stat.S_IMODE(found.st_mode) & ~stat.S_IWGRP)
        return
    raise _refused(path, why, instead)


def _doubt(found: os.stat_result, is_link: bool = False) -> str | None:
    """Why another user may have written there, or None."""
    if found.st_uid not in (0, os.geteuid()):
        return f"belongs to another user (id {found.st_uid})"
    if not is_link and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "can be written to by other users"
    return None


def _is_own_group(found: os.stat_result) -> bool:
    """Whether the group is the user's private one: of the same name, with no other member."""
    import grp
    import pwd

    try:
        user = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(found.st_gid)
    except KeyError:
        return False
    own = user.pw_gid == group.gr_gid and user.pw_name == group.gr_name
    return own and not {*group.gr_mem} - {user.pw_name}


def _refused(path: Path, why: str, instead: str) -> HeadtailError:
    return HeadtailError(
        f"The cache `{path}` {why}, so its contents cannot be trusted. Delete it; or run `chmod -R "
        f"go-w` on it if you trust what is there and it is yours; or {instead}."
    )
