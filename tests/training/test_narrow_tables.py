"""Large tables in bfloat16 learn what float32 ones learn, and are float32 wherever a CPU reads
them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headtail.core.labels import Labels
from headtail.data.load import load
from headtail.data.slices import data_slices
from headtail.evaluation.measures import measures_of
from headtail.evaluation.topk import top_labels
from headtail.training.build_model import TablePlacement, build_model
from headtail.training.captured import CapturedStep
from headtail.training.config import SettledRun
from headtail.training.engine import Engine
from headtail.training.saved_model import load_model
from headtail.training.trainer import Trainer

RUN = SettledRun(
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
CPU = torch.device("cpu")
NARROW_HERE = Engine(large_table=0, narrow_on=("cpu", "cuda"))


@pytest.fixture(scope="module")
def data():
    return load("synthetic:points=9000,test=4000,features=6000,labels=300")


def reached(model, data) -> dict[tuple[str, str], float]:
    found = measures_of(top_labels(model, data.test, 50), data, data_slices(data))
    return {
        (measure.metric, measure.slice): measure.value
        for measure in found
        if measure.metric in ("recall@10", "precision@1")
    }


def test_tables_are_narrow_on_a_gpu_if_they_are_large_and_it_is_asked_for():
    large = Engine().large_table
    assert TablePlacement().large == large
    assert TablePlacement(GPU).options(NARROW, large, narrow=True) == {
        "device": GPU,
        "dtype": torch.bfloat16,
    }
    for run, numbers, device, narrow in (
        (RUN, large, GPU, True),
        (NARROW, large - 1, GPU, True),
        (NARROW, large, CPU, True),
        (NARROW, large, None, True),
        (NARROW, large, GPU, False),
    ):
        options = TablePlacement(device).options(run, numbers, narrow=narrow)
        assert options.get("dtype") is None


@pytest.mark.parametrize(
    ("scheme", "dtype"),
    [
        ("uniform:importance", torch.bfloat16),
        ("softmax", torch.float32),
        ("contrastive/uniform:importance", torch.float32),
        ("block:importance", torch.float32),
    ],
)
def test_label_tables_are_narrow_where_few_rows_are_read_as_they_are(scheme, dtype):
    placement = TablePlacement(CPU, large=0, narrow_on=("cpu",))
    run = replace(NARROW, scheme=scheme)
    model = build_model(run, Labels.zipf(50), 20, placement=placement)
    assert model.head.weight.dtype == dtype
    assert model.encoder.weight.dtype == torch.bfloat16
    assert model.encoder.bias.dtype == torch.float32
    assert model.head.bias is None or model.head.bias.dtype == torch.float32


def rate(optimiser: str) -> float:
    """The learning rate; steps of SGD must not be small compared with the rounding."""
    return 2.0 if optimiser == "sgd" else 0.05


@pytest.mark.parametrize("optimiser", ["adagrad", "rowwise-adagrad", "sgd"])
def test_narrow_tables_learn_the_same_and_are_read_as_float32(optimiser, data, tmp_path):
    wanted = reached(
        Trainer(replace(RUN, optimiser=optimiser, lr=rate(optimiser)), data).fit().model, data
    )
    run = replace(NARROW, optimiser=optimiser, lr=rate(optimiser))
    narrow = Trainer(run, data, tmp_path, engine=NARROW_HERE).fit().model
    assert narrow.head.weight.dtype == narrow.encoder.weight.dtype == torch.bfloat16
    found = reached(narrow, data)
    assert found == pytest.approx(wanted, abs=0.04)
    assert wanted["recall@10", "full"] > 0.1, "something was learned"
    model = load_model(tmp_path)[0]
    assert model.head.weight.dtype == model.encoder.weight.dtype == torch.float32
    # Hidden states are no longer rounded.
    assert reached(model, data) == pytest.approx(found, abs=0.01)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("optimiser", ["adagrad", "rowwise-adagrad", "sgd"])
def test_a_gpu_trains_narrow_tables_in_one_graph(optimiser, data, tmp_path):
    run = replace(NARROW, optimiser=optimiser, lr=rate(optimiser))
    trainer = Trainer(run, data, tmp_path, device="cuda", engine=NARROW_HERE)
    assert isinstance(trainer.step, CapturedStep)
    assert trainer.model.head.weight.dtype == trainer.model.encoder.weight.dtype == torch.bfloat16
    found = reached(trainer.fit().model, data)
    wide = Trainer(replace(run, precision="float32"), data, device="cuda", engine=NARROW_HERE).fit()
    assert found == pytest.approx(reached(wide.model, data), abs=0.04)
    assert reached(load_model(tmp_path)[0], data) == pytest.approx(found, abs=0.01)
