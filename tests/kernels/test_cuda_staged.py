"""The stages of ranks together are the loss of one process, in plain PyTorch and by Triton."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from headtail.kernels.gradient import LossGradients
from headtail.losses import staged
from headtail.losses.softmax import sampled_softmax
from headtail.losses.staged import Room, Scored
from tests.kernels.interpreter import DEVICE, HERE, elsewhere, in_triton, interpret

# (p, m, d)
SIZES = [(1, 1, 1), (3, 4, 5), (67, 35, 17), (5, 70, 130), (130, 5, 9)]
LABELS = 40


@elsewhere
def test_everything_in_this_file_by_the_interpreter():
    pytest.importorskip("triton")
    interpret(__file__)


class Case:
    """Labels 0 to 39, spread over ranks in equal runs; draws of each rank, collisions included."""

    def __init__(self, p: int, m: int, d: int, ranks: int, bias: bool, dtype: torch.dtype) -> None:
        torch.manual_seed(p + m + d)
        self.ranks = ranks
        self.run = LABELS // ranks
        like: dict[str, Any] = {"device": DEVICE, "dtype": dtype}
        self.input = torch.randn(p, d).to(**like)
        self.table = (torch.randn(LABELS, d) * 2 / d**0.5).to(**like)
        self.bias = torch.randn(LABELS, 1).to(**like) if bias else None
        self.label = torch.randint(LABELS, (p,)).to(DEVICE)
        self.ids = [(torch.randint(self.run, (m,)) + r * self.run).to(DEVICE) for r in range(ranks)]
        self.a = torch.randn(p, dtype=torch.float64).to(DEVICE)
        self.b = [(torch.randn(m, dtype=torch.float64) - 3).to(DEVICE) for _ in range(ranks)]
        self.b[-1][: m // 3] = -torch.inf  # places without a draw
        scale = torch.rand(p, dtype=torch.float64) / p * (torch.arange(p) % 5 != 3)
        self.scale = scale.to(device=DEVICE, dtype=torch.promote_types(dtype, torch.float32))

    def by_ranks(self, stages: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Loss, and gradients of inputs, table and biases, as ranks compute them together."""
        scored = []
        terms = []
        for rank in range(self.ranks):
            own = slice(rank * self.run, (rank + 1) * self.run)
            places = self.label - own.start
            held = (places >= 0) & (places < self.run)
            bias = None if self.bias is None else self.bias[own].contiguous()
            positive = torch.where(held, places, -1)
            drawn = self.ids[rank] - own.start
            one = Scored(self.input, self.table[own].contiguous(), bias, positive, drawn)
            a = self.a.masked_fill(~held, torch.nan)  # what a rank need not know
            scored.append(one)
            terms.append(stages.own_terms(one, self.label, self.ids[rank], a, self.b[rank]))
        highest = torch.stack([own.highest for own in terms]).amax(0)
        for own in terms:
            own.highest.copy_(highest)
            stages.sum_terms(own)
        known = torch.stack([own.known for own in terms]).sum(0)
        results: list[LossGradients] = []
        for one, own in zip(scored, terms, strict=True):
            own.known.copy_(known)
            room = self._room(one)
            results.append(stages.own_gradients(one, own, self.scale, room))
            if stages is not staged and self.input.dtype == torch.float32:
                assert results[-1].total is room.total
                assert results[-1].grad_input is room.grad_input
                assert results[-1].grad_rows is room.grad_rows
        assert all(torch.equal(result.loss, results[0].loss) for result in results)
        return results[0].total, *self._gathered(scored, results)

    def highest_exponent(self) -> float:
        """How large a number is rounded before e is raised to its power."""
        scores = self.input.double() @ self.table.double().T
        added = torch.cat([self.a, *self.b])
        added = added[added.isfinite()].abs().max()
        return float(scores.abs().max() + added)

    def _room(self, one: Scored) -> Room:
        """Tensors for results, in which nothing may be left as it is."""
        shapes = (), self.input.shape, (len(one.positive) + len(one.negatives), len(self.input[0]))
        like: dict[str, Any] = {"device": DEVICE, "dtype": self.input.dtype}
        return Room(*(torch.full(shape, torch.nan, **like) for shape in shapes))

    def _gathered(
        self, scored: list[Scored], results: list[LossGradients]
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide = results[0].grad_input.dtype
        of_table = torch.zeros(self.table.shape, dtype=wide, device=DEVICE)
        of_bias = torch.zeros(LABELS, dtype=wide, device=DEVICE)
        for rank, (one, result) in enumerate(zip(scored, results, strict=True)):
            rows = torch.cat([one.positive, one.negatives])
            there = rows >= 0
            outside = result.grad_rows[~there], result.grad_scores[~there]
            assert not any(bool(values.any()) for values in outside)
            rows = rows[there] + rank * self.run
            of_table.index_add_(0, rows, result.grad_rows[there])
            of_bias.index_add_(0, rows, result.grad_scores[there])
        return torch.stack([result.grad_input for result in results]).sum(0), of_table, of_bias

    def by_one(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same by autograd in float64."""
        input = self.input.double().requires_grad_()
        table = self.table.double().requires_grad_()
        bias = torch.zeros(LABELS, 1, device=DEVICE, dtype=torch.float64).requires_grad_()
        scores = input @ table.T + bias[:, 0]
        if self.bias is not None:
            scores = scores + self.bias[:, 0].double()
        ids = torch.cat(self.ids)
        f_y = scores.gather(1, self.label[:, None])[:, 0]
        b = torch.cat(self.b)
        mask = self.label[:, None] == ids
        loss = sampled_softmax(f_y, scores[:, ids], self.a, b, mask)
        total = (loss * self.scale.double()).sum()
        return total.detach(), *_detached(torch.autograd.grad(total, [input, table, bias]))


def _detached(grads: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    of_input, of_table, of_bias = grads
    return of_input, of_table, of_bias[:, 0]


@pytest.mark.skipif(HERE, reason="plain PyTorch is tested without the interpreter")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("size", SIZES)
def test_plain_stages_of_ranks_are_the_loss_of_one_process(
    size: tuple[int, int, int], ranks: int, bias: bool
):
    case = Case(*size, ranks, bias, torch.float64)
    for ours, truth in zip(case.by_ranks(staged), case.by_one(), strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-12, atol=1e-13)


@in_triton
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("size", SIZES)
def test_kernels_err_no_more_than_plain_stages(size: tuple[int, int, int], ranks: int, bias: bool):
    from headtail.kernels.triton import staged as kernels

    case = Case(*size, ranks, bias, torch.float32)
    truth = case.by_one()
    for ours, plain, right in zip(
        case.by_ranks(kernels), case.by_ranks(staged), truth, strict=True
    ):
        error = (ours - right).abs().max()
        # e^t is relatively as wrong as t is absolutely, and t is rounded three times, as a score, a
        # term and a gap. A single one has no others whose errors are smaller or cancel.
        rounding = 3 * 2**-24 * case.highest_exponent() if size == (1, 1, 1) else 3e-7
        allowed = 2 * (plain - right).abs().max() + rounding * right.abs().max()
        assert error <= allowed, f"{error:.3g} > {allowed:.3g}"


@in_triton
def test_a_scalar_weight_is_that_weight_for_all():
    from headtail.kernels.triton import staged as kernels

    case = Case(7, 5, 6, 1, True, torch.float32)
    one = Scored(case.input, case.table, case.bias, case.label, case.ids[0])
    numbers = kernels.own_terms(one, None, case.ids[0], 0.5, -1.25)
    a = torch.full_like(case.a, 0.5)
    b = torch.full_like(case.b[0], -1.25)
    written_out = kernels.own_terms(one, None, case.ids[0], a, b)
    for ours, theirs in zip(numbers[1:], written_out[1:], strict=True):
        torch.testing.assert_close(ours[:2], theirs[:2])
