"""Classifier re-training (Kang et al., 2020): the encoder stays, and a new classifier is trained as
if classes were drawn equally often.

Each example weighs 1/(classes · examples of its class), which is what class-balanced sampling does
on average. The loss is convex and minimised to convergence, so neither a rate nor a length is
chosen; weights decay as in the run. Images are not augmented.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headtail.data.points import Points
from headtail.encoders import Model
from headtail.evaluation.topk import encoded_pairs

ROUNDS = 500
"""Iterations of L-BFGS, at most."""


def retrain(model: Model, points: Points, weight_decay: float) -> None:
    """Put a re-trained classifier into a model with a softmax head.

    Args:
        model: its label table is replaced in place.
        points: training points.
        weight_decay: half of it times the squared length of all weights is added to the loss.
    """
    hidden, labels = encoded_pairs(model, points, points.num_pairs)
    weight, bias = balanced_classifier(hidden, labels, points.num_labels, weight_decay)
    head = model.head
    with torch.no_grad():
        head.weight.copy_(weight)
        if head.bias is not None:
            head.bias.copy_(bias[:, None])


def balanced_classifier(
    hidden: Tensor, labels: Tensor, num_labels: int, weight_decay: float
) -> tuple[Tensor, Tensor]:
    """`[L, d]` weights and `[L]` biases with the lowest class-balanced softmax loss."""
    hidden = hidden.double()
    counts = torch.bincount(labels, minlength=num_labels).double()
    present = int((counts > 0).sum())
    share = 1 / (present * counts[labels])
    weight = hidden.new_zeros(num_labels, hidden.shape[1], requires_grad=True)
    bias = hidden.new_zeros(num_labels, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weight, bias], max_iter=ROUNDS, line_search_fn="strong_wolfe", tolerance_grad=1e-9
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        each = F.cross_entropy(F.linear(hidden, weight, bias), labels, reduction="none")
        decay = 0.5 * weight_decay * (weight.square().sum() + bias.square().sum())
        value = (share * each).sum() + decay
        value.backward()
        return value

    optimiser.step(loss)
    return weight.detach(), bias.detach()
