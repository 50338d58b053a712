"""A figure, as plotly's JSON. Colours are names of CSS variables, which the page fills in for light
and for dark.
"""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One chart.

    Attributes:
        name: its id in the page.
        alt: what it shows, for those who do not see it.
        data: plotly's traces; a trace with a `meta` is shown while that choice is on.
        layout: plotly's layout.
        narrow: what is different in the layout on a phone.
        choices: what the reader may switch between.
        chosen: the one that is on at first.
        by_choice: what is different in the layout for a choice.
        note: what else a reader must know to read it.
    """

    name: str
    alt: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    narrow: dict[str, Any] = field(default_factory=dict)
    choices: tuple[str, ...] = ()
    chosen: str = ""
    by_choice: dict[str, dict[str, Any]] = field(default_factory=dict)
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """What the page's script needs; numbers that are not finite become None."""
        layouts = {
            "layout": LAYOUT | self.layout,
            "narrow": self.narrow,
            "byChoice": self.by_choice,
        }
        return finite({"data": self.data, "chosen": self.chosen, **layouts})


LAYOUT: dict[str, Any] = {
    "autosize": True,
    "dragmode": False,
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"family": "system-ui, sans-serif", "size": 13, "color": "--ink"},
    "hoverlabel": {
        "bgcolor": "--paper",
        "bordercolor": "--rule",
        "font": {"color": "--ink", "size": 13},
        "align": "left",
    },
    "margin": {"l": 60, "r": 16, "t": 28, "b": 52},
    "showlegend": False,
}


SHARES: dict[str, Any] = {"tickformat": ".0%", "autorangeoptions": {"clipmin": 0, "clipmax": 1}}
"""Of an axis of shares that fits itself to what is shown: it ends where shares do."""


def axis(title: str = "", **options: Any) -> dict[str, Any]:
    """A quiet axis that does not catch the finger that scrolls the page."""
    lines = {
        "gridcolor": "--grid",
        "linecolor": "--rule",
        "zerolinecolor": "--rule",
        "zeroline": False,
    }
    return {
        "title": {"text": title, "standoff": 8, "font": {"size": 13}},
        "fixedrange": True,
        "automargin": True,
        **lines,
        **options,
    }


def plain(text: str) -> str:
    """Text that plotly shows as it is, and never reads as markup.

    >>> plain("<b>")
    '&lt;b&gt;'
    """
    return html.escape(text, quote=False)


def finite(value: Any) -> Any:
    """For JSON, which has no NaN and no infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def panel_title(name: str, number: str) -> dict[str, Any]:
    """A title above the panel whose axes have this number."""
    refs = {
        "xref": f"x{number} domain",
        "yref": f"y{number} domain",
        "xanchor": "left",
        "yanchor": "bottom",
    }
    return {
        "text": f"<b>{plain(name.capitalize())}</b>",
        "x": 0,
        "y": 1,
        "yshift": 4,
        "showarrow": False,
        **refs,
    }
