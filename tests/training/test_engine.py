"""The fast engine and the plain one learn the same: kernels and updates inside backward change
nothing but the last digits.
"""

from __future__ import annotations

import pytest
import torch

from headtail.data.load import load
from headtail.data.slices import data_slices
from headtail.evaluation.measures import measures_of
from headtail.evaluation.topk import top_labels
from headtail.kernels.dispatch import use_kernels
from headtail.training.config import Run
from headtail.training.trainer import Trainer

RATES = {"adagrad": 0.05, "sgd": 1.0}
SCHEMES = [
    "uniform:importance",
    "within-batch:tail",
    "uniform(excluded):relative@16",
    "contrastive/within-batch:constant",
]


@pytest.fixture(scope="module")
def data():
    return load("synthetic:points=3000,test=400,features=600,labels=300")


def learnt(
    scheme: str, data, optimiser: str, *, plain: bool
) -> tuple[list[torch.Tensor], dict[tuple[str, str], float]]:
    """The weights of a run and what they reach on the test points."""
    run = Run(
        scheme=scheme,
        dim=64,
        batch=64,
        negatives=32,
        epochs=3,
        lr=RATES[optimiser],
        validation=0.0,
        dropout=0.2,
        optimiser=optimiser,
    )
    with use_kernels(not plain):
        trainer = Trainer(run, data)
        if plain:
            trainer.optimiser.inside_backward(False)
        trained = trainer.fit()
    found = measures_of(top_labels(trained.model, data.test, 50), data, data_slices(data))
    return [p.detach() for p in trained.model.parameters()], {
        (one.metric, one.slice): one.value for one in found
    }


@pytest.mark.parametrize("optimiser", ["adagrad", "sgd"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_run_by_kernels_is_the_run_by_plain_torch(scheme, optimiser, data):
    fast, reached = learnt(scheme, data, optimiser, plain=False)
    plain, wanted = learnt(scheme, data, optimiser, plain=True)
    assert any(not torch.equal(one, other) for one, other in zip(fast, plain, strict=True)), (
        "two engines ran"
    )
    for one, other in zip(fast, plain, strict=True):
        assert (one - other).norm() <= 1e-3 * other.norm()
    assert reached == pytest.approx(wanted, abs=0.01)
    assert wanted["recall@10", "full"] > 0.1, "something was learnt"
