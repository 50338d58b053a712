"""Evaluation over all labels, against loops that are too simple to be wrong."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from headtail.core.labels import Labels
from headtail.core.targets import Ragged
from headtail.data.points import Points
from headtail.encoders import Model
from headtail.evaluation.measures import measure_model
from headtail.evaluation.topk import top_labels
from headtail.evaluation.validation import Validation, implicit_loss_of
from headtail.schemes import PAPER, scheme
from headtail.training.build_model import build_model
from headtail.training.config import SettledRun
from tests.test_metrics import slowly
from tests.training.test_train import DATA, NUM_FEATURES, NUM_LABELS

LABELS = Labels.from_counts(torch.bincount(DATA.train.labels.values, minlength=NUM_LABELS))
POINTS = DATA.test
B = 16
M = 5


def model_of(name: str = "softmax") -> Model:
    model = build_model(SettledRun(dim=6, scheme=name, negatives=M), LABELS, NUM_FEATURES)
    with torch.no_grad():
        model.head.weight.mul_(3)
        if model.head.bias is not None:
            model.head.bias.copy_(torch.randn(NUM_LABELS, 1))
    return model.eval()


def lists(ragged: Ragged) -> list[list[int]]:
    offsets = ragged.offsets.tolist()
    values = ragged.values.tolist()
    return [values[a:b] for a, b in pairwise(offsets)]


def logits_of(model: Model, points: Points) -> list[list[float]]:
    with torch.no_grad():
        return model.head.logits(model.encoder(points.features)).double().tolist()


def best(scores: list[float], k: int, seen: list[int]) -> list[int]:
    """Brute force."""
    found = sorted((y for y in range(NUM_LABELS) if y not in seen), key=lambda y: -scores[y])[:k]
    return found + [-1] * (k - len(found))


@pytest.mark.parametrize("k", [1, 4, NUM_LABELS, NUM_LABELS + 3])
@pytest.mark.parametrize("block", [7, 1024], ids=["blocks", "one block"])
def test_the_top_labels_are_those_of_brute_force(k, block):
    model = model_of()
    wanted = [best(scores, k, []) for scores in logits_of(model, POINTS)]
    assert top_labels(model, POINTS, k, at_once=block).tolist() == wanted


@pytest.mark.parametrize("k", [1, 4, NUM_LABELS, NUM_LABELS + 3])
@pytest.mark.parametrize("block", [7, 1024], ids=["blocks", "one block"])
def test_labels_seen_before_are_left_out_and_nothing_takes_the_place_of_labels_that_run_out(
    k, block
):
    model = model_of()
    generator = torch.Generator().manual_seed(3)
    seen = [
        torch.randperm(NUM_LABELS, generator=generator)[: i % (NUM_LABELS + 1)].tolist()
        for i in range(len(POINTS))
    ]
    assert [] in seen
    assert any(len(one) == NUM_LABELS for one in seen)
    points = replace(POINTS, seen=Ragged.from_lists(seen))
    wanted = [
        best(scores, k, own) for scores, own in zip(logits_of(model, points), seen, strict=True)
    ]
    assert top_labels(model, points, k, at_once=block).tolist() == wanted


def test_every_metric_of_a_model_is_that_of_the_ranking_without_seen_labels():
    model = model_of()
    generator = torch.Generator().manual_seed(5)
    own = lists(POINTS.labels)
    seen = [
        [y for y in torch.randperm(NUM_LABELS, generator=generator)[:4].tolist() if y not in labels]
        for labels in own
    ]
    data = replace(DATA, test=replace(POINTS, seen=Ragged.from_lists(seen)))
    slices = LABELS.slices_by_mass()
    rows = measure_model(model, data, slices)
    top = [
        best(scores, NUM_LABELS, gone)
        for scores, gone in zip(logits_of(model, POINTS), seen, strict=True)
    ]
    assert any(-1 in row for row in top)
    expected = slowly(top, own, LABELS, slices, len(DATA.train))
    assert {row[:2]: row.value for row in rows} == pytest.approx(expected, nan_ok=True)


def test_no_points_have_no_top_labels():
    assert top_labels(model_of(), POINTS.select(torch.zeros(0, dtype=torch.int64)), 4).shape == (
        0,
        4,
    )


def test_recall_at_10_is_the_share_of_pairs_found_and_precision_at_1_that_of_points():
    bare = [[], *lists(POINTS.labels)[1:]]
    points = replace(POINTS, labels=Ragged.from_lists(bare))
    model = model_of()
    scores = logits_of(model, points)
    found = sum(y in best(f, 10, []) for f, own in zip(scores, bare, strict=True) for y in own)
    first = sum(best(f, 1, [])[0] in own for f, own in zip(scores, bare, strict=True))
    assert 0 < first < len(points) - 1
    assert Validation(points, LABELS, "recall@10", B).measure(model) == pytest.approx(
        found / points.num_pairs
    )
    assert Validation(points, LABELS, "precision@1", B).measure(model) == pytest.approx(
        first / (len(points) - 1)
    )


def rho(name: str, y: int, other: int) -> float:
    """The paper's table: what each scheme weighs label `other` with against the positive y."""
    prior = (LABELS.counts.double() / LABELS.counts.sum()).tolist()
    sampler, weighting = name.split(":")
    q, m = (
        (prior, M * (1 - 1 / B))
        if sampler == "within-batch"
        else ([1 / NUM_LABELS] * NUM_LABELS, M)
    )
    return {
        "constant": q[other],
        "importance": 1.0,
        "relative": m * q[y],
        "tail": prior[other] / prior[y],
    }[weighting]


def softmax_by_hand(name: str, f: list[float], y: int) -> float:
    return math.log(
        1
        + sum(
            rho(name, y, other) * math.exp(f[other] - f[y])
            for other in range(NUM_LABELS)
            if other != y
        )
    )


def logistic_by_hand(name: str, f: list[float], y: int) -> float:
    negatives = sum(
        rho(name, y, other) * math.log1p(math.exp(f[other]))
        for other in range(NUM_LABELS)
        if other != y
    )
    return math.log1p(math.exp(-f[y])) + negatives


@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize(
    ("loss", "by_hand"), [("softmax", softmax_by_hand), ("logistic", logistic_by_hand)]
)
def test_the_implicit_loss_of_each_of_the_paper_s_schemes_is_that_of_its_table(name, loss, by_hand):
    model = model_of(f"{loss}/{name}")
    pairs = [
        (f, y)
        for f, own in zip(logits_of(model, POINTS), lists(POINTS.labels), strict=True)
        for y in own
    ]
    wanted = sum(by_hand(name, f, y) for f, y in pairs) / len(pairs)
    validation = Validation(POINTS, LABELS, "implicit-loss", B, at_once=7)
    assert validation.measure(model) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("name", ["softmax", "logit-adjusted", "adaptive", "contrastive"])
def test_an_all_label_loss_is_its_own_implicit_loss(name):
    loss = scheme(name, LABELS)
    model = model_of(name)
    hidden = model.encoder(POINTS.features)
    target = POINTS.labels
    found = implicit_loss_of(loss, B)(hidden, model.head.weight, target)
    assert torch.allclose(found, loss(hidden, model.head.weight, target))


def test_points_without_labels_do_not_count_in_the_implicit_loss():
    model = model_of()
    bare = [[], [], *lists(POINTS.labels)[2:]]
    points = replace(POINTS, labels=Ragged.from_lists(bare))
    rest = POINTS.select(torch.arange(2, len(POINTS)))
    # in blocks of one point, so that some block has no pair at all
    loss, wanted = (
        Validation(part, LABELS, "implicit-loss", B, at_once=1).measure(model)
        for part in (points, rest)
    )
    assert loss == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(
    "name", ["model:constant@5", "model(masked):relative@5", "tilted(equalised):constant@5"]
)
def test_where_what_is_optimised_follows_the_model_its_validation_loss_does_too(name: str):
    """log[1 + Σ m·q·w·e^(f − f_y)] with the q of each point's own scores, written out."""
    model = model_of(name)
    total = 0.0
    for scores, labels in zip(logits_of(model, POINTS), lists(POINTS.labels), strict=True):
        for y in labels:
            prior = [1.0 if "tilted" not in name else float(p) for p in LABELS.prior]
            mass = [p * math.exp(f) for p, f in zip(prior, scores, strict=True)]
            q = [one / sum(mass) for one in mass]
            excluded = 1.0 if "masked" in name else 1 - q[y]
            rho = [one / excluded if "constant" in name else 5 * q[y] for one in q]
            total += math.log(
                1
                + sum(rho[o] * math.exp(scores[o] - scores[y]) for o in range(NUM_LABELS) if o != y)
            )
    found = Validation(POINTS, LABELS, "implicit-loss", B).measure(model)
    assert found == pytest.approx(total / POINTS.num_pairs, rel=1e-4)
