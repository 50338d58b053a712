"""A tiny Lightning module with a label head, and its data."""

from __future__ import annotations

import copy
from typing import Any

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from headtail import (
    LabelHead,
    Labels,
    RowSGD,
    SampledSoftmaxLoss,
    SplitOptimizer,
    Tail,
    WithinBatch,
    scheme,
)

NUM_LABELS = 30
LABELS = Labels.zipf(NUM_LABELS)


class Classifier(L.LightningModule):
    """A linear encoder and a head: RowSGD (or SGD, of a dense head) and AdamW.

    With `joint`, negatives are the labels of all ranks.
    """

    def __init__(
        self,
        name: str = "uniform:importance@8",
        *,
        sparse: bool = True,
        weight_decay: float = 0.0,
        seed: int = 0,
        joint: bool = False,
    ) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.encoder = nn.Linear(6, 4)
        loss = scheme(name, LABELS)
        if joint:
            loss = SampledSoftmaxLoss(WithinBatch(LABELS, group="world"), Tail(LABELS))
        self.head = LabelHead(LABELS, 4, loss, bias=True, sparse=sparse)
        self.weight_decay = weight_decay
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        features, target = batch
        loss = self.head(self.encoder(features), target)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        features, _ = batch
        self.best = self.head.topk(self.encoder(features), 3)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        table = RowSGD(self.head.parameters(), lr=0.5, weight_decay=self.weight_decay)
        if not self.head.sparse:
            table = torch.optim.SGD(self.head.parameters(), lr=0.5)
        return SplitOptimizer(table, torch.optim.AdamW(self.encoder.parameters(), lr=0.01))


def data(size: int = 48) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    target = torch.multinomial(LABELS.prior, size, replacement=True, generator=generator)
    features = torch.randn(size, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(features, target)


def loader(
    size: int = 48,
    *,
    batch: int = 8,
    shuffle: bool = False,
    ignored: int = 0,
    dtype: torch.dtype = torch.float64,
) -> DataLoader:
    """Batches; of the first targets, every other one may be ignored."""
    features, target = data(size).tensors
    target[: 2 * ignored : 2] = -100
    return DataLoader(TensorDataset(features.to(dtype), target), batch, shuffle=shuffle)


def trainer(folder: Any, *callbacks: Any, **options: Any) -> L.Trainer:
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 2,
        "precision": "64-true",
        "default_root_dir": folder,
    }
    return L.Trainer(callbacks=list(callbacks), **(quiet | options))


def weights(module: L.LightningModule) -> dict[str, torch.Tensor]:
    return copy.deepcopy(module.state_dict())
