"""Without a process group, what needs one says so."""

from __future__ import annotations

import pytest
import torch

from headtail import HeadtailError, LabelHead, Labels, SampledSoftmaxLoss, Tail, WithinBatch
from headtail.distributed import gather, replicate

LABELS = Labels.zipf(5)
TARGET = torch.tensor([1, 2])


@pytest.mark.parametrize(
    "use",
    [
        lambda: replicate(
            LabelHead(LABELS, 3, SampledSoftmaxLoss(WithinBatch(LABELS), Tail(LABELS)))
        ),
        lambda: gather(TARGET),
        lambda: WithinBatch(LABELS, group="world").draw(TARGET),
    ],
    ids=["replicate", "gather", "WithinBatch"],
)
def test_a_missing_process_group_is_named(use):
    with pytest.raises(HeadtailError, match="There is no process group yet"):
        use()


def test_a_sampler_over_a_group_can_be_made_and_saved_before_there_is_one():
    sampler = WithinBatch(LABELS, group="world")
    assert "group='world'" in repr(sampler)
    assert sampler.for_labels(Labels.zipf(7)).ranks == sampler.ranks
    assert sampler.eval().draw(TARGET).ids.tolist() == [1, 2]
