"""Train your own encoder with a scheme: the loop, checkpoints and metrics of the command line."""

import torch
from torch import nn

import headtail as ht
from headtail.data.bag import Bag
from headtail.data.slices import data_slices
from headtail.evaluation.measures import measure_model

data = ht.load("synthetic:points=2000,test=500,features=400,labels=100")


class TwoLayers(nn.Module):
    """Sparse features → embedding bag → ReLU → linear."""

    def __init__(self, num_features: int, dim: int) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(num_features, dim, mode="sum", include_last_offset=True)
        self.out = nn.Linear(dim, dim)

    def forward(self, features: Bag) -> torch.Tensor:
        """Features are CSR rows: columns, offsets, values."""
        hidden = self.bag(
            features.columns.long(), features.offsets, per_sample_weights=features.values
        )
        return self.out(torch.relu(hidden))


for scheme in ("within-batch:importance", "within-batch:tail"):
    run = ht.Run(scheme=scheme, dim=64, batch=128, negatives=32, epochs=6)
    trained = ht.Trainer(run, data, encoder=TwoLayers(data.train.num_features, run.dim)).fit()
    measures = measure_model(trained.model, data, data_slices(data))
    recall = {each.slice: each.value for each in measures if each.metric == "recall@10"}
    print(f"{scheme:26} Recall@10", {name: f"{100 * value:.1f}%" for name, value in recall.items()})
