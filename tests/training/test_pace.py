"""How often ranks ask each other whether to stop or to save."""

from __future__ import annotations

from typing import Any

import pytest

from headtail.collectives.accord import Accord
from headtail.training import pace
from headtail.training.pace import Pace


class _Clock:
    """The time of a test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class _Two:
    """What two ranks decide together; the other one has raised nothing."""

    ranks = "two"

    def __init__(self, other: int = 0) -> None:
        self.other = other
        self.meetings = 0

    def highest(self, *numbers: int) -> tuple[int, ...]:
        self.meetings += 1
        *flags, longest = numbers
        return (*flags, max(longest, self.other))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(pace, "time", clock)
    return clock


def _steps_until_noticed(ranks: Any, clock: _Clock, seconds: float) -> int:
    for step in range(1, 10**6):
        clock.now += seconds
        [raised] = ranks.any(True, now=False)
        if raised:
            return step
    raise AssertionError("it is never noticed")


def _take(ranks: Any, clock: _Clock, seconds: float, steps: int) -> None:
    for _ in range(steps):
        clock.now += seconds
        assert ranks.any(False, now=False) == (False,)


def test_one_process_decides_after_every_step():
    alone = Pace(Accord())
    for flags in ((True, False), (False, False), (False, True)):
        assert alone.any(*flags, now=False) == flags


@pytest.mark.parametrize("seconds", [2e-4, 0.003, 0.1, 0.4, 3.0])
def test_what_one_rank_sees_is_noticed_by_all_within_half_a_second_or_a_step(seconds, clock):
    together = Pace(_Two())  # pyright: ignore[reportArgumentType]
    for steps in (1, 7, 500):
        _take(together, clock, seconds, steps)
        waited = _steps_until_noticed(together, clock, seconds) * seconds
        assert waited <= max(pace.NOTICED_AFTER, seconds) + 1e-6


def test_short_steps_are_not_slowed_by_messages(clock):
    two = _Two()
    _take(Pace(two), clock, 2e-4, 100_000)  # pyright: ignore[reportArgumentType]
    assert two.meetings <= 100_000 / pace.MOST_STEPS + 20


def test_the_slowest_rank_decides_when_ranks_meet(clock):
    two = _Two(other=250_000)
    _take(Pace(two), clock, 1e-3, 1001)  # pyright: ignore[reportArgumentType]
    assert two.meetings == 501


def test_steps_that_have_become_slow_bring_ranks_together_again(clock):
    together = Pace(_Two())  # pyright: ignore[reportArgumentType]
    _take(together, clock, 1e-3, 5000)
    late = [_steps_until_noticed(together, clock, 0.4) for _ in range(3)]
    assert max(late) <= pace.MOST_STEPS  # as expected of short steps
    assert late[-1] == 1


def test_a_host_that_runs_ahead_of_its_gpu_is_not_taken_for_a_fast_one(clock):
    """Steps take 20 ms on the GPU, which the host waits for after every hundredth."""
    two = _Two()
    together = Pace(two)  # pyright: ignore[reportArgumentType]
    for _ in range(20):
        _take(together, clock, 1e-4, 99)
        together.any(False, now=True)
        clock.now += 2.0
    _take(together, clock, 1e-4, 3)
    assert _steps_until_noticed(together, clock, 1e-4) <= 25


def test_ranks_meet_when_they_are_told_to(clock):
    two = _Two()
    together = Pace(two)  # pyright: ignore[reportArgumentType]
    _take(together, clock, 1e-3, 5000)
    before = two.meetings
    assert together.any(True, now=True) == (True,)
    assert two.meetings == before + 1
