"""Sharded runs whose ranks are killed: torchrun starts them again, and they end as if nothing had
happened.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
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
"""Kills at random calls."""


def train(
    folder: Path,
    point: str = "gather",
    who: str = "none",
    number: int = 0,
    *,
    ranks: int = 3,
    scheme: str = "uniform:importance",
    restarts: int = 2,
) -> int:
    folder.mkdir(exist_ok=True)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    # Without `--standalone`, torchrun's store outlives the ranks.
    launcher += ["--max-restarts", str(restarts), "--master-port", str(free_port())]
    program = str(Path(__file__).with_name("killed_run.py"))
    command = [*launcher, program, str(folder), scheme, point, who, str(number)]
    launch = str(len({path.name[9] for path in folder.glob("examples-*")}))
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env=os.environ | {"LAUNCH": launch},
    )
    if restarts:
        assert done.returncode == 0, done.stderr[-5000:]
    return done.returncode


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
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    train(folder)
    return results(folder)


def killed(folder: Path) -> int:
    return len(list(folder.glob("killed-*")))


@pytest.mark.parametrize("who", ["0", "1", "all"])
@pytest.mark.parametrize("point", POINTS)
def test_ranks_killed_at_a_named_point_end_as_if_nothing_had_happened(
    tmp_path: Path, undisturbed: list[dict[str, Any]], point: str, who: str
):
    if point.endswith("the commit") and who == "1":
        pytest.skip("the first rank commits")
    number = {"gather": 400, "before an update": 30, "after an update": 31}.get(point, 3)
    (tmp_path / "whole_points.json").write_text("false")
    train(tmp_path, point, who, number)
    assert killed(tmp_path) >= 1
    assert results(tmp_path) == undisturbed
    check_examples(tmp_path)


@pytest.mark.parametrize("seed", range(KILLS))
def test_ranks_killed_at_random_end_as_if_nothing_had_happened(
    tmp_path: Path, undisturbed: list[dict[str, Any]], seed: int
):
    chosen = random.Random(seed)
    who = chosen.choice(["0", "1", "2", "all"])
    (tmp_path / "whole_points.json").write_text("false")
    train(tmp_path, "gather", who, chosen.randrange(1, 500))
    assert killed(tmp_path) >= 1
    assert results(tmp_path) == undisturbed
    check_examples(tmp_path)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_other_ranks_continue_the_loss_curve(tmp_path: Path, ranks: int):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(whole, scheme="softmax")
    assert train(parts, "before an update", "all", 40, scheme="softmax", restarts=0) != 0
    assert killed(parts) >= 1
    (parts / "whole_points.json").write_text("true")
    train(parts, ranks=ranks, scheme="softmax")
    check_examples(parts)
    curves = [results(folder)[0]["curve"] for folder in (whole, parts)]
    for before, after in zip(*curves, strict=True):
        assert after[:2] == before[:2]
        assert after[2] == pytest.approx(before[2], rel=1e-4)
