"""Draws docs/figures/samplers_*.svg from experiments/results/samplers*.csv and retrieval.csv.

samplers_noise.svg: noise of the sampled loss with 64 negatives, and the error of the table's
gradient against the time of a batch (draw, loss and gradients).
samplers_learning.svg: Recall@10 of head against tail, with the loss over all labels where it was
run.

Run: .venv/bin/python docs/figures/samplers.py
"""

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from headtail.comparison.results import read_rows

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "experiments" / "results"
# Okabe and Ito's colours, which colour-blind readers can tell apart; names stand beside the points.
COLOURS = {
    "uniform": "#666666",
    "within-batch": "#009E73",
    "frequency(0.5)": "#009E73",
    "block": "#0072B2",
    "block(1)": "#0072B2",
    "resampled": "#D55E00",
    "quadratic-kernel": "#CC79A7",
    "fourier-kernel": "#CC79A7",
    "adversarial": "#E69F00",
    "hard": "#E69F00",
    "tilted": "#56B4E9",
    "full": "#000000",
}
DATA = {
    "diginetica": "Diginetica, 43,097 items",
    "delicious": "Delicious, 983 labels",
    "generated": "Generated, 1,000,000 labels",
}
TARGETS = {"logit-adjusted": "tail", "softmax": "importance"}
TARGET_STYLES = {"logit-adjusted": ("#0072B2", "D"), "softmax": ("#D55E00", "o")}
TIMED = ("diginetica", "delicious")
"""Data whose times are of one machine, with many samplers."""
M = "64"
NOTHING = 1e-9
"""Noise below this is a rounding error."""
Line = Mapping[str, str]
Name = tuple[float, float, str, str]
"""Place, text and colour of the name of a point."""
plt.rcParams |= {
    "font.size": 10,
    "svg.hashsalt": "headtail",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def save(figure, name: str, names: Mapping[Axes, Sequence[Name]]) -> None:
    figure.draw_without_rendering()  # so that places are known
    for axis, points in names.items():
        name_points(axis, points, figure.dpi)
    figure.savefig(HERE / f"{name}.svg", metadata={"Date": None}, facecolor="white")
    plt.close(figure)


def noise_lines() -> list[Line]:
    """Measurements with 64 negatives, and those of all labels; each data set on one device."""
    with (RESULTS / "samplers-noise.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    on_cpu = {line["data"] for line in lines if line["device"] == "cpu"}
    return [
        line
        for line in lines
        if line["device"] == ("cpu" if line["data"] in on_cpu else "cuda")
        and (line["m"] == M or line["sampler"] == "full")
    ]


def draw_noise(lines: Sequence[Line]) -> None:
    """Noise by sampler for both targets; below, time and error of the gradient of a batch."""
    figure = plt.figure(figsize=(11.5, 8.2), layout="constrained")
    grid = figure.add_gridspec(2, 6, height_ratios=(1, 1.1))
    names = {}
    for column, data in enumerate(DATA):
        axis = figure.add_subplot(grid[0, 2 * column : 2 * column + 2])
        dots(axis, [line for line in lines if line["data"] == data])
        axis.set_title(DATA[data], loc="left", fontweight="bold", fontsize=10.5)
        if column == 2:
            axis.legend(frameon=False, loc="lower left", title="target", alignment="left")
    for column, data in enumerate(TIMED):
        axis = figure.add_subplot(grid[1, 3 * column : 3 * column + 3])
        own = [x for x in lines if (x["data"], x["target"]) == (data, "logit-adjusted")]
        names[axis] = price(axis, own)
        title = f"{DATA[data].partition(',')[0]}, logit-adjusted"
        axis.set_title(title, loc="left", fontweight="bold", fontsize=10.5)
    save(figure, "samplers_noise", names)


def dots(axis, lines: Sequence[Line]) -> None:
    """The noise of every sampler, the least on top."""
    noise: dict[str, dict[str, float]] = defaultdict(dict)
    for line in lines:
        if float(line["squared_error"]) > NOTHING:
            noise[line["sampler"]][line["target"]] = float(line["squared_error"])
    order = sorted(noise, key=lambda name: -fmean(noise[name].values()))
    for target, (colour, marker) in TARGET_STYLES.items():
        rows = [row for row, name in enumerate(order) if target in noise[name]]
        values = [noise[order[row]][target] for row in rows]
        axis.plot(values, rows, marker, color=colour, ms=6, label=target, alpha=0.9)
    axis.set_xscale("log")
    axis.set_yticks(range(len(order)), order, fontsize=9)
    axis.set_ylim(-0.6, len(order) - 0.4)
    axis.grid(axis="y", color="#eeeeee", lw=0.8)
    axis.set_axisbelow(True)
    axis.set_xlabel(f"noise, σ²/(mμ²), m = {M}")


def price(axis, lines: Sequence[Line]) -> list[Name]:
    """The error of the table's gradient against the time of a batch, by sampler."""
    names = []
    for line in lines:
        sampler, error = line["sampler"], float(line["table_error"])
        if sampler != "full" and error == 0:
            continue
        x = 1e3 * float(line["step_seconds"])
        axis.plot(x, error, "o", color=COLOURS[sampler], ms=6)
        name = "all labels" if sampler == "full" else sampler
        names.append((x, error, name, COLOURS[sampler]))
    axis.set(xscale="log", ylim=(-0.05, None))
    axis.margins(x=0.2)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter("")
    axis.set_xlabel(f"ms per batch, one core of a CPU, m = {M}")
    axis.set_ylabel("error of the table's gradient")
    return names


def name_points(axis, names: Sequence[Name], dpi: float) -> None:
    """Write names beside points, moved up until none covers another."""
    taken: list[tuple[float, float, float]] = []
    for x, y, text, colour in sorted(names, key=lambda one: one[1]):
        left, bottom = axis.transData.transform((x, y)) * 72 / dpi
        right = left + 8 + 5 * len(text)
        up = 0.0
        while any(
            left < other_right and right > other_left and abs(bottom + up - height) < 10
            for other_left, other_right, height in taken
        ):
            up += 2
        taken.append((left, right, bottom + up))
        line = {"arrowstyle": "-", "color": colour, "lw": 0.6, "shrinkA": 0, "shrinkB": 3}
        axis.annotate(
            text,
            (x, y),
            (8, up - 3),
            textcoords="offset points",
            fontsize=8.5,
            color=colour,
            arrowprops=line if up > 6 else None,
        )


def learned() -> dict[tuple[str, str, str], list[float]]:
    """Recall@10 in percent by data, scheme and slice, of each seed."""
    values = defaultdict(list)
    for row in read_rows(RESULTS / "samplers.csv"):
        if row.metric == "recall@10" and row.dataset.endswith("-learn"):
            key = (row.dataset.removesuffix("-learn"), row.scheme, row.slice)
            values[key].append(100 * row.value)
    others = defaultdict(list)
    for row in read_rows(RESULTS / "retrieval.csv"):
        cheap = row.m == int(M) and row.scheme.startswith(("uniform:", "within-batch:"))
        if row.metric == "recall@10" and (row.scheme in TARGETS or cheap):
            others[row.dataset, row.scheme, row.slice].append(100 * row.value)
    return {**others, **values}


def draw_learning(values: Mapping[tuple[str, str, str], Sequence[float]]) -> None:
    """Head against tail for both targets, with all labels in the middle of a dotted square."""
    shown = [data for data in DATA if all((data, target, "tail") in values for target in TARGETS)]
    size = (4.1 * len(shown), 8)
    figure, axes = plt.subplots(2, len(shown), figsize=size, layout="constrained", squeeze=False)
    names: dict[Axes, list[Name]] = {}
    for (line, target), (column, data) in product(enumerate(TARGETS), enumerate(shown)):
        axis = axes[line][column]
        for sampler, m, scheme in schemes_for(target, data, values):
            head, tail = (values[data, scheme, slice_] for slice_ in ("head", "tail"))
            names.setdefault(axis, []).append(point(axis, sampler, m, head, tail))
        title = f"{DATA[data].partition(',')[0]}, {target}"
        axis.set_title(title, loc="left", fontweight="bold", fontsize=10.5)
        left, right = axis.get_xlim()
        axis.set_xlim(max(0.0, left), right + 0.35 * (right - left))  # room for names
        low, high = axis.get_ylim()
        axis.set_ylim(max(0.0, low), high + 0.1 * (high - low))
        axes[1][column].set_xlabel("Recall@10 on head labels, %")
    for line in (0, 1):
        axes[line][0].set_ylabel("Recall@10 on tail labels, %")
    save(figure, "samplers_learning", names)


def schemes_for(
    target: str, data: str, values: Mapping[tuple[str, str, str], Sequence[float]]
) -> Iterator[tuple[str, str, str]]:
    """Samplers, numbers of negatives and schemes that approximate a target."""
    for scheme in sorted({key[1] for key in values if key[0] == data}):
        name, _, weighting = scheme.partition(":")
        sampler = "full" if scheme == target else name
        wanted = scheme == target or weighting.startswith(TARGETS[target])
        if wanted and sampler in COLOURS:
            yield sampler, weighting.partition("@")[2], scheme


def point(axis, sampler: str, m: str, head: Sequence[float], tail: Sequence[float]) -> Name:
    """A scheme, with deviations over seeds and its name; hollow with other than 64 negatives."""
    spread = {"xerr": stdev(head), "yerr": stdev(tail)} if len(head) > 1 else {}
    fill = {"mfc": "white"} if m else {}
    x, y = fmean(head), fmean(tail)
    colour = COLOURS[sampler]
    marker = "D" if sampler == "full" else "o"
    axis.errorbar(x, y, **spread, **fill, fmt=marker, color=colour, ms=7, capsize=2)
    name = "all labels" if sampler == "full" else sampler + (f"@{m}" if m else "")
    if sampler == "full":
        square = Rectangle((x - 2, y - 2), 4, 4, fill=False, ec=colour, lw=0.9, ls=":")
        axis.add_patch(square)
    return x, y, name, colour


if __name__ == "__main__":
    draw_noise(noise_lines())
    draw_learning(learned())
