"""A figure as plotly's JSON. Colours are names of CSS variables, which the page replaces in light
and dark mode.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headtail.report.seed_mean import SeedMean


@dataclass(frozen=True)
class Figure:
    """One chart.

    Attributes:
        name: its id in the page.
        alt: what it shows, for readers who cannot see it.
        data: plotly's traces; a trace with a `meta` is shown only while that choice is selected.
        layout: plotly's layout.
        narrow: changes of the layout on a phone.
        choices: what the reader can select.
        chosen: the choice that is selected at first.
        by_choice: changes of the layout for each choice.
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
"""An axis of shares that adapts to its data, within 0 and 1."""


def axis(title: str = "", **options: Any) -> dict[str, Any]:
    """An axis in muted colours that leaves scrolling to the page."""
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
    """Text that plotly does not read as markup.

    >>> plain("<b>")
    '&lt;b&gt;'
    """
    return html.escape(text, quote=False)


def finite(value: Any) -> Any:
    """The same value for JSON, which has neither NaN nor infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def panel_title(name: str, number: str) -> dict[str, Any]:
    """A title above the panel with the axes of this number."""
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


def error_bar(means: Sequence[SeedMean], colour: str, cap: float) -> dict[str, Any]:
    """The error bars of these numbers, with caps of this many pixels."""
    if not any(mean.has_bar for mean in means):
        return {"visible": False}
    return {
        "type": "data",
        "symmetric": False,
        "array": [mean.high - mean.value for mean in means],
        "arrayminus": [mean.value - mean.low for mean in means],
        "color": colour,
        "thickness": 1,
        "width": cap,
    }


def axes(number: str) -> dict[str, str]:
    """The axes of a trace in the panel of this number."""
    return {"xaxis": f"x{number}", "yaxis": f"y{number}"}
