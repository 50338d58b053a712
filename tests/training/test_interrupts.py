"""What stops a run: signals of terminals and schedulers; and that slow steps are reported."""

from __future__ import annotations

import os
import signal

import pytest

from headtail.data.load import load
from headtail.training.callbacks import Callback
from headtail.training.config import Run
from headtail.training.engine import Engine
from headtail.training.interrupts import SIGNALS, Stopped, interrupts
from headtail.training.trainer import Trainer
from tests.training.test_train import Calls

RUN = Run(scheme="softmax", epochs=2, dim=8, batch=16)


@pytest.fixture(scope="module")
def data():
    return load("synthetic:points=300,test=60,labels=20,features=80")


@pytest.fixture
def heard():
    """These tests may have been started with a closed terminal ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_run_saves_and_stops_at_a_signal_and_continues_from_there(tmp_path, data, number):
    class Kill(Callback):
        def on_step(self, progress, loss):
            if progress.step == 1:
                os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    with pytest.raises(Stopped):
        Trainer(RUN, data, tmp_path, callbacks=Kill()).fit()
    assert signal.getsignal(number) == before
    assert (tmp_path / "checkpoint.safetensors").exists()
    found = Trainer(RUN, data, tmp_path).fit()
    whole = Trainer(RUN, data).fit()
    assert found.model.head.weight.equal(whole.model.head.weight)


def test_the_second_signal_stops_at_once():
    with interrupts() as flag:
        os.kill(os.getpid(), signal.SIGTERM)
        assert flag.is_set()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts() as flag:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not flag.is_set()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_slow_steps_are_reported_one_by_one_and_change_nothing(data):
    def seen(engine):
        calls = Calls()
        trained = Trainer(RUN, data, engine=engine, callbacks=calls).fit()
        return [progress.step for name, progress, _ in calls.made if name == "step"], trained

    few, plain = seen(Engine())
    every, slow = seen(Engine(check_seconds=-1.0))
    per_epoch = Trainer(RUN, data).batches.steps
    assert len(few) < len(every)
    assert every[:per_epoch] == list(range(1, per_epoch + 1))
    assert slow.model.head.weight.equal(plain.model.head.weight)
