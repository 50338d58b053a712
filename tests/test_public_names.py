"""What is public: where each name is, that it says what it is, and that the reference has it."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

import headtail

REFERENCE = Path(__file__).parents[1] / "docs" / "api.md"
TOP = {
    "labels": "Labels StreamingLabels Slices Ragged",
    "fixed samplers": "Uniform Frequency LogUniform WithinBatch PartialFC Queue Mixture Given",
    "samplers that look at the model": "ModelSoftmax Tilted Hard Resampled Block QuadraticKernel "
    "FourierKernel Adversarial",
    "weightings": "Constant Importance Relative Tail InfoNCE FromMargin",
    "margins": "Unit LogitAdjusted Equalised Adaptive CustomSeparable Pairwise ArcFace CosFace",
    "losses": "SampledSoftmaxLoss SoftmaxLoss SampledDecoupledLoss DecoupledLoss",
    "head and optimisers": "LabelHead RowSGD RowAdagrad RowAdam SplitOptimizer clip_grad_norm_ "
    "AveragedModel",
    "functions": "explain audit scheme load compare tune use_kernels",
    "training": "Run Trainer",
    "errors": "HeadtailError",
}
BELOW = {
    "core": "Margin Power ScoreMargin Separable Weighting",
    "encoders": "Bottleneck GRU4Rec ItemHead Model ResNet SASRec SequenceEncoder",
    "functional": "Options Piece backward contrastive decoupled_loss hinge logistic "
    "sampled_decoupled sampled_decoupled_loss sampled_softmax sampled_softmax_loss softmax_loss "
    "squared_hinge two_tower_decoupled_loss two_tower_softmax_loss",
    "implicit": "Audit Example Explanation OnModel audit explain implied_margin lean_of on_model "
    "optimal_q recognise",
    "losses": f"ExactLoss Loss SampledLoss {TOP['losses']}",
    "metrics": "LabelErrors Ranked Ratio coverage filtered_ranks filtered_ratios hit_rate "
    "inverse_propensity label_errors mean_and_deviation most_popular mrr ndcg popularity "
    "popularity_lift precision psp ratios recall",
    "report": "plot write_report",
    "samplers": "Claims Draw FixedSampler ModelSampler Sampler Scorer Step TableSummary "
    f"every_label {TOP['fixed samplers']} {TOP['samplers that look at the model']}",
}
MODULES = ["headtail", *(f"headtail.{name}" for name in BELOW)]


def is_described(thing: object) -> bool:
    """Whether a class or function has a docstring of its own; values have none."""
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return True
    text = thing.__doc__ or ""
    # Dataclasses and named tuples write a docstring of their own: `Name(field, …)`.
    return bool(text) and not text.startswith(f"{thing.__name__}(")


def documented() -> list[object]:
    """Everything that the reference lists."""
    listed = re.findall(r"^\.\. auto\w+:: (\S+)\.(\w+)$", REFERENCE.read_text(), re.MULTILINE)
    return [getattr(importlib.import_module(module), name) for module, name in listed]


def test_the_top_level_has_exactly_these_names():
    names = " ".join(TOP.values()).split()
    assert headtail.__all__ == sorted(names)
    assert set(names) <= set(dir(headtail))


@pytest.mark.parametrize("room", BELOW)
def test_one_level_down_are_exactly_these_names(room):
    assert importlib.import_module(f"headtail.{room}").__all__ == sorted(BELOW[room].split())


@pytest.mark.parametrize("module", MODULES)
def test_everything_public_says_what_it_is(module):
    public = importlib.import_module(module)
    assert [name for name in public.__all__ if not is_described(getattr(public, name))] == []


def test_a_class_without_a_docstring_does_not_count_as_described():
    @dataclass
    class Bare:
        x: int

    class Tuple(NamedTuple):
        x: int

    class Plain:
        pass

    assert not any(map(is_described, (Bare, Tuple, Plain)))
    assert is_described(headtail.Constant)


@pytest.mark.parametrize("module", MODULES)
def test_everything_public_is_in_the_reference(module):
    listed = {id(thing) for thing in documented()}
    public = importlib.import_module(module)
    assert [name for name in public.__all__ if id(getattr(public, name)) not in listed] == []


def test_a_name_that_is_not_public_is_refused():
    with pytest.raises(AttributeError, match="has no attribute `Laebls`"):
        headtail.Laebls  # noqa: B018
