"""Losses in one autograd node, differentiated more than once."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from headtail import Frequency, LabelHead, Labels, RowAdagrad, SampledSoftmaxLoss, Tail
from headtail.functional import (
    contrastive,
    hinge,
    logistic,
    sampled_decoupled_loss,
    sampled_softmax_loss,
)

LABELS = Labels.zipf(37)
PIECES = {"softmax": None, "logistic": logistic, "hinge": hinge, "contrastive": contrastive()}
KINDS = {"shared": False, "per example": True}


def a_loss(piece, own, *, sparse, dtype=torch.float32):
    """A loss of leaves, behind a step of an encoder, and the leaves: the kernel's with `sparse`,
    else the plain one.
    """
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(9, 8, generator=generator).to(dtype).requires_grad_()
    table = torch.randn(37, 8, generator=generator).to(dtype).requires_grad_()
    column = torch.randn(37, 1, generator=generator).to(dtype).requires_grad_()
    target = torch.randint(37, (9,), generator=generator)
    draw = Frequency(LABELS, 12, 0.5, exclude_target=own).draw(target, generator=generator)
    hidden = features * 1.5
    options = {"bias": column, "sparse": sparse}
    if piece is None:
        loss = sampled_softmax_loss(hidden, table, target, draw, Tail(LABELS), **options)
    else:
        score = "cosine" if piece.cosine else "dot"
        loss = sampled_decoupled_loss(
            hidden, table, target, draw, Tail(LABELS), piece, score=score, **options
        )
    return loss, (hidden, features, table, column)


def dense(grad):
    return grad.to_dense() if grad.is_sparse else grad


def close(grad, truth):
    return torch.allclose(dense(grad).double(), dense(truth).double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("own", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
def test_gradients_asked_for_twice_are_the_plain_path_s_both_times(piece, own):
    plain, leaves = a_loss(piece, own, sparse=False)
    truth = torch.autograd.grad(plain, leaves)
    loss, leaves = a_loss(piece, own, sparse=True)
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    for grad, exact in zip(first, truth, strict=True):
        assert close(grad, exact)
        (grad._values() if grad.is_sparse else grad).mul_(7.0)  # what was handed out may be changed
    loss.backward()
    for leaf, exact in zip(leaves[1:], truth[1:], strict=True):
        assert close(leaf.grad, exact)


@pytest.mark.parametrize("own", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
@pytest.mark.parametrize("wanted", [0, 1, 2, 3], ids=["hidden", "features", "table", "bias"])
def test_one_gradient_may_be_asked_for_before_backward(wanted, piece, own):
    plain, leaves = a_loss(piece, own, sparse=False)
    truth = torch.autograd.grad(plain, leaves)
    loss, leaves = a_loss(piece, own, sparse=True)
    (grad,) = torch.autograd.grad(loss, leaves[wanted], retain_graph=True)
    assert close(grad, truth[wanted])
    assert all(leaf.grad is None for leaf in leaves[1:])
    loss.backward()
    for leaf, exact in zip(leaves[1:], truth[1:], strict=True):
        assert close(leaf.grad, exact)


@pytest.mark.parametrize("own", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
def test_backward_calls_on_a_kept_graph_add_up(piece, own):
    plain, leaves = a_loss(piece, own, sparse=False)
    truth = torch.autograd.grad(plain, leaves[1:])
    loss, (_, *leaves) = a_loss(piece, own, sparse=True)
    loss.backward(retain_graph=True)
    (2 * loss).backward(retain_graph=True)
    loss.backward()
    for leaf, exact in zip(leaves, truth, strict=True):
        assert close(leaf.grad, 4 * dense(exact))


def test_a_gradient_that_was_clipped_leaves_the_kept_graph_as_it_was():
    loss, (_, features, table, column) = a_loss(None, False, sparse=True)
    loss.backward(retain_graph=True)
    first = [dense(leaf.grad).clone() for leaf in (features, table, column)]
    for leaf in (features, table, column):
        (leaf.grad._values() if leaf.grad.is_sparse else leaf.grad).zero_()
        leaf.grad = None
    loss.backward()
    for leaf, exact in zip((features, table, column), first, strict=True):
        assert torch.equal(dense(leaf.grad), exact)


def test_a_graph_that_was_not_kept_refuses_a_second_backward():
    loss, _ = a_loss(None, False, sparse=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def saved_by(loss):
    """What the node of a loss holds."""
    return [weakref.ref(tensor) for tensor in loss.grad_fn.saved_tensors if tensor is not None]


def test_a_loss_that_is_kept_holds_no_gradients_after_backward():
    loss, leaves = a_loss(None, False, sparse=True)
    loss.backward(retain_graph=True)
    assert len(saved_by(loss)) >= 5, "inputs, places and gradients"
    loss.backward()
    with pytest.raises(RuntimeError, match="have already been freed"):
        saved_by(loss)
    held = [value for value in gc.get_referents(loss.grad_fn) if isinstance(value, torch.Tensor)]
    inside = [
        t
        for value in vars(loss.grad_fn).values()
        for t in (value if isinstance(value, tuple) else (value,))
    ]
    tables = {id(leaf) for leaf in leaves}
    assert all(id(t) in tables for t in (*held, *inside) if isinstance(t, torch.Tensor))


def test_a_gradient_on_the_side_changes_no_table_inside_backward():
    hidden = torch.randn(6, 8, requires_grad=True)
    target = torch.tensor([0, 3, 3, 7, 30, 36])
    head = LabelHead(
        LABELS, 8, SampledSoftmaxLoss(Frequency(LABELS, 12), Tail(LABELS)), bias=True, sparse=True
    )
    twin = LabelHead(LABELS, 8, head.loss, bias=True, sparse=True)
    twin.load_state_dict(head.state_dict())
    before = head.weight.detach().clone()
    draw = head.loss.draw_ahead(target)
    optimiser = RowAdagrad(head.parameters(), lr=0.1).inside_backward()
    after = RowAdagrad(twin.parameters(), lr=0.1)
    loss = head(hidden, target, draw=draw)
    side, of_table = torch.autograd.grad(loss, [hidden, head.weight], retain_graph=True)
    assert torch.equal(head.weight, before), "nothing was asked to change"
    loss.backward()
    optimiser.step()
    other = twin(hidden, target, draw=draw)
    assert torch.equal(side, torch.autograd.grad(other, hidden, retain_graph=True)[0])
    other.backward()
    assert torch.equal(of_table.to_dense(), twin.weight.grad.to_dense())
    after.step()
    assert not torch.equal(head.weight, before)
    assert torch.allclose(head.weight, twin.weight, atol=1e-6)
    assert torch.allclose(head.bias, twin.bias, atol=1e-6)
