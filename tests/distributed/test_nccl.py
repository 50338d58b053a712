"""One rank on a GPU, with NCCL: its messages, which NCCL makes copies of for a single rank, are
captured with the step, or sent between its parts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from headtail import (
    Frequency,
    Importance,
    LabelHead,
    Labels,
    RowAdagrad,
    RowAdam,
    RowSGD,
    SampledSoftmaxLoss,
    Tail,
    Uniform,
    WithinBatch,
)
from headtail.distributed import ShardedLabelHead, count_labels
from headtail.losses import Loss
from tests.distributed.counted import collectives

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
L, D, B = 5000, 64, 128
LABELS = Labels.zipf(L)
LOSSES = {
    "uniform": lambda: SampledSoftmaxLoss(Uniform(LABELS, 64), Importance()),
    "frequency": lambda: SampledSoftmaxLoss(Frequency(LABELS, 64, 0.5), Tail(LABELS)),
    "within-batch": lambda: SampledSoftmaxLoss(WithinBatch(LABELS), Tail(LABELS)),
}
OPTIMISERS = {
    "sgd": lambda p: RowSGD(p, lr=0.1, weight_decay=0.01),
    "adagrad": lambda p: RowAdagrad(p, lr=0.1, per_row=True),
    # With torch's `eps`, rounding decides the direction of entries that cancel to nearly nothing.
    "adam": lambda p: RowAdam(p, lr=0.01, eps=1e-3),
}


@pytest.fixture(scope="module", autouse=True)
def one_rank() -> Iterator[None]:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _trained(head: ShardedLabelHead | LabelHead, name: str, steps: int = 12) -> list[Tensor]:
    """Losses, gradients of hidden states and tables."""
    optimizer = OPTIMISERS[name](head.parameters())
    kept = []
    for step in range(steps):
        torch.manual_seed(step)
        size = B if step != 7 else B - 9  # the others are padding
        hidden = torch.randn(size, D, device="cuda", requires_grad=True)
        target = torch.randint(L, (size,), device="cuda")
        loss = head(hidden, target)
        (2 * loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert hidden.grad is not None
        kept += [loss.detach(), hidden.grad]
    head.flush()
    return [*kept, *(table.detach().clone() for table in head.parameters())]


def _head(loss: Loss, *, capture: bool, messages: bool = True) -> ShardedLabelHead:
    torch.manual_seed(1)
    head = ShardedLabelHead(LABELS, D, loss, bias=True, device="cuda").to("cuda")
    return head.capture(capture, examples=B, messages=messages)


@pytest.mark.parametrize("messages", [True, False])
@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_captured_step_learns_what_an_eager_one_learns(loss: str, optimiser: str, messages: bool):
    captured = _head(LOSSES[loss](), capture=True, messages=messages)
    ours = _trained(captured, optimiser)
    theirs = _trained(_head(LOSSES[loss](), capture=False), optimiser)
    assert captured.captured.shapes == [(B, D)]
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-5, atol=2e-6)


def test_messages_are_part_of_the_graph():
    head = _head(LOSSES["uniform"](), capture=True)
    _trained(head, "sgd", 6)
    hidden = torch.randn(B, D, device="cuda", requires_grad=True)
    target = torch.randint(L, (B,), device="cuda")
    with collectives() as calls:
        head(hidden, target).backward()
    assert calls == []


def test_negatives_differ_from_replay_to_replay():
    head = _head(LOSSES["uniform"](), capture=True)
    _trained(head, "sgd", 6)
    hidden = torch.randn(B, D, device="cuda", requires_grad=True)
    target = torch.randint(L, (B,), device="cuda")
    first, second = (float(head(hidden, target).detach()) for _ in range(2))
    assert first != second
    torch.manual_seed(5)
    third = float(head(hidden, target).detach())
    torch.manual_seed(5)
    assert float(head(hidden, target).detach()) == third


def test_labels_are_counted_over_a_group_that_reaches_no_cpu():
    labels = count_labels(torch.tensor([4, 1, 4]), 6, dist.new_group(backend="nccl"))
    assert labels.counts[labels.share.own_places(torch.arange(6))].tolist() == [0, 1, 0, 0, 2, 0]
