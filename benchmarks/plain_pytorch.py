"""The ten schemes in plain PyTorch, as one would write them in an afternoon; `compare_cost.py` runs
it.

A `Dataset` of (features, label) pairs, a `DataLoader`, dense gradients, torch's own Adagrad,
metrics by slice at the end.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    """One item per (point, label) pair."""

    def __init__(self, path: Path) -> None:
        lines = path.read_text().splitlines()
        _, self.num_features, self.num_labels = map(int, lines[0].split())
        self.features = []
        self.labels = []
        self.pairs = []
        for line in lines[1:]:
            labels, _, features = line.partition(" ")
            row = torch.zeros(self.num_features)
            for part in features.split():
                column, value = part.split(":")
                row[int(column)] = float(value)
            self.features.append(row / row.norm().clamp(min=1e-12))
            self.labels.append([int(label) for label in labels.split(",") if label])
            self.pairs += [(len(self.features) - 1, label) for label in self.labels[-1]]

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        point, label = self.pairs[i]
        return self.features[point], label


class Model(nn.Module):
    """Features → linear → labels."""

    def __init__(self, num_features: int, num_labels: int, dim: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(num_features, dim)
        self.dropout = nn.Dropout(0.5)
        self.labels = nn.Linear(dim, num_labels)

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states."""
        return self.dropout(self.hidden(x))


def loss_of(scheme: str, model: Model, x: Tensor, y: Tensor, prior: Tensor, m: int) -> Tensor:
    """The softmax over all labels, or over m sampled ones with log-weights added to the logits."""
    h = model(x)
    if ":" not in scheme:
        logits = model.labels(h)
        return F.cross_entropy(logits + prior.log() if scheme == "logit-adjusted" else logits, y)
    sampler, weighting = scheme.split(":")
    if sampler == "uniform":
        ids = torch.randint(len(prior), (m,))
        q = torch.full_like(prior, 1 / len(prior))
    else:
        ids = y[torch.randperm(len(y))[:m]]
        q = prior
    weight = model.labels.weight
    bias = model.labels.bias
    positive = (h * weight[y]).sum(1) + bias[y]
    negative = h @ weight[ids].T + bias[ids]
    log_w = {
        "constant": torch.zeros(len(y), m) - torch.tensor(float(m)).log(),
        "importance": -torch.log(m * q[ids]).expand(len(y), m),
        "relative": q[y].log()[:, None] - q[ids].log(),
        "tail": prior[ids].log() - torch.log(m * q[ids]) - prior[y].log()[:, None],
    }[weighting]
    negative = (negative + log_w).masked_fill(ids[None] == y[:, None], -torch.inf)
    return F.cross_entropy(
        torch.cat([positive[:, None], negative], 1), torch.zeros(len(y), dtype=torch.long)
    )


@torch.no_grad()
def evaluate(model: Model, test: Pairs, prior: Tensor) -> dict[str, float]:
    """Recall@k by slice and precision@k."""
    model.eval()
    top = torch.cat(
        [model.labels(model(x)).topk(50).indices for x in torch.stack(test.features).split(1024)]
    )
    order = prior.argsort(descending=True)
    slices = torch.empty_like(order)
    slices[order] = (prior[order].cumsum(0) * 3).long().clamp(max=2)
    point, label = torch.tensor(test.pairs).T
    found = {}
    for k in (1, 10, 50):
        hit = (top[point, :k] == label[:, None]).any(1).float()
        found |= {f"recall@{k} {s}": float(hit[slices[label] == s].mean()) for s in range(3)} | {
            f"recall@{k}": float(hit.mean())
        }
    for k in (1, 3, 5):
        hits = [
            sum(y in labels for y in row[:k]) / k
            for row, labels in zip(top.tolist(), test.labels, strict=True)
        ]
        found[f"precision@{k}"] = sum(hits) / len(hits)
    return found


def main() -> None:
    """Train and test each scheme in turn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--schemes", nargs="+")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--negatives", type=int)
    given = parser.parse_args()
    train = Pairs(given.folder / "train.txt")
    test = Pairs(given.folder / "test.txt")
    counts = torch.bincount(
        torch.tensor([label for _, label in train.pairs]), minlength=train.num_labels
    )
    prior = counts / counts.sum()
    for scheme in given.schemes:
        torch.manual_seed(0)
        model = Model(train.num_features, train.num_labels, 512)
        optimiser = torch.optim.Adagrad(model.parameters(), lr=0.02)
        for _ in range(given.epochs):
            for x, y in DataLoader(train, batch_size=given.batch, shuffle=True, drop_last=True):
                loss = loss_of(scheme, model, x, y, prior, given.negatives)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        found = evaluate(model, test, prior)
        print(
            f"{scheme:26} Recall@10 {100 * found['recall@10']:.1f}  P@1 "
            f"{100 * found['precision@1']:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
