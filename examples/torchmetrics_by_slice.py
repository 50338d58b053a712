"""Recall and balanced error by head, torso and tail with torchmetrics, in a loop of your own."""

import torch
from torchmetrics import MetricCollection

import headtail as ht
from headtail.integrations.torchmetrics import BalancedError, PSPAtK, RecallAtK

torch.manual_seed(0)
labels = ht.Labels.zipf(200, rarest=5)
centres = torch.randn(200, 16)


def batches(number: int):
    """Noisy copies of the centre of each label, as frequent as the label."""
    for _ in range(number):
        target = torch.multinomial(labels.prior, 256, replacement=True)
        yield centres[target] + 0.8 * torch.randn(256, 16), target


for name in ("within-batch:importance", "within-batch:tail"):
    head = ht.LabelHead(labels, 16, ht.scheme(name, labels), sparse=True)
    optimiser = ht.RowAdagrad(head.parameters(), lr=0.3)
    for features, target in batches(200):
        head(features, target).backward()
        optimiser.step()
        optimiser.zero_grad()

    slices = labels.slices()
    metrics = MetricCollection(
        {
            "recall@5": RecallAtK(slices, k=5),
            "psp@5": PSPAtK(slices, k=5, labels=labels),
            "error": BalancedError(slices),
        }
    )
    for features, target in batches(20):
        metrics.update(head.topk(features, 5), target)
    found = metrics.compute()
    for metric in ("recall@5", "psp@5", "error"):
        numbers = (f"{s} {100 * found[f'{metric}_{s}']:.1f}%" for s in ("full", "head", "tail"))
        print(f"{name}: {metric}", *numbers)
