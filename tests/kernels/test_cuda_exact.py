"""The exact losses by Triton are those of plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from headtail import CustomSeparable, Labels, LogitAdjusted
from headtail.core.targets import Ragged
from headtail.functional import (
    contrastive,
    decoupled_loss,
    hinge,
    logistic,
    softmax_loss,
    squared_hinge,
)
from headtail.kernels.dispatch import use_kernels
from headtail.losses import chunked, decoupled, tiles
from headtail.losses.whole_scores import aligned_product
from tests.kernels.interpreter import DEVICE, elsewhere, in_triton, interpret

pytest.importorskip("triton")
B = 9
D = 6


@elsewhere
def test_everything_in_this_file_by_the_interpreter():
    interpret(__file__)


@in_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [1, 100, 4096, 9001])
@pytest.mark.parametrize("with_offset", [False, True])
def test_sums_and_exponentials(dtype: torch.dtype, columns: int, with_offset: bool):
    from headtail.kernels.triton.exact import exponentials_, sums

    scores = (30 * torch.randn(5, columns, device=DEVICE)).to(dtype)
    scores[2] = -torch.inf  # a row without any label
    scores[3, 0] = -torch.inf
    offset = torch.randn(columns, device=DEVICE) if with_offset else None
    g = scores.double() if offset is None else scores.double() + offset.double()
    largest, total = sums(scores, offset)
    exact = g.amax(1)
    assert torch.equal(largest.double(), exact.clamp(min=torch.finfo(torch.float32).min).float())
    there = exact > -torch.inf
    right = (g - largest.double()[:, None]).exp2()
    torch.testing.assert_close(total[there].double(), right.sum(1)[there], rtol=1e-5, atol=0)
    assert total[2] == 0
    exponentials_(scores, offset, largest)
    digits = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(scores.double(), right, rtol=digits, atol=1e-30)


def without_kernels(
    gradients: Callable[[torch.dtype], list[torch.Tensor]],
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Gradients by plain PyTorch in this type and in float64; kernels may compute what follows."""
    device = torch.device(DEVICE).type
    monkeypatch.setattr(chunked, "FEWEST_SCORES", {device: 2**62})
    found = gradients(dtype), gradients(torch.float64)
    monkeypatch.setattr(chunked, "FEWEST_SCORES", {device: 0})
    return found


def check_errors(
    mine: list[torch.Tensor], plain: list[torch.Tensor], right: list[torch.Tensor], dtype
) -> None:
    """Err no more than twice as much as plain PyTorch, and twice the last digit."""
    digits = torch.finfo(dtype).eps
    for one, theirs, true in zip(mine, plain, right, strict=True):
        assert (one - true).norm() <= 2 * (theirs - true).norm() + 2 * digits * true.norm()


@in_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("adjusted", [False, True])
@pytest.mark.parametrize("chunk_bytes", [2**31, 4 * 5000 * 4])
def test_losses_err_no_more_than_plain_ones(
    dtype: torch.dtype, adjusted: bool, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
):
    from headtail.kernels.triton import exact

    labels = Labels.zipf(5000)
    margin = LogitAdjusted(labels) if adjusted else None
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(B, D, generator=generator)
    table = torch.randn(5000, D, generator=generator)
    bias = torch.randn(5000, generator=generator)
    target = torch.randint(5000, (B,), generator=generator).to(DEVICE)
    target[3] = -100

    def gradients(kind: torch.dtype) -> list[torch.Tensor]:
        leaves = [t.clone().to(DEVICE, kind).requires_grad_() for t in (hidden, table, bias)]
        loss = softmax_loss(leaves[0], leaves[1], target, margin, bias=leaves[2])
        (2 * loss).backward()
        return [loss.detach().double(), *(leaf.grad.double() for leaf in leaves)]

    device = torch.device(DEVICE).type
    plain, right = without_kernels(gradients, dtype, monkeypatch)
    monkeypatch.setattr(chunked, "CHUNK_BYTES", {device: chunk_bytes})
    monkeypatch.setattr(chunked, "FEWEST_IN_CHUNKS", {device: 0})
    for module in (chunked, tiles):
        monkeypatch.setattr(module, "exact_kernels", lambda *_: exact)
    check_errors(gradients(dtype), plain, right, dtype)


@in_triton
def test_a_kept_graph_gives_the_same_gradient_twice(monkeypatch: pytest.MonkeyPatch):
    from headtail.kernels.triton import exact

    device = torch.device(DEVICE).type
    monkeypatch.setattr(chunked, "FEWEST_SCORES", {device: 0})
    monkeypatch.setattr(chunked, "exact_kernels", lambda *_: exact)
    hidden = torch.randn(B, D, device=DEVICE, requires_grad=True)
    table = torch.randn(50, D, device=DEVICE)
    loss = softmax_loss(hidden, table, torch.arange(B, device=DEVICE))
    assert "WholeScores" in loss.grad_fn.name()
    loss.backward(retain_graph=True)
    first = hidden.grad.clone()
    hidden.grad = None
    loss.backward()
    assert torch.equal(hidden.grad, first)


@in_triton
def test_rows_that_do_not_count_may_hold_anything(monkeypatch: pytest.MonkeyPatch):
    from headtail.kernels.triton import exact

    device = torch.device(DEVICE).type
    monkeypatch.setattr(chunked, "FEWEST_SCORES", {device: 0})
    monkeypatch.setattr(chunked, "exact_kernels", lambda *_: exact)
    hidden = torch.randn(3, D, device=DEVICE)
    hidden[1] = torch.inf
    hidden.requires_grad_()
    table = torch.randn(50, D, device=DEVICE)
    loss = softmax_loss(hidden, table, torch.tensor([4, -100, 5], device=DEVICE))
    loss.backward()
    assert loss.isfinite()
    assert torch.equal(hidden.grad[1], torch.zeros(D, device=DEVICE))


@pytest.mark.parametrize("columns", [60, 64, 130])
def test_rows_of_scores_begin_at_multiples(columns: int):
    hidden = torch.randn(B, D, device=DEVICE)
    table = torch.randn(columns, D, device=DEVICE)
    scores = aligned_product(hidden, table)
    assert scores.stride() == ({60: 60, 64: 64, 130: 192}[columns], 1)
    torch.testing.assert_close(scores, hidden @ table.T)


@in_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("piece", [logistic, hinge, squared_hinge, contrastive(0.1)])
@pytest.mark.parametrize("margin", ["unit", "adjusted", "without positives"])
def test_decoupled_losses_err_no_more_than_plain_ones(
    dtype: torch.dtype, piece, margin: str, monkeypatch: pytest.MonkeyPatch
):
    from headtail.kernels.triton import exact, exact_decoupled

    size = 5000
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(B, D, generator=generator)
    table = torch.randn(size, D, generator=generator)
    bias = torch.randn(size, generator=generator)
    target = torch.randint(size, (B,), generator=generator).to(DEVICE)
    target[3] = -100
    negative = torch.randn(size, generator=generator)
    negative[target[0]] = -torch.inf
    margins = {
        "unit": None,
        "adjusted": LogitAdjusted(Labels.zipf(size)),
        "without positives": CustomSeparable(torch.zeros(size), negative),
    }

    def gradients(kind: torch.dtype) -> list[torch.Tensor]:
        leaves = [t.clone().to(DEVICE, kind).requires_grad_() for t in (hidden, table, bias)]
        options = {"score": "cosine"} if piece.cosine else {"temperature": 2.0}
        loss = decoupled_loss(
            leaves[0], leaves[1], target, margins[margin], piece, bias=leaves[2], **options
        )
        (2 * loss).backward()
        return [loss.detach().double(), *(leaf.grad.double() for leaf in leaves)]

    plain, right = without_kernels(gradients, dtype, monkeypatch)
    monkeypatch.setattr(chunked, "exact_kernels", lambda *_: exact)
    monkeypatch.setattr(decoupled, "exact_decoupled_kernels", lambda *_: exact_decoupled)
    monkeypatch.setattr(decoupled, "exact_terms", None)  # the kernels did it
    check_errors(gradients(dtype), plain, right, dtype)


@in_triton
def test_a_positive_s_own_weight_may_be_infinite():
    from headtail.kernels.triton.exact_decoupled import decoupled, decoupled_gradient_

    scores = torch.randn(2, 50, device=DEVICE)
    label = torch.tensor([7, 49], device=DEVICE)
    b = torch.zeros(50, device=DEVICE)
    b[7] = 1000.0
    given = {"a": None, "b": b, "piece": 0, "margin": 0.0}
    scale = torch.tensor([1.0, 0.0], device=DEVICE)
    f = scores.double()
    loss, kept = decoupled(scores, None, label, scale, **given)
    others = torch.arange(50, device=DEVICE) != 7
    right = F.softplus(-f[0, 7]) + F.softplus(f[0])[others].sum()
    torch.testing.assert_close(loss, torch.stack([right, right.new_zeros(())]).float())
    decoupled_gradient_(scores, None, label, scale, kept, torch.ones((), device=DEVICE), **given)
    slopes = f[0].sigmoid()
    slopes[7] -= 1
    torch.testing.assert_close(scores[0], slopes.float())
    assert not scores[1].any()


@pytest.fixture
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    from headtail.kernels.triton import exact, exact_decoupled

    monkeypatch.setattr(chunked, "FEWEST_SCORES", {torch.device(DEVICE).type: 0})
    monkeypatch.setattr(chunked, "exact_kernels", lambda *_: exact)
    monkeypatch.setattr(decoupled, "exact_decoupled_kernels", lambda *_: exact_decoupled)


LOSSES = {"softmax": softmax_loss, "logistic": decoupled_loss}
SIZE = 70


def by_passes(loss: torch.Tensor) -> bool:
    """Whether a loss comes from `WholeScores`."""
    nodes = [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        if "WholeScores" in node.name():
            return True
        nodes += [after for after, _ in node.next_functions if after is not None]
    return False


@in_triton
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.usefixtures("by_kernels")
def test_labels_and_biases_may_be_columns_of_tables(name: str):
    hidden = torch.randn(B, D, device=DEVICE, requires_grad=True)
    weight = torch.randn(SIZE, D + 1, device=DEVICE, requires_grad=True)
    targets = torch.randint(SIZE, (B, 2), device=DEVICE)
    found = []
    for bias, target in (
        (weight[:, D], targets[:, 1]),
        (weight[:, D].contiguous(), targets[:, 1].contiguous()),
    ):
        loss = LOSSES[name](hidden, weight[:, :D], target, bias=bias, ignore_index=None)
        assert by_passes(loss)
        found.append([loss, *torch.autograd.grad(loss, (hidden, weight))])
    for by_column, alone in zip(*found, strict=True):
        assert torch.equal(by_column, alone)


@in_triton
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.usefixtures("by_kernels")
def test_a_backward_pass_inside_autocast_is_that_outside(name: str):
    leaves = [torch.randn(n, D, device=DEVICE, requires_grad=True) for n in (B, SIZE)]
    target = torch.randint(SIZE, (B,), device=DEVICE)
    outside = torch.autograd.grad(LOSSES[name](*leaves, target), leaves)
    loss = LOSSES[name](*leaves, target)
    with torch.autocast(torch.device(DEVICE).type, dtype=torch.bfloat16):
        inside = torch.autograd.grad(loss, leaves)
    for one, other in zip(inside, outside, strict=True):
        assert torch.equal(one, other)


@in_triton
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.usefixtures("by_kernels")
def test_weights_of_examples_count_as_they_do_without_kernels(name: str):
    hidden = torch.randn(B, D, device=DEVICE, dtype=torch.float64)
    table = torch.randn(SIZE, D, device=DEVICE, dtype=torch.float64)
    target = torch.randint(SIZE, (B,), device=DEVICE)
    weight = torch.rand(B, device=DEVICE, dtype=torch.float64)
    right = LOSSES[name](hidden, table, target, sample_weight=weight)
    leaf = hidden.float().requires_grad_()
    mine = LOSSES[name](leaf, table.float(), target, sample_weight=weight.float())
    assert by_passes(mine)
    assert mine.item() == pytest.approx(right.item(), rel=1e-5)


UNSUITED = {
    "a loss per example": {"reduction": "none"},
    "weights that learn": {"sample_weight": torch.ones(B, device=DEVICE, requires_grad=True)},
    "several labels each": {"target": Ragged.from_lists([[1, 2]] * B)},
    "every draw counts": {"collisions": "none"},
}


@in_triton
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("options", UNSUITED.values(), ids=UNSUITED)
@pytest.mark.usefixtures("by_kernels")
def test_losses_that_two_passes_cannot_compute_are_computed_as_before(name: str, options: dict):
    hidden = torch.randn(B, D, device=DEVICE, requires_grad=True)
    table = torch.randn(SIZE, D, device=DEVICE)
    target = options.get("target", torch.randint(SIZE, (B,), device=DEVICE))
    if isinstance(target, Ragged):
        target = Ragged(target.values.to(DEVICE), target.offsets.to(DEVICE))
    others = {key: value for key, value in options.items() if key != "target"}
    loss = LOSSES[name](hidden, table, target, **others)
    assert not by_passes(loss)
    with use_kernels("off"):
        right = LOSSES[name](hidden, table, target, **others)
    torch.testing.assert_close(loss, right)


@in_triton
@pytest.mark.usefixtures("by_kernels")
def test_a_margin_that_learns_has_a_gradient():
    class Learning(CustomSeparable):
        def log_negative(self, ids):
            return log_rho[ids]

    log_rho = torch.zeros(SIZE, device=DEVICE, requires_grad=True)
    margin = Learning(torch.zeros(SIZE), torch.zeros(SIZE))
    hidden = torch.randn(B, D, device=DEVICE)
    target = torch.randint(SIZE, (B,), device=DEVICE)
    decoupled_loss(hidden, torch.randn(SIZE, D, device=DEVICE), target, margin).backward()
    assert log_rho.grad is not None
    assert log_rho.grad.any()
