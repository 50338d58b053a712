"""Small trainings on several ranks, for tests of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headtail import (
    Constant,
    Labels,
    LogUniform,
    Mixture,
    Queue,
    RowAdagrad,
    RowAdam,
    RowSGD,
    SampledSoftmaxLoss,
    Uniform,
)
from headtail.distributed import ShardedLabelHead, gather

L, D, BATCH = 53, 6, 12
OPTIMISERS = {
    "sgd": lambda p: RowSGD(p, lr=0.3, weight_decay=0.1),
    "momentum": lambda p: RowSGD(p, lr=0.3, momentum=0.9),
    "adagrad": lambda p: RowAdagrad(p, lr=0.3, weight_decay=0.1),
    "adagrad per row": lambda p: RowAdagrad(p, lr=0.3, per_row=True),
    "adam": lambda p: RowAdam(p, lr=0.1, weight_decay=0.1),
}


@dataclass
class Run:
    """A head with an encoder on the ranks of a group."""

    head: ShardedLabelHead
    optimizer: Any
    encoder: nn.Module
    encoder_optimizer: Any

    @classmethod
    def new(cls, kind: str = "adagrad", group: Any = None, labels: int = L) -> Run:
        """Equal on all ranks; queue, bias and dropout included."""
        torch.manual_seed(5)
        counts = Labels.zipf(labels)
        samplers = [Uniform(counts, 8), Queue(counts, 30), LogUniform(counts, 4)]
        loss = SampledSoftmaxLoss(Mixture(samplers), Constant())
        head = ShardedLabelHead(counts, D, loss, group, bias=True, dtype=torch.float64)
        encoder = nn.Sequential(nn.Linear(D, D), nn.BatchNorm1d(D), nn.Dropout(0.2)).double()
        torch.manual_seed(100 + dist.get_rank())
        optimizer = OPTIMISERS[kind](head.parameters())
        return cls(head, optimizer, encoder, torch.optim.AdamW(encoder.parameters(), lr=0.05))

    @property
    def parts(self) -> dict[str, Any]:
        """As a checkpoint takes them."""
        return vars(self)

    def step(self, number: int) -> Tensor:
        """Train on the batch of this number, which ranks share."""
        generator = torch.Generator().manual_seed(number)
        features = torch.randn(BATCH, D, generator=generator, dtype=torch.float64)
        target = torch.randint(10, (BATCH,), generator=generator)
        ranks = self.head.ranks
        own = slice(*(BATCH * (ranks.rank + i) // ranks.size for i in (0, 1)))
        loss = self.head(self.encoder(features[own]), target[own])
        self.optimizer.zero_grad()
        self.encoder_optimizer.zero_grad()
        loss.backward()
        for parameter in self.encoder.parameters():  # as DistributedDataParallel would
            dist.all_reduce(parameter.grad, group=ranks.group)
            parameter.grad /= ranks.size
        for buffer in self.encoder.buffers():
            ranks.copy_first(buffer)
        self.optimizer.step()
        self.encoder_optimizer.step()
        return loss.detach()

    def steps(self, *numbers: int) -> list[float]:
        """Losses of several batches."""
        return [float(self.step(number)) for number in numbers]

    def given_loss(self) -> float:
        """Of a batch without dropout and with a draw that ranks are given, without a change."""
        generator = torch.Generator().manual_seed(77)
        hidden = torch.randn(BATCH, D, generator=generator, dtype=torch.float64)
        target = torch.randint(10, (BATCH,), generator=generator)
        draw = Uniform(Labels.zipf(L), 9).draw(target, generator=generator)
        ranks = self.head.ranks
        own = slice(*(BATCH * (ranks.rank + i) // ranks.size for i in (0, 1)))
        with torch.no_grad():
            return float(self.head(hidden[own], target[own], draw=draw))

    def everything(self) -> dict[str, Tensor]:
        """Copies of all that a next step depends on, rows of all ranks together."""
        group = self.head.ranks.group
        with torch.no_grad():
            tensors = {f"head.{n}": gather(p, group) for n, p in self.head.named_parameters()}
        for name, p in self.head.named_parameters():
            for key, value in self.optimizer.state[p].items():
                is_rows = isinstance(value, Tensor) and value.dim() > 0
                tensors[f"{name}.{key}"] = gather(value, group) if is_rows else torch.tensor(value)
        part = self.head.part
        assert part is not None
        tensors |= {f"part.{n}": v for n, v in part.state_dict().items()}
        tensors |= {f"encoder.{n}": v for n, v in self.encoder.state_dict().items()}
        for name, p in self.encoder.named_parameters():
            tensors |= {f"{name}.{k}": v for k, v in self.encoder_optimizer.state[p].items()}
        tensors["random"] = torch.get_rng_state()
        return {name: tensor.clone() for name, tensor in tensors.items()}


def assert_equal(first: dict[str, Tensor], second: dict[str, Tensor], but: str = "-") -> None:
    """To the last bit."""
    assert first.keys() == second.keys()
    different = [
        name for name in first if name != but and not torch.equal(first[name], second[name])
    ]
    assert not different, different
