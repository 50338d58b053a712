"""The fused sampled softmax against its plain twin and float64 truth."""

from __future__ import annotations

import pytest
import torch

import headtail as ht
from headtail.losses import fused
from headtail.targets import Pairs

LABELS = ht.Labels.zipf(37)


def losses(weighting, scale, *, plain, dtype=torch.float32, bias=True, monkeypatch):
    """Loss and gradients of the same batch, by either path."""
    generator = torch.Generator().manual_seed(1)
    hidden = (scale * torch.randn(29, 13, generator=generator)).to(dtype).requires_grad_()
    table = torch.randn(37, 13, generator=generator).to(dtype).requires_grad_()
    column = torch.randn(37, 1, generator=generator).to(dtype).requires_grad_() if bias else None
    target = Pairs.of(torch.randint(37, (29,), generator=generator), num_labels=37, ignore_index=None)
    draw = ht.Frequency(LABELS, 17, 0.5).draw(target, generator=generator)
    used = []
    spied = fused.softmax_of_rows
    monkeypatch.setattr(fused, "softmax_of_rows", lambda *a: used.append(1) or spied(*a))
    if plain:
        monkeypatch.setattr(fused, "fits", lambda *_: False)
    loss = ht.sampled_softmax_loss(hidden, table, target, draw, weighting, bias=column, sparse=True)
    (3 * loss).backward()
    monkeypatch.undo()
    grads = [hidden.grad, table.grad.to_dense(), *([column.grad.to_dense()] if bias else [])]
    return bool(used), loss.detach().double(), [grad.double() for grad in grads]


@pytest.mark.parametrize("weighting", [ht.Constant(), ht.Importance(), ht.Relative(), ht.Tail(LABELS)])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("bias", [True, False])
def test_the_fused_loss_is_as_near_to_the_truth_as_the_plain_one(weighting, scale, bias, monkeypatch):
    ran, loss, grads = losses(weighting, scale, plain=False, bias=bias, monkeypatch=monkeypatch)
    skipped, plain_loss, plain_grads = losses(weighting, scale, plain=True, bias=bias, monkeypatch=monkeypatch)
    _, truth, true_grads = losses(weighting, scale, plain=True, dtype=torch.float64, bias=bias, monkeypatch=monkeypatch)
    assert (ran, skipped) == (True, False)
    for one, other, exact in zip([loss, *grads], [plain_loss, *plain_grads], [truth, *true_grads], strict=True):
        allowed = 3 * (other - exact).norm() + 1e-6 * exact.norm()
        assert (one - exact).norm() <= allowed


def test_a_batch_whose_draws_all_hit_their_positive_costs_nothing():
    hidden, table = torch.randn(3, 4, requires_grad=True), torch.randn(1, 4, requires_grad=True)
    target = Pairs.of(torch.tensor([0, 0, 0]), num_labels=1, ignore_index=None)
    loss = ht.sampled_softmax_loss(hidden, table, target, ht.Uniform(1, 2).draw(target), ht.Importance(), sparse=True)
    loss.backward()
    assert loss == 0
    assert not hidden.grad.any()


def test_autocast_takes_the_plain_path():
    hidden, table = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    target = Pairs.of(torch.tensor([0, 1, 2]), num_labels=5, ignore_index=None)
    with torch.autocast("cpu", torch.bfloat16):
        loss = ht.sampled_softmax_loss(hidden, table, target, ht.Uniform(5, 4).draw(target), ht.Importance(), sparse=True)
    loss.backward()
    assert loss.isfinite()


def test_hidden_states_that_do_not_fit_get_a_sentence():
    target = Pairs.of(torch.tensor([0, 1, 2]), num_labels=5, ignore_index=None)
    draw = ht.Uniform(5, 4).draw(target)
    with pytest.raises(ht.HeadtailError, match="`input` must have shape"):
        ht.sampled_softmax_loss(torch.randn(2, 4), torch.randn(5, 4), target, draw, ht.Importance(), sparse=True)
