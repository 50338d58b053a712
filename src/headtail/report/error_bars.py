"""Errors on head, torso and tail, as grouped bars."""

from __future__ import annotations

from typing import Any, NamedTuple

from headtail.report.figure import SHARES, Figure, axes, axis, error_bar, panel_title, plain
from headtail.report.look import Look, families, looks
from headtail.report.measured import Measured, Reference
from headtail.report.seed_mean import SeedMean, points, with_error

FILLED = 0.86
"""The share of the distance between two groups that bars fill."""
PANEL_PIXELS = 230
GAP_PIXELS = 96
"""The height of a panel, and between panels, for tick labels and a title."""
PATTERNS = {"": "", "-open": "/", "-dot": ".", "-open-dot": "x"}
"""Bars of one colour differ in their pattern, as markers do in their filling."""


class Group(NamedTuple):
    """Bars that are next to each other."""

    title: str
    metric: str
    slice: str


GROUPS = (
    *(Group(name.capitalize(), "balanced-error", name) for name in ("head", "torso", "tail")),
    Group("Balanced", "balanced-error", "full"),
    Group("Prior-<br>weighted", "class-weighted-error", "full"),
)


class Panel(NamedTuple):
    """The bars of one family of schemes.

    Attributes:
        measured: all numbers.
        groups: the groups of bars.
        schemes: those in the panel.
        number: the suffix of its axes in plotly.
    """

    measured: Measured
    groups: list[Group]
    schemes: list[str]
    number: str

    def mean(self, scheme: str, group: Group) -> SeedMean:
        """The number of a bar."""
        return self.measured.of(scheme, group.metric, group.slice)


def error_bars(measured: Measured, data: dict[str, Any]) -> Figure | None:
    """The error of each scheme by slice and on average; one panel per sampler, each with the losses
    that use all labels.
    """
    groups = [group for group in GROUPS if group.metric in measured.metrics]
    titled = {
        title: [name for name in names if _is_known(measured, name)]
        for title, names in families(measured.schemes).items()
    }
    titled = {title: names for title, names in titled.items() if names}
    if not groups or not titled:
        return None
    look = looks(measured.schemes)
    height = PANEL_PIXELS * len(titled) + GAP_PIXELS * (len(titled) - 1)
    layout, narrow = _layouts(height, len(measured.schemes))
    traces = []
    annotations = []
    for place, (title, names) in enumerate(titled.items()):
        panel = Panel(measured, groups, names, str(place + 1) if place else "")
        traces += _bars(panel, look) + _reference_line(panel)
        annotations += [panel_title(title, panel.number), *_dashes(panel)]
        layout |= _axes(panel, data, 1 - place * (PANEL_PIXELS + GAP_PIXELS) / height, height)
        narrow[f"xaxis{panel.number}"] = {"tickfont": {"size": 10}}
    _list_once(traces)
    alt = (
        f"Bars of the error of {len(measured.schemes)} schemes on head, torso and tail labels; "
        "section 7 has the numbers."
    )
    layout["annotations"] = annotations
    return Figure("errors", alt, traces, layout, narrow, note=_note(measured, look))


def _is_known(measured: Measured, scheme: str) -> bool:
    return any(measured.of(scheme, group.metric, group.slice).known for group in GROUPS)


def _layouts(height: float, schemes: int) -> tuple[dict[str, Any], dict[str, Any]]:
    wide = {
        "height": height + 150 + 8 * schemes,
        "barmode": "overlay",
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": -56 / height, "yanchor": "top"},
        "margin": {"l": 52, "r": 8, "t": 34, "b": 8},
    }
    return wide, {"legend": {"font": {"size": 11}}, "height": height + 150 + 24 * schemes}


def _axes(panel: Panel, data: dict[str, Any], top: float, height: float) -> dict[str, Any]:
    groups = panel.groups
    number = panel.number
    x = axis(
        tickvals=list(range(len(groups))),
        ticktext=[_tick(group, data) for group in groups],
        range=[-0.5, len(groups) - 0.5],
        anchor=f"y{number}",
        showgrid=False,
        ticks="",
    )
    domain = [max(top - PANEL_PIXELS / height, 0), top]
    y = axis(**SHARES, rangemode="tozero", nticks=6, anchor=f"x{number}", domain=domain)
    if number:
        y["matches"] = "y"
    return {f"xaxis{number}": x, f"yaxis{number}": y}


def _bars(panel: Panel, look: dict[str, Look]) -> list[dict[str, Any]]:
    """One trace per scheme, with one bar per group."""
    step = FILLED / len(panel.schemes)
    first = -(len(panel.schemes) - 1) / 2
    return [
        _scheme_bars(panel, name, look[name], ((first + i) * step, 0.9 * step))
        for i, name in enumerate(panel.schemes)
    ]


def _scheme_bars(
    panel: Panel, scheme: str, look: Look, place: tuple[float, float]
) -> dict[str, Any]:
    """A scheme's bars, at this distance from the middle of their groups and of this width."""
    offset, width = place
    groups = panel.groups
    means = [panel.mean(scheme, group) for group in groups]
    reference = Reference.of(panel.measured)
    endings = reversed(PATTERNS.items())
    pattern = next(shape for ending, shape in endings if look.symbol.endswith(ending))
    return {
        "type": "bar",
        "name": plain(scheme),
        "legendgroup": scheme,
        "x": [i + offset for i in range(len(groups))],
        "width": [width] * len(groups),
        "y": [mean.value for mean in means],
        **axes(panel.number),
        "error_y": error_bar(means, "--ink", 2),
        "marker": {
            "color": look.colour,
            "line": {"width": 0},
            "pattern": {"shape": pattern, "size": 5},
        },
        "opacity": 0.45 if look.family == "exact" else 1.0,
        "hoverinfo": "text",
        "hovertext": [
            _hover(scheme, group, mean, reference)
            for group, mean in zip(groups, means, strict=True)
        ],
    }


def _reference_line(panel: Panel) -> list[dict[str, Any]]:
    """A line through each group at the height of the reference."""
    scheme = Reference.of(panel.measured).scheme
    if scheme is None:
        return []
    x = []
    y = []
    for i, group in enumerate(panel.groups):
        level = panel.mean(scheme, group).value
        x += [i - FILLED / 2 - 0.02, i + FILLED / 2 + 0.02, None]
        y += [level, level, None]
    line = {
        "type": "scatter",
        "mode": "lines",
        "name": f"level of {plain(scheme)}",
        "x": x,
        "y": y,
        "line": {"color": "--ink", "width": 1, "dash": "dot"},
        "hoverinfo": "skip",
    }
    return [line | axes(panel.number)]


def _dashes(panel: Panel) -> list[dict[str, Any]]:
    """A dash where no scheme has a number, as in a slice without labels."""
    dash = {
        "y": 0,
        "xref": f"x{panel.number}",
        "yref": f"y{panel.number}",
        "yanchor": "bottom",
        "showarrow": False,
        "text": "–",
    }
    return [
        dash | {"x": i}
        for i, group in enumerate(panel.groups)
        if not any(panel.mean(name, group).known for name in panel.schemes)
    ]


def _list_once(traces: list[dict[str, Any]]) -> None:
    """Let the legend list a scheme once, though losses over all labels are in every panel."""
    listed = set()
    for trace in traces:
        trace["showlegend"] = trace["name"] not in listed
        listed.add(trace["name"])


def _note(measured: Measured, look: dict[str, Look]) -> str:
    reference = Reference.of(measured).scheme
    pale = any(look[name].family == "exact" for name in measured.schemes)
    note = "Lower is better. " + ("Pale bars use all labels. " if pale else "")
    return note + (f"The dotted line is {reference}. " if reference else "")


def _tick(group: Group, data: dict[str, Any]) -> str:
    title = f"<b>{group.title}</b>"
    size = ((data.get("slices") or {}).get("sizes") or {}).get(group.slice)
    return title if size is None else f"{title}<br>{size:,} label{'' if size == 1 else 's'}"


def _hover(scheme: str, group: Group, mean: SeedMean, reference: Reference) -> str:
    text = f"<b>{plain(scheme)}</b><br>{group.title.replace('<br>', '')} error {with_error(mean)}"
    if scheme == reference.scheme or not mean.known:
        return text
    change = reference.difference(scheme, group.metric, group.slice)
    return f"{text}<br>{points(change.value)} points against {plain(reference.name)}"
