"""Losses: functions first, modules second."""

from headtail.losses.decoupled import (
    Piece,
    contrastive,
    decoupled_loss,
    hinge,
    logistic,
    sampled_decoupled,
    sampled_decoupled_loss,
    squared_hinge,
    two_tower_decoupled_loss,
)
from headtail.losses.modules import (
    DecoupledLoss,
    ExactLoss,
    Loss,
    SampledDecoupledLoss,
    SampledLoss,
    SampledSoftmaxLoss,
    SoftmaxLoss,
)
from headtail.losses.options import Options
from headtail.losses.softmax import (
    sampled_softmax,
    sampled_softmax_loss,
    softmax_loss,
    two_tower_softmax_loss,
)

__all__ = [
    "DecoupledLoss",
    "ExactLoss",
    "Loss",
    "Options",
    "Piece",
    "SampledDecoupledLoss",
    "SampledLoss",
    "SampledSoftmaxLoss",
    "SoftmaxLoss",
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
