"""The multi-process service: started where it is needed, stopped with the work, never another's."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from headtail.comparison import compare, engines
from headtail.comparison.grid import cells
from headtail.device.shared_gpu import CONTROL, shared_gpu
from headtail.training.config import Training
from tests.longtail import longtail

NAMES = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
FAKE = """#!/bin/sh
state={state}
if [ "$1" = "-d" ]; then
  echo "start pipe=$CUDA_MPS_PIPE_DIRECTORY log=$CUDA_MPS_LOG_DIRECTORY" >> {log}
  [ -d "$CUDA_MPS_PIPE_DIRECTORY" ] && [ -d "$CUDA_MPS_LOG_DIRECTORY" ] || exit 3
  {start}
  exit 0
fi
read command
echo "$command pipe=$CUDA_MPS_PIPE_DIRECTORY" >> {log}
[ -e "$state" ] || {{ echo "Cannot find MPS control daemon process"; exit {absent}; }}
if [ "$command" = "quit" ]; then rm "$state"; fi
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Puts a control program on PATH; `start` is what its daemon does."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)

    def make(start: str = 'touch "$state"', absent: int = 1) -> Path:
        program = tmp_path / "bin" / CONTROL
        program.parent.mkdir()
        program.write_text(
            FAKE.format(
                state=tmp_path / "running", log=tmp_path / "log", start=start, absent=absent
            )
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
        return tmp_path

    return make


def heard(folder: Path) -> list[str]:
    return [line.split()[0] for line in (folder / "log").read_text().splitlines()]


@pytest.mark.parametrize("absent", [0, 1])
def test_it_is_started_in_a_private_folder_and_stopped_even_after_an_error(fake, absent):
    folder = fake(absent=absent)
    said = []
    places = []

    def fail() -> None:
        places.extend(Path(os.environ[name]) for name in NAMES)
        assert all(place.is_dir() for place in places)
        assert stat.S_IMODE(places[0].parent.stat().st_mode) == 0o700
        assert (folder / "running").exists()
        raise RuntimeError("the sky fell")

    with pytest.raises(RuntimeError, match="the sky fell"), shared_gpu(said.append):
        fail()
    pipe = places[0]
    assert heard(folder) == ["get_server_list", "start", "quit"]
    assert f"quit pipe={pipe}" in (folder / "log").read_text(), (
        "the one that was started is the one that is stopped"
    )
    assert not (folder / "running").exists()
    assert not pipe.parent.exists()
    assert not set(NAMES) & set(os.environ)
    assert said == []


def test_a_service_that_runs_already_is_used_and_left_alone(fake, monkeypatch):
    folder = fake()
    (folder / "running").touch()
    monkeypatch.setenv(NAMES[0], "/theirs")
    with shared_gpu(pytest.fail):
        assert os.environ[NAMES[0]] == "/theirs"
    assert heard(folder) == ["get_server_list"]
    assert (folder / "running").exists()


def test_without_a_service_one_line_is_said_and_the_work_continues(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    said = []
    with shared_gpu(said.append):
        assert not set(NAMES) & set(os.environ)
    assert said == [
        f"`{CONTROL}` is not installed, so runs take turns on the GPU instead of sharing it."
    ]


def test_a_service_that_does_not_start_is_reported_and_leaves_nothing_behind(fake, monkeypatch):
    folder = fake(start="exit 1")
    said = []
    monkeypatch.setenv(NAMES[1], "/mine")
    with shared_gpu(said.append):
        assert os.environ.get(NAMES[0]) is None
        assert os.environ[NAMES[1]] == "/mine"
    assert said == [
        f"`{CONTROL} -d` did not start, so runs take turns on the GPU instead of sharing it."
    ]
    assert heard(folder) == ["get_server_list", "start"]
    assert os.environ[NAMES[1]] == "/mine"


@pytest.mark.parametrize(
    ("device", "workers", "begins"), [("cuda", 2, 1), ("cuda", 1, 0), ("cpu", 2, 0)]
)
def test_a_comparison_shares_a_gpu_only_where_runs_are_side_by_side_on_one(
    fake, monkeypatch, tmp_path, device, workers, begins
):
    folder = fake()
    data = longtail()
    inside = []

    def workless(cells, *_, **__):
        inside.append(NAMES[0] in os.environ)
        yield from ()

    monkeypatch.setattr(engines, "side_by_side", workless)
    monkeypatch.setattr(engines, "in_turn", workless)
    monkeypatch.setattr(compare.environment, "machine", lambda _: "no GPU here")
    grid = cells(Training(), ("softmax", "uniform:tail", "softmax+post-hoc"), 1, data, tmp_path)
    execution = compare.Execution(workers=workers)
    compare.run_grid(grid, data, tmp_path, device=device, execution=execution)
    assert inside == [bool(begins), False], (
        "what is measured in this process is not a client of the service"
    )
    assert (heard(folder).count("start") if begins else (folder / "log").exists()) == begins
