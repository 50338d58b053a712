"""Draws docs/figures/tradeoff.svg: head against tail on three real data sets, from
experiments/results/retrieval.csv.

Run: .venv/bin/python docs/figures/tradeoff.py
"""

from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from headtail.comparison.results import read_rows

HERE = Path(__file__)
COLOURS = {"tail": "#1f6fd6", "constant": "#74aef2", "importance": "#8a8a8a", "relative": "#2e9e4f"}
EXACT = {"softmax": "#222222", "logit-adjusted": "#b8419a"}
PANELS = {
    "delicious": "Delicious, 983 labels",
    "diginetica": "Diginetica, 43,097 items",
    "nowplaying": "Nowplaying, 60,416 items",
}

values = defaultdict(list)
for row in read_rows(HERE.parents[2] / "experiments" / "results" / "retrieval.csv"):
    if row.metric == "recall@10" and row.slice in ("head", "tail"):
        values[row.dataset, row.scheme, row.slice].append(100 * row.value)

plt.rcParams |= {
    "font.size": 11,
    "svg.hashsalt": "headtail",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
figure, axes = plt.subplots(1, 3, figsize=(12, 4.4), layout="constrained")
for axis, (data, title) in zip(axes, PANELS.items(), strict=True):
    for sampler, marker in (("uniform", "o"), ("within-batch", "^"), ("", "D")):
        names = (
            {f"{sampler}:{weighting}": (weighting, colour) for weighting, colour in COLOURS.items()}
            if sampler
            else {}
        )
        names |= {} if sampler else {name: (name, colour) for name, colour in EXACT.items()}
        for name, (short, colour) in names.items():
            head = values[data, name, "head"]
            tail = values[data, name, "tail"]
            spread = {"xerr": stdev(head), "yerr": stdev(tail)} if len(head) > 1 else {}
            label = f"{sampler}: {short}" if sampler else f"all labels: {short}"
            axis.errorbar(
                mean(head),
                mean(tail),
                **spread,
                fmt=marker,
                color=colour,
                ms=9,
                capsize=2,
                label=label,
            )
    axis.set(xlabel="Recall@10 on head labels, %", ylabel="Recall@10 on tail labels, %")
    axis.set_title(title, loc="left", fontsize=12, fontweight="bold")
handles, labels = axes[0].get_legend_handles_labels()
figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=9.5)
figure.savefig(HERE.with_suffix(".svg"), metadata={"Date": None}, facecolor="white")
