"""Train a label head on sampled negatives with a named loss, then predict: seconds on a CPU."""

import torch

import headtail as ht

torch.manual_seed(0)
num_labels = 1_000
dim = 32
labels = ht.Labels.zipf(num_labels)

# Toy data: each label has a direction, and frequent labels are drawn often.
directions = torch.nn.functional.normalize(torch.randn(num_labels, dim), dim=1)
data = ht.Frequency(labels, num_negatives=256)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states near their label's direction."""
    target = data.draw(torch.tensor([0])).ids
    return directions[target] + 0.2 * torch.randn(len(target), dim), target


for name in ("within-batch:importance", "within-batch:relative", "within-batch:tail"):
    loss = ht.scheme(name, labels)
    head = ht.LabelHead(labels, dim, loss, bias=True, sparse=True)
    optimiser = ht.RowAdam(head.parameters(), lr=0.05)
    for _ in range(200):
        hidden, target = batch()
        optimiser.zero_grad()
        head(hidden, target).backward()
        optimiser.step()
    right = head.topk(directions, k=1).indices[:, 0] == torch.arange(num_labels)
    slices = labels.slices()
    head_hits, tail_hits = (
        float(right[part].float().mean()) for part in (slices.head, slices.tail)
    )
    explanation = ht.explain(loss, labels, batch_size=256)
    print(
        f"{name:26s} leans {explanation.leans:8s} head correct {head_hits:5.1%}   tail correct "
        f"{tail_hits:5.1%}"
    )
