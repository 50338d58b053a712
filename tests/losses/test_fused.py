"""The fused sampled losses against their plain twins and float64 truth."""

from __future__ import annotations

import pytest
import torch

import headtail as ht
from headtail.core.targets import Pairs
from headtail.functional import (
    contrastive,
    hinge,
    logistic,
    sampled_decoupled_loss,
    sampled_softmax_loss,
    squared_hinge,
)
from headtail.kernels.dispatch import use_kernels

LABELS = ht.Labels.zipf(37)
LOSSES = {
    "softmax": None,
    "logistic": logistic,
    "hinge": hinge,
    "squared hinge": squared_hinge,
    "contrastive": contrastive(0.1),
}
WEIGHTINGS = [ht.Constant(), ht.Importance(), ht.Relative(), ht.Tail(LABELS)]


def target_of(kind: str, generator: torch.Generator):
    ids = torch.randint(37, (29,), generator=generator)
    if kind == "ids":
        return ids
    if kind == "padded":
        return torch.stack([ids, ids.roll(1).where(ids > 4, -100)], 1)
    return torch.where(ids == ids[0], -100, ids)


def losses(
    piece,
    weighting,
    scale=1.0,
    *,
    kernels,
    dtype=torch.float32,
    bias=True,
    own=False,
    kind="ids",
    **options,
):
    """Whether a kernel ran, the loss, and the gradients of the same batch."""
    generator = torch.Generator().manual_seed(1)
    hidden = (scale * torch.randn(29, 13, generator=generator)).to(dtype).requires_grad_()
    table = torch.randn(37, 13, generator=generator).to(dtype).requires_grad_()
    column = torch.randn(37, 1, generator=generator).to(dtype).requires_grad_() if bias else None
    target = target_of(kind, generator)
    draw = ht.Frequency(LABELS, 17, 0.5, exclude_target=own).draw(target, generator=generator)
    options |= {"score": "cosine"} if piece is not None and piece.cosine else {}
    options |= (
        {"sample_weight": options["sample_weight"].to(dtype)} if "sample_weight" in options else {}
    )
    function = sampled_softmax_loss if piece is None else sampled_decoupled_loss
    extra = () if piece is None else (piece,)
    with use_kernels(kernels):
        loss = function(
            hidden, table, target, draw, weighting, *extra, bias=column, sparse=True, **options
        )
        (3 * loss).backward()
    used = "LossOfRows" in loss.grad_fn.name()
    grads = [hidden.grad, table.grad.to_dense(), *([column.grad.to_dense()] if bias else [])]
    return used, [loss.detach().double(), *(grad.double() for grad in grads)]


def compare(piece, weighting, scale=1.0, **settings):
    """The kernel errs no more than the plain code in float32."""
    by_kernel, fused = losses(piece, weighting, scale, kernels=True, **settings)
    by_plain, plain = losses(piece, weighting, scale, kernels=False, **settings)
    exactly = {"kernels": False, "dtype": torch.float64}
    _, truth = losses(piece, weighting, scale, **exactly, **settings)
    assert by_kernel
    assert not by_plain
    for ours, usual, exact in zip(fused, plain, truth, strict=True):
        # Two units in the last place: the loss is one number, which plain code may hit by luck.
        luck = 2**-22 * exact.norm()
        assert (ours - exact).norm() <= (usual - exact).norm() + luck


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("bias", [True, False])
def test_the_fused_loss_is_as_near_to_the_truth_as_the_plain_one(weighting, scale, bias):
    compare(None, weighting, scale, bias=bias)


@pytest.mark.parametrize("own", [False, True], ids=["shared", "an example's own"])
@pytest.mark.parametrize("piece", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("weighting", WEIGHTINGS[1:], ids=["importance", "relative", "tail"])
def test_every_loss_with_either_kind_of_negatives_is_as_near_to_the_truth(weighting, piece, own):
    compare(piece, weighting, own=own)


@pytest.mark.parametrize("piece", [None, contrastive()], ids=["softmax", "contrastive"])
@pytest.mark.parametrize("kind", ["ids", "padded", "ignored"])
@pytest.mark.parametrize(
    "options",
    [
        {"reduction": "sum"},
        {"sample_weight": torch.linspace(0.1, 1, 29)},
        {"collisions": "none"},
        {"known_positives": torch.tensor([[1, 2, 3]]).repeat(29, 1)},
        {"temperature": 0.3, "bias": False},
        {"score": "cosine", "temperature": 0.2, "bias": False},
    ],
    ids=["sum", "sample weights", "no collisions", "known positives", "temperature", "cosine"],
)
def test_every_option_is_as_near_to_the_truth(options, kind, piece):
    compare(piece, ht.Tail(LABELS), kind=kind, **options)


def test_a_batch_whose_draws_all_hit_their_positive_costs_nothing():
    hidden = torch.randn(3, 4, requires_grad=True)
    table = torch.randn(1, 4, requires_grad=True)
    target = Pairs.of(torch.tensor([0, 0, 0]), num_labels=1, ignore_index=None)
    loss = sampled_softmax_loss(
        hidden, table, target, ht.Uniform(1, 2).draw(target), ht.Importance(), sparse=True
    )
    loss.backward()
    assert loss == 0
    assert not hidden.grad.any()


@pytest.mark.parametrize("piece", [None, logistic], ids=["softmax", "logistic"])
def test_an_example_that_does_not_count_may_be_no_number(piece):
    hidden = torch.randn(3, 4)
    hidden[1] = torch.nan
    hidden.requires_grad_()
    table = torch.randn(9, 4, requires_grad=True)
    target = torch.tensor([0, -100, 2])
    draw = ht.Uniform(9, 5).draw(target)
    function = sampled_softmax_loss if piece is None else sampled_decoupled_loss
    loss = function(
        hidden,
        table,
        target,
        draw,
        ht.Importance(),
        *(() if piece is None else (piece,)),
        sparse=True,
    )
    loss.backward()
    assert loss.isfinite()
    assert hidden.grad[[0, 2]].isfinite().all()


def test_autocast_takes_the_plain_path():
    hidden = torch.randn(3, 4, requires_grad=True)
    table = torch.randn(5, 4, requires_grad=True)
    target = Pairs.of(torch.tensor([0, 1, 2]), num_labels=5, ignore_index=None)
    with torch.autocast("cpu", torch.bfloat16):
        loss = sampled_softmax_loss(
            hidden, table, target, ht.Uniform(5, 4).draw(target), ht.Importance(), sparse=True
        )
    loss.backward()
    assert loss.isfinite()


def test_hidden_states_that_do_not_fit_get_a_sentence():
    target = Pairs.of(torch.tensor([0, 1, 2]), num_labels=5, ignore_index=None)
    draw = ht.Uniform(5, 4).draw(target)
    with pytest.raises(ht.HeadtailError, match="`input` must have shape"):
        sampled_softmax_loss(
            torch.randn(2, 4), torch.randn(5, 4), target, draw, ht.Importance(), sparse=True
        )
