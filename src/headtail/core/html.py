"""Small HTML for notebooks: escaped, and readable on light and on dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from headtail.files.names import shown

BAR = "rgba(86,180,233,.45)"
"""A sky blue (Okabe and Ito) that text stays readable on, in any theme."""
RULE = "rgba(128,128,128,.45)"
WIDTH, HEIGHT = 240, 64
"""Pixels of a small curve."""


@dataclass(frozen=True)
class HtmlCell:
    """A cell of a table.

    Attributes:
        text: what it shows.
        share: length of a bar behind the text, from 0 to 1.
        bold: whether it stands out.
    """

    text: str
    share: float = 0.0
    bold: bool = False


def frame(title: str, detail: str, *parts: str) -> str:
    """What a notebook shows of a value.

    Args:
        title: what it is.
        detail: its most important facts.
        *parts: HTML below.
    """
    first = f"<b>{_text(title)}</b> <span style='opacity:.75'>{_text(detail)}</span>"
    style = "font-size:13px;line-height:1.5;max-width:60em;margin:.3em 0"
    return f"<div style='{style}'><div>{first}</div>{''.join(parts)}</div>"


def table(
    headings: Sequence[str], rows: Iterable[Sequence[HtmlCell | str]], *, words: int = 1
) -> str:
    """A table.

    Args:
        headings: of the columns.
        rows: of cells.
        words: the first columns that hold words; the others hold numbers.

    >>> "&lt;b&gt;" in table(["label", "examples"], [["<b>", HtmlCell("3", share=0.5)]])
    True
    """
    head = "".join(_cell("th", HtmlCell(text), i >= words) for i, text in enumerate(headings))
    body = ""
    for row in rows:
        cells = (HtmlCell(cell) if isinstance(cell, str) else cell for cell in row)
        body += f"<tr>{''.join(_cell('td', cell, i >= words) for i, cell in enumerate(cells))}</tr>"
    style = "border-collapse:collapse;margin:.4em 0;font:inherit;color:inherit;"
    style += "font-variant-numeric:tabular-nums;white-space:nowrap"
    return f"<table style='{style}'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(tag: str, cell: HtmlCell, numeric: bool) -> str:
    side = "right;min-width:4.5em" if numeric else "left"
    line = f"border-bottom:1px solid {RULE};" if tag == "th" else "border:0;"
    style = f"padding:.15em .7em;text-align:{side};{line}"
    style += f"font-weight:{'bold' if cell.bold else 'normal'};"
    if cell.share > 0:
        end = f"{100 * min(cell.share, 1):.1f}%"
        style += f"background:linear-gradient(to right,{BAR} {end},transparent {end});"
    return f"<{tag} style='{style}'>{_text(cell.text)}</{tag}>"


def _text(text: str) -> str:
    """Text that is neither HTML nor able to change the direction or the lines of text around it."""
    return escape(shown(text))


def sentences(lines: Iterable[str]) -> str:
    """A paragraph for each line, in small print."""
    style = "opacity:.75;margin:.2em 0"
    return "".join(f"<div style='{style}'>{_text(line)}</div>" for line in lines)


def curve(values: Sequence[float], alt: str) -> str:
    """Positive values over their ranks 1, 2, …, both on logarithmic scales, as a line.

    Args:
        values: in falling order, at ranks that are evenly spaced on the logarithmic scale.
        alt: what it shows.
    """
    logs = [math.log(value) for value in values if value > 0]
    if len(logs) < 2:
        return ""
    low, high = min(logs), max(logs)
    step = (WIDTH - 4) / (len(values) - 1)
    tall = (HEIGHT - 4) / ((high - low) or 1.0)
    points = " ".join(f"{2 + i * step:.1f},{2 + (high - y) * tall:.1f}" for i, y in enumerate(logs))
    return (
        f"<svg width='{WIDTH}' height='{HEIGHT}' role='img' style='display:block;margin:.4em 0'>"
        f"<title>{_text(alt)}</title><polyline points='{points}' fill='none' "
        "stroke='currentColor' stroke-width='1.5'/></svg>" + sentences([alt])
    )


def percent(share: float) -> str:
    """A share in percent, or – where there is none.

    >>> percent(0.3123), percent(math.nan)
    ('31.2%', '–')
    """
    return f"{100 * share:.1f}%" if math.isfinite(share) else "–"
