"""Draws docs/figures/leans.svg: how much each scheme favours head or tail, by its implicit loss,
and how noisy sampled losses are on a trained model, from experiments/results/samplers-noise.csv.

Run: .venv/bin/python docs/figures/leans.py
"""

import csv
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import torch

import headtail as ht

HERE = Path(__file__)
ROWS = HERE.parents[2] / "experiments" / "results" / "samplers-noise.csv"
NEGATIVES = "64"
# Okabe and Ito's colours, which colour-blind readers can tell apart; lines differ too.
SCHEMES = {
    "within-batch:tail": ("#0072B2", "-", "tail weights, any sampler"),
    "within-batch:constant": ("#009E73", "--", "within-batch:constant"),
    "within-batch:importance": ("#666666", "-", "importance weights, any sampler"),
    "within-batch:relative": ("#D55E00", "-.", "within-batch:relative"),
}
"""Scheme: colour, line and what is written beside it."""
WEIGHTS = {"logit-adjusted": ("tail", "#0072B2", "D"), "softmax": ("importance", "#666666", "o")}
"""Target: the weights that aim at it, colour and marker."""
SAMPLERS = ("uniform", "within-batch", "block", "block(1)")


def noise_on_trained() -> dict[str, tuple[float, str, str]]:
    """Scheme: squared error of its loss on a trained model, colour and marker."""
    found = {}
    with ROWS.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            wanted = (line["data"], line["m"]) == ("diginetica", NEGATIVES)
            if wanted and line["device"] == "cpu" and line["sampler"] in SAMPLERS:
                weights, colour, marker = WEIGHTS[line["target"]]
                found[f"{line['sampler']}:{weights}"] = float(line["squared_error"]), colour, marker
    return dict(sorted(found.items(), key=lambda item: item[1][0]))


def draw_leans(axis) -> None:
    """Lines of the labels that each implicit loss favours, named at their ends."""
    labels = ht.Labels.zipf(10_000)
    ranks = torch.logspace(0, 4, 200).long().clamp(1, 10_000) - 1
    for name, (colour, line, text) in SCHEMES.items():
        explanation = ht.explain(ht.scheme(name, labels, 256), labels, batch_size=256)
        favour = explanation.margin.log_positive(ranks) - explanation.margin.log_negative(ranks)
        favour -= favour[0].item()
        axis.plot(ranks + 1, favour, color=colour, linestyle=line, lw=2.4)
        falls = favour[-1] < 0
        axis.annotate(
            text,
            (900, float(favour[147])) if falls else (5e3, float(favour[185])),
            xytext=(6 if falls else -6, 6),
            textcoords="offset points",
            color=colour,
            ha="left" if falls else "right",
            fontsize=9.5,
        )
    axis.set(xscale="log", xlabel="label, most frequent first")
    axis.set_ylabel("favoured over the most\nfrequent label by (nats)")
    title(axis, "Which labels a scheme favours")


def draw_noise(axis) -> None:
    """The noise of sampled losses on a trained model, least on top."""
    noise = noise_on_trained()
    for row, (value, colour, marker) in enumerate(reversed(noise.values())):
        axis.plot(value, row, color=colour, marker=marker, ms=8)
        axis.annotate(
            f"{value:.2g}",
            (value, row),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=9.5,
        )
    axis.set_yticks(range(len(noise)), list(noise)[::-1], fontsize=9.5)
    axis.set(xscale="log", xlim=(0.5, 200), xlabel="squared error of the loss, σ²/(mμ²)")
    axis.grid(axis="y", color="#eeeeee", lw=0.8)
    axis.set_axisbelow(True)
    title(axis, f"Noise on Diginetica, m = {NEGATIVES}")


def title(axis, text: str) -> None:
    """A heading on the left."""
    axis.set_title(text, loc="left", fontsize=12, fontweight="bold")


plt.rcParams |= {"font.size": 11, "svg.hashsalt": "headtail"}
plt.rcParams |= {"axes.spines.top": False, "axes.spines.right": False}
figure, (left, right) = plt.subplots(
    1, 2, figsize=(11, 4), width_ratios=(3, 2), layout="constrained"
)
draw_leans(left)
draw_noise(right)
figure.savefig(HERE.with_suffix(".svg"), metadata={"Date": None}, facecolor="white")
