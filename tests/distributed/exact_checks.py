"""Losses over all labels, measured block by block, are those of all labels at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from headtail import (
    Adaptive,
    ArcFace,
    CustomSeparable,
    DecoupledLoss,
    Equalised,
    Frequency,
    Importance,
    Labels,
    LogitAdjusted,
    Pairwise,
    Relative,
    SampledDecoupledLoss,
    SampledSoftmaxLoss,
    SoftmaxLoss,
    Tail,
    Uniform,
)
from headtail.core.targets import Ragged
from headtail.core.weightings import FromMargin
from headtail.distributed import ShardedLabelHead, exact_in_blocks
from headtail.distributed.exact_in_blocks import exact_loss_in_blocks
from headtail.distributed.joint_batch import JointBatch, OwnBatch
from headtail.distributed.own_draws import every_own_label
from headtail.distributed.own_margin import own_margin
from headtail.distributed.sharded_loss import OwnRows, sharded_loss
from headtail.distributed.validation import loss_over_all
from headtail.evaluation.validation import exact_loss_of
from headtail.functional import contrastive, hinge, logistic
from headtail.losses import ExactLoss
from headtail.rows.decay import owe
from tests.device.largest import LargestTensor
from tests.distributed import batches
from tests.distributed.batches import LABELS, D, L, of_ranks

# e^900 is no float64, and e^600 · e^600 neither.
FAR = CustomSeparable(positive=torch.linspace(-2, 2, L), negative=torch.linspace(-900, 900, L))
LESS = CustomSeparable(positive=torch.linspace(2, -600, L), negative=torch.linspace(-600, 600, L))
NEVER = CustomSeparable(positive=torch.zeros(L), negative=torch.full((L,), -torch.inf))
LOSSES: dict[str, ExactLoss] = {
    "softmax": SoftmaxLoss(),
    "logit-adjusted": SoftmaxLoss(LogitAdjusted(LABELS), temperature=0.1),
    "adaptive": SoftmaxLoss(Adaptive(LABELS, 3.0)),
    "far apart": SoftmaxLoss(FAR),
    "never": SoftmaxLoss(NEVER),
    "in pairs": SoftmaxLoss(Pairwise(lambda y, other: 0.02 * (y - other) ** 2 - 0.1 * y)),
    "arcface": SoftmaxLoss(score="cosine", temperature=0.1, score_margin=ArcFace(0.3)),
    "learnt temperature": SoftmaxLoss(temperature=nn.Parameter(torch.tensor(0.3).double())),
    "logistic": DecoupledLoss(Equalised(LABELS), logistic),
    "hinge": DecoupledLoss(LESS, hinge),
    "hinge, never": DecoupledLoss(NEVER, hinge),
    "contrastive": DecoupledLoss(LogitAdjusted(LABELS), contrastive(), score="cosine"),
    "logistic, in pairs": DecoupledLoss(Pairwise(lambda y, other: 0.05 * (y - other)), logistic),
}


@contextmanager
def _scores_at_once(number: int) -> Iterator[None]:
    usual = exact_in_blocks.SCORES_AT_ONCE
    exact_in_blocks.SCORES_AT_ONCE = number
    try:
        yield
    finally:
        exact_in_blocks.SCORES_AT_ONCE = usual


def _head(labels: Labels = LABELS, dim: int = D, **options: Any) -> ShardedLabelHead:
    loss = SampledSoftmaxLoss(Uniform(labels, 8), Importance())
    return ShardedLabelHead(labels, dim, loss, **options)


def _joined(head: ShardedLabelHead, batch: batches.Batch, loss: ExactLoss) -> JointBatch:
    settings = loss.settings_with({"reduction": "sum"})
    own = OwnBatch.of(batch.hidden, batch.target, settings, head.weight, L)
    table = head.ranks.numbers(own.numbers(0, {}, given=False, ready=False), batch.hidden.device)
    return JointBatch.of(own, head.ranks, table)


@torch.no_grad()
def an_exact_loss_in_blocks_is_that_of_all_labels_at_once() -> None:
    ranks = dist.get_world_size()
    for form in (batches.ids, batches.ignoring, batches.ragged, batches.padded):
        for step, bias in ((0, True), (1, False)):
            torch.manual_seed(step)
            head = _head(bias=bias, dtype=torch.float64)
            if head.bias is not None:
                nn.init.normal_(head.bias)
            rows = OwnRows(head.weight, head.bias, head.share, sparse=False)
            part = of_ranks(form, step, ranks, torch.float64)[dist.get_rank()]
            for name, loss in LOSSES.items():
                batch = _joined(head, part, loss)
                drawn = every_own_label(head.share, L, part.hidden.device)
                expected = sharded_loss(batch, rows, drawn, FromMargin(loss.margin))
                assert expected.isfinite(), name
                for number in (1, 5 * len(batch.pairs.label), 2**24):
                    with _scores_at_once(number):
                        value = exact_loss_in_blocks(batch, rows, loss.margin)
                    message = f"{name}, {form.__name__}, {number}"
                    torch.testing.assert_close(
                        value, expected, rtol=1e-12, atol=1e-12, msg=lambda m, at=message: at + m
                    )


@torch.no_grad()
def an_exact_loss_in_blocks_sees_rows_with_their_weight_decay() -> None:
    head = _head(dtype=torch.float64)
    part = of_ranks(batches.ids, 0, dist.get_world_size(), torch.float64)[dist.get_rank()]
    decayed = _head(dtype=torch.float64)
    decayed.weight.copy_(head.weight * 0.5)
    owe(head.weight, -torch.tensor(2.0).log())
    values = []
    for table in (head, decayed):
        batch = _joined(table, part, LOSSES["softmax"])
        rows = OwnRows(table.weight, table.bias, table.share, sparse=False)
        with _scores_at_once(20):
            values.append(exact_loss_in_blocks(batch, rows, LOSSES["softmax"].margin))
    torch.testing.assert_close(*values, rtol=1e-6, atol=1e-6)


@torch.no_grad()
def a_number_that_is_not_finite_shows_in_whichever_block_it_is() -> None:
    head = _head(dtype=torch.float64)
    part = of_ranks(batches.ids, 0, dist.get_world_size(), torch.float64)[dist.get_rank()]
    target = Ragged(part.target, torch.arange(len(part.target) + 1))
    for row in (0, len(head.weight) // 2, len(head.weight) - 1):
        usual = head.weight[row].clone()
        if dist.get_rank() == 0:
            head.weight[row] = torch.nan
        with _scores_at_once(20):
            value = loss_over_all(head, LOSSES["softmax"], part.hidden, target)
        assert value.isnan()
        head.weight[row] = usual


def the_memory_of_an_exact_loss_in_blocks_does_not_grow_with_the_labels() -> None:
    largest = {}
    for number in (20_000, 80_000):
        labels = Labels.zipf(number)
        hidden = torch.randn(8, 32)
        target = Ragged(torch.arange(8), torch.arange(9))
        sampler = Uniform(labels, 8)
        losses = {
            "tail": SampledSoftmaxLoss(sampler, Tail(labels)),
            "cosine": SampledSoftmaxLoss(sampler, Importance(), score="cosine"),
            "relative": SampledDecoupledLoss(Frequency(labels, 8), Relative(), hinge),
        }
        for name, loss in losses.items():
            head = ShardedLabelHead(labels, 32, loss)
            measured = exact_loss_of(loss, own_margin(head, 8))
            loss_over_all(head, measured, hidden, target)  # tables of labels are made once
            with _scores_at_once(2**13), LargestTensor() as most:
                loss_over_all(head, measured, hidden, target)
            # The rows of a block, where they are scaled; else its numbers in float64.
            assert most.bytes <= 4 * 32 * 2**13 / 8, (name, number, most.bytes)
            assert largest.setdefault(name, most.bytes) == most.bytes
