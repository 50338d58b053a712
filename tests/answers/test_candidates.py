"""Top-k among candidates: exact, whatever their form, and without reading other rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headtail import (
    HeadtailError,
    Importance,
    LabelHead,
    Labels,
    Ragged,
    RowSGD,
    SampledSoftmaxLoss,
    SoftmaxLoss,
    Uniform,
)
from headtail.data.bag import Bag
from headtail.encoders import ItemHead

LABELS = Labels.zipf(30)


def head_of(score: str = "dot", temperature: float = 0.5, dtype: torch.dtype | None = None):
    loss = SoftmaxLoss(score=score, temperature=temperature)
    head = LabelHead(LABELS, 4, loss, bias=True, dtype=dtype)
    torch.nn.init.normal_(head.bias)
    return head


def padded(lists: list[list[int]]) -> torch.Tensor:
    width = max(map(len, lists))
    return torch.tensor([row + [-1] * (width - len(row)) for row in lists])


def slowly(scores, k, candidates, exclude):
    """Sort the candidates that remain, one example at a time."""
    best = []
    for row, some, ruled_out in zip(scores.tolist(), candidates, exclude, strict=True):
        rest = sorted(set(some) - set(ruled_out), key=lambda y: -row[y])[:k]
        best.append(rest + [-1] * (k - len(rest)))
    return best


def check(head, hidden, best, k, candidates, exclude, tau=0.0):
    scores = head.logits(hidden) - tau * LABELS.prior.log().float()
    assert best.indices.tolist() == slowly(scores, k, candidates, exclude)
    missing = best.indices == -1
    assert (best.values[missing] == -torch.inf).all()
    wanted = scores.gather(1, best.indices.clamp(min=0))
    assert torch.allclose(best.values[~missing], wanted[~missing], rtol=1e-4, atol=1e-5)


EXCLUDE = [[28], [3, 3, 19, 4], list(range(30))]  # 4 and 28 are in no list of candidates


@pytest.mark.parametrize("score", ["dot", "cosine"])
@pytest.mark.parametrize("block", [1, 9, 2**24])
@pytest.mark.parametrize("tau", [0.0, 0.7])
@pytest.mark.parametrize(
    "form", [list, torch.tensor, np.array, lambda ids: torch.tensor(ids, dtype=torch.int32)]
)
def test_candidates_for_all_examples(monkeypatch, score, block, tau, form):
    monkeypatch.setattr("headtail.answers.topk.BLOCK_SCORES", block)
    head = head_of(score)
    hidden = torch.randn(3, 4)
    ids = [19, 3, 3, 0, 29, 7]
    for exclude in (None, EXCLUDE):
        best = head.topk(hidden, 4, candidates=form(ids), exclude=exclude, post_hoc=tau)
        check(head, hidden, best, 4, [ids] * 3, exclude or [[]] * 3, tau)


@pytest.mark.parametrize("score", ["dot", "cosine"])
@pytest.mark.parametrize("block", [1, 9, 2**24])
@pytest.mark.parametrize("tau", [0.0, 0.7])
@pytest.mark.parametrize("form", [list, Ragged.from_lists, padded])
def test_candidates_for_each_example(monkeypatch, score, block, tau, form):
    monkeypatch.setattr("headtail.answers.candidates.BLOCK_SCORES", block)
    head = head_of(score)
    hidden = torch.randn(3, 4)
    lists = [[], [19, 3, 3, 0, 7, 21, 2], list(range(10))]
    for exclude in (None, EXCLUDE):
        best = head.topk(hidden, 4, candidates=form(lists), exclude=exclude, post_hoc=tau)
        check(head, hidden, best, 4, lists, exclude or [[]] * 3, tau)


def test_scores_of_a_narrow_table_keep_their_digits():
    head = head_of(dtype=torch.bfloat16)
    hidden = torch.randn(2, 4).bfloat16()
    wide = head.topk(hidden, 30)
    for candidates in (range(30), [list(range(30))] * 2):
        best = head.topk(hidden, 30, candidates=list(candidates))
        assert best.values.dtype == torch.float32
        assert torch.equal(best.indices, wide.indices)
        assert torch.allclose(best.values, wide.values, rtol=1e-5, atol=1e-6)


def test_many_candidates_for_all_examples_by_a_kernel():
    labels = Labels.zipf(40_000)
    head = LabelHead(labels, 8, SoftmaxLoss(), bias=True)
    torch.nn.init.normal_(head.bias)
    ids = torch.randperm(40_000)[:20_000]
    hidden = torch.randn(3, 8)
    best = head.topk(hidden, 5, candidates=ids, exclude=ids[:100].expand(3, -1))
    scores = torch.full((3, 40_000), -torch.inf)
    scores[:, ids[100:]] = head.logits(hidden)[:, ids[100:]]
    assert torch.equal(best.indices, scores.topk(5).indices)


@pytest.mark.parametrize("candidates", [[1, 5, 6], [[1, 5], [6, 5]]])
def test_only_rows_of_candidates_are_read(candidates):
    """Their weight decay is applied; other rows are not even looked at."""
    loss = SampledSoftmaxLoss(Uniform(LABELS, 3), Importance())
    head = LabelHead(LABELS, 4, loss, bias=True, sparse=True)
    start = head.weight.detach().clone()
    optimiser = RowSGD(head.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(3):
        head(torch.zeros(1, 4), torch.tensor([0])).backward()
        optimiser.step()
        optimiser.zero_grad()
    before = head.weight.detach().clone()
    others = [label for label in range(30) if label not in (1, 5, 6)]
    with torch.no_grad():
        head.weight[others] = torch.nan
    hidden = torch.randn(2, 4)
    best = head.topk(hidden, 2, candidates=candidates)
    ids = torch.tensor([1, 5, 6])
    assert torch.allclose(head.weight[ids], start[ids] * 0.95**3, rtol=1e-5)
    assert not torch.allclose(before[others], start[others] * 0.95**3, rtol=1e-5)
    wanted = (hidden[:, None] * start[best.indices]).sum(2) * 0.95**3
    wanted = wanted + head.bias.detach()[best.indices].squeeze(2)
    assert torch.allclose(best.values, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("candidates", [[1, 4, 2, 3], [[1, 4, 2, 3]] * 2])
def test_candidates_of_a_head_that_computes_its_rows(candidates):
    items = Bag(torch.arange(6), torch.arange(5).int(), torch.ones(5), 5)
    head = ItemHead(Labels.from_counts([5, 4, 3, 2, 1]), 4, SoftmaxLoss(), items)
    hidden = torch.randn(2, 4)
    head.topk(hidden, 3)
    optimiser = torch.optim.SGD(head.parameters(), lr=5.0)
    head(hidden, torch.tensor([1, 2])).backward()
    optimiser.step()  # rows that were computed before are old now
    best = head.topk(hidden, 3, candidates=candidates)
    rows = head.rows(torch.arange(5))
    scores = (hidden @ rows.T)[:, 1:].topk(3)
    assert torch.equal(best.indices, scores.indices + 1)
    assert torch.allclose(best.values, scores.values, rtol=1e-5)


@pytest.mark.parametrize(
    "candidates",
    [[7, 2, 7], torch.tensor([2, 7]), torch.tensor([[7, 2], [2, 7]]), [[2, 7, 7], [7, 2]]],
)
def test_where_there_are_fewer_candidates_than_k_the_rest_is_empty_in_every_form(candidates):
    head = head_of()
    hidden = torch.randn(2, 4)
    best = head.topk(hidden, 3, candidates=candidates)
    two = head.topk(hidden, 2, candidates=[2, 7])
    assert torch.equal(best.indices[:, :2], two.indices)
    assert torch.allclose(best.values[:, :2], two.values)
    assert (best.indices[:, 2] == -1).all()
    assert (best.values[:, 2] == -torch.inf).all()


@pytest.mark.parametrize("candidates", [[], torch.tensor([], dtype=torch.int64), [[], []]])
def test_no_candidates_have_no_best(candidates):
    best = head_of().topk(torch.randn(2, 4), 3, candidates=candidates, exclude=[[1], []])
    assert (best.indices == -1).all()
    assert (best.values == -torch.inf).all()


def test_a_mask_of_all_labels_names_the_candidates():
    head = head_of()
    hidden = torch.randn(2, 4)
    in_stock = torch.arange(head.labels.num_labels) % 3 == 0
    masked = head.topk(hidden, 3, candidates=in_stock)
    assert torch.equal(masked.indices, head.topk(hidden, 3, candidates=range(0, 30, 3)).indices)


@pytest.mark.parametrize(
    ("candidates", "sentence"),
    [
        (
            torch.ones(7, dtype=torch.bool),
            "`candidates` must hold integer label ids, but got torch.bool. For the ids of a mask, "
            "write `candidates.nonzero().flatten()`.",
        ),
        ([True, False, True], "`candidates` must be a list of label ids for each example"),
        ([1, 2, 30], "`candidates` must hold label ids from 0 to 29, but got 30."),
        ([-1, 2, 3], "`candidates` must hold label ids from 0 to 29, but got -1."),
        ([[1, 2, 30], []], "`candidates` must hold label ids from 0 to 29, but got 30."),
        ([[1, 2, 3]], "`candidates` has 1 rows, but `hidden` 2."),
        (torch.tensor([1.0, 2.0, 3.0]), "`candidates` must hold integer label ids"),
        ("all", "`candidates` must be a list of label ids for each example"),
        (7, "`candidates` must be a list of label ids for each example"),
        (torch.ones(2, 3, 4, 5).long(), "`candidates` must be label ids of shape"),
    ],
)
def test_bad_candidates_get_a_sentence(candidates, sentence):
    with pytest.raises(HeadtailError) as error:
        head_of().topk(torch.randn(2, 4), 3, candidates=candidates)
    assert str(error.value).startswith(sentence)
