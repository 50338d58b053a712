"""Losses as functions, for training loops of your own: draw, then take the loss.

    draw = sampler.draw(target)
    loss = functional.sampled_softmax_loss(input, weight, target, draw, weighting)

`sampled_softmax` and `sampled_decoupled` are the paper's equations on logits; the functions whose
names end in `_loss` also gather the rows, score them and mask collisions. Modules that hold a
sampler and a weighting are in `headtail.losses`.
"""

from headtail.core.pieces import Piece, contrastive, hinge, logistic, squared_hinge
from headtail.losses.decoupled import (
    decoupled_loss,
    sampled_decoupled,
    sampled_decoupled_loss,
    two_tower_decoupled_loss,
)
from headtail.losses.fused import backward
from headtail.losses.options import Options
from headtail.losses.softmax import (
    sampled_softmax,
    sampled_softmax_loss,
    softmax_loss,
    two_tower_softmax_loss,
)

__all__ = [
    "Options",
    "Piece",
    "backward",
    "contrastive",
    "decoupled_loss",
    "hinge",
    "logistic",
    "sampled_decoupled",
    "sampled_decoupled_loss",
    "sampled_softmax",
    "sampled_softmax_loss",
    "softmax_loss",
    "squared_hinge",
    "two_tower_decoupled_loss",
    "two_tower_softmax_loss",
]
