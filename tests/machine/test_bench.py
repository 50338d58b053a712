"""Measuring a machine."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from headtail.device import graphs
from headtail.errors import HeadtailError
from headtail.machine import bench
from headtail.machine.bench import SMALL, Effort, measure, measurements, median_seconds, time_step
from headtail.machine.head_step import head_loss, head_step, table_of
from headtail.machine.shape import METHODS, Shape, memory_of, possible

SIZES = (600, 1200)
QUICK = Effort(steady=0.0, copied=2**10, side=8)


@pytest.fixture(scope="module")
def measured():
    reported = []
    machine = measure("cpu", 8, 4, 3, SIZES, reported.append, Effort(steady=0.0))
    return machine, reported


def test_every_method_is_measured_at_every_size(measured):
    machine, reported = measured
    expected = {(method, Shape(labels, 8, 4, 3)) for method in possible() for labels in SIZES}
    assert {(timing.method, timing.shape) for timing in machine.timings} == expected
    assert all(timing.seconds > 0 for timing in machine.timings)
    assert set(machine.answers) == set(SIZES)
    assert machine.bandwidth > 1e8
    assert machine.rate > 1e8
    assert len(reported) == measurements(SIZES)


def test_the_exact_and_the_chunked_step_have_the_same_loss():
    torch.manual_seed(0)
    shape = Shape(50, 16, 9, 5)
    table = torch.nn.Parameter(torch.randn(50, 16))
    hidden = torch.randn(9, 16)
    target = torch.randint(50, (9,))
    truth = F.cross_entropy(hidden @ table.T, target)
    for method in set(possible()) - {"sampled"}:
        torch.testing.assert_close(head_loss(method, shape, table)(hidden, target), truth)


@pytest.mark.parametrize("method", possible())
def test_a_step_changes_all_rows_or_those_it_drew(method):
    table = torch.nn.Parameter(torch.full((5000, 8), 0.01))
    head_step(method, Shape(5000, 8, 4, 3), table)()
    changed = int((table != 0.01).any(1).sum())
    assert 4 <= changed <= 7 if method == "sampled" else changed == 5000
    assert (table.grad is None) == (method == "sampled")  # it was updated inside backward


def test_a_method_that_would_take_too_long_is_left_out():
    machine = measure("cpu", 8, 4, 3, SIZES, effort=replace(QUICK, longest_step=0.0))
    measured = {(timing.method, timing.shape.labels) for timing in machine.timings}
    assert measured == {*((method, 600) for method in possible()), ("sampled", 1200)}
    assert set(machine.answers) == {600}


def test_a_method_that_would_not_fit_is_left_out():
    shape = Shape(1200, 8, 4, 3)
    little = replace(QUICK, memory=memory_of("exact", shape))
    timings = measure("cpu", 8, 4, 3, SIZES, effort=little).timings
    assert ("exact", shape) not in {(timing.method, timing.shape) for timing in timings}
    assert ("sampled", shape) in {(timing.method, timing.shape) for timing in timings}
    with pytest.raises(
        HeadtailError, match="does not fit into the free memory, even with 600 labels"
    ):
        measure("cpu", 8, 4, 3, SIZES, effort=replace(QUICK, memory=1000))


def test_an_old_torch_is_measured_without_the_chunked_loss(monkeypatch):
    monkeypatch.delattr(F, "linear_cross_entropy", raising=False)
    machine = measure("cpu", 8, 4, 3, SIZES[:1], effort=QUICK)
    assert {timing.method for timing in machine.timings} == {"exact", "sampled"}


ALONE = """
import sys
from headtail.machine.bench import SMALL, time_step
from headtail.machine.head_step import head_step, table_of
from headtail.machine.shape import Shape, memory_of
method, shape = sys.argv[1], Shape(150_000, 64, 64, 64)
head_step(method, SMALL, table_of(SMALL, "cpu"))()
memory = time_step(method, shape, "cpu").memory
print("unknown" if memory is None else memory / memory_of(method, shape))
"""
"""The memory of a step as a multiple of what is expected, in a fresh process, as for `headtail
bench`.
"""


@pytest.mark.parametrize("method", METHODS)
def test_the_memory_of_a_step_is_as_expected(method):
    if method not in possible():
        pytest.skip("this torch has no chunked loss")
    done = subprocess.run(
        [sys.executable, "-c", ALONE, method], capture_output=True, text=True, check=True
    )
    if done.stdout.strip() == "unknown":
        pytest.skip("this system does not report the peak")
    assert 0.6 < float(done.stdout) < 1.6


def test_the_chunks_of_a_small_batch_hold_at_least_one_example():
    assert [
        Shape(10, dim, batch, 1).chunk for dim, batch in ((512, 256), (64, 4096), (1, 1), (3, 9))
    ] == [64, 16, 1, 1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", sorted({*possible()} & {"exact", "sampled"}))
def test_steps_on_a_gpu_are_timed_as_a_graph(method, monkeypatch):
    captured = []

    def replayed(step, times):
        captured.append(times)
        return graphs.replayed(step, times)

    monkeypatch.setattr(bench, "replayed", replayed)
    shape = Shape(20_000, 64, 256, 64)
    head_step(method, SMALL, table_of(SMALL, "cuda"))()
    timing = time_step(method, shape, "cuda")
    assert captured == [bench.STEPS_PER_GRAPH]
    eager = head_step(method, shape, table_of(shape, "cuda"))
    assert 0 < timing.seconds < median_seconds(eager, "cuda")
