"""Runs with encoders of sequences: they learn, resume bit for bit, and are saved and opened."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from headtail import HeadtailError
from headtail.cli import main
from headtail.data.load import load
from headtail.data.slices import data_slices
from headtail.encoders import SequenceEncoder
from headtail.evaluation.measures import measure_model
from headtail.kernels.dispatch import use_kernels
from headtail.training.captured import CapturedStep
from headtail.training.config import Run
from headtail.training.engine import Engine
from headtail.training.interrupts import Stopped
from headtail.training.open_model import open_model
from headtail.training.recipes import OF_ENCODER
from headtail.training.resident import ResidentStep
from headtail.training.resident_sequences import ResidentSequences
from headtail.training.trainer import Trainer
from tests.training.test_graphs import on_gpu
from tests.training.test_resume import EVERY_STEP, assert_same_run
from tests.training.test_train import Stop, assert_same_model

ITEMS = 12
SMALL = Run(
    scheme="within-batch:importance",
    encoder="sasrec",
    dim=16,
    length=5,
    batch=64,
    negatives=32,
    epochs=12,
    optimiser="adam",
    lr=0.01,
    dropout=0.0,
    schedule="constant",
)
RUNS = {
    "sasrec": replace(SMALL, dropout=0.2),
    "gru": replace(SMALL, encoder="gru", layers=1, scheme="uniform:importance@8"),
    "untied": replace(SMALL, tied=False, optimiser="adagrad", lr=0.1, schedule="linear"),
    "exact": replace(SMALL, scheme="softmax", weight_decay=0.01),
    "decayed": replace(SMALL, weight_decay=0.1),
    "clipped": replace(SMALL, clip=0.5),
    "queue": replace(SMALL, scheme="queue:importance@32"),
}
each_run = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sequences in which two items take turns: the next follows from the order of the last two."""
    folder = tmp_path_factory.mktemp("order")
    rng = np.random.default_rng(0)
    for name, count in (("train", 120), ("test", 60)):
        sequences = []
        for _ in range(count):
            sequence = rng.integers(0, ITEMS, 2).tolist()
            for _ in range(int(rng.integers(2, 12))):
                sequence.append(sequence[-2])
            sequences.append(sequence)
        pq.write_table(pa.table({"items": sequences}), folder / f"{name}.parquet")
    return folder


@pytest.fixture(scope="module")
def data(folder):
    return load(folder)


def recall(model, data):
    found = measure_model(model, data, data_slices(data))
    return next(m.value for m in found if (m.metric, m.slice) == ("recall@1", "full"))


@pytest.mark.parametrize("encoder", ["sasrec", "gru"])
def test_they_learn_what_order_decides(data, encoder):
    run = replace(SMALL, encoder=encoder, epochs=15, scheme="softmax")
    model = Trainer(run, data).fit().model.eval()
    bag = Trainer(replace(run, encoder="bag", length=50), data).fit().model.eval()
    assert recall(model, data) > 0.8
    assert recall(bag, data) < 0.4


@each_run
def test_a_run_stopped_after_any_step_continues_bit_for_bit(run, data, tmp_path):
    run = replace(run, epochs=3)
    whole = Trainer(run, data, tmp_path / "whole").fit()
    stops = 0
    for after in (0, 4, whole.steps_per_epoch + 1):
        stop = Stop(after)
        try:
            Trainer(
                run, data, tmp_path / "parts", engine=EVERY_STEP, callbacks=stop, stop=stop.event
            ).fit()
        except Stopped:
            stops += 1
        torch.rand(3)
    assert stops == 3
    parts = Trainer(run, data, tmp_path / "parts", engine=EVERY_STEP).fit()
    assert_same_model(whole, parts)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@each_run
def test_a_saved_model_answers_as_the_trained_one(run, data, tmp_path):
    trained = Trainer(replace(run, epochs=2), data, tmp_path).fit()
    opened = open_model(tmp_path, data)
    assert (opened.model.encoder.weight is opened.model.head.weight) == run.tied
    histories = data.test.features
    assert torch.equal(opened.model.top(histories, 5), trained.model.top(histories, 5))


def test_a_sparse_and_a_dense_table_are_trained_alike(data, monkeypatch):
    """Without kernels for rows, gradients are dense: adagrad gives the same."""
    run = replace(SMALL, optimiser="adagrad", lr=0.1, epochs=2, negatives=64)
    sparse = Trainer(run, data).fit()
    monkeypatch.setattr("headtail.kernels.dispatch.updates_rows", lambda device: False)
    dense = Trainer(run, data)
    assert not dense.model.head.sparse
    dense = dense.fit()
    for one, other in zip(sparse.model.parameters(), dense.model.parameters(), strict=True):
        if one.dim() > 1:  # the keys' bias has no effect, and only rounding as its gradient
            torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


def test_an_encoder_of_ones_own_is_trained_on_items_in_order(data):
    class Last(SequenceEncoder):
        def __init__(self):
            super().__init__(ITEMS, 16, length=2, tied=False)
            self.mix = torch.nn.Linear(16, 16)

        def forward(self, items):
            return self.mix(self.embed(items))

    trainer = Trainer(SMALL, data, encoder=Last())
    assert trainer.batches.length == 2
    assert trainer.fit().state.best_epoch > 0


@pytest.mark.parametrize("encoder", ["sasrec", "gru"])
def test_features_without_an_order_are_refused(encoder):
    text = load("synthetic:points=60,test=20,features=80,labels=12")
    with pytest.raises(
        HeadtailError,
        match=f"`encoder='{encoder}'` reads sequences in order, but the features are not sequences",
    ):
        Trainer(replace(SMALL, encoder=encoder), text)


def test_a_model_of_sequences_is_not_asked_about_other_data(data, tmp_path):
    Trainer(replace(SMALL, epochs=1), data, tmp_path).fit()
    bags = replace(data, train=data.train.as_bags(), test=data.test.as_bags())
    with pytest.raises(HeadtailError, match=r"reads sequences in order, but `order"):
        open_model(tmp_path, bags)


def words(folder, out, *more):
    small = "--dim 16 --heads 1 --length 5 --batch 64 --negatives 32 --epochs 2 --device cpu"
    return [str(folder), "--encoder", "sasrec", *small.split(), "--out", str(out), *more]


def test_commands_train_compare_evaluate_and_predict(folder, tmp_path, capsys):
    run = tmp_path / "run"
    scheme = ["--scheme", "within-batch:importance"]
    assert main(["train", *words(folder, run, *scheme)]) == 0
    settings = Run.read(run / "run.toml") if (run / "run.toml").exists() else None
    assert settings is None or (settings.optimiser, settings.lr) == ("adam", 0.001)
    assert main(["evaluate", str(run), str(folder), "--device", "cpu"]) == 0
    assert main(["predict", str(run), str(folder), "--out", str(tmp_path / "best.csv")]) == 0
    assert len((tmp_path / "best.csv").read_text().splitlines()) == 1 + 60 * 10
    schemes = ["--schemes", "softmax", "within-batch:importance", "--workers", "1"]
    assert main(["compare", *words(folder, tmp_path / "out", *schemes)]) == 0
    assert (tmp_path / "out" / "report.html").exists()
    capsys.readouterr()
    assert main(["train", "synthetic:points=60,labels=12", "--encoder", "gru"]) == 2
    assert "`--encoder gru` reads sequences in order" in capsys.readouterr().err


def test_an_encoder_brings_its_recipe():
    for name, recipe in OF_ENCODER.items():
        settings = recipe()
        settings.check_together()
        assert settings.encoder == name
        assert settings.dim % settings.heads == 0


STEADY = replace(SMALL, scheme="uniform(without-replacement):tail@12", optimiser="sgd", lr=0.05)
"""Every label is drawn in every step, so that no randomness matters."""


@pytest.mark.parametrize("run", [STEADY, replace(STEADY, scheme="softmax", encoder="gru")])
def test_steps_of_fixed_shape_learn_what_eager_steps_learn(run, data):
    weights = []
    for resident in (True, False):
        trainer = Trainer(run, data)
        step = trainer.step
        if resident:
            sequences = ResidentSequences(trainer.batches, torch.device("cpu"), run.epochs)
            step = ResidentStep(trainer.learner, sequences)
        for batch in step.order(epoch=0, start=1):
            assert step(batch).isfinite()
        weights.append([p.detach() for p in trainer.model.parameters()])
    for by_resident, by_eager in zip(*weights, strict=True):
        torch.testing.assert_close(by_resident, by_eager, atol=1e-5, rtol=1e-4)


@on_gpu
@pytest.mark.parametrize("encoder", ["sasrec", "gru"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("optimiser", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("scheme", [STEADY.scheme, "softmax"])
def test_steps_on_a_gpu_are_captured_and_those_of_a_cpu(data, encoder, tied, optimiser, scheme):
    # At a high rate, Adam makes the rounding errors of a small transformer large.
    rate = 0.002 if optimiser == "adam" else STEADY.lr
    run = replace(STEADY, encoder=encoder, tied=tied, optimiser=optimiser, scheme=scheme, epochs=3)
    run = replace(run, lr=rate)
    with use_kernels("always"):
        by_cpu, by_gpu = (Trainer(run, data, device=device) for device in ("cpu", "cuda"))
        assert isinstance(by_gpu.step, CapturedStep)
        one, other = by_cpu.fit(), by_gpu.fit()
    assert [value for *_, value in one.state.curve] == pytest.approx(
        [value for *_, value in other.state.curve], rel=1e-2
    )


@on_gpu
@pytest.mark.parametrize("name", RUNS)
def test_a_run_on_a_gpu_learns_and_resumes(name, data, tmp_path):
    run = replace(RUNS[name], epochs=3)
    whole = Trainer(run, data, tmp_path / "whole", device="cuda", engine=EVERY_STEP).fit()
    losses = [value for _, metric, value in whole.state.curve if metric == "loss"]
    assert losses[-1] < losses[0]
    stop = Stop(whole.steps_per_epoch + 3)
    with pytest.raises(Stopped):
        Trainer(
            run,
            data,
            tmp_path / "parts",
            device="cuda",
            engine=EVERY_STEP,
            callbacks=stop,
            stop=stop.event,
        ).fit()
    parts = Trainer(run, data, tmp_path / "parts", device="cuda", engine=EVERY_STEP).fit()
    assert [value for *_, value in whole.state.curve] == pytest.approx(
        [value for *_, value in parts.state.curve], rel=1e-2
    )


@on_gpu
def test_sequences_that_do_not_fit_on_a_gpu_are_copied_step_by_step(data):
    with pytest.warns(UserWarning, match="each step copies its own features"):
        trainer = Trainer(STEADY, data, device="cuda", engine=Engine(share_of_memory=0.0))
    curve = [value for *_, value in trainer.fit().state.curve]
    assert curve == pytest.approx(
        [value for *_, value in Trainer(STEADY, data).fit().state.curve], rel=1e-2
    )
