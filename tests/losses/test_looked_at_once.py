"""What a step on a CPU finds out with one look at its targets, and what it does not make."""

from __future__ import annotations

import math

import pytest
import torch

from headtail import Importance, LabelHead, Labels, SampledSoftmaxLoss, Uniform
from headtail.core.draw import Draw
from headtail.core.targets import Pairs

TARGET = torch.tensor([3, 0, 9])


@pytest.mark.parametrize("ignore_index", [None, -100, 5, 12])
def test_targets_all_count_where_none_is_the_ignored_one(ignore_index):
    pairs = Pairs.of(TARGET, num_labels=10, ignore_index=ignore_index)
    assert pairs.all_count
    assert pairs.label.tolist() == TARGET.tolist()


@pytest.mark.parametrize("ignored", [-100, 0, 9])
def test_a_target_that_is_ignored_is_found_at_either_end(ignored):
    target = torch.tensor([3, ignored, 4])
    pairs = Pairs.of(target, num_labels=10, ignore_index=ignored)
    assert pairs.ignored.tolist() == [False, True, False]


def test_no_targets_all_count():
    assert Pairs.of(TARGET[:0], num_labels=10).all_count


def test_log_m_of_a_draw_from_one_q_is_a_new_tensor_for_each_reader():
    draw = Uniform(10, 4).draw(TARGET)
    draw.log_m.zero_()
    assert float(draw.log_m) == math.log(4)


def test_a_draw_has_no_other_attributes():
    with pytest.raises(AttributeError, match="'Draw' object has no attribute 'log_n'"):
        _ = Uniform(10, 4).draw(TARGET).log_n  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(Uniform(10, 4).draw(TARGET), Draw)


def test_a_gradient_of_a_fused_gradient_is_refused():
    loss = SampledSoftmaxLoss(Uniform(10, 4), Importance())
    head = LabelHead(Labels.zipf(10), 3, loss, sparse=True)
    hidden = torch.randn(3, 3, requires_grad=True)
    scale = torch.ones((), requires_grad=True)
    (grad,) = torch.autograd.grad(scale * head(hidden, TARGET), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
