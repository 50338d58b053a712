"""Where the counts travel that ranks add up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headtail.core.placement import Placement
from headtail.distributed.counting import counted


@dataclass
class Elsewhere:
    """A single rank of a group that reaches no CPU. Tensors without values take the place of those
    on a GPU, so what comes back is written down.
    """

    sent: list[list[int]]
    rank: int = 0
    size: int = 1

    def numbers(self, own: list[int], device: torch.device) -> list[list[int]]:
        return [own]

    def meeting_place(self, device: torch.device) -> torch.device:
        return torch.device("meta")

    def gather(self, tensor: Tensor) -> Tensor:
        assert tensor.device.type == "meta", "No backend type associated with device type cpu"
        every = torch.tensor([self.sent])
        assert every[0].shape == tensor.shape
        return every


def test_counts_travel_where_the_group_reaches():
    ranks: Any = Elsewhere(sent=[[1, 1], [4, 2]])
    labels = counted(torch.tensor([4, 1, 4]), Placement((6,)), ranks, 0.0)
    assert labels.counts[labels.share.own_places(torch.arange(6))].tolist() == [0, 1, 0, 0, 2, 0]
