"""The result of a case: it was read, it was refused in one plain sentence, or it is a finding."""

from __future__ import annotations

import os
import re
import traceback
import unicodedata
from dataclasses import dataclass
from pathlib import Path

LONGEST = 1000
"""Characters of an error, without the path of its file: one that lists all formats has 500, and
one that shows two ways to read a column repeats its name.
"""
_BIDI = set(range(0x202A, 0x202F)) | set(range(0x2066, 0x206A)) | {0x2028, 0x2029}
_SPEECH = re.compile(r"Traceback \(most recent|\b[A-Z]\w*Warning: |Fatal Python error")


@dataclass(frozen=True)
class Verdict:
    """The result of a case.

    Attributes:
        kind: "ok", "refused", or the kind of a finding.
        key: equal for findings with one cause.
        detail: what was seen.
    """

    kind: str
    key: str = ""
    detail: str = ""

    @property
    def is_finding(self) -> bool:
        return self.kind not in ("ok", "refused")


OK = Verdict("ok")
REFUSED = Verdict("refused")


class Wrong(Exception):
    """A door saw something wrong that is not an exception."""

    def __init__(self, kind: str, key: str, detail: str = "") -> None:
        super().__init__(kind, key, detail)
        self.verdict = Verdict(kind, key, detail)


def of_exception(error: BaseException) -> Verdict:
    """A finding, named after the exception and where in headtail and in a library it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if f"{os.sep}headtail{os.sep}" in frame.filename]
    last = ours[-1] if ours else frames[-1]
    place = f"{_short(last.filename)}:{last.name}"
    if frames and frames[-1] is not last:
        place += f" ← {_short(frames[-1].filename)}:{frames[-1].name}"
    kind = "memory" if isinstance(error, MemoryError) else "exception"
    return Verdict(
        kind, f"{type(error).__name__} in {place}", f"{error!s:.300} (line {last.lineno})"
    )


def of_sentence(text: str, folder: Path, door: str, longest: int = LONGEST) -> Verdict:
    """Whether an error is one plain sentence that can be shown anywhere."""
    plain = text.replace(str(folder), "")
    if odd := odd_characters(plain):
        return Verdict("odd characters", f"{odd} in {_gist(plain)}", repr(plain[:300]))
    if _SPEECH.search(plain):
        return Verdict("not a sentence", f"{door}: {_gist(plain)}", plain[:300])
    if len(plain) > longest:
        return Verdict("long", f"{_gist(plain)}", f"{len(plain):,} characters: {plain[:300]}")
    return REFUSED


def of_output(text: str, door: str) -> Verdict | None:
    """Whether what a command prints can be shown on a terminal; None if it can."""
    if odd := odd_characters(text.replace("\n", " ").replace("\t", " ")):
        line = next(line for line in text.split("\n") if odd_characters(line.replace("\t", " ")))
        return Verdict("odd characters", f"{odd} printed by {door}", repr(line[:300]))
    if found := _SPEECH.search(text):
        return Verdict("noise", f"{door} prints {found[0]!r}", text[-600:])
    return None


def odd_characters(text: str) -> str:
    """The first character that a terminal would obey, or that cannot be written; or nothing."""
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cs") or ord(character) in _BIDI:
            return f"U+{ord(character):04X}"
    return ""


def leftovers(folder: Path) -> list[str]:
    """Files and folders that a door began to write and did not finish."""
    found = []
    for place, folders, files in os.walk(folder):
        hidden = [
            name for name in folders + files if name.startswith(".") and not name.endswith("lock")
        ]
        found += [os.path.relpath(os.path.join(place, name), folder) for name in hidden]
    return [name for name in found if name != ".cache"]


def _gist(sentence: str) -> str:
    """A sentence without what differs from case to case: names in backticks, numbers, notes."""
    text = re.sub(r"`[^`]*`", "`…`", sentence)
    text = re.sub(r"\d[\d,]*", "N", text)
    return "".join(c for c in text if c.isprintable())[:80]


def _short(filename: str) -> str:
    parts = Path(filename).parts
    names = ("headtail", "site-packages")
    start = max((i for i, part in enumerate(parts) if part in names), default=len(parts) - 2)
    return "/".join(parts[start + 1 :])
