"""The same work in one process and in several."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headtail.data.processes import Processes, most_processes, processes_for
from headtail.errors import HeadtailError, Setting


def square(task, report):
    """Report twice, and return a number and the process."""
    report(0.5)
    report(1.0)
    return task**2, os.getpid()


def refuse(task, report):
    """What a reader raises about bad data."""
    if task == 2:
        raise HeadtailError("Task 2 is bad. Choose ", Setting("split", "last"), ".")


def die(task, report):
    """End the process as an operating system that is out of memory does."""
    os._exit(9)


def endless(task, report):
    """Note the process, and never end."""
    aside = Path(f"{task}.part")
    aside.write_text(str(os.getpid()))
    aside.rename(task)
    while True:
        report(0.0)
        time.sleep(0.02)


@pytest.mark.parametrize("number", [1, 2])
def test_results_are_in_the_order_of_tasks_and_progress_ends_at_1(number):
    shares = []
    with Processes(number) as processes:
        results = processes.map(square, range(5), shares.append)
    assert [result for result, _ in results] == [0, 1, 4, 9, 16]
    assert ({os.getpid()} == {process for _, process in results}) == (number == 1)
    assert shares == sorted(shares)
    assert shares[-1] == 1


@pytest.mark.parametrize("number", [1, 2])
def test_an_error_arrives_as_it_was_raised(number):
    with Processes(number) as processes, pytest.raises(HeadtailError) as raised:
        processes.map(refuse, [1, 2, 3])
    assert str(raised.value) == "Task 2 is bad. Choose `split='last'`."
    assert raised.value.argument == "split"


def test_a_process_that_dies_is_one_sentence():
    with (
        Processes(2) as processes,
        pytest.raises(HeadtailError, match="died, probably because it ran out of memory"),
    ):
        processes.map(die, [1, 2])


def test_small_tables_are_read_in_this_process_and_large_ones_in_as_many_as_there_are_cores(
    monkeypatch,
):
    monkeypatch.delenv("HEADTAIL_PROCESSES", raising=False)
    assert most_processes() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("HEADTAIL_PROCESSES", "3")
    assert processes_for([10**9, None], 100) == 3
    assert processes_for([10**9], 2) == 2
    assert processes_for([10**3, None], 100) == 1
    for bad in ("many", "0"):
        monkeypatch.setenv("HEADTAIL_PROCESSES", bad)
        with pytest.raises(HeadtailError, match="HEADTAIL_PROCESSES"):
            most_processes()


def test_a_script_that_reads_at_its_top_level_is_not_run_again_by_its_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from headtail.data.processes import Processes\n"
        "print('run')\n"
        "with Processes(2) as processes:\n"
        "    from tests.data.test_processes import square\n"
        "    print([result for result, _ in processes.map(square, [3, 4])])\n"
    )
    path = os.pathsep.join(["src", ".", os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, script],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[:2] == ["run", "[9, 16]"]


def test_ctrl_c_stops_the_tasks_under_way(tmp_path):
    started = tmp_path / "started"
    code = (
        "import signal\n"
        # Where the tests run in the background, Ctrl-C is ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from headtail.data.processes import Processes\n"
        "from tests.data.test_processes import endless\n"
        "with Processes(2) as processes:\n"
        f"    processes.map(endless, [{str(started)!r}])\n"
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
    os.killpg(running.pid, signal.SIGINT)
    _, errors = running.communicate(timeout=30)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    worker = int(started.read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_processes_that_read_logs_start_without_torch():
    code = "import sys, headtail.data.readers.log_sort; sys.exit('torch' in sys.modules)"
    path = os.pathsep.join(["src", os.environ.get("PYTHONPATH", "")])
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, check=True)
