"""`headtail bench`, as users type it."""

from __future__ import annotations

import json

import pytest

from headtail.cli import bench as command
from headtail.cli import main
from headtail.machine.bench import Effort, measure
from tests.cli.test_commands import told

QUICK = ["bench", "--device", "cpu", "--dim", "8", "--batch", "4", "--negatives", "3"]


@pytest.fixture(autouse=True)
def small_and_quick(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(command, "SIZES", (600, 1200))
    monkeypatch.setattr(command, "EFFORT", Effort(steady=0.0, copied=2**10, side=8))


def test_a_measurement_is_shown(capsys, monkeypatch):
    kept = []

    def measured(*arguments):
        kept.append(measure(*arguments))
        return kept[-1]

    monkeypatch.setattr(command, "measure", measured)
    assert main(QUICK) == 0
    out = capsys.readouterr().out
    for words in ("batch 4, dim 8, 3 negatives", "exact softmax", "sampled", "1,200", "/s", "loss"):
        assert words in out
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    exact = next(
        one for one in kept[0].timings if (one.method, one.shape.labels) == ("exact", 1200)
    )
    assert command.milliseconds(exact.seconds) in next(
        line for line in out.splitlines() if line.strip().startswith("1,200")
    )


def test_json_is_the_measurement_itself(capsys):
    assert main([*QUICK, "--quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {one["shape"]["labels"] for one in found["timings"]} == {600}


@pytest.mark.parametrize(
    ("option", "value"), [("--dim", "0"), ("--batch", "0"), ("--negatives", "-3")]
)
def test_nothing_is_measured_for_sizes_of_nothing(capsys, option, value):
    assert f"`{option}` must be a whole number of at least 1, but got {value}." in told(
        capsys, [*QUICK, option, value]
    )


def test_milliseconds_have_three_digits():
    assert [command.milliseconds(s) for s in (0.00001234, 0.00345, 0.56, 12.3)] == [
        "0.0123",
        "3.45",
        "560",
        "12,300",
    ]
