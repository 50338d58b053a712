"""Averages of sparse, lazily decayed tables equal those of dense ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import swa_utils

from headtail import (
    AveragedModel,
    Importance,
    LabelHead,
    Labels,
    RowSGD,
    SampledSoftmaxLoss,
    Uniform,
)

LABELS = Labels.zipf(40)
AVERAGES = {
    "mean": {},
    "moving": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.8)},
    "moving, one by one": {"avg_fn": swa_utils.get_ema_avg_fn(0.8)},
    "with buffers": {"use_buffers": True},
}


def trained(average_of, sparse: bool, **options) -> tuple[nn.Module, nn.Module]:
    """A model and its average after steps that touch few rows, with equal draws."""
    torch.manual_seed(0)
    loss = SampledSoftmaxLoss(Uniform(LABELS, 3), Importance())
    head = LabelHead(LABELS, 4, loss, bias=True, sparse=sparse)
    model = nn.Sequential(nn.Linear(4, 4), head)
    make = RowSGD if sparse else torch.optim.SGD
    optimiser = make(model.parameters(), lr=0.1, weight_decay=0.5)
    average = average_of(model, **options)
    for step in range(12):
        generator = torch.Generator().manual_seed(step)
        features = torch.randn(3, 4, generator=generator)
        target = torch.randint(40, (3,), generator=generator)
        head(model[0](features), target, generator=generator).backward()
        optimiser.step()
        optimiser.zero_grad()
        if step >= 3:
            average.update_parameters(model)
    return model, average


@pytest.mark.parametrize("options", AVERAGES.values(), ids=AVERAGES)
def test_an_average_of_a_sparse_head_is_that_of_a_dense_one(options):
    _, dense = trained(swa_utils.AveragedModel, False, **options)
    _, sparse = trained(AveragedModel, True, **options)
    for ours, truth in zip(sparse.parameters(), dense.parameters(), strict=True):
        assert torch.allclose(ours, truth, rtol=1e-4, atol=1e-6)
    hidden = torch.randn(5, 4)
    best = dense.eval().module[1].topk(hidden, 3)
    assert torch.equal(sparse.eval().module[1].topk(hidden, 3).indices, best.indices)


def test_rows_that_wait_for_their_decay_would_be_averaged_as_they_are():
    """Why there is a class for it."""
    _, dense = trained(swa_utils.AveragedModel, False)
    _, sparse = trained(swa_utils.AveragedModel, True)
    assert not torch.allclose(sparse.module[1].weight, dense.module[1].weight, rtol=1e-2)


def test_training_goes_on_as_without_an_average():
    class Nothing:
        def __init__(self, _):
            pass

        def update_parameters(self, _):
            pass

    alone, _ = trained(Nothing, True)
    averaged, _ = trained(AveragedModel, True)
    alone[1].flush()
    averaged[1].flush()
    assert torch.allclose(alone[1].weight, averaged[1].weight, rtol=1e-5)
