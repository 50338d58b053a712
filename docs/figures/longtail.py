"""Draws docs/figures/longtail*.svg from experiments/results/longtail.csv and longtail-classes.csv.

longtail.svg: errors on head, torso and tail, one row per data set, one column per sampler.
longtail_classes.svg: the error of each class against its rank. longtail_sweep.svg: errors against
the number of negatives. Combinations that were not run are left out.

Run: .venv/bin/python docs/figures/longtail.py
"""

import csv
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from headtail.comparison.results import read_rows
from headtail.report.class_curves import smoothed

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "experiments" / "results"
WEIGHTINGS = {
    "constant": "#74aef2",
    "importance": "#8a8a8a",
    "relative": "#2e9e4f",
    "tail": "#1f6fd6",
}
EXACT = {"softmax": "#222222", "softmax+post-hoc": "#7a5a33", "logit-adjusted": "#b8419a"}
EXACT |= {"equalised": "#e09b2d", "adaptive": "#cfc04a"}
STUDIES = {
    "tiny-exp": "Tiny-ImageNet-32 Exp",
    "tiny-step": "Tiny-ImageNet-32 Step",
    "cifar10-exp": "CIFAR-10-LT Exp",
    "cifar10-step": "CIFAR-10-LT Step",
    "tiny-exp-contrastive": "Tiny-ImageNet-32 Exp, contrastive",
}
GROUPS = ("head", "torso", "tail")
SAMPLERS = ("uniform", "within-batch")
plt.rcParams |= {
    "font.size": 10.5,
    "svg.hashsalt": "headtail",
    "axes.spines.top": False,
    "axes.spines.right": False,
}

values = defaultdict(list)
by_m = defaultdict(list)
for row in read_rows(RESULTS / "longtail.csv"):
    if row.metric == "balanced-error" and row.value == row.value:
        values[row.dataset, row.scheme, row.slice].append(100 * row.value)
        if (
            row.m is not None
            and row.dataset.startswith("tiny-exp")
            and "contrastive" not in row.scheme
        ):
            by_m[row.scheme.partition("@")[0], row.slice, row.m].append(100 * row.value)


def save(figure, name):
    figure.savefig(HERE / f"{name}.svg", metadata={"Date": None}, facecolor="white")


def bars(axis, study, sampler):
    family, whole = (
        ("contrastive/", "contrastive") if study.endswith("contrastive") else ("", "softmax")
    )
    schemes = {
        name: (name, colour, 0.85 if name == "softmax" else 0.45) for name, colour in EXACT.items()
    }
    if family:
        schemes = {whole: ("", EXACT["softmax"], 0.85)}
    schemes |= {
        f"{family}{sampler}:{name}": (name, colour, 1.0) for name, colour in WEIGHTINGS.items()
    }
    width = 0.86 / len(schemes)
    for place, (scheme, (short, colour, alpha)) in enumerate(schemes.items()):
        for group, name in enumerate(GROUPS):
            found = values[study, scheme, name]
            if found:
                where = group + (place - (len(schemes) - 1) / 2) * width
                label = short if group == 0 and not family else None
                axis.bar(where, mean(found), 0.92 * width, color=colour, alpha=alpha, label=label)
                if len(found) > 1:
                    axis.errorbar(
                        where, mean(found), stdev(found), color="#222222", lw=0.8, capsize=1.5
                    )
    for group, name in enumerate(GROUPS):
        plain = values[study, whole, name]
        if plain:
            axis.hlines(mean(plain), group - 0.46, group + 0.46, color="#222222", lw=0.9, ls=":")
        else:
            axis.text(group, 1, "–", ha="center")
    axis.set(xlim=(-0.5, 2.5))
    axis.set_xticks(range(3), [name.capitalize() for name in GROUPS])
    axis.set_title(f"{STUDIES[study]}, {sampler}", loc="left", fontweight="bold", fontsize=10.5)


run = [study for study in STUDIES if any(key[0] == study for key in values)]
figure, axes = plt.subplots(
    len(run),
    2,
    figsize=(12, 2.7 * len(run) + 0.7),
    layout="constrained",
    sharey="row",
    squeeze=False,
)
for study, line in zip(run, axes, strict=True):
    for axis, sampler in zip(line, SAMPLERS, strict=True):
        bars(axis, study, sampler)
    line[0].set_ylabel("error, %")
handles = {
    label: handle
    for axis in axes.flat
    for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
}
figure.legend(
    handles.values(),
    handles.keys(),
    loc="outside lower center",
    ncols=9,
    frameon=False,
    fontsize=9.5,
)
save(figure, "longtail")

classes = defaultdict(list)
with (RESULTS / "longtail-classes.csv").open(newline="") as file:
    for line in csv.DictReader(file):
        classes[line["study"], line["scheme"]].append(
            (-int(line["train"]), int(line["label"]), 100 * float(line["error"]))
        )
figure, axes = plt.subplots(1, 2, figsize=(12, 4.2), layout="constrained", sharey=True)
for axis, sampler in zip(axes, SAMPLERS, strict=True):
    shown = {
        name: (colour, "--")
        for name, colour in EXACT.items()
        if name in ("softmax", "logit-adjusted")
    }
    shown |= {f"{sampler}:{name}": (colour, "-") for name, colour in WEIGHTINGS.items()}
    for scheme, (colour, dash) in shown.items():
        errors = [error for *_, error in sorted(classes[run[0], scheme])]
        if errors:
            window = max(1, len(errors) // 20) | 1
            axis.plot(
                range(1, len(errors) + 1),
                smoothed(errors, window),
                dash,
                color=colour,
                lw=1.6,
                label=scheme,
            )
    axis.set(xlabel="rank of the class")
    axis.set_title(f"{STUDIES[run[0]]}, {sampler}", loc="left", fontweight="bold", fontsize=10.5)
    axis.legend(frameon=False, fontsize=9)
axes[0].set_ylabel("error, %")
save(figure, "longtail_classes")

if len({m for *_, m in by_m}) > 1:
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
    for axis, slice_ in zip(axes, ("head", "tail", "full"), strict=True):
        for sampler, dash, marker in (("uniform", ":", "o"), ("within-batch", "-", "^")):
            for name, colour in WEIGHTINGS.items():
                found = {
                    m: mean(by_m[key])
                    for key in sorted(by_m)
                    if key[:2] == (f"{sampler}:{name}", slice_)
                    for m in key[2:]
                }
                if found:
                    axis.plot(
                        list(found),
                        list(found.values()),
                        dash,
                        marker=marker,
                        color=colour,
                        label=f"{sampler}:{name}",
                    )
        for name in ("softmax", "logit-adjusted"):
            if values["tiny-exp", name, slice_]:
                axis.axhline(
                    mean(values["tiny-exp", name, slice_]),
                    color=EXACT[name],
                    lw=1,
                    ls="--",
                    label=name,
                )
        axis.set_xscale("log", base=2)
        sizes = sorted({m for *_, m in by_m})
        axis.set_xticks(sizes, [f"{m:g}" for m in sizes])
        axis.set(xlabel="m, negatives per step", ylabel="error, %")
        axis.set_title(
            {"full": "balanced"}.get(slice_, slice_).capitalize(),
            loc="left",
            fontweight="bold",
            fontsize=10.5,
        )
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=9.5)
    save(figure, "longtail_sweep")
