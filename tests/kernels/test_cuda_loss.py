"""The sampled losses by Triton against float64, and against plain PyTorch in float32."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from headtail.functional import (
    contrastive,
    hinge,
    logistic,
    sampled_decoupled,
    squared_hinge,
)
from headtail.kernels.gradient import LossGradients
from headtail.losses.softmax import sampled_softmax
from tests.kernels.interpreter import DEVICE, GPU, elsewhere, in_triton, interpret

pytest.importorskip("triton")

PIECES = {None: None, 0: logistic, 1: hinge, 2: squared_hinge, 3: contrastive(0.1)}
# (b, m, d); the last two are summed in parts
SMALL = [(1, 1, 1), (3, 1, 5), (1, 37, 70), (67, 35, 17), (5, 70, 130), (130, 5, 9)]
LARGE = [(1024, 256, 512), (1000, 300, 515), (130, 2100, 1100), (2, 5000, 64)] if GPU else []


@elsewhere
def test_everything_in_this_file_by_the_interpreter():
    interpret(__file__)


class Outputs(NamedTuple):
    loss: Tensor
    grad_input: Tensor
    grad_positive: Tensor
    grad_negatives: Tensor | None
    grad_scores: Tensor


def case(
    b: int, m: int, d: int, own: bool = False, dtype: torch.dtype = torch.float32, bias: bool = True
) -> SimpleNamespace:
    """Random inputs with collisions, known positives, and examples that do not count."""
    torch.manual_seed(b + m + d)
    rows = 2 * m + 3
    drawn = (b, m) if own else (m,)
    positive = torch.randint(rows, (b,))
    negatives = torch.randint(rows, drawn)
    inputs = SimpleNamespace(
        input=torch.randn(b, d).to(dtype),
        table=(torch.randn(rows, d) * 2 / d**0.5).to(dtype),
        bias=torch.randn(rows, 1).to(dtype) if bias else None,
        positive=positive,
        negatives=negatives,
        label=positive,
        ids=negatives,
        a=torch.randn(b, dtype=torch.float64),
        b=torch.randn(drawn, dtype=torch.float64) - 3,
        known=torch.rand(b, m) < 0.2,
        scale=torch.rand(b) / b * (torch.arange(b) % 5 != 3),
    )
    for name, value in vars(inputs).items():
        setattr(inputs, name, None if value is None else value.to(DEVICE))
    return inputs


def cosines(q: SimpleNamespace) -> SimpleNamespace:
    """The same with scores as the contrastive loss knows them: rows of length 1, about 60 degrees
    apart, and no bias.

    Its slope grows with the score, so that of a score of 15 terms of size 1 the last digit alone
    may be more than is allowed here.
    """
    spread = q.table / q.table.std()
    return SimpleNamespace(
        **vars(q) | {"input": normalize(q.input + 1), "table": normalize(spread + 1), "bias": None}
    )


def kernel(q: SimpleNamespace, piece: int | None = None, **options: int) -> Outputs:
    """The outputs one by one: the kernel returns those of positives and negatives together."""
    result = whole(q, piece, **options)
    n = len(q.input)
    grad_positive = result.grad_scores[:n]
    grad_scores = result.grad_scores[n:].reshape(q.negatives.shape)
    if result.grad_rows is None:
        return Outputs(result.loss, result.grad_input, grad_positive, None, grad_scores)
    dead = (q.scale == 0).expand(n)
    expected = grad_positive[:, None] * q.input.float()
    assert torch.equal(result.grad_rows[:n][~dead], expected[~dead])
    assert not result.grad_rows[:n][dead].any()
    return Outputs(result.loss, result.grad_input, grad_positive, result.grad_rows[n:], grad_scores)


def whole(q: SimpleNamespace, piece: int | None = None, **options: int) -> LossGradients:
    from headtail.kernels.triton import loss as cuda_loss

    if piece is None:
        return cuda_loss.sampled_softmax(**vars(q), **options)
    return cuda_loss.sampled_decoupled(**vars(q), piece=piece, margin=0.1, **options)


def plain(
    q: SimpleNamespace, piece: int | None = None, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """The same by PyTorch and autograd."""
    torch.backends.cuda.matmul.allow_tf32 = False
    shared = q.negatives.dim() == 1
    x = q.input.to(dtype).clone().requires_grad_()
    rows = q.table.to(dtype)[q.negatives].requires_grad_()
    f_y = (x * q.table.to(dtype)[q.positive]).sum(1)
    scores = x @ rows.T if shared else (x[:, None] * rows).sum(2)
    drawn_bias = torch.zeros_like(q.negatives, dtype=dtype)
    if q.bias is not None:
        f_y = f_y + q.bias.to(dtype)[q.positive].flatten()
        drawn_bias = q.bias.flatten().to(dtype)[q.negatives]
    drawn_bias.requires_grad_()
    f_y.retain_grad()
    mask = torch.zeros_like(scores, dtype=torch.bool) if q.known is None else q.known
    if q.label is not None:
        mask = mask | (q.ids == q.label[:, None])
    terms = f_y, scores + drawn_bias, q.a, q.b, mask
    loss = sampled_softmax(*terms) if piece is None else sampled_decoupled(*terms, PIECES[piece])
    alive = q.scale != 0
    (loss[alive] * q.scale[alive].to(dtype)).sum().backward()
    out = {
        "loss": loss.detach(),
        "grad_input": x.grad,
        "grad_positive": f_y.grad,
        "grad_scores": drawn_bias.grad,
    }
    return out | ({"grad_negatives": rows.grad} if shared else {})


def compare(
    q: SimpleNamespace, piece: int | None = None, outputs: dict[str, Any] | None = None
) -> None:
    """Each output is as near to the truth as plain float32."""
    outputs = outputs or kernel(q, piece)._asdict()
    usual = plain(q, piece)
    truth = plain(q, piece, torch.float64)
    for name, exact in truth.items():
        error = (outputs[name] - exact).norm()
        allowed = (usual[name] - exact).norm()
        assert outputs[name].shape == exact.shape, name
        # Of a handful of numbers, plain float32 may round one exactly by luck.
        slack = 1e-7 + 4e-7 * exact.norm()
        assert error <= 1.1 * allowed + slack, (
            tuple(q.input.shape),
            piece,
            name,
            float(error),
            float(allowed),
        )
    assert ("grad_negatives" in truth) == (outputs["grad_negatives"] is not None)


@in_triton
def test_the_softmax_is_as_near_to_the_truth_as_torch():
    for shape in SMALL + LARGE:
        compare(case(*shape, bias=shape[0] != 67))


@in_triton
def test_decoupled_losses_are_as_near_to_the_truth_as_torch():
    for shape in [*SMALL[1:3], (13, 35, 17), *LARGE]:
        for piece in range(3):
            compare(case(*shape), piece)
        compare(cosines(case(*shape)), 3)


@in_triton
def test_per_example_negatives_are_as_near_to_the_truth_as_torch():
    for shape in [(1, 1, 1), (7, 35, 17), (2, 17, 270), *LARGE[1:]]:
        for piece in (None, 0):
            compare(case(*shape, own=True), piece)
        compare(cosines(case(*shape, own=True)), 3)


@in_triton
def test_shared_negatives_may_have_a_weight_for_each_pair():
    for piece in (None, 0):
        q = case(7, 19, 12)
        q.b = torch.randn(7, 19, device=DEVICE)
        compare(q, piece)


@in_triton
def test_no_draw_collides_without_labels_and_ids_need_not_be_rows():
    q = case(9, 21, 8)
    q.label = q.known = q.ids = None
    outputs = kernel(q)
    q.ids = q.negatives
    compare(q)
    q = case(9, 21, 8)
    q.label = torch.arange(9, device=DEVICE)
    q.ids = torch.arange(21, device=DEVICE) % 9
    compare(q)
    assert not torch.equal(outputs.loss, kernel(q).loss)


@in_triton
def test_one_number_for_all_is_the_same_as_a_tensor_that_repeats_it():
    for own in (False, True):
        for piece in (None, 0):
            q = case(7, 19, 12, own=own)
            q.a = torch.full((7,), 0.3, dtype=torch.float64, device=DEVICE)
            q.b = torch.full(q.negatives.shape, -2.0, dtype=torch.float64, device=DEVICE)
            q.scale = torch.full((7,), 0.1, device=DEVICE)
            tensors = whole(q, piece)
            q.a = 0.3
            q.b = -2.0
            q.scale = 0.1
            for written, number in zip(tensors, whole(q, piece), strict=True):
                assert written is number is None or torch.equal(written, number)


@in_triton
def test_tensors_that_repeat_one_number_by_stride_0_are_read_right():
    for own in (False, True):
        for piece in (None, 0):
            q = case(7, 19, 12, own=own)
            q.a, q.scale = (
                torch.tensor(v, dtype=t, device=DEVICE).expand(7)
                for v, t in ((0.3, torch.float64), (0.1, torch.float32))
            )
            if not own:
                q.b = torch.tensor(-2.0, dtype=torch.float64, device=DEVICE).expand(19)
            compare(q, piece)


@in_triton
def test_products_use_fewer_digits_where_torch_does():
    q = case(*(LARGE or SMALL)[0])
    exact = kernel(q)
    torch.set_float32_matmul_precision("high")
    fast = kernel(q)
    torch.set_float32_matmul_precision("highest")
    assert torch.allclose(fast.grad_input, exact.grad_input, rtol=1e-2, atol=1e-4)
    assert not GPU or not torch.equal(fast.loss, exact.loss)


@in_triton
def test_extreme_weights_and_scores_neither_overflow_nor_lose_digits():
    for size in (-80.0, 80.0):
        q = case(12, 33, 8)
        q.a += size
        compare(q)
        q.a -= size * 0.9
        q.b[:20] += size / 2
        compare(q, 0)
        compare(q, 2)
    q = case(12, 33, 8)
    q.input *= 30
    for piece in (None, 0):
        compare(q, piece)


@in_triton
def test_the_small_loss_of_a_sure_example_keeps_its_digits():
    for piece in (None, 0):
        q = case(6, 9, 4, bias=False)
        q.a = q.a * 0
        q.b = q.b * 0
        q.input = torch.ones_like(q.input)
        q.table = torch.full_like(q.table, -2.0)
        q.table[q.positive] = 2.0  # what is not masked has a score of −8, and the positive one of 8
        q.known[:] = q.known | (q.table[q.negatives][:, 0] > 0)
        exact = plain(q, piece, torch.float64)["loss"]
        assert exact.max() < 1e-2
        assert torch.allclose(kernel(q, piece).loss.double(), exact, rtol=1e-5, atol=0)


@in_triton
def test_infinite_weights_of_masked_draws_have_no_effect():
    for infinite in (torch.inf, -torch.inf):
        for piece in (None, 0, 1):
            q = case(6, 20, 8)
            q.known[:, 4:9] = True
            q.b[4:9] = infinite
            outputs = kernel(q, piece)
            assert all(t.isfinite().all() for t in outputs)
            compare(q, piece)
    q = case(6, 20, 8)
    q.b[:5] = -torch.inf  # a weight of 0 that is not masked
    compare(q)
    compare(q, 0)
    q.known[:] = True
    assert kernel(q).loss.eq(0).all()
    assert kernel(q).grad_input.eq(0).all()


@in_triton
def test_a_scale_of_zero_gives_zero_gradients_whatever_the_loss():
    for own in (False, True):
        for piece in (None, 0):
            for bad in (torch.nan, torch.inf):
                q = case(9, 18, 9, own=own)
                dead = q.scale == 0
                # a row that only dead examples read; label and ids are the same tensors
                last = len(q.table) - 1
                q.positive.clamp_(max=last - 1)[dead] = last
                q.negatives.clamp_(max=last - 1)
                q.input[dead] = bad
                q.a[dead] = bad
                q.table[last] = bad
                outputs = kernel(q, piece)
                assert outputs.grad_input[dead].eq(0).all()
                assert outputs.grad_positive[dead].eq(0).all()
                assert not own or outputs.grad_scores[dead].eq(0).all()
                of_examples = ["loss", "grad_input", "grad_positive", *["grad_scores"] * own]
                rest = {
                    name: value[~dead] if name in of_examples else value
                    for name, value in outputs._asdict().items()
                }
                for name in (
                    "input",
                    "positive",
                    "label",
                    "a",
                    "known",
                    "scale",
                    *["negatives", "ids", "b"] * own,
                ):
                    setattr(q, name, getattr(q, name)[~dead])
                compare(q, piece, rest)  # the others are as they would be without the dead ones


@in_triton
def test_a_batch_in_parts_gives_what_it_gives_whole():
    q = case(20, 19, 11)
    q.b = torch.randn(20, 19, device=DEVICE)
    at_once = kernel(q)
    parts = kernel(q, workspace=19 * 8)
    compare(q, outputs=parts._asdict())
    for name in Outputs._fields:
        first = getattr(at_once, name)
        assert torch.allclose(first, getattr(parts, name), rtol=1e-5, atol=1e-6), name


@in_triton
def test_bfloat16_is_summed_in_float32():
    for shape in [(1, 1, 1), (5, 35, 70), *LARGE]:
        for own, piece in ((True, None), (False, None), (False, 1)):
            if not own and not GPU:
                continue  # the interpreter cannot multiply matrices of bfloat16
            q = case(*shape, own=own, dtype=torch.bfloat16)
            outputs = kernel(q, piece)._asdict()
            truth = plain(q, piece, torch.float64)
            for name, exact in truth.items():
                # their coefficients are bfloat16 too
                allowed = 2**-8 if name in ("grad_input", "grad_negatives") else 1e-5
                assert outputs[name].dtype == torch.float32
                assert (outputs[name] - exact).norm() <= allowed * exact.norm() + 1e-6, (
                    shape,
                    own,
                    piece,
                    name,
                )


@in_triton
def test_a_bfloat16_input_works_with_a_float32_table():
    q = case(9, 21, 40, own=not GPU, dtype=torch.bfloat16)
    same = kernel(q)
    q.table = q.table.float()
    assert torch.equal(same.loss, kernel(q).loss)


@in_triton
def test_equal_inputs_give_equal_bits():
    for own in (False, True):
        for piece in (None, 0):
            q = case(*(LARGE or SMALL)[0], own=own)
            first = kernel(q, piece)
            for _ in range(5 if GPU else 1):
                assert all(
                    torch.equal(s, t)
                    for s, t in zip(first, kernel(q, piece), strict=True)
                    if s is not None
                )


@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.parametrize("own", [False, True], ids=["shared", "per example"])
@pytest.mark.parametrize("piece", [None, 0], ids=["softmax", "logistic"])
def test_a_cuda_graph_replays_it_on_new_values(own: bool, piece: int | None):
    q = case(100, 60, 33, own=own)
    whole(q, piece)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = whole(q, piece)
    before = out.loss.clone()
    q.input.copy_(torch.randn_like(q.input))
    q.negatives.copy_(q.negatives.flip(-1))
    graph.replay()
    expected = whole(q, piece)
    assert not torch.equal(out.loss, before)
    assert all(torch.equal(s, t) for s, t in zip(out, expected, strict=True) if s is not None)
