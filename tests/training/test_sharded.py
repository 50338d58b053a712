"""Training on ranks that share the label table."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headtail import load
from headtail.data.batches import Batches
from tests.collectives.processes import checks_in, failures
from tests.training import sharded_best_checks, sharded_checks

CHECKS = checks_in(sharded_checks, sharded_best_checks)


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return failures(CHECKS, 2, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", CHECKS)
def test_on_two_ranks(name: str, on_two_ranks: dict[str, str]):
    assert name not in on_two_ranks, on_two_ranks[name]


@pytest.mark.long
def test_on_three_ranks(tmp_path: Path):
    assert failures(CHECKS, 3, tmp_path) == {}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("whole_points", [False, True])
def test_ranks_take_every_example_of_a_batch_once(ranks: int, whole_points: bool):
    points = load("synthetic:points=60,test=10,features=80,labels=12").train
    every = Batches(points, 10, 3, whole_points=whole_points).order(epoch=1, start=2)
    parts = [
        Batches(points, 10, 3, whole_points=whole_points, part=(rank, ranks)).order(1, 2)
        for rank in range(ranks)
    ]
    for batch, *own in zip(every, *parts, strict=True):
        assert torch.cat(own).equal(batch)
        assert max(map(len, own)) - min(map(len, own)) <= 1
