"""Draws docs/figures/longtail*.svg from experiments/results/longtail.csv and longtail-classes.csv.

longtail.svg: how far each scheme is from the loss over all labels on head and tail classes.
longtail_classes.svg: the same for classes by rank. longtail_sweep.svg: errors against the number of
negatives.

Run: .venv/bin/python docs/figures/longtail.py
"""

import csv
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from evidence import STYLES, in_order, panel

from headtail.comparison.results import POPULAR, read_rows
from headtail.report.class_curves import smoothed

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "experiments" / "results"
PANELS = {
    "tiny-exp": "Tiny-ImageNet-32 Exp, three seeds",
    "tiny-step": "Tiny-ImageNet-32 Step, one seed",
    "cifar10-step": "CIFAR-10-LT Step, one seed",
    "tiny-exp-contrastive": "Tiny-ImageNet-32 Exp, contrastive loss, one seed",
}
GAIN = "points of error saved, against the {} over all labels"
"""Most schemes have one seed on CIFAR-10-LT Exp, the softmax's worst: that set is not drawn."""
# Okabe and Ito's colours, which colour-blind readers can tell apart; lines and markers differ too.
WEIGHTS = {
    "constant": ("#009E73", "s"),
    "importance": ("#666666", "o"),
    "relative": ("#D55E00", "^"),
    "tail": ("#0072B2", "D"),
}
EXACT = {"softmax": ("#000000", "--"), "logit-adjusted": ("#CC79A7", "-.")}
SWEPT = ("tiny-exp", "tiny-exp-sweep")
SLICES = {"head": "Head", "tail": "Tail", "full": "Balanced"}
WINDOW = 21
"""Classes over which a curve is smoothed."""
SAMPLERS = {"uniform": "uniform negatives", "within-batch": "in-batch negatives"}
plt.rcParams |= {
    "font.size": 10,
    "svg.hashsalt": "headtail",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def errors() -> dict[tuple[str, str, str], dict[int, float]]:
    """Errors by seed in percent, of data set, scheme and slice."""
    found: dict = defaultdict(dict)
    for row in read_rows(RESULTS / "longtail.csv"):
        if row.metric == "balanced-error" and row.value == row.value and row.scheme != POPULAR:
            found[row.dataset, row.scheme, row.slice][row.seed] = 100 * row.value
    return found


def title(axis, text: str) -> None:
    """A heading on the left."""
    axis.set_title(text, loc="left", fontsize=10.5, fontweight="bold")


def save(figure, name: str) -> None:
    """Write the figure without a date, so that the same rows give the same file."""
    figure.savefig(HERE / f"{name}.svg", metadata={"Date": None}, facecolor="white")


def gains(found, data: str, base: str) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Scheme and slice: mean, lowest and highest error saved over seeds. "tail" is the rarest slice
    with classes.
    """
    rare = "tail" if (data, base, "tail") in found else "torso"
    schemes = dict.fromkeys(name for study, name, _ in found if study == data and name != base)
    saved: dict = defaultdict(dict)
    for name in schemes:
        for shown, slice_ in (("head", "head"), ("tail", rare)):
            by_seed = found[data, name, slice_]
            each = [found[data, base, slice_][seed] - error for seed, error in by_seed.items()]
            saved[name.removeprefix("contrastive/")][shown] = fmean(each), min(each), max(each)
    return saved


def draw_gains(found) -> None:
    """A panel per data set, with the slices named above their topmost points."""
    every = {data: gains(found, data, base_of(data)) for data in PANELS}
    sizes = [len(saved) for saved in every.values()]
    rows = [max(pair) for pair in zip(sizes[::2], sizes[1::2], strict=True)]
    heights = [size + 2.6 for size in rows]
    figure, axes = plt.subplots(
        2, 2, figsize=(12, 0.27 * sum(heights)), height_ratios=heights, layout="constrained"
    )
    for number, (axis, (data, saved)) in enumerate(zip(axes.flat, every.items(), strict=True)):
        base = base_of(data)
        panel(axis, saved, in_order([saved]))
        name_slices(axis, saved, "tail" if (data, base, "tail") in found else "torso")
        axis.set_ylim(len(saved) - rows[number // 2] - 0.6, len(saved) + 0.5)
        axis.margins(x=0.1)
        title(axis, PANELS[data])
        axis.set_xlabel(GAIN.format("softmax" if base == "softmax" else "contrastive loss"))
    figure.supxlabel("Points are means over seeds, bars the range of three seeds.", fontsize=9.5)
    save(figure, "longtail")
    plt.close(figure)


def base_of(data: str) -> str:
    """The loss over all labels that a study is compared with."""
    return "contrastive" if data.endswith("contrastive") else "softmax"


def name_slices(axis, saved, rare: str) -> None:
    """Write what the two colours are above the topmost scheme."""
    top = max(saved, key=lambda name: saved[name]["tail"][0])
    for slice_, text in (("head", "head classes"), ("tail", f"{rare} classes")):
        colour, _, _, above = STYLES[slice_]
        axis.annotate(
            text,
            (saved[top][slice_][0], len(saved) - 1 + above),
            xytext=(0, 9),
            textcoords="offset points",
            ha="center",
            color=colour,
            fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )


def draw_classes() -> None:
    """Error saved against the rank of the class, a panel per sampler."""
    classes = defaultdict(list)
    with (RESULTS / "longtail-classes.csv").open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            if line["study"] == "tiny-exp":
                key = -int(line["train"]), int(line["label"])
                classes[line["scheme"]].append((*key, 100 * float(line["error"])))
    by_rank = {name: [error for *_, error in sorted(of)] for name, of in classes.items()}
    figure, axes = plt.subplots(1, 2, figsize=(12, 4), layout="constrained", sharey=True)
    for axis, sampler in zip(axes, SAMPLERS, strict=True):
        lines = {f"{sampler}:{name}": (name, WEIGHTS[name][0], "-") for name in WEIGHTS}
        lines["logit-adjusted"] = ("logit-adjusted", *EXACT["logit-adjusted"])
        ends = []
        for scheme, (text, colour, dash) in lines.items():
            pairs = zip(by_rank["softmax"], by_rank[scheme], strict=True)
            saved = smoothed([base - error for base, error in pairs], WINDOW)
            axis.plot(range(1, len(saved) + 1), saved, dash, color=colour, lw=1.8)
            ends.append((saved[-1], text, colour))
        axis.axhline(0, color="#888888", lw=0.8)
        name_lines(axis, len(saved), ends)
        axis.set(xlabel="rank of the class, most frequent first", xlim=(1, len(saved)))
        title(axis, f"Tiny-ImageNet-32 Exp, {SAMPLERS[sampler]}")
    axes[0].set_ylabel("points of error saved, against the softmax")
    save(figure, "longtail_classes")
    plt.close(figure)


def draw_sweep() -> None:
    """Errors against the number of negatives, seed 0: slices by samplers."""
    by_m: dict = defaultdict(dict)
    exact = {}
    for row in read_rows(RESULTS / "longtail.csv"):
        if row.metric == "balanced-error" and row.dataset in SWEPT and row.seed == 0:
            if row.m is not None:
                by_m[row.scheme.partition("@")[0], row.slice][row.m] = 100 * row.value
            exact[row.scheme, row.slice] = 100 * row.value
    figure, axes = plt.subplots(2, 3, figsize=(12, 7), layout="constrained", sharey="col")
    sizes = sorted({m for of in by_m.values() for m in of})
    for line, sampler in zip(axes, SAMPLERS, strict=True):
        for axis, slice_ in zip(line, SLICES, strict=True):
            ends = []
            for name, (colour, marker) in WEIGHTS.items():
                of = sorted(by_m[f"{sampler}:{name}", slice_].items())
                axis.plot(*zip(*of, strict=True), color=colour, marker=marker, ms=5, lw=1.6)
                ends.append((of[-1][1], name, colour))
            for name, (colour, dash) in EXACT.items():
                axis.axhline(exact[name, slice_], color=colour, lw=1.1, ls=dash)
                ends.append((exact[name, slice_], name, colour))
            axis.set_xscale("log", base=2)
            axis.set_xticks(sizes, [f"{m:g}" for m in sizes])
            title(axis, f"{SLICES[slice_]}, {SAMPLERS[sampler]}")
            name_lines(axis, sizes[-1], ends)
    for axis in axes[1]:
        axis.set_xlabel("negatives m")
    for axis in axes[:, 0]:
        axis.set_ylabel("error, %")
    save(figure, "longtail_sweep")
    plt.close(figure)


def name_lines(axis, right: float, ends: list[tuple[float, str, str]]) -> None:
    """Write the names of lines beside their right ends, apart from each other."""
    low, high = axis.get_ylim()
    height = axis.get_window_extent().height / axis.figure.dpi  # in inches
    gap = 0.155 * (high - low) / height
    at = -float("inf")
    for value, text, colour in sorted(ends):
        at = max(value, at + gap)
        axis.annotate(
            text,
            (right, at),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=9,
            annotation_clip=False,
        )


if __name__ == "__main__":
    draw_gains(errors())
    draw_classes()
    draw_sweep()
