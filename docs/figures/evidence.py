"""Draws docs/figures/evidence.svg: how far each scheme is from the softmax on head and tail, with
95% intervals, from experiments/results/evidence.csv. Schemes that lean to the tail have panels of
their own: their differences are many times as large.

Run: .venv/bin/python docs/figures/evidence.py
"""

import csv
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

HERE = Path(__file__)
ROWS = HERE.parents[2] / "experiments" / "results" / "evidence.csv"
# Okabe and Ito's colours, which colour-blind readers can tell apart; markers differ too.
STYLES = {
    "head": ("#D55E00", "o", "head labels, 95% interval", 0.16),
    "tail": ("#0072B2", "D", "tail labels (the rarest slice), 95% interval", -0.16),
}
"""Slice: colour, marker, name and how far above the line of its scheme."""
TITLES = {
    "delicious": "Delicious, 983 labels",
    "diginetica": "Diginetica, 43,097 items",
    "nowplaying": "Nowplaying, 60,416 items",
    "beauty": "Amazon Beauty",
    "gowalla": "Gowalla, 40,981 items",
    "diginetica-part": "Part of Diginetica, 1,500 items",
    "nowplaying-part": "Part of Nowplaying, 1,500 items",
    "beauty-part": "Part of Beauty, 1,487 items",
    "gowalla-part": "Part of Gowalla, 1,000 items",
    "beauty-sasrec": "Amazon Beauty, SASRec",
    "diginetica-sasrec": "Diginetica, SASRec",
    "cifar10-exp": "CIFAR-10-LT Exp, 10 classes",
    "cifar10-step": "CIFAR-10-LT Step, 10 classes",
    "tiny-exp": "Tiny-ImageNet-LT Exp, 200 classes",
    "tiny-step": "Tiny-ImageNet-LT Step, 200 classes",
}
ONE_LABEL = ("cifar10-", "tiny-")
"""Data sets that are judged by Recall@1."""
LEFT_OUT = re.compile(
    r"contrastive|uniform\(excluded\)|uniform:tail@|logit-adjusted\(|.*:tail\(|.*post-hoc\((?!1\))"
)
"""Schemes with tables of their own, and other strengths than τ = 1."""

FOR_TAIL = re.compile(r"logit-adjusted|.*post-hoc|.*:tail|within-batch:(constant|infonce)")
"""Schemes that approximate a loss which leans to the tail."""
ALIKE = (
    (re.compile(r"^(within-batch:\w+)@\d+$"), r"\1, whole batch"),
    (re.compile(r"^queue\(\d+\):(\w+)@\d+$"), r"queue of 8 batches:\1"),
)
"""Schemes whose numbers follow from the batch, and what they are called whatever its size."""
ROWS_OF_PANELS = {True: "for the tail", False: "for the softmax, or close to it"}

Point = tuple[float, float, float]


def read(path: Path) -> dict[str, dict[str, dict[str, Point]]]:
    """Data set, scheme and slice: difference from the softmax and its interval, in points."""
    found: dict = defaultdict(lambda: defaultdict(dict))
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            name = line["dataset"]
            metric = "recall@1" if name.startswith(ONE_LABEL) else "recall@10"
            scheme = line["scheme"]
            shown = scheme != "softmax" and not LEFT_OUT.match(scheme)
            if shown and line["metric"] == metric and line["difference"]:
                numbers = (100 * float(line[column]) for column in ("difference", "low", "high"))
                slices = found[name][common_name(scheme)]
                if line["slice"] in slices:
                    sys.exit(f"{name} has `{scheme}` and another with its name in the figure.")
                slices[line["slice"]] = tuple(numbers)
    for schemes in found.values():
        for slices in schemes.values():  # without a tail, the torso is the rarest slice
            slices.setdefault("tail", slices.get("torso"))
    return found


def common_name(scheme: str) -> str:
    """What a scheme is called for all sizes of batches.

    >>> common_name("within-batch:tail@256"), common_name("block(1):tail@64")
    ('within-batch:tail, whole batch', 'block(1):tail@64')
    """
    for pattern, name in ALIKE:
        scheme = pattern.sub(name, scheme)
    return scheme


def draw(path: Path, to: Path) -> None:
    """Read rows and draw two panels per data set, each row with the same schemes in one order."""
    data = read(path)
    names = [name for name in TITLES if name in data] + [n for n in data if n not in TITLES]
    plt.rcParams |= {"font.size": 10, "svg.hashsalt": "headtail"}
    plt.rcParams |= {"axes.spines.top": False, "axes.spines.right": False}
    order = in_order(data.values())
    groups = [[n for n in order if bool(FOR_TAIL.match(n)) == tail] for tail in ROWS_OF_PANELS]
    heights = [len(group) for group in groups]
    size = (2.4 + 2.4 * len(names), 0.27 * sum(heights) + 2.2)
    figure, axes = plt.subplots(
        2,
        len(names),
        figsize=size,
        layout="constrained",
        squeeze=False,
        sharey="row",
        height_ratios=heights,
    )
    for row, (group, about) in enumerate(zip(groups, ROWS_OF_PANELS.values(), strict=True)):
        for axis, name in zip(axes[row], names, strict=True):
            panel(axis, data[name], group)
            if row == 0:
                title = TITLES.get(name, name).replace(", ", "\n", 1)
                axis.set_title(title, loc="left", fontsize=10, fontweight="bold")
        axes[row][0].set_ylabel(about)
    for axis, name in zip(axes[-1], names, strict=True):
        metric = "Recall@1" if name.startswith(ONE_LABEL) else "Recall@10"
        axis.set_xlabel(f"{metric}, points\nabove the softmax")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(to, metadata={"Date": None} if to.suffix == ".svg" else None, facecolor="white")
    plt.close(figure)


def in_order(sets: Iterable[dict[str, dict[str, Point]]]) -> list[str]:
    """All schemes, those that gain most on the tail last: on top."""
    gains: dict = defaultdict(list)
    for schemes in sets:
        for name, slices in schemes.items():
            gains[name].append(slices["tail"][0])
    return sorted(gains, key=lambda name: fmean(gains[name]))


def panel(axis, schemes: dict[str, dict[str, Point]], order: Sequence[str]) -> None:
    """The schemes of one data set."""
    axis.axvline(0, color="#888888", lw=0.8)
    for slice_, (colour, marker, label, above) in STYLES.items():
        shown = [(row, schemes[name][slice_]) for row, name in enumerate(order) if name in schemes]
        axis.errorbar(
            [value for _, (value, _, _) in shown],
            [row + above for row, _ in shown],
            xerr=[
                [value - low for _, (value, low, _) in shown],
                [high - value for _, (value, _, high) in shown],
            ],
            color=colour,
            marker=marker,
            linestyle="none",
            ms=4.5,
            elinewidth=1.1,
            capsize=2,
            label=label,
        )
    axis.set_yticks(range(len(order)), order, fontsize=8)
    axis.set_ylim(-0.6, len(order) - 0.4)
    axis.grid(axis="y", color="#eeeeee", lw=0.8)
    axis.set_axisbelow(True)


if __name__ == "__main__":
    if not ROWS.exists():
        sys.exit(f"`{ROWS.name}` is not there yet: run experiments/evidence_tables.py first.")
    draw(ROWS, HERE.with_suffix(".svg"))
