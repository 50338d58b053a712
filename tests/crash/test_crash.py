"""Commands that are killed, cut off from power, or refused by the disk at any call that changes a
file: the same command again ends as if nothing had happened, and leaves nothing behind.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.__main__ import KINDS
from tests.crash.runs import (
    COMMANDS,
    Warm,
    differences,
    disturb,
    kill_at_random,
    run_again,
    warm,
)
from tests.crash.shim import Plan, compiler

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or compiler() is None,
    reason="calls are disturbed by a preloaded library, which needs Linux and a C compiler (`cc`)",
)
KILLS = int(os.environ.get("HEADTAIL_KILLS", "100"))
"""Kills at random times in the long test."""
AT_A_TIME = {"train": 2, "compare": 1}
"""Calls of each command that the short test disturbs in each way."""


@pytest.fixture(scope="module")
def at() -> Iterator[Warm]:
    # In memory where there is such a folder: what is tested is the order of calls, not the disk.
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder,
        warm(Path(folder)) as process,
    ):
        yield process


def findings_of(at: Warm, command: str, plans: list[Plan]) -> dict[str, list[str]]:
    """What should not be, by the disturbance that led to it."""
    cases = [disturb(at, command, plan) for plan in plans]
    return {f"{case.plan}, {case.code}": case.findings for case in cases if case.findings}


def planned(kind: Plan, calls: range) -> list[Plan]:
    return [Plan(kind.action, n, kind.error, kind.lasting) for n in calls]


@pytest.mark.parametrize("kind", KINDS, ids=lambda plan: plan.kind)
@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_disturbed_command_resumes_without_a_trace(at, command, kind):
    calls = at.calls(command)
    step = calls // AT_A_TIME[command]
    first = 1 + random.Random(f"{command} {kind.kind}").randrange(step)
    assert findings_of(at, command, planned(kind, range(first, calls + 1, step))) == {}


@pytest.mark.parametrize("action", ["lose-content", "lose-names"])
@pytest.mark.parametrize("command", ["train", "extend"])
def test_what_a_finished_command_wrote_outlives_a_loss_of_power(at, command, action):
    assert findings_of(at, command, [Plan(action, after_end=True)]) == {}


@pytest.mark.parametrize("error", ["EROFS", "ENOSPC"])
def test_a_folder_that_cannot_be_written_to_is_refused_with_a_sentence(at, error):
    case = disturb(at, "train", Plan("fail", 1, error, lasting=True))
    assert case.findings == []
    assert case.code == 2
    assert "cannot be written" in " ".join(case.shown.split())


@pytest.mark.parametrize("killed", ["first", "second"])
def test_a_second_process_does_not_touch_what_the_first_is_writing(at, killed):
    """The first is held inside its training while the second starts."""
    command = "compare"
    wanted = at.wanted(command)
    at.prepare(command)
    first = at.start(COMMANDS[command], Plan("stop", at.calls(command) // 2), "first")
    assert at.wait(first) == "stopped"
    second = at.start(COMMANDS[command], name="second")
    assert at.wait(second) == 2
    assert "is in use by process" in " ".join(at.stderr("second").split())
    if killed == "first":
        at.signal(first, "SIGKILL")
        assert at.wait(first) == -9
    else:
        at.signal(first, "SIGCONT")
        assert at.wait(first) == 0
        assert differences(wanted, at.files(), "") == []
    assert run_again(at, command) == []


@pytest.mark.parametrize("n", [5, 20, 32])
def test_two_processes_may_write_the_same_cache_entry_at_once(at, n):
    command = "train"
    at.wanted(command)
    at.prepare(command)
    first = at.start(COMMANDS[command], Plan("stop", n), "first")
    assert at.wait(first) == "stopped"
    second = at.start(COMMANDS[command], name="second")
    assert at.wait(second) == 0, at.stderr("second")
    at.signal(first, "SIGCONT")
    assert at.wait(first) == 0, at.stderr("first")
    assert run_again(at, command) == []


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS, ids=lambda plan: plan.kind)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_is_disturbed_at_any_call_resumes_without_a_trace(at, command, kind):
    assert findings_of(at, command, planned(kind, range(1, at.calls(command) + 1))) == {}


@pytest.mark.long
def test_commands_that_are_killed_at_random_times_resume_without_a_trace(at):
    chance = random.Random(0)
    for number in range(KILLS):
        case = kill_at_random(at, chance.choice([*COMMANDS]), chance, longest=0.5)
        assert case.findings == [], f"kill {number} of {case.command}"
