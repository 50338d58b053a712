"""Draws docs/figures/samplers_*.svg from experiments/results/samplers*.csv and retrieval.csv.

samplers_noise.svg: noise of the sampled loss against m, and the error of the table's gradient
against the time of a batch (draw, loss and gradients).
samplers_learning.svg: Recall@10 of head against tail, with the loss over all labels where it was
run.

Run: .venv/bin/python docs/figures/samplers.py
"""

import csv
from collections import defaultdict
from itertools import product
from pathlib import Path
from statistics import mean, stdev

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

from headtail.comparison.results import read_rows

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "experiments" / "results"
SAMPLERS = {
    "uniform": ("#8a8a8a", "o"),
    "within-batch": ("#2e9e4f", "^"),
    "frequency(0.5)": ("#a3c9a8", "v"),
    "block": ("#74aef2", "s"),
    "block(1)": ("#1f6fd6", "s"),
    "resampled": ("#e09b2d", "P"),
    "quadratic-kernel": ("#cfc04a", "X"),
    "fourier-kernel": ("#b58b5a", "X"),
    "adversarial": ("#7a5a33", "d"),
    "hard": ("#d1495b", "*"),
    "tilted": ("#b8419a", "p"),
    "full": ("#222222", "D"),
}
DATA = {
    "diginetica": "Diginetica, 43,097 items",
    "delicious": "Delicious, 983 labels",
    "generated": "Generated, 1,000,000 labels",
}
TARGETS = {"logit-adjusted": "tail", "softmax": "importance"}
NOTHING = 1e-9
"""Noise below this is a rounding error."""
plt.rcParams |= {
    "font.size": 10.5,
    "svg.hashsalt": "headtail",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def save(figure, name):
    figure.savefig(HERE / f"{name}.svg", metadata={"Date": None}, facecolor="white")


def legend(figure, axes, columns):
    found = {
        label: handle
        for axis in axes.flat
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    ordered = [name for name in found if name.partition("@")[0] in SAMPLERS]
    ordered.sort(key=lambda name: list(SAMPLERS).index(name.partition("@")[0]))
    figure.legend(
        [found[name] for name in ordered],
        ordered,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=9.5,
    )


with (RESULTS / "samplers-noise.csv").open(newline="") as file:
    every = list(csv.DictReader(file))
home = {
    data: "cpu" if any((row["data"], row["device"]) == (data, "cpu") for row in every) else "cuda"
    for data in DATA
}
noise = [row for row in every if row["device"] == home[row["data"]]]
shown = [data for data in DATA if any(row["data"] == data for row in noise)]
figure, axes = plt.subplots(
    4, len(shown), figsize=(3.9 * len(shown), 13), layout="constrained", squeeze=False
)
for (line, target), (column, data) in product(enumerate(TARGETS), enumerate(shown)):
    above = axes[line][column]
    below = axes[line + 2][column]
    of_panel = [row for row in noise if (row["data"], row["target"]) == (data, target)]
    for sampler, (colour, marker) in SAMPLERS.items():
        own = sorted(
            (row for row in of_panel if row["sampler"] == sampler), key=lambda row: float(row["m"])
        )
        style = {"marker": marker, "color": colour, "ms": 6.5, "lw": 1.3, "label": sampler}
        seen = [row for row in own if float(row["squared_error"]) > NOTHING]
        if seen:
            above.plot(
                [float(row["m"]) for row in seen],
                [float(row["squared_error"]) for row in seen],
                **style,
            )
        some = [row for row in own if float(row["table_error"]) > 0]
        if some:
            below.plot(
                [1e3 * float(row["step_seconds"]) for row in some],
                [float(row["table_error"]) for row in some],
                **style,
            )
        if sampler == "full" and own:
            below.axvline(
                1e3 * float(own[0]["step_seconds"]), color=colour, lw=1, ls=":", label="full"
            )
    sizes = sorted({float(row["m"]) for row in of_panel if row["sampler"] != "full"})
    above.set(xscale="log", yscale="log")
    above.set_xticks(sizes, [f"{m:g}" for m in sizes])
    above.minorticks_off()
    below.set(xscale="log", ylim=(0, None))
    for axis in (above, below):
        axis.set_title(
            f"{DATA[data].partition(',')[0]}, {target}",
            loc="left",
            fontweight="bold",
            fontsize=10.5,
        )
    axes[1][column].set_xlabel("m, negatives")
    where = {"cpu": "one core of a CPU", "cuda": "H200"}[home[data]]
    axes[3][column].set_xlabel(f"ms per batch, {where}")
for line in (0, 1):
    axes[line][0].set_ylabel("noise, σ²/(mμ²)")
    axes[line + 2][0].set_ylabel("error of the table's gradient")
legend(figure, axes, 6)
save(figure, "samplers_noise")

values = defaultdict(list)
full = defaultdict(list)
for row in read_rows(RESULTS / "samplers.csv"):
    if row.metric == "recall@10" and row.dataset.endswith("-learn"):
        values[row.dataset.removesuffix("-learn"), row.scheme, row.slice].append(100 * row.value)
for row in read_rows(RESULTS / "retrieval.csv"):
    known = row.scheme in TARGETS or (
        row.m == 64 and row.scheme.partition(":")[0] in ("uniform", "within-batch")
    )
    if row.metric == "recall@10" and known:
        full[row.dataset, row.scheme, row.slice].append(100 * row.value)
for key, found in full.items():
    if key not in values:
        values[key] = found
shown = [data for data in DATA if all((data, target, "tail") in values for target in TARGETS)]
figure, axes = plt.subplots(
    2, len(shown), figsize=(3.9 * len(shown), 8), layout="constrained", squeeze=False
)
for (line, target), (column, data) in product(enumerate(TARGETS), enumerate(shown)):
    axis = axes[line][column]
    for scheme in sorted({key[1] for key in values if key[0] == data}):
        name, _, weighting = scheme.partition(":")
        m = weighting.partition("@")[2]
        sampler = "full" if scheme == target else name
        if sampler not in SAMPLERS or (
            scheme != target and not weighting.startswith(TARGETS[target])
        ):
            continue
        head = values[data, scheme, "head"]
        tail = values[data, scheme, "tail"]
        spread = {"xerr": stdev(head), "yerr": stdev(tail)} if len(head) > 1 else {}
        colour, marker = SAMPLERS[sampler]
        hollow = {"mfc": "white"} if m else {}
        label = sampler + (f"@{m}" if m else "")
        axis.errorbar(
            mean(head),
            mean(tail),
            **spread,
            **hollow,
            fmt=marker,
            color=colour,
            ms=9,
            capsize=2,
            label=label,
        )
        if m:
            axis.annotate(
                m,
                (mean(head), mean(tail)),
                (0, -15),
                textcoords="offset points",
                ha="center",
                fontsize=8.5,
                color=colour,
            )
        if sampler == "full":
            corner = (mean(head) - 2, mean(tail) - 2)
            axis.add_patch(Rectangle(corner, 4, 4, fill=False, ec=colour, lw=0.9, ls=":"))
    axis.set_title(
        f"{DATA[data].partition(',')[0]}, {target}", loc="left", fontweight="bold", fontsize=10.5
    )
    axis.set(xlim=(max(0.0, axis.get_xlim()[0]), None), ylim=(max(0.0, axis.get_ylim()[0]), None))
    axes[1][column].set_xlabel("Recall@10 on head labels, %")
    axes[line][0].set_ylabel("Recall@10 on tail labels, %")
legend(figure, axes, 7)
save(figure, "samplers_learning")
