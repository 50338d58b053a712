"""headtail: name the loss you want, train on sampled negatives, and know what the sampling does to head and tail."""

from headtail.build import scheme
from headtail.errors import HeadtailError
from headtail.head import LabelHead, TopK
from headtail.implicit import Audit, Explanation, audit, explain, implied_margin, lean_of, optimal_q
from headtail.labels import Labels
from headtail.losses import (
    DecoupledLoss,
    ExactLoss,
    Loss,
    Options,
    Piece,
    SampledDecoupledLoss,
    SampledLoss,
    SampledSoftmaxLoss,
    SoftmaxLoss,
    contrastive,
    decoupled_loss,
    hinge,
    logistic,
    sampled_decoupled,
    sampled_decoupled_loss,
    sampled_softmax,
    sampled_softmax_loss,
    softmax_loss,
    squared_hinge,
    two_tower_decoupled_loss,
    two_tower_softmax_loss,
)
from headtail.losses.fused import backward
from headtail.margins import Adaptive, CustomSeparable, Equalised, LogitAdjusted, Margin, Pairwise, Power, Separable, Unit
from headtail.optim import RowAdagrad, RowAdam, RowSGD, clip_grad_norm_
from headtail.samplers import Draw, Frequency, Given, LogUniform, Mixture, Queue, Sampler, Step, Uniform, WithinBatch, every_label
from headtail.slices import Slices
from headtail.targets import Ragged
from headtail.weightings import Constant, FromMargin, Importance, Relative, Tail, Weighting

__version__ = "0.1.0"

__all__ = [
    "Adaptive",
    "Audit",
    "Constant",
    "CustomSeparable",
    "DecoupledLoss",
    "Draw",
    "Equalised",
    "ExactLoss",
    "Explanation",
    "Frequency",
    "FromMargin",
    "Given",
    "HeadtailError",
    "Importance",
    "LabelHead",
    "Labels",
    "LogUniform",
    "LogitAdjusted",
    "Loss",
    "Margin",
    "Mixture",
    "Options",
    "Pairwise",
    "Piece",
    "Power",
    "Queue",
    "Ragged",
    "Relative",
    "RowAdagrad",
    "RowAdam",
    "RowSGD",
    "SampledDecoupledLoss",
    "SampledLoss",
    "SampledSoftmaxLoss",
    "Sampler",
    "Separable",
    "Slices",
    "SoftmaxLoss",
    "Step",
    "Tail",
    "TopK",
    "Uniform",
    "Unit",
    "Weighting",
    "WithinBatch",
    "audit",
    "backward",
    "clip_grad_norm_",
    "contrastive",
    "decoupled_loss",
    "every_label",
    "explain",
    "hinge",
    "implied_margin",
    "lean_of",
    "logistic",
    "optimal_q",
    "sampled_decoupled",
    "sampled_decoupled_loss",
    "sampled_softmax",
    "sampled_softmax_loss",
    "scheme",
    "softmax_loss",
    "squared_hinge",
    "two_tower_decoupled_loss",
    "two_tower_softmax_loss",
]
