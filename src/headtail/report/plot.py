"""Explanations and comparisons as plotly figures, for notebooks."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any

from headtail.comparison.results import Comparison
from headtail.errors import HeadtailError, Setting, need
from headtail.implicit import Example, Explanation
from headtail.report.measured import SLICES, Measured, Reference
from headtail.report.seed_mean import SeedMean, points, with_error
from headtail.report.visible import visible

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

COLOURS = {
    "head": "#0072B2",
    "torso": "#009E73",
    "tail": "#D55E00",
    "cold": "#CC79A7",
    "full": "#808080",
}
"""Of slices; those of Okabe and Ito, made for colour-blind readers."""
SYMBOLS = {
    "head": "circle",
    "torso": "square",
    "tail": "triangle-up",
    "cold": "star",
    "full": "diamond-open",
}
INK = "#808080"
"""Text that is readable on light and on dark pages."""
GRID = "rgba(128,128,128,0.3)"
ROW = 68
"""Pixels per scheme."""
FEW = 12
"""Examples up to which each has its number beside it."""


def plot(thing: Explanation | Comparison) -> Figure:
    """A figure of an explanation, or of what each scheme of a comparison gains and loses.

    Of an explanation: how often the negatives are head, torso and tail labels, and how far the loss
    differs from the softmax for a label of each, with the noise of sampling as error bar. Of a
    comparison: the difference to the softmax in head, torso and tail, or to the mean of the schemes
    where the softmax was not trained, with the deviation over seeds as error bar.

    Args:
        thing: what `headtail.explain` or `headtail.compare` returned.

    Returns:
        A `plotly.graph_objects.Figure`, which a notebook shows. Needs the extra `notebook`.

    >>> from headtail import Labels, explain, scheme
    >>> labels = Labels.zipf(1000)
    >>> figure = plot(explain(scheme("within-batch:tail", labels), labels))
    >>> figure.layout.title.text
    'logit-adjusted loss (Menon et al. 2020): leans to the tail by 9.87 nats'
    """
    if isinstance(thing, Explanation):
        return _explanation(thing)
    if isinstance(thing, Comparison):
        return _comparison(visible(thing))
    raise HeadtailError(
        Setting("thing"),
        " must be what `headtail.explain` or `headtail.compare` returned, but got "
        f"{type(thing).__name__}.",
    )


def _plotly(module: str) -> Any:
    return need("plotly", extra="notebook", to="A figure", module=f"plotly.{module}")


def _explanation(explanation: Explanation) -> Figure:
    graphs = _plotly("graph_objects")
    shares = explanation.sampled_share
    examples = "difference to the softmax, nats"
    if explanation.family != "softmax":
        examples = "difference to the loss with ρ = 1"
    titles = ["share of the negatives (pale: least noise)", examples] if shares else [examples]
    figure = _plotly("subplots").make_subplots(
        rows=1, cols=len(titles), subplot_titles=titles, horizontal_spacing=0.14
    )
    if shares:
        wanted = explanation.optimal_share
        bars = {"this sampler": (shares, 1.0), "least noise": (wanted, 0.35)}
        for name, (by_slice, opacity) in bars.items():
            bar = graphs.Bar(
                x=list(by_slice),
                y=list(by_slice.values()),
                name=name,
                marker_color=[COLOURS[slice_] for slice_ in by_slice],
                marker_opacity=opacity,
                marker_line_width=0,
                texttemplate="%{y:.1%}",
                textposition="outside",
                cliponaxis=False,
                hovertemplate="%{x}: %{y:.2%}<extra>" + name + "</extra>",
            )
            figure.add_trace(bar, row=1, col=1)
        figure.update_yaxes(tickformat=".0%", row=1, col=1)
    _add_biases(figure, explanation, len(titles))
    figure.update_xaxes(showgrid=False, zeroline=False)
    leans = "leans to neither side"
    if explanation.leans != "neither":
        leans = f"leans to the {explanation.leans} by {abs(explanation.lean):.3g} nats"
    figure.update_layout(barmode="group", showlegend=False)
    name = explanation.name or f"ρ = {explanation.rho}"
    return _styled(figure, f"{name}: {leans}", 360)


def _add_biases(figure: Any, explanation: Explanation, column: int) -> None:
    """A point per example: the bias of its loss, with the noise as error bar."""
    graphs = _plotly("graph_objects")
    examples = explanation.examples
    noises = [e.noise_untrained if e.noise is None else e.noise for e in examples]
    points = graphs.Scatter(
        x=list(range(len(examples))),
        y=[example.bias for example in examples],
        mode="markers+text" if len(examples) <= FEW else "markers",
        text=[_signed(example.bias) for example in examples],
        textposition="top right",
        cliponaxis=False,
        error_y={"array": [noise or 0.0 for noise in noises], "color": INK},
        marker={
            "size": 12,
            "color": [COLOURS.get(example.slice, INK) for example in examples],
            "symbol": [SYMBOLS.get(example.slice, "circle") for example in examples],
        },
        hovertext=[
            f"label {example.label}: {_signed(example.bias)}"
            + ("" if noise is None else f", noise {noise:.2g}")
            for example, noise in zip(examples, noises, strict=True)
        ],
        hoverinfo="text",
    )
    place = {"row": 1, "col": column}
    figure.add_trace(points, **place)
    ends = [0.0]
    for example, noise in zip(examples, noises, strict=True):
        ends += [example.bias - (noise or 0.0), example.bias + (noise or 0.0)]
    room = 0.2 * (max(ends) - min(ends)) or 1.0
    figure.update_yaxes(range=[min(ends) - room, max(ends) + room], **place)
    titles = [_title(example) for example in examples]
    span = [-0.5, len(titles) - 0.5]
    figure.update_xaxes(tickvals=points.x, ticktext=titles, range=span, **place)


def _title(example: Example) -> str:
    return f"label {example.label}" if example.slice == "given" else example.slice


def _signed(value: float) -> str:
    """A difference with its sign.

    >>> _signed(-1.234), _signed(0.001)
    ('−1.23', '0.00')
    """
    text = f"{value:+.2f}".replace("-", "−")
    return "0.00" if text in ("+0.00", "−0.00") else text


def _comparison(comparison: Comparison) -> Figure:
    graphs = _plotly("graph_objects")
    measured = Measured(comparison)
    by = measured.yardstick
    reference = Reference.of(measured)
    shown = [name for name in SLICES if measured.known(by.metric, name)]
    schemes = [name for name in measured.schemes if name != reference.scheme]
    if not shown or len(measured.schemes) < 2:
        raise HeadtailError(
            f"A plot of a comparison needs two schemes with results, but this one has "
            f"{len(measured.schemes) if shown else 0}. Compare more, for example `softmax` and "
            "`within-batch:tail`."
        )
    figure = graphs.Figure()
    for i, slice_ in enumerate(shown):
        changes = [reference.difference(scheme, by.metric, slice_) for scheme in schemes]
        # Slices of a scheme are below each other, so that no marker covers another.
        offset = (len(shown) - 1) / 2 - i
        figure.add_trace(_slice_of_schemes(measured, reference, schemes, changes, slice_, offset))
    better = "right" if by.sign > 0 else "left"
    figure.add_vline(x=0, line_color=INK, line_width=1.5)
    title = f"{by.title} {by.against} {reference.name}, points ({better} is better)"
    figure.update_xaxes(title=title, zeroline=False)
    rows = list(range(len(schemes)))
    for row in rows[1:]:
        figure.add_hline(y=row - 0.5, line_color=GRID, line_width=1)
    figure.update_yaxes(
        zeroline=False,
        tickvals=rows,
        ticktext=[escape(scheme) for scheme in schemes],
        range=[len(rows) - 0.5, -0.5],
        showgrid=False,
        title=None,
    )
    name = escape(str(comparison.data.get("name", "the test points")))
    return _styled(figure, f"What schemes gain and lose on {name}", 130 + ROW * len(schemes))


def _slice_of_schemes(
    measured: Measured,
    reference: Reference,
    schemes: list[str],
    changes: list[SeedMean],
    slice_: str,
    offset: float,
) -> Any:
    """The markers of one slice, one per scheme."""
    graphs = _plotly("graph_objects")
    metric = measured.yardstick.metric
    texts = [
        f"{escape(scheme)}, {slice_}: {points(change.value)} points<br>"
        f"{with_error(measured.of(scheme, metric, slice_))}"
        for scheme, change in zip(schemes, changes, strict=True)
    ]
    deviations = [100 * c.deviation if math.isfinite(c.deviation) else 0.0 for c in changes]
    return graphs.Scatter(
        x=[100 * change.value for change in changes],
        y=[i - 0.16 * offset for i in range(len(schemes))],
        error_x={"array": deviations, "color": COLOURS[slice_], "thickness": 1.2, "width": 3},
        mode="markers",
        name=slice_,
        marker={"size": 11, "color": COLOURS[slice_], "symbol": SYMBOLS[slice_]},
        hovertext=texts,
        hoverinfo="text",
    )


def _styled(figure: Any, title: str, height: float) -> Figure:
    """Transparent, with grey text and lines, so that it suits light and dark pages."""
    figure.update_layout(
        title=title,
        height=height,
        margin={"l": 60, "r": 30, "t": 70, "b": 50},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": INK, "size": 13},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": GRID, "activecolor": INK},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
    )
    figure.update_xaxes(gridcolor=GRID, zerolinecolor=INK, automargin=True)
    figure.update_yaxes(gridcolor=GRID, zerolinecolor=INK, automargin=True)
    return figure
