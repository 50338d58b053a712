"""Measuring a machine."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from headtail.errors import HeadtailError
from headtail.machine import bench
from headtail.machine.bench import (
    METHODS,
    Shape,
    bench_file,
    measure,
    measurements,
    memory_of,
    possible,
    save,
    saved,
    time_step,
)
from headtail.training import captured as graphs

SIZES = (600, 1200)


@pytest.fixture(scope="module")
def measured():
    told = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "ENOUGH", 0.0)
        return measure("cpu", 8, 4, 3, SIZES, told.append), told


def test_every_method_is_measured_at_every_size_and_beside_them(measured):
    machine, told = measured
    expected = {(method, Shape(labels, 8, 4, 3)) for method in possible() for labels in SIZES}
    fewer_dims = {(method, Shape(1200, 1, 4, 3)) for method in possible()}
    assert {(one.method, one.shape) for one in machine.timings} == expected | fewer_dims | {
        ("sampled", Shape(600, 8, 4, 48))
    }
    assert all(one.seconds > 0 for one in machine.timings)
    assert set(machine.answers) == set(SIZES)
    assert machine.bandwidth > 1e8
    assert machine.rate > 1e8
    assert len(told) == measurements(SIZES)


def test_a_measurement_is_read_as_it_was_kept(measured, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path))
    assert saved("cpu") is None
    assert save(measured[0]) == bench_file("cpu") == tmp_path / "bench-cpu.json"
    assert saved("cpu") == measured[0]
    assert saved("cuda") is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-20],
        lambda text: "[]",
        lambda text: "null",
        lambda text: text.replace('"rate"', '"speed"'),
        lambda text: text.replace('"exact"', '"exakt"'),
        lambda text: json.dumps(json.loads(text) | {"bandwidth": 0}),
        lambda text: json.dumps(json.loads(text) | {"rate": "fast"}),
        lambda text: json.dumps(json.loads(text) | {"rate": float("nan")}),
    ],
)
def test_a_damaged_measurement_is_told_and_not_guessed_at(measured, tmp_path, monkeypatch, damage):
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path))
    (tmp_path / "bench-cpu.json").write_text(damage(measured[0].to_json()))
    with pytest.raises(
        HeadtailError, match=r"bench-cpu.json` is damaged. Delete it, or write `headtail bench`"
    ):
        saved("cpu")


def test_the_exact_and_the_chunked_step_take_the_same_loss():
    torch.manual_seed(0)
    shape = Shape(50, 16, 9, 5)
    table = torch.nn.Parameter(torch.randn(50, 16))
    hidden = torch.randn(9, 16)
    target = torch.randint(50, (9,))
    truth = F.cross_entropy(hidden @ table.T, target)
    for method in set(possible()) - {"sampled"}:
        torch.testing.assert_close(bench._loss(method, shape, table)(hidden, target), truth)


@pytest.mark.parametrize("method", possible())
def test_a_step_changes_all_rows_or_those_it_drew(method):
    table = torch.nn.Parameter(torch.full((5000, 8), 0.01))
    bench._step(method, Shape(5000, 8, 4, 3), table)()
    changed = int((table != 0.01).any(1).sum())
    assert 4 <= changed <= 7 if method == "sampled" else changed == 5000
    assert (table.grad is None) == (method == "sampled")  # it was updated inside backward


@pytest.fixture
def known_rates(monkeypatch):
    """Rates of the machine that take no time to measure."""
    monkeypatch.setattr(bench, "ENOUGH", 0.0)
    for name in ("_bandwidth", "_rate"):
        monkeypatch.setattr(bench, name, lambda device: 1e10)


def test_a_method_that_would_take_too_long_is_left_out(monkeypatch, known_rates):
    monkeypatch.setattr(bench, "LONGEST_STEP", 0.0)
    machine = measure("cpu", 8, 4, 3, SIZES)
    found = {(one.method, one.shape.labels) for one in machine.timings}
    assert found == {*((method, 600) for method in possible()), ("sampled", 1200)}
    assert set(machine.answers) == {600}


def test_a_method_that_would_not_fit_is_left_out(monkeypatch, known_rates):
    monkeypatch.setattr(
        bench, "memory_left", lambda device: memory_of("exact", Shape(1200, 8, 4, 3))
    )
    machine = measure("cpu", 8, 4, 3, SIZES)
    assert ("exact", 1200, 8) not in {
        (one.method, one.shape.labels, one.shape.dim) for one in machine.timings
    }
    assert ("sampled", 1200, 8) in {
        (one.method, one.shape.labels, one.shape.dim) for one in machine.timings
    }
    monkeypatch.setattr(bench, "memory_left", lambda device: 1000)
    with pytest.raises(
        HeadtailError, match="does not fit into the memory that is free, even with 600 labels"
    ):
        measure("cpu", 8, 4, 3, SIZES)


def test_an_old_torch_is_measured_without_the_chunked_loss(monkeypatch, known_rates):
    monkeypatch.delattr(F, "linear_cross_entropy", raising=False)
    machine = measure("cpu", 8, 4, 3, SIZES[:1])
    assert {one.method for one in machine.timings} == {"exact", "sampled"}


ALONE = """
import sys
from headtail import bench
from headtail.machine.bench import Shape, memory_of, time_step
method, shape = sys.argv[1], Shape(150_000, 64, 64, 64)
bench._step(method, bench.SMALL, bench._table(bench.SMALL, "cpu"))()
found = time_step(method, shape, "cpu").memory
print(float("nan") if found is None else found / memory_of(method, shape))
"""
"""The memory of a step, in units of what is expected: in a process that has not left any behind, as
`headtail bench` is.
"""


@pytest.mark.parametrize("method", METHODS)
def test_the_memory_of_a_step_is_as_expected(method):
    if method not in possible():
        pytest.skip("this torch has no chunked loss")
    done = subprocess.run(
        [sys.executable, "-c", ALONE, method], capture_output=True, text=True, check=True
    )
    found = float(done.stdout)
    if math.isnan(found):
        pytest.skip("this system does not tell the peak")
    assert 0.6 < found < 1.6


def test_the_chunks_of_a_small_batch_hold_at_least_one_example():
    assert [
        Shape(10, dim, batch, 1).chunk for dim, batch in ((512, 256), (64, 4096), (1, 1), (3, 9))
    ] == [64, 16, 1, 1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", set(possible()) & {"exact", "sampled"})
def test_steps_on_a_gpu_are_timed_as_a_graph(method, monkeypatch):
    asked = []

    def replayed(step, times):
        asked.append(times)
        return graphs.replayed(step, times)

    monkeypatch.setattr(bench, "replayed", replayed)
    shape = Shape(20_000, 64, 256, 64)
    bench._step(method, bench.SMALL, bench._table(bench.SMALL, "cuda"))()
    found = time_step(method, shape, "cuda")
    assert asked == [bench.IN_A_GRAPH]
    assert (
        0
        < found.seconds
        < bench._median(bench._step(method, shape, bench._table(shape, "cuda")), "cuda")
    )
