r"""Names that come from outside: of labels, users, columns, data sets, files and folders.

They may hold anything: control characters, marks that reverse the text around them, halves of
characters (lone surrogates, which Python makes of file names that are not UTF-8). Inside headtail
they stay as they are. Two places change them:

* A terminal or a page shows `shown(name)`: one line, in which every character is visible.
* A file holds `encodable(name)` or, in CSV, `csv_cell(name)`; `original` is the inverse of both.
  It changes a name only where it holds a lone surrogate, written as `\udce9`, or where a
  spreadsheet would run it as a formula, which then begins with `\u003d` instead of `=`. JSON needs
  neither, because it can escape every character.
"""

from __future__ import annotations

import re

from headtail.errors import visible

SENTENCE = 2000
"""Most characters of a sentence that are shown; longer ones are shortened in the middle."""
NAME = 100
"""Most characters of a name that are shown in a table or a title."""
_CODE = r"u(?:d[89a-f][0-9a-f]{2}|003d|002b|002d|0040)"
"""What follows a backslash in the names of characters that `original` restores."""
_LITERAL = rf"\\(?=(?:u005c)*{_CODE})"
"""A backslash in a name that `original` would take for the beginning of an escape."""
_SURROGATE = re.compile(rf"[\ud800-\udfff]|{_LITERAL}")
_UNSAFE_CELL = re.compile(rf"\A[=+\-@](?=.*?(?:\w\(|[|!]|'))|[\ud800-\udfff]|{_LITERAL}", re.DOTALL)
_WRITTEN = re.compile(rf"\\(?:u005c(?=(?:u005c)*{_CODE})|{_CODE})")


def shown(text: object, most: int = SENTENCE) -> str:
    r"""Text as one line in which every character is visible, and of bounded length.

    Args:
        text: what to show; anything but a string is converted first.
        most: characters; longer text loses its middle.

    >>> shown("caf\udce9 \x1b[31mred\u202e\n")
    'caf\\udce9 \\x1b[31mred\\u202e\\n'
    >>> shown("a" * 50 + "z", most=9)
    'aaaa…aaaz'
    """
    line = str(text)
    if len(line) > most:
        half = (most - 1) // 2
        line = f"{line[: most - 1 - half]}…{line[len(line) - half :]}"
    return visible(line)


def shown_lines(text: str) -> str:
    r"""Text of headtail's own with line breaks, each line as `shown` writes it, of any length.

    >>> shown_lines("one\ntwo\x07")
    'one\ntwo\\x07'
    """
    if text.isprintable():
        return text
    return "\n".join(shown(line, most=len(line)) for line in text.split("\n"))


def encodable(text: str) -> str:
    r"""Text that UTF-8 can hold, for files whose format has no escapes of its own.

    >>> encodable("caf\udce9"), encodable("café"), encodable("\\udce9")
    ('caf\\udce9', 'café', '\\u005cudce9')
    """
    return _SURROGATE.sub(_escape, text)


def csv_cell(text: str) -> str:
    r"""Text that UTF-8 can hold and that no spreadsheet runs as a formula.

    >>> csv_cell("=HYPERLINK(A1)"), csv_cell("-5"), csv_cell("@home")
    ('\\u003dHYPERLINK(A1)', '-5', '@home')
    """
    return _UNSAFE_CELL.sub(_escape, text)


def original(text: str) -> str:
    r"""The inverse of `encodable` and of `csv_cell`.

    >>> [original(write(r"=f(\udce9)")) for write in (encodable, csv_cell)]
    ['=f(\\udce9)', '=f(\\udce9)']
    """
    if "\\u" not in text:
        return text
    return _WRITTEN.sub(lambda found: chr(int(found[0][2:6], 16)), text)


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
