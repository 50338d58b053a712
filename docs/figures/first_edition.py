"""Draws docs/figures/first_edition.svg: how far each scheme is from the softmax on head and tail,
on whole data sets, from experiments/results/retrieval.csv.

Run: .venv/bin/python docs/figures/first_edition.py
"""

import csv
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from evidence import in_order, panel

HERE = Path(__file__)
ROWS = HERE.parents[2] / "experiments" / "results" / "retrieval.csv"
PANELS = {
    "delicious": "Delicious, 983 labels",
    "diginetica": "Diginetica, 43,097 items",
    "nowplaying": "Nowplaying, 60,416 items",
}
LEFT_OUT = ("contrastive", "uniform(excluded)", "most-popular")
"""Schemes with tables of their own."""


def read(path: Path) -> dict[str, dict[str, dict[str, tuple[float, float, float]]]]:
    """Data set, scheme, slice: mean, lowest and highest difference from the softmax over seeds, in
    points.
    """
    values: dict = defaultdict(dict)
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            if line["metric"] == "recall@10" and not line["scheme"].startswith(LEFT_OUT):
                key = line["dataset"], line["scheme"], line["slice"]
                values[key][line["seed"]] = 100 * float(line["value"])
    found: dict = defaultdict(lambda: defaultdict(dict))
    for (data, scheme, slice_), by_seed in values.items():
        if scheme != "softmax" and data in PANELS:
            base = values[data, "softmax", slice_]
            each = [value - base[seed] for seed, value in by_seed.items()]
            found[data][scheme][slice_] = fmean(each), min(each), max(each)
    return found


def draw(path: Path, to: Path) -> None:
    """A panel per data set."""
    data = read(path)
    plt.rcParams |= {"font.size": 10, "svg.hashsalt": "headtail"}
    plt.rcParams |= {"axes.spines.top": False, "axes.spines.right": False}
    order = in_order(data.values())
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.5), layout="constrained", sharey=True)
    for axis, (name, title) in zip(axes, PANELS.items(), strict=True):
        panel(axis, data[name], order)
        axis.set_title(title, loc="left", fontsize=10.5, fontweight="bold")
        axis.set_xlabel("Recall@10, difference from the softmax in points", fontsize=9)
    handles, _ = axes[0].get_legend_handles_labels()
    labels = ["head labels, range of three seeds", "tail labels, range of three seeds"]
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(to, metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    draw(ROWS, HERE.with_suffix(".svg"))
