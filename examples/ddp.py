"""A sparse label head on two processes, with DistributedDataParallel.

`python examples/ddp.py` starts both; `torchrun --nproc-per-node 2 examples/ddp.py` does too.
"""

import os
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.run import main as torchrun
from torch.nn.parallel import DistributedDataParallel

import headtail as ht

LABELS, DIM, BATCH, STEPS = 5_000, 32, 64, 60


class Model(nn.Module):
    """An encoder and a head."""

    def __init__(self, labels: ht.Labels) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, DIM))
        loss = ht.SampledSoftmaxLoss(ht.WithinBatch(labels, group="world"), ht.Importance())
        self.head = ht.LabelHead(labels, DIM, loss, sparse=True)

    def forward(self, features: Tensor, target: Tensor) -> Tensor:
        """The training loss."""
        return self.head(self.encoder(features), target)


def train(rank: int) -> None:
    """What each process does."""
    labels = ht.Labels.zipf(LABELS)
    features = torch.randn(LABELS, 16, generator=torch.Generator().manual_seed(0))
    model = Model(labels)
    wrapped = DistributedDataParallel(ht.distributed.replicate(model))
    optimizer = ht.SplitOptimizer(
        torch.optim.AdamW(model.encoder.parameters(), lr=3e-3),
        ht.RowAdagrad(model.head.parameters(), lr=0.1),
    )
    data = torch.Generator().manual_seed(rank)  # every process sees other examples
    for step in range(STEPS):
        target = labels.prior.multinomial(BATCH, replacement=True, generator=data)
        noise = 0.1 * torch.randn(BATCH, 16, generator=data)
        loss = wrapped(features[target] + noise, target)
        optimizer.zero_grad()
        loss.backward()
        ht.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 19:
            mean = ht.distributed.gather(loss.detach()[None]).mean()
            if rank == 0:
                print(f"step {step + 1}: loss {mean:.3f}")
    copies = ht.distributed.gather(model.head.weight.detach()[None])
    if rank == 0:
        print("tables are equal:", torch.equal(copies[0], copies[1]))


def main() -> None:
    """Train, then leave the other processes."""
    dist.init_process_group("gloo")
    train(dist.get_rank())
    time.sleep(0.5)  # gloo's threads let go of the last tensors, which Python must outlive
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        main()
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        torchrun(["--standalone", "--nproc-per-node=2", __file__])
