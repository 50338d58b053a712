"""Negatives drawn by the model's own softmax."""

from __future__ import annotations

from typing import final

from torch import Tensor

from headtail.core.labels import Labels
from headtail.samplers.model.by_score import OnePassSampler


@final
class ModelSoftmax(OnePassSampler):
    r"""Negatives are what the model considers likely: $q_{y'} \propto e^{f_{y'}}$, drawn separately
    for each example.

    The least noisy q for the unbiased softmax; for other margins that is `Tilted`. With importance
    weights and the positive excluded, every draw gives the exact loss; its gradient still varies.
    With constant weights its objective changes with the model and has no name. A draw costs one
    pass over the label table, as the exact loss does, but nothing of size [batch, L] is held and
    only the drawn rows get a gradient.

    Args:
        labels: the labels, or just their number.
        num_negatives: m.
        exclude_target: draw from the other labels only; else a draw that hits the positive is
            masked in the loss.

    >>> import torch
    >>> hidden, table = torch.tensor([[1.0]]), torch.tensor([[0.0], [9.0], [30.0]])
    >>> ModelSoftmax(3, num_negatives=2).draw(torch.tensor([1]), input=hidden, weight=table).ids
    tensor([[2, 2]])
    """

    def log_mass(self, f: Tensor, label: Tensor, ids: Tensor) -> Tensor:
        """f."""
        return f.double()

    def for_labels(self, labels: Labels) -> ModelSoftmax:
        """The same over the grown label set."""
        return ModelSoftmax(labels, self.num_negatives, exclude_target=self.exclude_target)
