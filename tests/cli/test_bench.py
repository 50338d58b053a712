"""`headtail bench`, as users type it."""

from __future__ import annotations

import json

import pytest

from headtail.cli import bench as command
from headtail.cli import main
from headtail.machine.bench import Effort
from headtail.machine.measured import Machine, saved
from tests.cli.test_commands import told

QUICK = ["bench", "--device", "cpu", "--dim", "8", "--batch", "4", "--negatives", "3"]


@pytest.fixture(autouse=True)
def small_and_quick(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(command, "SIZES", (600, 1200))
    monkeypatch.setattr(command, "EFFORT", Effort(steady=0.0, copied=2**10, side=8))


def test_a_measurement_is_shown_and_kept_for_advise(capsys):
    assert main(QUICK) == 0
    out = capsys.readouterr().out
    for words in (
        "batch 4, dim 8, 3 negatives",
        "exact softmax",
        "sampled",
        "1,200",
        "/s",
        "loss",
        "bench-cpu.json",
    ):
        assert words in out
    assert max(map(len, out.partition("saved:")[0].splitlines())) <= 80
    assert "…" not in out
    machine = saved("cpu")
    exact = next(
        one for one in machine.timings if (one.method, one.shape.labels) == ("exact", 1200)
    )
    assert command.milliseconds(exact.seconds) in next(
        line for line in out.splitlines() if line.strip().startswith("1,200")
    )


def test_json_is_the_measurement_itself(capsys):
    assert main([*QUICK, "--quick", "--json"]) == 0
    out = capsys.readouterr().out
    assert Machine.from_json(out) == saved("cpu")
    assert {one["shape"]["labels"] for one in json.loads(out)["timings"]} == {600}


@pytest.mark.parametrize(
    ("option", "value"), [("--dim", "0"), ("--batch", "0"), ("--negatives", "-3")]
)
def test_nothing_is_measured_for_sizes_of_nothing(capsys, option, value):
    assert f"`{option}` must be a whole number of at least 1, but got {value}." in told(
        capsys, [*QUICK, option, value]
    )
    assert saved("cpu") is None


def test_a_cache_that_takes_no_file_is_reported_before_measuring(capsys, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(command, "measure", None)
    assert "Set HEADTAIL_CACHE" in told(capsys, QUICK)


def test_milliseconds_have_three_digits():
    assert [command.milliseconds(s) for s in (0.00001234, 0.00345, 0.56, 12.3)] == [
        "0.0123",
        "3.45",
        "560",
        "12,300",
    ]
