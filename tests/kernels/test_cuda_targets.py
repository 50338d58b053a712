"""Targets by Triton are those of plain PyTorch, to the last bit."""

from __future__ import annotations

import pytest
import torch

from headtail.core.targets import Pairs
from headtail.functional import sampled_softmax_loss
from headtail.kernels.dispatch import use_kernels
from headtail.losses.options import Settings
from tests.kernels.interpreter import DEVICE, GPU, elsewhere, in_triton, interpret

pytest.importorskip("triton")


@elsewhere
def test_everything_in_this_file_by_the_interpreter():
    interpret(__file__)


@in_triton
@pytest.mark.parametrize("n", [1, 7, 1024, 1025, 3000])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("ignore_index", [-100, 5])
def test_labels_that_count(n: int, share: float, ignore_index: int):
    from headtail.kernels.triton.targets import counted

    target = torch.randint(50, (n,), device=DEVICE)
    target[torch.rand(n, device=DEVICE) < share] = ignore_index
    label, skipped, weight = counted(target, ignore_index)
    with use_kernels(False):
        pairs = Pairs.of(target, ignore_index=ignore_index)
        scale = Settings().scale(pairs)
    assert torch.equal(label, pairs.label)
    assert torch.equal(skipped, pairs.ignored)
    assert torch.equal(weight, torch.as_tensor(scale, device=DEVICE).expand(n).float())


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_a_loss_takes_them():
    from headtail import Importance, Uniform

    hidden = torch.randn(40, 8, device=DEVICE)
    table = torch.randn(60, 8, device=DEVICE)
    target = torch.randint(60, (40,), device=DEVICE)
    target[::3] = -100
    draw = Uniform(60, 16).draw(target)
    ours = sampled_softmax_loss(hidden, table, target, draw, Importance())
    with use_kernels(False):
        theirs = sampled_softmax_loss(hidden, table, target, draw, Importance())
    torch.testing.assert_close(ours, theirs)
    assert Pairs.of(target).share is not None
