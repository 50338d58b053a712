"""Draws docs/figures/leans.svg: how much each scheme favours head or tail, and its noise for an
untrained model.

Run: .venv/bin/python docs/figures/leans.py
"""

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import torch

import headtail as ht

labels = ht.Labels.zipf(10_000)
batch_size = 256
ranks = torch.logspace(0, 4, 200).long().clamp(1, 10_000) - 1
schemes = {
    # colour, and the legend entry; a scheme without one coincides with a line that has one
    "within-batch:tail": ("#1f6fd6", "tail weights, any sampler"),
    "within-batch:constant": ("#74aef2", "within-batch:constant"),
    "within-batch:importance": ("#8a8a8a", "importance weights, any sampler"),
    "within-batch:relative": ("#2e9e4f", "within-batch:relative"),
    "uniform:tail": ("#1f6fd6", None),
    "uniform:importance": ("#8a8a8a", None),
}

plt.rcParams |= {
    "font.size": 11,
    "svg.hashsalt": "headtail",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
figure, (left, right) = plt.subplots(
    1, 2, figsize=(11, 4), width_ratios=(3, 2), layout="constrained"
)
noise = {}
for name, (colour, legend) in schemes.items():
    explanation = ht.explain(ht.scheme(name, labels, batch_size), labels, batch_size=batch_size)
    favour = explanation.margin.log_positive(ranks) - explanation.margin.log_negative(ranks)
    if legend:
        left.plot(ranks + 1, favour - favour[0], color=colour, lw=2.6, label=legend)
    noise[name] = max(example.noise_untrained for example in explanation.examples)
left.set(xscale="log", xlabel="label, most frequent first", ylabel="favoured by (nats)")
left.set_title(
    "Which labels are favoured: head (left) or tail (right)",
    loc="left",
    fontsize=12,
    fontweight="bold",
)
left.legend(frameon=False, fontsize=9.5)

names = list(schemes)[::-1]
right.barh(names, [noise[n] for n in names], color=[schemes[n][0] for n in names], height=0.6)
for row, name in enumerate(names):
    right.text(noise[name] * 1.25, row, f"{noise[name]:.2g}", va="center", fontsize=9.5)
right.set(xscale="log", xlim=(1e-4, 8), xlabel="deviation of the loss, untrained model (nats)")
right.set_title("Noise of an untrained model", loc="left", fontsize=12, fontweight="bold")
figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None}, facecolor="white")
