"""The training step that is measured: a label head alone, with random inputs and targets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headtail.core.labels import Labels
from headtail.core.weightings import Importance
from headtail.head import LabelHead
from headtail.losses import SampledSoftmaxLoss, SoftmaxLoss
from headtail.machine.shape import Method, Shape
from headtail.rows.optimizers import RowAdagrad
from headtail.samplers import Uniform


def table_of(shape: Shape, device: str) -> nn.Parameter:
    """A label table of this size.

    It is constant: values do not change the time, and drawing them would take most of it.
    """
    return nn.Parameter(torch.full((shape.labels, shape.dim), 0.01, device=device))


def head_step(method: Method, shape: Shape, table: nn.Parameter) -> Callable[[], None]:
    """Forward, backward and update of one step."""
    optimiser = RowAdagrad([table])
    if method == "sampled":
        optimiser.inside_backward(at_once=True)
    loss = head_loss(method, shape, table)

    def step() -> None:
        hidden = torch.randn(shape.batch, shape.dim, device=table.device, requires_grad=True)
        target = torch.randint(shape.labels, (shape.batch,), device=table.device)
        optimiser.zero_grad()
        loss(hidden, target).backward()
        optimiser.step()

    return step


def head_loss(
    method: Method, shape: Shape, table: nn.Parameter
) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of hidden states and targets by this method."""
    if method == "chunked":
        options = nn.LinearCrossEntropyOptions(batch_chunk_size=shape.chunk, chunking_method=None)
        return lambda hidden, target: F.linear_cross_entropy(hidden, table, target, options=options)
    sampled = method == "sampled"
    labels = Labels.zipf(shape.labels)
    loss = SoftmaxLoss()
    if sampled:
        loss = SampledSoftmaxLoss(Uniform(labels, shape.negatives), Importance())
    head = LabelHead(labels, shape.dim, loss, sparse=sampled, device="meta")
    head.weight = table
    head.loss.to(table.device)
    return partial(head, ignore_index=None)
