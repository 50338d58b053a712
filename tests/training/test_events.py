"""TensorBoard files, read back by TensorBoard."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from headtail.training.engine import Engine
from headtail.training.events import Events
from headtail.training.interrupts import Stopped
from headtail.training.state import State
from headtail.training.trainer import Trained, Trainer
from tests.training.test_train import DATA, SMALL, Stop

RUN = replace(SMALL, epochs=4, patience=4)


def written(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of each curve in the order in which TensorBoard shows them."""
    files = EventAccumulator(str(folder)).Reload()
    return {
        tag: [(event.step, event.value) for event in files.Scalars(tag)]
        for tag in files.Tags()["scalars"]
    }


def trained_with_events(run_folder: Path, every: int = 100, stop: Stop | None = None) -> Trained:
    """A run that is checked after `every` steps."""
    events = Events(run_folder / "events")

    def both(state: State, steps: int, loss: float | None) -> None:
        events(state, steps, loss)
        if stop is not None:
            stop(state, steps, loss)

    try:
        engine = Engine(check_every=every)
        event = None if stop is None else stop.event
        return Trainer(RUN, DATA, run_folder, engine=engine, watch=both, stop=event).fit()
    finally:
        events.close()


def test_tensorboard_reads_the_curve_of_the_run(tmp_path):
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
def test_a_run_stopped_and_resumed_has_the_curve_of_one_that_was_not(where, tmp_path):
    steps = trained_with_events(tmp_path / "whole", every=4).steps_per_epoch
    after = {
        "in an epoch": steps + 4,
        "before an epoch's last step": 2 * steps - 2,
        "at an epoch's last step": 2 * steps - 1,
    }[where]
    with pytest.raises(Stopped):
        trained_with_events(tmp_path / "parts", every=1, stop=Stop(after))
    trained_with_events(tmp_path / "parts", every=4)
    whole, parts = (written(tmp_path / name / "events") for name in ("whole", "parts"))
    for tag in ("train/loss", "validation/implicit-loss"):
        assert whole[tag] == parts[tag]
    shown = [step for step, _ in parts["train/recent loss"]]
    assert shown == sorted(set(shown)), "nothing twice"


def test_what_a_crashed_run_wrote_beyond_its_checkpoint_is_not_shown_twice(tmp_path):
    events = Events(tmp_path / "events")

    def crash(state: State, steps: int, loss: float | None) -> None:
        events(state, steps, loss)
        if state.epoch == 1 and state.step == 5:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        Trainer(RUN, DATA, tmp_path, engine=Engine(check_every=1), watch=crash).fit()
    events.close()
    steps = trained_with_events(tmp_path, every=1).steps_per_epoch
    found = written(tmp_path / "events")
    assert [step for step, _ in found["train/recent loss"]] == list(range(1, 4 * steps + 1))
    assert [step for step, _ in found["train/loss"]] == [steps, 2 * steps, 3 * steps, 4 * steps]


def test_a_run_without_events_leaves_no_folder(tmp_path):
    Events(tmp_path / "events").close()
    assert not (tmp_path / "events").exists()


def test_without_tensorboard_a_run_is_trained_and_one_line_says_that_no_events_are_written(
    tmp_path, monkeypatch
):
    wanted = trained_with_events(tmp_path / "with")
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.warns(UserWarning, match=r"tensorboard is not installed.*headtail\[tensorboard\]"):
        trained = trained_with_events(tmp_path / "without")
    assert trained.state.curve == wanted.state.curve
    assert not (tmp_path / "without" / "events").exists()
