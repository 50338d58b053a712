"""TensorBoard files, read back by TensorBoard."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from headtail.training import trainer as train
from headtail.training.events import Events
from headtail.training.trainer import State, Stopped, Trained, Trainer
from tests.training.test_train import DATA, SMALL, Stop

RUN = replace(SMALL, epochs=4, patience=4)


def written(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of each curve in the order in which TensorBoard shows them."""
    files = EventAccumulator(str(folder)).Reload()
    return {
        tag: [(event.step, event.value) for event in files.Scalars(tag)]
        for tag in files.Tags()["scalars"]
    }


def trained_with_events(run_folder: Path, stop: Stop | None = None) -> Trained:
    events = Events(run_folder / "events")

    def both(state: State, steps: int, loss: float) -> None:
        events(state, steps, loss)
        if stop is not None:
            stop(state, steps, loss)

    try:
        return Trainer(
            RUN, DATA, run_folder, watch=both, stop=None if stop is None else stop.event
        ).fit()
    finally:
        events.close()


def test_tensorboard_reads_the_curve_that_the_run_tells(tmp_path):
    trained = trained_with_events(tmp_path)
    steps = trained.steps_per_epoch
    found = written(tmp_path / "events")
    for metric, tag in (("loss", "train/loss"), ("implicit-loss", "validation/implicit-loss")):
        wanted = [
            (epoch * steps, value) for epoch, name, value in trained.state.curve if name == metric
        ]
        assert [step for step, _ in found[tag]] == [step for step, _ in wanted]
        assert [value for _, value in found[tag]] == pytest.approx(
            [value for _, value in wanted], rel=1e-6
        )
    assert [step for step, _ in found["train/recent loss"]] == [
        1,
        steps,
        2 * steps,
        3 * steps,
        4 * steps,
    ]
    assert all(math.isfinite(value) for _, value in found["train/recent loss"])


@pytest.mark.parametrize(
    "where", ["in an epoch", "before an epoch's last step", "at an epoch's last step"]
)
def test_a_run_stopped_and_resumed_has_the_curve_of_one_that_was_not(where, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "CHECK_EVERY", 4)
    steps = trained_with_events(tmp_path / "whole").steps_per_epoch
    monkeypatch.setattr(train, "CHECK_EVERY", 1)  # lets the watch stop where it wants
    after = {
        "in an epoch": steps + 4,
        "before an epoch's last step": 2 * steps - 2,
        "at an epoch's last step": 2 * steps - 1,
    }[where]
    with pytest.raises(Stopped):
        trained_with_events(tmp_path / "parts", Stop(after))
    monkeypatch.setattr(train, "CHECK_EVERY", 4)
    trained_with_events(tmp_path / "parts")
    whole, parts = (written(tmp_path / name / "events") for name in ("whole", "parts"))
    for tag in ("train/loss", "validation/implicit-loss"):
        assert whole[tag] == parts[tag]
    shown = [step for step, _ in parts["train/recent loss"]]
    assert shown == sorted(set(shown)), "nothing twice"


def test_what_a_crashed_run_wrote_beyond_its_checkpoint_is_not_shown_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "CHECK_EVERY", 1)
    events = Events(tmp_path / "events")

    def crash(state: State, steps: int, loss: float) -> None:
        events(state, steps, loss)
        if state.epoch == 1 and state.step == 5:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        Trainer(RUN, DATA, tmp_path, watch=crash).fit()
    events.close()
    steps = trained_with_events(tmp_path).steps_per_epoch
    found = written(tmp_path / "events")
    assert [step for step, _ in found["train/recent loss"]] == list(range(1, 4 * steps + 1))
    assert [step for step, _ in found["train/loss"]] == [steps, 2 * steps, 3 * steps, 4 * steps]


def test_a_run_without_events_leaves_no_folder(tmp_path):
    Events(tmp_path / "events").close()
    assert not (tmp_path / "events").exists()
