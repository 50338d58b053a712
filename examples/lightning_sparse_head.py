"""A sparse label head in Lightning, on generated data: clipped, averaged, saved and resumed.

Run: python examples/lightning_sparse_head.py
"""

import logging
import tempfile
import warnings

import lightning as L
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

import headtail as ht
from headtail.integrations.lightning import SparseHeads

NUM_LABELS, DIM = 2_000, 16
LABELS = ht.Labels.zipf(NUM_LABELS)


class Classifier(L.LightningModule):
    """An encoder and a label head with within-batch negatives, weighed for the tail."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Linear(DIM, DIM)
        loss = ht.scheme("within-batch:tail", LABELS)
        self.head = ht.LabelHead(LABELS, DIM, loss, sparse=True)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """The loss of a batch."""
        features, target = batch
        return self.head(self.encoder(features), target)

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        """How often the right label is first."""
        features, target = batch
        best = self.head.topk(self.encoder(features), 1).indices[:, 0]
        self.log("right", (best == target).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Rows by Adam, with weight decay; the encoder by AdamW."""
        rows = ht.RowAdam(self.head.parameters(), lr=0.02, weight_decay=1e-4)
        return ht.SplitOptimizer(rows, torch.optim.AdamW(self.encoder.parameters(), lr=1e-3))


def data(size: int, seed: int) -> DataLoader:
    """Features near the direction of their label."""
    torch.manual_seed(0)
    directions = torch.nn.functional.normalize(torch.randn(NUM_LABELS, DIM), dim=1)
    torch.manual_seed(seed)
    target = torch.multinomial(LABELS.prior, size, replacement=True)
    features = directions[target] + 0.1 * torch.randn(size, DIM)
    return DataLoader(TensorDataset(features, target), batch_size=256, shuffle=seed == 1)


def main() -> None:
    """Train four epochs, and then the last two of them again from a checkpoint."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    train = data(20_000, seed=1)
    test = data(2_000, seed=2)
    tables = []
    with tempfile.TemporaryDirectory() as folder:
        for path in (None, f"{folder}/epoch=1.ckpt"):
            L.seed_everything(3, verbose=False)
            module = Classifier()
            trainer = L.Trainer(
                max_epochs=4,
                gradient_clip_val=1.0,
                accumulate_grad_batches=2,
                callbacks=[
                    SparseHeads(),
                    EMAWeightAveraging(decay=0.95),
                    ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1),
                ],
                accelerator="cpu",
                logger=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(module, train, test, ckpt_path=path)
            right = trainer.callback_metrics["right"]
            print(f"{'resumed' if path else 'whole run'}: right {right:.1%}")
            tables.append(module.head.weight.detach().clone())
    print("the same weights:", torch.equal(*tables))


if __name__ == "__main__":
    main()
