"""Work in a child process: what it reports arrives, and nothing that happens to it happens here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from headtail.data.child import Limits, run
from headtail.data.processes import Processes
from headtail.errors import HeadtailError, PythonName, Setting

ENOUGH = Limits(memory=2 << 30, seconds=30.0)


def refuse(progress):
    """What a reader raises about bad data."""
    raise HeadtailError(
        "Bad. Write ",
        Setting("split", "last"),
        " or ",
        Setting("root"),
        ", or call ",
        PythonName("load"),
        ".",
    )


def endless(path, progress):
    """Note the process, and never end."""
    aside = Path(f"{path}.part")
    aside.write_text(str(os.getpid()))
    aside.rename(path)
    while True:
        time.sleep(0.02)


def square(task, report):
    return task**2


def in_processes(progress):
    """Start processes of its own."""
    with Processes(2) as processes:
        assert processes.map(square, [3, 4]) == [9, 16]


def is_gone(path: Path) -> bool:
    try:
        os.kill(int(path.read_text()), 0)
    except ProcessLookupError:
        return True
    return False


def test_work_that_is_done_is_no_failure_and_its_last_report_arrives():
    reports = []

    def work(progress):
        progress("reading a", 0.25)
        progress("reading b", 1.0)

    assert run(work, ENOUGH, lambda *report: reports.append(report)) is None
    assert reports[-1] == ("reading b", 1.0)


def test_a_sentence_arrives_with_its_settings_and_names():
    failure = run(refuse, ENOUGH)
    assert failure.reason == "error"
    assert failure.about == "Bad. Write `split='last'` or `root`, or call `load`."
    assert failure.about.parts[1::2] == (
        Setting("split", "last"),
        Setting("root"),
        PythonName("load"),
    )


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV, signal.SIGKILL])
def test_a_child_that_dies_of_a_signal_is_reported_by_its_name_and_says_nothing(number, capfd):
    failure = run(lambda progress: os.kill(os.getpid(), number), ENOUGH)
    assert failure == ("died", number.name, "")
    assert capfd.readouterr() == ("", "")


def test_a_child_that_leaves_without_a_message_has_died():
    assert run(lambda progress: os._exit(0), ENOUGH) == ("died", "without a message", "")
    assert run(lambda progress: os._exit(3), ENOUGH) == ("died", "exit status 3", "")


def test_any_other_exception_arrives_with_its_traceback():
    failure = run(lambda progress: {}["no such key"], ENOUGH)
    assert failure.reason == "exception"
    assert failure.about == "KeyError: 'no such key'"
    assert "test_child.py" in failure.traceback


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a limit of memory")
@pytest.mark.parametrize(
    "take",
    [
        lambda _: np.empty(1 << 28),
        lambda _: torch.empty(1 << 29),
        lambda _: pa.allocate_buffer(2 << 30),
        lambda _: bytearray(2 << 30),
    ],
    ids=["numpy", "torch", "arrow", "python"],
)
def test_no_library_may_take_more_memory_than_is_allowed(take):
    assert run(take, Limits(1 << 30, 30.0)).reason == "memory"
    assert run(take, Limits(4 << 30, 30.0)) is None


def test_a_child_that_takes_too_long_is_ended(tmp_path):
    begun = time.monotonic()
    failure = run(partial(endless, tmp_path / "id"), Limits(2 << 30, 0.5))
    assert failure.reason == "seconds"
    assert time.monotonic() - begun < 10
    assert is_gone(tmp_path / "id")


def test_a_child_that_does_not_listen_is_killed():
    def deaf(progress):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(1)

    assert run(deaf, Limits(2 << 30, 0.2)).reason == "seconds"


def test_a_child_may_start_processes_of_its_own():
    assert run(in_processes, ENOUGH) is None


def test_a_daemonic_process_may_have_such_a_child():
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def work():
        sender.send(run(refuse, ENOUGH).reason)

    process = context.Process(target=work, daemon=True)
    process.start()
    assert receiver.poll(30)
    assert receiver.recv() == "error"
    process.join()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
def test_a_child_ends_with_its_parent(tmp_path, number):
    started = tmp_path / "started"
    code = (
        "import signal\n"
        # Where the tests run in the background, Ctrl-C is ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from functools import partial\n"
        "from headtail.data.child import run\n"
        "from tests.data.test_child import ENOUGH, endless\n"
        f"run(partial(endless, {str(started)!r}), ENOUGH)\n"
    )
    path = os.pathsep.join(["src", ".", os.environ.get("PYTHONPATH", "")])
    running = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not started.exists():
        assert running.poll() is None
        time.sleep(0.05)
    if number == signal.SIGINT:
        os.killpg(running.pid, number)
    else:
        running.kill()
    _, errors = running.communicate(timeout=30)
    if number == signal.SIGINT:
        assert errors.rstrip().endswith("KeyboardInterrupt")
        assert errors.count("Traceback") == 1
    for _ in range(100):
        if is_gone(started):
            return
        time.sleep(0.05)
    raise AssertionError("the child is still there")
