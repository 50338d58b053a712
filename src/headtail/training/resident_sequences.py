"""Sequences in the memory of a GPU, where batches are assembled from the ids of targets."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from headtail.data.batches import TrainingBatch
from headtail.data.sequence_batches import SequenceBatches


def sequences_size(batches: SequenceBatches) -> int:
    """Bytes that these sequences will take on a GPU."""
    return 4 * len(batches.windows) * batches.length + 3 * 8 * len(batches.ids)


@final
class ResidentSequences:
    """Windows and targets that a GPU can read, so that a batch is the ids of its targets.

    Its shapes never change: a batch has as many windows as the largest of the run. Those that it
    does not need repeat its first one, and predict nothing.

    Args:
        batches: the training points, and what a batch of them holds.
        device: the GPU.
        epochs: how many there will be.
    """

    def __init__(self, batches: SequenceBatches, device: torch.device, epochs: int) -> None:
        self.device = device
        self.items = batches.windows.window(batches.length).to(device)
        self.window_of = batches.window_of.to(device)
        self.place = batches.place.to(device)
        self.label = batches.label.to(device)
        self.most = batches.most_windows(epochs)

    def look_up(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The ids and labels of these targets."""
        ids = ids.to(self.device, non_blocking=True)
        return ids, self.label[ids]

    def take(self, ids: Tensor, target: Tensor) -> TrainingBatch:
        """The batch of these targets."""
        window = self.window_of[ids]
        slot = torch.zeros_like(window)
        slot[1:] = (window[1:] != window[:-1]).cumsum(0)
        windows = window[:1].repeat(self.most).scatter_(0, slot, window)
        items = self.items[windows]
        return TrainingBatch(items, slot * items.shape[1] + self.place[ids], target)
