"""Draws docs/figures/tradeoff_curves.svg: what is lost on the head and gained on the tail along
three curves over τ, from experiments/results/tradeoff.csv.

Run: .venv/bin/python docs/figures/tradeoff_curves.py
"""

import csv
import math
import sys
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.patheffects import withStroke

HERE = Path(__file__)
ROWS = HERE.parents[2] / "experiments" / "results" / "tradeoff.csv"
# Okabe and Ito's colours, which colour-blind readers can tell apart; markers differ too.
STYLES = {
    "full": ("#0072B2", "o", "-", "trained: loss over all labels"),
    "within-batch": ("#D55E00", "^", "--", "trained: in-batch negatives, tail weights"),
    "post-hoc": ("#009E73", "s", ":", "adjusted afterwards: softmax"),
}
TITLES = {
    "delicious": "Delicious, 983 labels",
    "diginetica": "Diginetica, 43,097 items",
    "nowplaying": "Nowplaying, 60,416 items",
    "beauty": "Amazon Beauty, 49,438 items",
    "gowalla": "Gowalla, 40,981 items",
    "diginetica-part": "Part of Diginetica, 1,500 items",
    "nowplaying-part": "Part of Nowplaying, 1,500 items",
    "beauty-part": "Part of Beauty, 1,487 items",
    "gowalla-part": "Part of Gowalla, 1,000 items",
    "cifar10-exp": "CIFAR-10-LT, 10 classes",
    "tiny-exp": "Tiny-ImageNet-LT, 200 classes",
}

NEAR = 0.12
"""Points of curves closer than this, as a share of the panel, get one label."""

Point = tuple[float, float, float, float]


def read(path: Path) -> dict[str, dict[str, dict[float, dict[str, Point]]]]:
    """Data set, curve, τ and slice: difference from the softmax, its interval, all in points."""
    found: dict = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            if line["metric"].startswith("recall@"):
                numbers = [100 * float(line[c]) for c in ("difference", "low", "high", "value")]
                of_curve = found[line["dataset"]][line["curve"]]
                of_curve[float(line["tau"])][line["slice"]] = tuple(numbers)
    return found


def with_one_seed(path: Path) -> set[str]:
    """Data sets whose intervals do not show what other seeds would change."""
    with path.open(newline="", encoding="utf-8") as file:
        return {line["dataset"] for line in csv.DictReader(file) if line["seeds"] == "1"}


def draw(path: Path, to: Path) -> None:
    """Read rows and draw a panel per data set."""
    data = read(path)
    once = with_one_seed(path)
    names = [name for name in TITLES if name in data] + [
        name for name in data if name not in TITLES
    ]
    plt.rcParams |= {"font.size": 10, "svg.hashsalt": "headtail"}
    plt.rcParams |= {"axes.spines.top": False, "axes.spines.right": False}
    columns = min(2 if len(names) == 4 else 3, len(names))
    rows = math.ceil(len(names) / columns)
    size = (max(4.6, 4.2 * columns + 0.4), 3.3 * rows + 0.7)
    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axis, name in zip(axes.flat, names, strict=False):
        panel(axis, data[name])
        title = TITLES.get(name, name) + (", one seed" if name in once else "")
        axis.set_title(title, loc="left", fontsize=10.5, fontweight="bold")
    for axis in axes.flat[len(names) :]:
        axis.set_axis_off()
    shown = {}
    for axis in axes.flat:  # a data set may lack a curve
        handles, labels = axis.get_legend_handles_labels()
        shown |= dict(zip(labels, handles, strict=True))
    order = [label for *_, label in STYLES.values() if label in shown]
    figure.legend(
        [shown[label] for label in order],
        order,
        loc="outside lower center",
        ncols=min(3, columns),
        frameon=False,
    )
    figure.savefig(to, metadata={"Date": None}, facecolor="white")
    plt.close(figure)


def panel(axis, curves: dict[str, dict[float, dict[str, Point]]]) -> None:
    """The curves of one data set, with 95% intervals."""
    rare = "torso"
    for of_tau in curves.values():
        for slices in of_tau.values():
            if "tail" in slices and not math.isnan(slices["tail"][0]):
                rare = "tail"
    axis.axhline(0, color="#bbbbbb", lw=0.8)
    axis.axvline(0, color="#bbbbbb", lw=0.8)
    named: list[tuple[float, float]] = []
    widths = _widths(curves, rare)
    for curve, (colour, marker, line, label) in STYLES.items():
        taus = sorted(curves.get(curve, ()))
        heads = [curves[curve][tau]["head"] for tau in taus]
        tails = [curves[curve][tau][rare] for tau in taus]
        if not taus:
            continue
        axis.errorbar(
            [head[0] for head in heads],
            [tail[0] for tail in tails],
            xerr=sides(heads),
            yerr=sides(tails),
            color=colour,
            marker=marker,
            linestyle=line,
            ms=7 if curve == "full" else 4.5,  # curves that coincide are seen one in the other
            mfc="white" if curve == "full" else colour,
            lw=1.4,
            elinewidth=0.7,
            label=label,
        )
        for tau, head, tail in zip(taus, heads, tails, strict=True):
            place = head[0], tail[0]
            seen = head[0] / widths[0], tail[0] / widths[1]
            if tau in (0.5, 1.0) and all(math.dist(seen, other) > NEAR for other in named):
                named.append(seen)
                axis.annotate(
                    f"τ = {tau:g}",
                    place,
                    xytext=(4, 4),
                    textcoords="offset points",
                    fontsize=8.5,
                    color=colour,
                    path_effects=[withStroke(linewidth=3, foreground="white")],
                    zorder=5,
                )
    axis.set(xlabel="head, difference from the softmax in points", ylabel=f"{rare}, difference")
    axis.margins(x=0.08, y=0.08)


def _widths(curves: dict[str, dict[float, dict[str, Point]]], rare: str) -> list[float]:
    """How far curves reach, to the head and to the tail."""
    points = [slices for of_tau in curves.values() for slices in of_tau.values()]
    reached = [[slices[s][0] for slices in points if s in slices] for s in ("head", rare)]
    return [max(values) - min(values) for values in reached]


def sides(points: list[Point]) -> list[list[float]]:
    """How far intervals reach below and above."""
    below = [max(0.0, value - low) for value, low, _, _ in points]
    return [below, [max(0.0, high - value) for value, _, high, _ in points]]


if __name__ == "__main__":
    if not ROWS.exists():
        sys.exit(f"`{ROWS.name}` is not there yet: run experiments/tradeoff_tables.py first.")
    draw(ROWS, HERE.with_suffix(".svg"))
