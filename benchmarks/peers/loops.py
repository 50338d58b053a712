"""A user's own training loop around different heads; run by `own_loop.py`.

The loop is eager: an encoder (an MLP, or a small transformer), AdamW (`fused=True`) for it, and a
head with its own optimiser. The head without labels, `hidden.square().mean()`, is the same loop
without a head: what a head adds is the difference to it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headtail as ht

LR = 0.01
DECAY = 1e-3
CLIP = 1.0
BATCHES = 16


@dataclass(frozen=True)
class Setting:
    """One loop.

    Attributes:
        labels: L.
        encoder: "mlp" or "transformer".
        scheme: "uniform:importance" or "within-batch:tail".
        variant: "plain", "accumulate" (four backward passes per step), "clip" or "decay".
        batch: b.
        negatives: m.
        dim: d.
    """

    labels: int
    encoder: str = "mlp"
    scheme: str = "uniform:importance"
    variant: str = "plain"
    batch: int = 1024
    negatives: int = 256
    dim: int = 512

    @property
    def passes(self) -> int:
        """Backward passes per step."""
        return 4 if self.variant == "accumulate" else 1


Head = Callable[[Tensor, Tensor], Tensor]
Made = tuple[Head, torch.optim.Optimizer | None, Callable[[list[Tensor]], object]]
"""The loss, its optimiser, and how gradients are clipped."""


def no_head(setting: Setting) -> Made:
    """What the loop costs without a head."""
    return (lambda hidden, _: hidden.square().mean()), None, _clip_dense


def headtail(setting: Setting, optimiser: str, capture: bool = True) -> Made:
    """headtail as its documentation writes it."""
    labels = ht.Labels.zipf(setting.labels)
    name = setting.scheme
    if name.startswith("uniform"):
        name += f"@{setting.negatives}"
    head = ht.LabelHead(
        labels, setting.dim, ht.scheme(name, labels), sparse=True, device="cuda"
    ).cuda()
    head.capture(capture)
    kind = {"adagrad": ht.RowAdagrad, "sgd": ht.RowSGD, "adam": ht.RowAdam}[optimiser]
    decay = DECAY if setting.variant == "decay" else 0.0
    rows = kind(head.parameters(), lr=LR, weight_decay=decay)

    def clip(parameters: list[Tensor]) -> None:
        ht.clip_grad_norm_([*parameters, *head.parameters()], CLIP)

    return head, rows, clip


def sparse(setting: Setting, optimiser: str) -> Made:
    """Plain PyTorch: `F.embedding(sparse=True)` and torch's sparse optimiser."""
    weight = nn.Parameter(torch.empty(setting.labels, setting.dim, device="cuda"))
    nn.init.normal_(weight, std=setting.dim**-0.5)
    kind = {
        "adagrad": torch.optim.Adagrad,
        "sgd": torch.optim.SGD,
        "adam": torch.optim.SparseAdam,
    }[optimiser]

    def clip(parameters: list[Tensor]) -> None:
        assert weight.grad is not None
        weight.grad = weight.grad.coalesce()
        dense = [p.grad for p in parameters if p.grad is not None]
        values = [*dense, weight.grad._values()]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(values)))  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_mul_(values, (CLIP / (norm + 1e-6)).clamp(max=1.0))  # pyright: ignore[reportPrivateImportUsage]

    made = kind([weight], lr=LR)
    return _plain_loss(setting, weight, is_sparse=True), made, clip


def dense(setting: Setting, optimiser: str) -> Made:
    """Plain PyTorch with a gradient of the table's size and a fused optimiser."""
    weight = nn.Parameter(torch.empty(setting.labels, setting.dim, device="cuda"))
    nn.init.normal_(weight, std=setting.dim**-0.5)
    decay = DECAY if setting.variant == "decay" else 0.0
    if optimiser == "adam":
        made = torch.optim.AdamW([weight], lr=LR, weight_decay=decay, fused=True)
    elif optimiser == "adagrad":
        made = torch.optim.Adagrad([weight], lr=LR, weight_decay=decay)
    else:
        made = torch.optim.SGD([weight], lr=LR, weight_decay=decay, fused=True)

    def clip(parameters: list[Tensor]) -> None:
        nn.utils.clip_grad_norm_([*parameters, weight], CLIP)

    return _plain_loss(setting, weight, is_sparse=False), made, clip


PEERS = {"headtail": headtail, "PyTorch, sparse=True": sparse, "PyTorch, dense": dense}


def _plain_loss(setting: Setting, weight: Tensor, is_sparse: bool) -> Head:
    """The same two losses as people write them."""
    if setting.scheme == "uniform:importance":
        shift = math.log(setting.labels / setting.negatives)

        def loss(hidden: Tensor, target: Tensor) -> Tensor:
            ids = torch.randint(setting.labels, (setting.negatives,), device="cuda")
            positive = (hidden * F.embedding(target, weight, sparse=is_sparse)).sum(1, keepdim=True)
            negative = hidden @ F.embedding(ids, weight, sparse=is_sparse).T + shift
            negative = negative.masked_fill(ids == target[:, None], -torch.inf)
            logits = torch.cat([positive, negative], 1)
            return F.cross_entropy(logits, torch.zeros_like(target))

        return loss
    log_prior = ht.Labels.zipf(setting.labels).prior.log().float().cuda()

    def in_batch(hidden: Tensor, target: Tensor) -> Tensor:
        rows = F.embedding(target, weight, sparse=is_sparse)
        scores = hidden @ rows.T
        # w = π_y' / π_y / (m·q) with q = π: −log π_y is added to every negative.
        same = target == target[:, None]
        shift = -log_prior[target][:, None] - math.log(len(target) - 1)
        own = torch.arange(len(target), device="cuda")
        negative = (scores + shift).masked_fill(same, -torch.inf)
        logits = torch.cat([scores[own, own][:, None], negative], 1)
        return F.cross_entropy(logits, torch.zeros_like(target))

    return in_batch


def _clip_dense(parameters: list[Tensor]) -> None:
    nn.utils.clip_grad_norm_(parameters, CLIP)


class Transformer(nn.Module):
    """Two layers over sequences of 32 tokens; the last position is the hidden state."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            dim, 8, 2 * dim, dropout=0.0, batch_first=True, norm_first=True
        )
        self.tokens = nn.Embedding(1000, dim)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """`[b, d]` hidden states of `[b, t]` tokens."""
        return self.layers(self.tokens(tokens))[:, -1]


def loop(setting: Setting, made: Made) -> Callable[[], None]:
    """One step of the loop, as a user writes it."""
    head, optimiser, clip = made
    d = setting.dim
    if setting.encoder == "mlp":
        encoder = nn.Sequential(nn.Linear(256, d), nn.GELU(), nn.Linear(d, d)).cuda()
        inputs = torch.randn(BATCHES, setting.batch, 256, device="cuda").unbind()
    else:
        encoder = Transformer(d).cuda()
        inputs = torch.randint(1000, (BATCHES, setting.batch, 32), device="cuda").unbind()
    targets = torch.randint(setting.labels, (BATCHES, setting.batch), device="cuda").unbind()
    batches = itertools.cycle(zip(inputs, targets, strict=True))
    parameters = list(encoder.parameters())
    adam = torch.optim.AdamW(parameters, lr=1e-3, fused=True)

    def step() -> None:
        for _ in range(setting.passes):
            x, y = next(batches)
            (head(encoder(x), y) / setting.passes).backward()
        if setting.variant == "clip":
            clip(parameters)
        adam.step()
        adam.zero_grad()
        if optimiser is not None:
            optimiser.step()
            optimiser.zero_grad()

    return step
