"""Errors of head, torso and tail, as grouped bars: who wins and who pays, at a glance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from headtail.report.figure import SHARES, Figure, axis, panel_title, plain
from headtail.report.findings import points, with_error
from headtail.report.look import Look, families, looks
from headtail.report.measured import Estimate, Measured, Reference

SHARE = 0.86
"""Of the room between two groups, what bars take."""
PANEL = 230
BETWEEN = 96
"""Pixels of a panel's height, and between two, where labels and a title stand."""
TWINS = {"": "", "-open": "/", "-dot": ".", "-open-dot": "x"}
"""Bars of one colour differ in their pattern, as markers do in their filling."""


class Group(NamedTuple):
    """Bars that stand together."""

    title: str
    metric: str
    slice: str


GROUPS = (
    *(Group(name.capitalize(), "balanced-error", name) for name in ("head", "torso", "tail")),
    Group("Balanced", "balanced-error", "full"),
    Group("Prior-<br>weighted", "class-weighted-error", "full"),
)


def error_bars(measured: Measured, data: dict[str, Any]) -> Figure | None:
    """The error of each scheme by slice and on average; a panel a sampler, beside the losses that
    use all labels.
    """
    groups = [one for one in GROUPS if one.metric in measured.metrics]
    panels = {
        title: [name for name in names if _known(measured, name)]
        for title, names in families(measured.schemes).items()
    }
    panels = {title: names for title, names in panels.items() if names}
    if not groups or not panels:
        return None
    look = looks(measured.schemes)
    height = PANEL * len(panels) + BETWEEN * (len(panels) - 1)
    traces = []
    notes = []
    layout: dict[str, Any] = {
        "height": height + 150 + 8 * len(measured.schemes),
        "barmode": "overlay",
        "showlegend": True,
    }
    layout["legend"] = {"orientation": "h", "x": 0, "y": -56 / height, "yanchor": "top"}
    layout["margin"] = {"l": 52, "r": 8, "t": 34, "b": 8}
    narrow: dict[str, Any] = {
        "legend": {"font": {"size": 11}},
        "height": height + 150 + 24 * len(measured.schemes),
    }
    for place, (title, names) in enumerate(panels.items()):
        number = str(place + 1) if place else ""
        top = 1 - place * (PANEL + BETWEEN) / height
        step = SHARE / len(names)
        traces += [
            _bars(
                measured,
                name,
                look[name],
                groups,
                ((i - (len(names) - 1) / 2) * step, 0.9 * step),
                number,
            )
            for i, name in enumerate(names)
        ]
        traces += _reference(measured, groups, number)
        notes += [panel_title(title, number), *_dashes(measured, names, groups, number)]
        ticks = {
            "tickvals": list(range(len(groups))),
            "ticktext": [_tick(one, data) for one in groups],
        }
        layout[f"xaxis{number}"] = axis(
            **ticks, range=[-0.5, len(groups) - 0.5], anchor=f"y{number}", showgrid=False, ticks=""
        )
        layout[f"yaxis{number}"] = axis(
            **SHARES,
            rangemode="tozero",
            nticks=6,
            anchor=f"x{number}",
            domain=[max(top - PANEL / height, 0), top],
        ) | ({"matches": "y"} if place else {})
        narrow[f"xaxis{number}"] = {"tickfont": {"size": 10}}
    shown = set()
    for trace in traces:  # one entry a scheme, though all-label losses stand in every panel
        trace["showlegend"] = trace["name"] not in shown
        shown.add(trace["name"])
    alt = (
        f"Bars of the error of {len(measured.schemes)} schemes on head, torso and tail labels; "
        "section 7 has the numbers."
    )
    reference = Reference.of(measured).scheme
    pale = any(look[name].family == "exact" for name in measured.schemes)
    note = "The lower the better. " + ("Pale bars use all labels. " if pale else "")
    note += f"The dotted line is {reference}. " if reference else ""
    return Figure("errors", alt, traces, layout | {"annotations": notes}, narrow, note=note)


def _known(measured: Measured, scheme: str) -> bool:
    return any(measured.of(scheme, one.metric, one.slice).known for one in GROUPS)


def _bars(
    measured: Measured,
    scheme: str,
    look: Look,
    groups: Sequence[Group],
    where: tuple[float, float],
    number: str,
) -> dict[str, Any]:
    """A scheme's bars, one a group, at this distance from the group's middle and this wide."""
    found = [measured.of(scheme, one.metric, one.slice) for one in groups]
    offset, width = where
    reference = Reference.of(measured)
    pattern = {
        "shape": next(shape for end, shape in reversed(TWINS.items()) if look.symbol.endswith(end)),
        "size": 5,
    }
    return {
        "type": "bar",
        "name": plain(scheme),
        "legendgroup": scheme,
        "x": [place + offset for place in range(len(groups))],
        "width": [width] * len(groups),
        "y": [one.value for one in found],
        "xaxis": f"x{number}",
        "yaxis": f"y{number}",
        "error_y": _error(found),
        "marker": {"color": look.colour, "line": {"width": 0}, "pattern": pattern},
        "opacity": 0.45 if look.family == "exact" else 1.0,
        "hoverinfo": "text",
        "hovertext": [
            _hover(scheme, group, one, reference) for group, one in zip(groups, found, strict=True)
        ],
    }


def _reference(measured: Measured, groups: Sequence[Group], number: str) -> list[dict[str, Any]]:
    """A line at the reference's height through each group, so that above and below are seen at
    once.
    """
    scheme = Reference.of(measured).scheme
    if scheme is None:
        return []
    x = []
    y = []
    for place, one in enumerate(groups):
        found = measured.of(scheme, one.metric, one.slice)
        x += [place - SHARE / 2 - 0.02, place + SHARE / 2 + 0.02, None]
        y += [found.value, found.value, None]
    line = {"color": "--ink", "width": 1, "dash": "dot"}
    where = {"xaxis": f"x{number}", "yaxis": f"y{number}", "hoverinfo": "skip"}
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"level of {plain(scheme)}",
            "x": x,
            "y": y,
            "line": line,
            **where,
        }
    ]


def _dashes(
    measured: Measured, names: list[str], groups: Sequence[Group], number: str
) -> list[dict[str, Any]]:
    """A dash where nobody has a number, as in a slice without labels."""
    empty = [
        place
        for place, one in enumerate(groups)
        if not any(measured.of(name, one.metric, one.slice).known for name in names)
    ]
    where = {
        "y": 0,
        "xref": f"x{number}",
        "yref": f"y{number}",
        "yanchor": "bottom",
        "showarrow": False,
        "text": "–",
    }
    return [where | {"x": place} for place in empty]


def _error(found: list[Estimate]) -> dict[str, Any]:
    if not any(math.isfinite(one.low + one.high) for one in found):
        return {"visible": False}
    ends = {
        "array": [one.high - one.value for one in found],
        "arrayminus": [one.value - one.low for one in found],
    }
    return {
        "type": "data",
        "symmetric": False,
        **ends,
        "color": "--ink",
        "thickness": 1,
        "width": 2,
    }


def _tick(group: Group, data: dict[str, Any]) -> str:
    size = ((data.get("slices") or {}).get("sizes") or {}).get(group.slice)
    return (
        f"<b>{group.title}</b>"
        if size is None
        else f"<b>{group.title}</b><br>{size:,} label{'' if size == 1 else 's'}"
    )


def _hover(scheme: str, group: Group, found: Estimate, reference: Reference) -> str:
    text = f"<b>{plain(scheme)}</b><br>{group.title.replace('<br>', '')} error {with_error(found)}"
    if scheme == reference.scheme or not found.known:
        return text
    change = reference.difference(scheme, group.metric, group.slice)
    return f"{text}<br>{points(change.value)} points against {plain(reference.name)}"
