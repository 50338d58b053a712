"""An encoder with a label head."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from headtail.core.labels import Labels
from headtail.core.targets import Ragged
from headtail.data.batches import TrainingBatch
from headtail.encoders import Model
from headtail.head import LabelHead
from headtail.schemes import scheme

LABELS = Labels.from_counts([8, 4, 2, 1])
EVERY = "uniform(without-replacement):importance@4"  # all labels are drawn, each once


def model_of(name: str, *, mask_known: bool = False) -> Model:
    return Model(
        nn.Linear(3, 5),
        LabelHead(LABELS, 5, scheme(name, LABELS), bias=True),
        mask_known=mask_known,
    )


def loss_by_hand(
    model: Model, features: torch.Tensor, labels: list[list[int]], known: bool
) -> float:
    logits = model.head.logits(model.encoder(features)).double().tolist()
    losses = []
    for f, own in zip(logits, labels, strict=True):
        for y in own:
            others = [z for z in range(4) if z != y and not (known and z in own)]
            losses.append(math.log(1 + sum(math.exp(f[z] - f[y]) for z in others)))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("known", [True, False])
def test_other_labels_of_a_point_are_negatives_unless_they_are_masked(known):
    model = model_of(EVERY, mask_known=known)
    features = torch.randn(3, 3)
    labels = [[0, 2], [1], [3, 1, 0]]
    padded = torch.tensor([[0, 2, -100], [1, -100, -100], [3, 1, 0]])
    wanted = loss_by_hand(model, features, labels, known)
    for target in (Ragged.from_lists(labels), padded):
        assert model(TrainingBatch(features, None, target)).item() == pytest.approx(
            wanted, rel=1e-5
        )


@pytest.mark.parametrize(
    "target", [torch.tensor([0, 3, 1]), torch.tensor([[0], [3], [1]])], ids=["[b]", "[b, 1]"]
)
def test_masking_what_is_known_asks_nothing_more_of_points_with_one_label(target):
    model = model_of(EVERY, mask_known=True)
    features = torch.randn(3, 3)
    wanted = loss_by_hand(model, features, [[0], [3], [1]], known=True)
    assert model(TrainingBatch(features, None, target)).item() == pytest.approx(wanted, rel=1e-5)


def test_targets_find_their_points_by_row():
    model = model_of("logit-adjusted")
    features = torch.randn(2, 3)
    row = torch.tensor([1, 0, 1, 1])
    target = torch.tensor([3, 0, 2, 0])
    assert torch.allclose(
        model(TrainingBatch(features, row, target)),
        model(TrainingBatch(features[row], None, target)),
    )


def test_answers_are_the_best_labels_of_the_encoded_points():
    model = model_of("softmax")
    features = torch.randn(6, 3)
    wanted = model.head.logits(model.encoder(features)).argsort(dim=1, descending=True)[:, :2]
    assert torch.equal(model.top(features, 2), wanted)
