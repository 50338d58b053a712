"""The callback of the MLflow example against MLflow's local file store."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from headtail.training.engine import Engine
from headtail.training.interrupts import Stopped
from headtail.training.trainer import Trainer
from tests.training.test_train import DATA, SMALL, Stop

mlflow = pytest.importorskip("mlflow")
EXAMPLE = Path(__file__).parents[2] / "examples" / "mlflow_tracking.py"
MLflow = runpy.run_path(str(EXAMPLE))["MLflow"]


@pytest.fixture(autouse=True)
def _file_store(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    # Not `set_tracking_uri`, which would outlive the test in the environment.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")


def history(run_id: str, metric: str) -> list[tuple[int, float]]:
    points = mlflow.MlflowClient().get_metric_history(run_id, metric)
    return [(point.step, point.value) for point in points]


def test_mlflow_has_the_curve_of_the_run_and_its_end():
    callback = MLflow("a run", {"scheme": SMALL.scheme})
    trained = Trainer(SMALL, DATA, callbacks=callback).fit()
    steps = trained.steps_per_epoch
    for metric, name in (("loss", "train/loss"), ("implicit-loss", "validation/implicit-loss")):
        curve = [(epoch * steps, value) for epoch, m, value in trained.state.curve if m == metric]
        assert history(callback.run_id, name) == curve
    assert [step for step, _ in history(callback.run_id, "train/recent loss")] == [
        1,
        *(steps * epoch for epoch in (1, 2, 3)),
    ]
    run = mlflow.get_run(callback.run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "a run"
    assert run.data.params == {"scheme": SMALL.scheme}


def test_names_of_metrics_suit_mlflow():
    callback = MLflow("a run", {})
    callback.on_epoch(Trainer(SMALL, DATA).progress, {"validation/recall@10": 0.5})
    assert history(callback.run_id, "validation/recall_at_10") == [(0, 0.5)]


def test_a_run_that_is_stopped_is_marked_as_killed():
    stop = Stop(2)
    callback = MLflow("a run", {})
    engine = Engine(check_every=1)
    with pytest.raises(Stopped):
        Trainer(SMALL, DATA, engine=engine, callbacks=[callback, stop], stop=stop.event).fit()
    assert mlflow.get_run(callback.run_id).info.status == "KILLED"
