"""Callbacks: when they are called; TensorBoard files, read back by TensorBoard."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from headtail.comparison.compare import Execution, compare
from headtail.errors import HeadtailError
from headtail.training.callbacks import Callback
from headtail.training.engine import Engine
from headtail.training.interrupts import Stopped
from headtail.training.tensorboard import TensorBoard
from headtail.training.trainer import Trained, Trainer
from tests.training.test_train import DATA, SMALL, Calls, Stop

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
    callbacks: list[Callback] = [TensorBoard(run_folder / "events")]
    if stop is not None:
        callbacks.append(stop)
    engine = Engine(check_every=every)
    event = None if stop is None else stop.event
    return Trainer(RUN, DATA, run_folder, engine=engine, callbacks=callbacks, stop=event).fit()


def test_a_run_calls_on_step_then_on_epoch_and_once_on_end():
    calls = Calls()
    trained = Trainer(RUN, DATA, engine=Engine(check_every=2), callbacks=[calls]).fit()
    steps = trained.steps_per_epoch
    called = [(name, progress.epoch, progress.step) for name, progress, _ in calls.made]
    expected = []
    for epoch in range(RUN.epochs):
        checked = [
            i for i in range(1, steps + 1) if i % 2 == 0 or i == steps or (epoch, i) == (0, 1)
        ]
        expected += [("step", epoch, epoch * steps + i) for i in checked]
        expected.append(("epoch", epoch + 1, (epoch + 1) * steps))
    assert called == [*expected, ("end", RUN.epochs, RUN.epochs * steps)]
    assert [progress.finished for _, progress, _ in calls.made[-3:]] == [False, True, True]
    assert all(math.isfinite(loss) for name, _, loss in calls.made if name == "step")


def test_on_epoch_gets_the_mean_loss_and_what_was_measured():
    calls = Calls()
    trained = Trainer(RUN, DATA, callbacks=[calls]).fit()
    curve = {(epoch, metric): value for epoch, metric, value in trained.state.curve}
    for name, progress, metrics in calls.made:
        if name == "epoch":
            assert metrics == {
                "train/loss": curve[progress.epoch, "loss"],
                "validation/implicit-loss": curve[progress.epoch, "implicit-loss"],
            }


def test_without_validation_on_epoch_gets_the_loss_alone():
    calls = Calls()
    Trainer(replace(RUN, validation=0.0, epochs=1), DATA, callbacks=[calls]).fit()
    [metrics] = [metrics for name, _, metrics in calls.made if name == "epoch"]
    assert list(metrics) == ["train/loss"]


def test_a_run_whose_last_epoch_a_callback_fails_in_ends_unfinished():
    class Fails(Callback):
        def on_epoch(self, progress, metrics):
            if progress.finished:
                raise RuntimeError("the tracking server is gone")

    calls = Calls()
    with pytest.raises(RuntimeError, match="gone"):
        Trainer(RUN, DATA, callbacks=[calls, Fails()]).fit()
    name, progress, _ = calls.made[-1]
    assert (name, progress.epoch, progress.finished) == ("end", progress.epochs, False)


def test_a_run_that_is_stopped_ends_unfinished_and_every_callback_hears_it():
    class Fails(Callback):
        def on_end(self, progress):
            raise RuntimeError("the tracking server is gone")

    stop = Stop(2)
    calls = Calls()
    trainer = Trainer(
        RUN,
        DATA,
        engine=Engine(check_every=1),
        callbacks=[Fails(), stop, calls],
        stop=stop.event,
    )
    with pytest.raises(RuntimeError, match="gone"):
        trainer.fit()
    name, progress, _ = calls.made[-1]
    assert (name, progress.step, progress.finished) == ("end", 3, False)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (print, "`callbacks` must be a list of callbacks, but got builtin_function_or_method"),
        ([print], "`callbacks` must be a Callback, but got builtin_function_or_method"),
        ([Calls], "`callbacks` must be a Callback, but got the class Calls itself"),
    ],
)
def test_what_is_not_a_callback_is_refused_before_any_work(given, sentence):
    with pytest.raises(HeadtailError) as refused:
        Trainer(RUN, DATA, callbacks=given)
    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize(
    ("callbacks", "sentence"),
    [
        ([Calls()], "`callbacks` must be a function from a cell to its callbacks, but got list."),
        (lambda _: [print], "`callbacks` must be a Callback, but got builtin_function_or_method."),
        (lambda _: None, "`callbacks` must be a list of callbacks, but got NoneType."),
    ],
)
def test_a_comparison_refuses_what_is_not_callbacks_instead_of_failing_run_by_run(
    callbacks, sentence, tmp_path
):
    with pytest.raises(HeadtailError) as refused:
        compare(DATA, ["softmax"], out=tmp_path, execution=Execution(callbacks=callbacks))
    assert str(refused.value).startswith(sentence)


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
    class Crash(Callback):
        def on_step(self, progress, loss):
            if progress.step == progress.steps_per_epoch + 5:
                raise RuntimeError("power cut")

    both = [TensorBoard(tmp_path / "events"), Crash()]
    with pytest.raises(RuntimeError):
        Trainer(RUN, DATA, tmp_path, engine=Engine(check_every=1), callbacks=both).fit()
    steps = trained_with_events(tmp_path, every=1).steps_per_epoch
    found = written(tmp_path / "events")
    assert [step for step, _ in found["train/recent loss"]] == list(range(1, 4 * steps + 1))
    assert [step for step, _ in found["train/loss"]] == [steps, 2 * steps, 3 * steps, 4 * steps]


def test_a_finished_run_that_is_opened_again_writes_no_events(tmp_path):
    Trainer(RUN, DATA, tmp_path).fit()
    Trainer(RUN, DATA, tmp_path, callbacks=TensorBoard(tmp_path / "events")).fit()
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


def test_a_run_goes_on_without_event_files_where_none_can_be_written(tmp_path):
    (tmp_path / "events").write_text("in the way")
    with pytest.warns(UserWarning, match="No more TensorBoard event files are written to") as noted:
        trained = Trainer(RUN, DATA, tmp_path, callbacks=TensorBoard(tmp_path / "events")).fit()
    assert trained.state.finished
    assert len(noted) == 1


def test_events_of_a_resumed_run_come_after_those_before_it_though_the_clock_was_set_back(
    tmp_path, monkeypatch
):
    earlier = time.time() - 86_400
    with pytest.raises(Stopped):
        trained_with_events(tmp_path, every=1, stop=Stop(1))
    monkeypatch.setattr(time, "time", lambda: earlier)
    steps = trained_with_events(tmp_path).steps_per_epoch
    found = written(tmp_path / "events")
    assert [step for step, _ in found["train/loss"]] == [steps, 2 * steps, 3 * steps, 4 * steps]
