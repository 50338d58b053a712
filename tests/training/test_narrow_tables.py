"""Large tables in bfloat16 learn what float32 ones learn, and are float32 wherever a CPU reads
them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headtail.comparison.compare import data_slices, measures_of
from headtail.core.labels import Labels
from headtail.data.load import load
from headtail.evaluation.topk import top_labels
from headtail.training import build_model as building
from headtail.training.build_model import build_model, place_of_table
from headtail.training.captured import Graph
from headtail.training.config import Run
from headtail.training.trainer import Trainer, load_model

RUN = Run(
    scheme="within-batch:tail",
    dim=64,
    batch=64,
    negatives=32,
    epochs=3,
    lr=0.05,
    validation=0.1,
    dropout=0.2,
)
NARROW = replace(RUN, precision="bfloat16")
GPU = torch.device("cuda")


@pytest.fixture(scope="module")
def data():
    return load("synthetic:points=9000,test=4000,features=6000,labels=300")


def reached(model, data) -> dict[tuple[str, str], float]:
    found = measures_of(top_labels(model, data.test, 50), data, data_slices(data))
    return {
        (one.metric, one.slice): one.value
        for one in found
        if one.metric in ("recall@10", "precision@1")
    }


def test_tables_are_narrow_on_a_gpu_if_they_are_large_and_it_is_asked_for():
    large = building.LARGE
    small = building.LARGE - 1
    assert place_of_table(NARROW, large, GPU, narrow=True) == {
        "device": GPU,
        "dtype": torch.bfloat16,
    }
    for run, numbers, device, narrow in (
        (RUN, large, GPU, True),
        (NARROW, small, GPU, True),
        (NARROW, large, torch.device("cpu"), True),
        (NARROW, large, None, True),
        (NARROW, large, GPU, False),
    ):
        assert place_of_table(run, numbers, device, narrow=narrow).get("dtype") is None


@pytest.mark.parametrize(
    ("scheme", "dtype"),
    [
        ("uniform:importance", torch.bfloat16),
        ("softmax", torch.float32),
        ("contrastive/uniform:importance", torch.float32),
        ("block:importance", torch.float32),
    ],
)
def test_label_tables_are_narrow_where_few_rows_are_read_as_they_are(scheme, dtype, monkeypatch):
    monkeypatch.setattr(building, "LARGE", 0)
    monkeypatch.setattr(
        building, "place_of_table", lambda *_, narrow: {"dtype": torch.bfloat16 if narrow else None}
    )
    model = build_model(replace(NARROW, scheme=scheme), Labels.zipf(50), 20)
    assert model.head.weight.dtype == dtype
    assert model.encoder.weight.dtype == torch.bfloat16
    assert model.encoder.bias.dtype == torch.float32
    assert model.head.bias is None or model.head.bias.dtype == torch.float32


def rate(optimiser: str) -> float:
    """Of learning; steps of SGD must not be small beside the rounding."""
    return 2.0 if optimiser == "sgd" else 0.05


@pytest.mark.parametrize("optimiser", ["adagrad", "rowwise-adagrad", "sgd"])
def test_narrow_tables_learn_the_same_and_are_read_as_float32(
    optimiser, data, tmp_path, monkeypatch
):
    wanted = reached(
        Trainer(replace(RUN, optimiser=optimiser, lr=rate(optimiser)), data).fit().model, data
    )
    monkeypatch.setattr(building, "place_of_table", lambda *_, narrow: {"dtype": torch.bfloat16})
    narrow = (
        Trainer(replace(NARROW, optimiser=optimiser, lr=rate(optimiser)), data, tmp_path)
        .fit()
        .model
    )
    assert narrow.head.weight.dtype == narrow.encoder.weight.dtype == torch.bfloat16
    found = reached(narrow, data)
    assert found == pytest.approx(wanted, abs=0.04)
    assert wanted["recall@10", "full"] > 0.1, "something was learnt"
    monkeypatch.undo()
    model = load_model(tmp_path)[0]
    assert model.head.weight.dtype == model.encoder.weight.dtype == torch.float32
    # hidden states are no longer rounded
    assert reached(model, data) == pytest.approx(found, abs=0.01)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("optimiser", ["adagrad", "rowwise-adagrad", "sgd"])
def test_a_gpu_trains_narrow_tables_in_one_graph(optimiser, data, tmp_path, monkeypatch):
    monkeypatch.setattr(building, "LARGE", 0)
    run = replace(NARROW, optimiser=optimiser, lr=rate(optimiser))
    trainer = Trainer(run, data, tmp_path, device="cuda")
    assert isinstance(trainer._take_step, Graph)
    assert trainer.model.head.weight.dtype == trainer.model.encoder.weight.dtype == torch.bfloat16
    found = reached(trainer.fit().model, data)
    wide = reached(
        Trainer(replace(run, precision="float32"), data, device="cuda").fit().model, data
    )
    assert found == pytest.approx(wide, abs=0.04)
    assert reached(load_model(tmp_path)[0], data) == pytest.approx(found, abs=0.01)
