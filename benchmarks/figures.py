"""Draws docs/figures/own_loop.svg from results/own_loop.csv, what a head adds to an eager loop, and
docs/figures/head_step_*.svg from results/head_step.csv: time and memory of the head's step
against the number of labels, the number of labels from which sampling beats the fastest exact head,
and time against m and batch. One file per device.

Each line is the fastest variant of a library (eager, compiled, graphed; number types). Where a
setting was measured more than once, the latest row counts. A line ends where memory runs out.

Run: .venv/bin/python benchmarks/figures.py
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib

from machine import RESULTS

matplotlib.use("svg")
import matplotlib.pyplot as plt

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
OPTIMISER = {"cpu": "adagrad", "cuda": "sgd"}
"""The optimiser that both sampled and exact heads were measured with."""
LOOK = {
    "headtail": ("#1f6fd6", "o"),
    "PyTorch, sampled, sparse=True": ("#2e9e4f", "s"),
    "PyTorch, sampled, dense gradients": ("#8bc79c", "s"),
    "fbgemm": ("#b58a1b", "v"),
    "TensorFlow": ("#d9782d", "v"),
    "PyTorch, full softmax": ("#222222", "D"),
    "F.linear_cross_entropy": ("#777777", "D"),
    "liger-kernel": ("#b8419a", "^"),
    "cut-cross-entropy": ("#d64545", "^"),
}
EXACT = ("PyTorch, full softmax", "F.linear_cross_entropy", "liger-kernel", "cut-cross-entropy")
Row = dict[str, Any]
Line = dict[int, float]
"""Maps a size to a measured value."""


def rows_of(device: str) -> list[Row]:
    """The latest row of each setting on a device."""
    path = RESULTS / "head_step.csv"
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["device"] == device and row["ms"]]
    cell = ("part", "peer", "optimiser", "how", "dtype", "labels", "batch", "negatives", "dim")
    return list({tuple(row[key] for key in cell): row for row in rows}.values())


def best(rows: Iterable[Row], peer: str, size: str, number: str = "ms") -> Line:
    """A peer's smallest number at each size."""
    found: Line = {}
    for row in rows:
        if row["peer"] == peer and row[number]:
            at = int(row[size])
            value = float(row[number])
            found[at] = min(value, found.get(at, math.inf))
    return dict(sorted(found.items()))


def crossing(sampled: Line, exact: Line) -> str:
    """Describe from how many labels on sampling is faster (linear on logarithmic axes)."""
    shared = [size for size in sampled if size in exact]
    gaps = [math.log(exact[size] / sampled[size]) for size in shared]
    if not shared or all(gap <= 0 for gap in gaps):
        return "the fastest exact head is faster wherever both were measured"
    last = max((i for i, gap in enumerate(gaps) if gap <= 0), default=None)
    if last is None:
        return (
            f"sampling beats the fastest exact head at every size measured, from {shared[0]:,} "
            "labels on"
        )
    share = gaps[last] / (gaps[last] - gaps[last + 1])
    at = math.exp(math.log(shared[last]) + share * math.log(shared[last + 1] / shared[last]))
    return f"sampling beats the fastest exact head from about {float(f'{at:.1g}'):,.0f} labels on"


def draw(axis: Any, rows: list[Row], size: str, number: str = "ms") -> None:
    """Plot one line per library."""
    for peer, (colour, marker) in LOOK.items():
        line = best(rows, peer, size, number)
        if line:
            axis.plot(
                *zip(*line.items(), strict=True),
                color=colour,
                marker=marker,
                lw=2.4 if peer == "headtail" else 1.4,
                label=peer,
            )
    axis.set(xscale="log", yscale="log" if number == "ms" else "symlog")
    if number != "ms":
        axis.set_ylim(bottom=0)
    axis.grid(alpha=0.25)


def draw_figure(device: str) -> None:
    """Draw all panels of a device."""
    rows = [row for row in rows_of(device) if row["optimiser"] == OPTIMISER[device]]
    if not rows:
        return
    sizes = {
        part: [row for row in rows if row["part"] == part] for part in ("labels", "m", "batch")
    }
    below = any(sizes[part] for part in ("m", "batch"))
    figure, axes = plt.subplots(
        2,
        2,
        figsize=(12, 8.6 if below else 5.2),
        height_ratios=[1, 1 if below else 0.01],
        layout="constrained",
    )
    draw(axes[0, 0], sizes["labels"], "labels")
    draw(axes[0, 1], [row for row in sizes["labels"] if row["above_mib"]], "labels", "above_mib")
    draw(axes[1, 0], sizes["m"], "negatives")
    draw(axes[1, 1], sizes["batch"], "batch")
    exact: Line = {}
    for peer in EXACT:
        for size, ms in best(sizes["labels"], peer, "labels").items():
            exact[size] = min(ms, exact.get(size, math.inf))
    one = rows[0]
    fixed = {part: found[0] for part, found in sizes.items() if found}
    titles = {
        axes[0, 0]: (
            "labels",
            "milliseconds per "
            f"step;\n{crossing(best(sizes['labels'], 'headtail', 'labels'), exact)}",
        ),
        axes[0, 1]: ("labels", "MiB above table, optimiser state and counts"),
        axes[1, 0]: (
            "m, negatives",
            f"milliseconds per step, {int(fixed['m']['labels']):,} labels" if "m" in fixed else "",
        ),
        axes[1, 1]: (
            "batch",
            f"milliseconds per step, {int(fixed['batch']['labels']):,} labels"
            if "batch" in fixed
            else "",
        ),
    }
    for part, axis in (("m", axes[1, 0]), ("batch", axes[1, 1])):
        axis.set_visible(part in fixed)
    for axis, (label, title) in titles.items():
        axis.set_xlabel(label)
        axis.set_title(title, loc="left", fontsize=9.5)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9.5)
    where = (
        f"{one['machine']}, torch {one['torch']}, {max(row['date'] for row in rows)}; "
        f"{OPTIMISER[device]}"
    )
    step = (
        f"A training step of the label head: batch {one['batch']}, m {one['negatives']}, d "
        f"{one['dim']}"
    )
    figure.suptitle(f"{step}. {where}", fontsize=11)
    FIGURES.mkdir(exist_ok=True)
    figure.savefig(FIGURES / f"head_step_{device}.svg", metadata={"Date": None}, facecolor="white")
    print(FIGURES / f"head_step_{device}.svg")


def draw_own_loop() -> None:
    """Draw what heads add to an eager loop, one panel per number of labels."""
    with (RESULTS / "own_loop.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["optimiser"]]
    shown = {"variant": "plain", "encoder": "mlp", "scheme": "uniform:importance"}
    rows = [row for row in rows if all(row[name] == value for name, value in shown.items())]
    sizes = sorted({int(row["labels"]) for row in rows})
    colours = {
        "headtail": "#1f6fd6",
        "PyTorch, sparse=True": "#2e9e4f",
        "headtail, not captured": "#a9c8f0",
    }
    figure, axes = plt.subplots(1, len(sizes), figsize=(11, 3.6), sharey=True, layout="constrained")
    for axis, size in zip(axes, sizes, strict=True):
        for place, (head, colour) in enumerate(colours.items()):
            added = {
                row["optimiser"]: float(row["added_ms"])
                for row in rows
                if int(row["labels"]) == size and row["head"] == head
            }
            at = [x + 0.28 * (place - 1) for x in range(len(added))]
            bars = axis.bar(at, list(added.values()), 0.26, color=colour, label=head)
            axis.bar_label(bars, fmt="%.2f", fontsize=8)
        axis.set_xticks(range(3), ["SGD", "Adagrad", "Adam"])
        axis.set_title(f"{size:,} labels", loc="left", fontsize=10)
    axes[0].set_ylabel("milliseconds added to the loop")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9.5)
    one = rows[0]
    where = f"{one['machine']}, torch {one['torch']}, {one['date']}"
    figure.suptitle(
        f"A head in an eager loop: batch {one['batch']}, m {one['negatives']}, d {one['dim']}, "
        f"uniform negatives. {where}",
        fontsize=11,
    )
    figure.savefig(FIGURES / "own_loop.svg", metadata={"Date": None}, facecolor="white")
    print(FIGURES / "own_loop.svg")


def main() -> None:
    """Draw a figure for each device that was measured."""
    plt.rcParams |= {
        "font.size": 10,
        "svg.hashsalt": "headtail",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    draw_own_loop()
    for device in OPTIMISER:
        draw_figure(device)


if __name__ == "__main__":
    main()
