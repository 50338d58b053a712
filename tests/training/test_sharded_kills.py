"""Sharded runs whose ranks are killed: torchrun starts them again, and they end as if nothing had
happened.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headtail import load
from headtail.data.batches import Batches
from headtail.training.held_out import split_validation
from tests.training.killed_run import POINTS

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform == "win32", reason="nothing can be killed there"),
]
KILLS = int(os.environ.get("HEADTAIL_RANK_KILLS", "10"))
"""Random kills: half of them at a random call, half at a random time."""

CALLS = {"gather": 400, "before an update": 30, "after an update": 31}
"""Which call a named point is, in the middle of training; elsewhere the third."""


def train(folder: Path, *kill: Any, **how: Any) -> int:
    """Train until all ranks have ended, which must be a success where they are started again; the
    exit code of their launcher. The arguments are those of `start`.
    """
    return end(start(folder, *kill, **how), must_succeed=how.get("restarts", 2) > 0)


def end(started: subprocess.Popen[str], *, must_succeed: bool = True) -> int:
    try:
        _, said = started.communicate(timeout=500)
    except subprocess.TimeoutExpired:
        started.kill()
        raise
    if must_succeed:
        assert started.returncode == 0, said[-5000:]
    return started.returncode


def start(
    folder: Path,
    point: str = "gather",
    who: str = "none",
    number: int = 0,
    *,
    ranks: int = 3,
    scheme: str = "uniform:importance",
    restarts: int = 2,
) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    # Without `--standalone`, torchrun's store outlives the ranks.
    launcher += ["--max-restarts", str(restarts), "--master-port", str(free_port())]
    program = str(Path(__file__).with_name("killed_run.py"))
    command = [*launcher, program, str(folder), scheme, point, who, str(number)]
    launch = str(len({path.name[9] for path in folder.glob("examples-*")}))
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"LAUNCH": launch},
    )


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("result-*.json"))]


def check_examples(folder: Path) -> None:
    """Every example of an epoch was trained once, in the history that led to the result."""
    history: dict[tuple[int, int], list[int]] = {}
    for attempt in sorted({path.name[:11] for path in folder.glob("examples-*.jsonl")}):
        lines = [
            json.loads(line)
            for path in folder.glob(f"{attempt}-*.jsonl")
            for line in path.read_text().splitlines()
        ]
        begin = min(((epoch, step) for epoch, step, _ in lines), default=(99, 0))
        history = {when: ids for when, ids in history.items() if when < begin}
        for epoch, step, ids in lines:
            history.setdefault((epoch, step), []).extend(ids)
    data = load("synthetic:points=240,test=51,features=90,labels=37")
    train, among, _ = split_validation(data, 0.05)
    whole_points = json.loads((folder / "whole_points.json").read_text())
    batches = Batches(train, 31, 0, among=among, whole_points=whole_points)
    for epoch in range(3):
        for step, batch in enumerate(batches.order(epoch)):
            assert sorted(history[epoch, step]) == sorted(batch.tolist()), (epoch, step)
    assert len(history) == 3 * batches.steps


@pytest.fixture(scope="module")
def undisturbed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    train(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(undisturbed_folder: Path) -> list[dict[str, Any]]:
    return results(undisturbed_folder)


def killed(folder: Path) -> int:
    return len(list(folder.glob("killed-*")))


@pytest.mark.parametrize("who", ["0", "1", "all"])
@pytest.mark.parametrize("point", POINTS)
def test_ranks_killed_at_a_named_point_end_as_if_nothing_had_happened(
    tmp_path: Path, undisturbed: list[dict[str, Any]], point: str, who: str
):
    if point.endswith("the commit") and who == "1":
        pytest.skip("the first rank commits")
    number = CALLS.get(point, 3)
    (tmp_path / "whole_points.json").write_text("false")
    train(tmp_path, point, who, number)
    assert killed(tmp_path) >= 1
    assert results(tmp_path) == undisturbed
    check_examples(tmp_path)


@pytest.mark.parametrize("seed", range(0, KILLS, 2))
def test_ranks_killed_at_a_random_call_end_as_if_nothing_had_happened(
    tmp_path: Path, undisturbed: list[dict[str, Any]], seed: int
):
    chosen = random.Random(seed)
    who = chosen.choice(["0", "1", "2", "all"])
    (tmp_path / "whole_points.json").write_text("false")
    train(tmp_path, "gather", who, chosen.randrange(1, 500))
    assert killed(tmp_path) >= 1
    assert results(tmp_path) == undisturbed
    check_examples(tmp_path)


def kill_after(folder: Path, who: str, seconds: float) -> bool:
    """Train, and kill a rank or all of them so long after they have begun; whether that was before
    their end.
    """
    folder.mkdir()
    (folder / "whole_points.json").write_text("false")
    started = start(folder)
    pids = [folder / f"pid-00-{rank}" for rank in range(3)]
    while started.poll() is None and not all(pid.exists() and pid.read_text() for pid in pids):
        time.sleep(0.005)
    time.sleep(seconds)
    for rank, pid in enumerate(pids):
        if who in (f"{rank}", "all"):
            with suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), signal.SIGKILL)
    end(started)
    return any(folder.glob("pid-01-*"))


@pytest.mark.parametrize("seed", range(1, KILLS, 2))
def test_ranks_killed_at_a_random_time_end_as_if_nothing_had_happened(
    tmp_path: Path, undisturbed_folder: Path, seed: int
):
    chosen = random.Random(seed)
    who = chosen.choice(["0", "1", "2", "all"])
    ends = (undisturbed_folder / name for name in ("pid-00-0", "result-0.json"))
    begun, done = (path.stat().st_mtime for path in ends)
    seconds = chosen.uniform(0, done - begun)
    # A run may be faster than the one that was measured.
    waits = {tmp_path / f"{number}": seconds / 2**number for number in range(5)}
    folder = next(folder for folder, wait in waits.items() if kill_after(folder, who, wait))
    assert results(folder) == results(undisturbed_folder)
    check_examples(folder)


STOPPED = [
    (point, who)
    for point in POINTS
    for who in ("1", "all")
    if not (point.endswith("the commit") and who == "1")  # the first rank commits
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results of three ranks over all labels, without noise that depends on the ranks."""
    folder = tmp_path_factory.mktemp("whole")
    train(folder, scheme="softmax")
    return results(folder)


@pytest.fixture(scope="module", params=STOPPED, ids=": ".join)
def stopped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a kill leaves of three ranks that are not started again."""
    point, who = request.param
    folder = tmp_path_factory.mktemp("stopped")
    number = CALLS.get(point, 3)
    assert train(folder, point, who, number, scheme="softmax", restarts=0) != 0
    assert killed(folder) >= 1
    (folder / "whole_points.json").write_text("true")
    return folder


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_other_ranks_continue_the_loss_curve(
    tmp_path: Path, whole: list[dict[str, Any]], stopped: Path, ranks: int
):
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    train(folder, ranks=ranks, scheme="softmax")
    check_examples(folder)
    continued = results(folder)
    for before, after in zip(whole[0]["curve"], continued[0]["curve"], strict=True):
        assert after[:2] == before[:2]
        assert after[2] == pytest.approx(before[2], rel=1e-4)
    assert continued[0]["best_epoch"] == whole[0]["best_epoch"]
    rows = [sum(result["rows"] for result in ranks) for ranks in (whole, continued)]
    assert rows[1] == pytest.approx(rows[0], rel=1e-3)
