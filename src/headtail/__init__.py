"""headtail: name the loss you want, train on sampled negatives, and know what the sampling does to
head and tail.

Here is what a first program needs. One level down are `headtail.functional` (losses as functions),
`headtail.samplers` and `headtail.losses` (their interfaces), `headtail.core` (the contracts of
draws, weightings and margins), `headtail.implicit` (what explain and audit return) and
`headtail.metrics`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headtail import functional as functional
    from headtail import metrics as metrics
    from headtail.comparison.compare import compare
    from headtail.comparison.tune import tune
    from headtail.core.labels import Labels
    from headtail.core.margins import (
        Adaptive,
        CustomSeparable,
        Equalised,
        LogitAdjusted,
        Pairwise,
        Unit,
    )
    from headtail.core.score_margins import ArcFace, CosFace
    from headtail.core.slices import Slices
    from headtail.core.streaming import StreamingLabels
    from headtail.core.targets import Ragged
    from headtail.core.weightings import Constant, FromMargin, Importance, InfoNCE, Relative, Tail
    from headtail.data.load import load
    from headtail.errors import HeadtailError
    from headtail.head import LabelHead
    from headtail.implicit import audit, explain
    from headtail.kernels.dispatch import use_kernels
    from headtail.losses import DecoupledLoss, SampledDecoupledLoss, SampledSoftmaxLoss, SoftmaxLoss
    from headtail.rows.averaging import AveragedModel
    from headtail.rows.clipping import clip_grad_norm_
    from headtail.rows.optimizers import RowAdagrad, RowAdam, RowSGD
    from headtail.rows.split import SplitOptimizer
    from headtail.samplers import (
        Adversarial,
        Block,
        FourierKernel,
        Frequency,
        Given,
        Hard,
        LogUniform,
        Mixture,
        ModelSoftmax,
        PartialFC,
        QuadraticKernel,
        Queue,
        Resampled,
        Tilted,
        Uniform,
        WithinBatch,
    )
    from headtail.schemes import scheme
    from headtail.training.config import Run
    from headtail.training.trainer import Trainer

__version__ = "0.1.0"

__all__ = [
    "Adaptive",
    "Adversarial",
    "ArcFace",
    "AveragedModel",
    "Block",
    "Constant",
    "CosFace",
    "CustomSeparable",
    "DecoupledLoss",
    "Equalised",
    "FourierKernel",
    "Frequency",
    "FromMargin",
    "Given",
    "Hard",
    "HeadtailError",
    "Importance",
    "InfoNCE",
    "LabelHead",
    "Labels",
    "LogUniform",
    "LogitAdjusted",
    "Mixture",
    "ModelSoftmax",
    "Pairwise",
    "PartialFC",
    "QuadraticKernel",
    "Queue",
    "Ragged",
    "Relative",
    "Resampled",
    "RowAdagrad",
    "RowAdam",
    "RowSGD",
    "Run",
    "SampledDecoupledLoss",
    "SampledSoftmaxLoss",
    "Slices",
    "SoftmaxLoss",
    "SplitOptimizer",
    "StreamingLabels",
    "Tail",
    "Tilted",
    "Trainer",
    "Uniform",
    "Unit",
    "WithinBatch",
    "audit",
    "clip_grad_norm_",
    "compare",
    "explain",
    "load",
    "scheme",
    "tune",
    "use_kernels",
]

_HOMES = {
    "comparison.compare": "compare",
    "comparison.tune": "tune",
    "core.labels": "Labels",
    "core.margins": "Adaptive CustomSeparable Equalised LogitAdjusted Pairwise Unit",
    "core.score_margins": "ArcFace CosFace",
    "core.slices": "Slices",
    "core.streaming": "StreamingLabels",
    "core.targets": "Ragged",
    "core.weightings": "Constant FromMargin Importance InfoNCE Relative Tail",
    "data.load": "load",
    "errors": "HeadtailError",
    "head": "LabelHead",
    "implicit": "audit explain",
    "kernels.dispatch": "use_kernels",
    "losses": "DecoupledLoss SampledDecoupledLoss SampledSoftmaxLoss SoftmaxLoss",
    "rows.averaging": "AveragedModel",
    "rows.clipping": "clip_grad_norm_",
    "rows.optimizers": "RowAdagrad RowAdam RowSGD",
    "rows.split": "SplitOptimizer",
    "samplers": "Adversarial Block FourierKernel Frequency Given Hard LogUniform Mixture "
    "ModelSoftmax PartialFC QuadraticKernel Queue Resampled Tilted Uniform WithinBatch",
    "schemes": "scheme",
    "training.config": "Run",
    "training.trainer": "Trainer",
}
"""The public names of each module. They are imported when first used: torch takes longer to import
than `headtail --version` should take, and a training loop of your own needs a few of them only.
"""
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module `headtail` has no attribute `{name}`")
    if name in _HOME_OF:
        value = getattr(import_module(f"headtail.{_HOME_OF[name]}"), name)
        globals()[name] = value  # found without this function from now on
        return value
    try:
        return import_module(f"headtail.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"headtail.{name}":
            raise
        raise AttributeError(f"module `headtail` has no attribute `{name}`") from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
