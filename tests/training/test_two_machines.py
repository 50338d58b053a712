"""A sharded run on two machines: the result of one machine, also where a rank or a machine dies."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headtail import load
from headtail.data.batches import Batches
from headtail.training.held_out import split_validation
from tests.training.two_machines import ROOT, SECONDS, Machine, two_machines

pytestmark = pytest.mark.long
DATA = "synthetic:points=240,test=51,features=90,labels=37"
TRAIN = ["-m", "headtail", "train"]
SMALL = ["--dim", "6", "--epochs", "2", "--batch", "32", "--scheme", "uniform:importance"]
NEW_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Lets torchrun take in a machine that was started again."""


@pytest.fixture
def machines() -> Iterator[tuple[Machine, Machine]]:
    with two_machines() as both:
        yield both


def on_one_machine(*command: str, **variables: str) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--nproc-per-node", "4"]
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, *command],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, **path, **variables},
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_two_machines_write_what_one_machine_writes_and_print_it_once(
    machines: tuple[Machine, Machine], tmp_path: Path
):
    outs = tmp_path / "one" / "run", tmp_path / "two" / "run"
    command = [*TRAIN, DATA, "--sharded", *SMALL]
    on_one_machine(*command, "--out", str(outs[0]))
    for machine in machines:
        machine.torchrun(tmp_path / f"{machine.number}.log", *command, "--out", str(outs[1]))
    ends = [machine.end() for machine in machines]
    assert [code for code, _ in ends] == [0, 0], ends
    printed = "".join(text for _, text in ends)
    assert printed.count("uniform:importance on") == 1
    assert printed.count("Generated data") == 1
    for name in ("model.safetensors", "results.csv", "answers.json", "run.toml"):
        assert (outs[0] / name).read_bytes() == (outs[1] / name).read_bytes(), name


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    on_one_machine(*program(folder), LAUNCH="0")
    return results(folder)


def program(folder: Path, point: str = "gather", who: str = "none", number: int = 0) -> list[str]:
    """A run that notes what it trains on; its rank `who` kills itself."""
    script = str(Path(__file__).with_name("killed_run.py"))
    return [script, str(folder), "uniform:importance", point, who, str(number)]


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("result-*.json"))]


def check_examples(folder: Path) -> None:
    """Every example of an epoch was trained once, in the history that led to the result.

    Machines count restarts differently, so each rank is followed by itself: it goes back where it
    begins again.
    """
    history: dict[tuple[int, int], list[int]] = {}
    for rank in range(4):
        of_rank: dict[tuple[int, int], list[int]] = {}
        for path in sorted(folder.glob(f"examples-*-{rank}.jsonl")):
            for epoch, step, ids in map(json.loads, path.read_text().splitlines()):
                of_rank = {when: what for when, what in of_rank.items() if when < (epoch, step)}
                of_rank[epoch, step] = ids
        for when, ids in of_rank.items():
            history.setdefault(when, []).extend(ids)
    train, among, _ = split_validation(load(DATA), 0.05)
    batches = Batches(train, 31, 0, among=among, whole_points=False)
    assert len(history) == 3 * batches.steps
    for epoch in range(3):
        for step, batch in enumerate(batches.order(epoch)):
            assert sorted(history[epoch, step]) == sorted(batch.tolist()), (epoch, step)


def wait_for_steps(folder: Path, lines: int) -> None:
    """Wait until ranks have noted so many steps."""
    deadline = time.monotonic() + SECONDS
    while sum(path.read_text().count("\n") for path in folder.glob("examples-*")) < lines:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def steps_left_out(folder: Path) -> bool:
    """Whether the ranks that were started last began with a checkpoint."""
    first = [json.loads(p.read_text().splitlines()[0])[:2] for p in folder.glob("examples-1*")]
    return bool(first) and min(first) > [0, 0]


@pytest.mark.parametrize("variables", [{}, NEW_STORE], ids=["one store", "new store"])
@pytest.mark.parametrize("who", ["0", "2"])
def test_a_rank_that_dies_is_started_again_with_those_of_both_machines(
    machines: tuple[Machine, Machine],
    tmp_path: Path,
    undisturbed: list[dict[str, Any]],
    who: str,
    variables: dict[str, str],
):
    folder = tmp_path / "shared"
    folder.mkdir()
    for machine in machines:
        log = tmp_path / f"{machine.number}.log"
        command = program(folder, "gather", who, 200)
        machine.torchrun(log, *command, restarts=3, LAUNCH="0", **variables)
    ends = [machine.end() for machine in machines]
    assert [code for code, _ in ends] == [0, 0], ends
    assert (folder / f"killed-{who}").exists()
    assert results(folder) == undisturbed
    check_examples(folder)


def test_a_machine_that_dies_and_is_started_again_goes_on_with_the_other(
    machines: tuple[Machine, Machine], tmp_path: Path, undisturbed: list[dict[str, Any]]
):
    folder = tmp_path / "shared"
    folder.mkdir()
    first, second = machines
    first.torchrun(tmp_path / "1.log", *program(folder), restarts=3, LAUNCH="0", **NEW_STORE)
    second.torchrun(tmp_path / "2.log", *program(folder), restarts=3, LAUNCH="0", **NEW_STORE)
    wait_for_steps(folder, 130)
    second.kill()
    assert second.end()[0] != 0
    second.torchrun(tmp_path / "3.log", *program(folder), restarts=3, LAUNCH="1", **NEW_STORE)
    ends = [machine.end() for machine in machines]
    assert [code for code, _ in ends] == [0, 0], ends
    assert steps_left_out(folder)
    assert results(folder) == undisturbed
    check_examples(folder)


def test_the_machine_that_launchers_meet_on_dies_and_both_are_started_again(
    machines: tuple[Machine, Machine], tmp_path: Path, undisturbed: list[dict[str, Any]]
):
    folder = tmp_path / "shared"
    folder.mkdir()
    for machine in machines:
        log = tmp_path / f"{machine.number}.log"
        machine.torchrun(log, *program(folder), restarts=3, LAUNCH="0")
    wait_for_steps(folder, 130)
    machines[0].kill()
    assert all(machine.end()[0] != 0 for machine in machines)
    for machine in machines:
        log = tmp_path / f"again-{machine.number}.log"
        machine.torchrun(log, *program(folder), restarts=3, LAUNCH="1")
    ends = [machine.end() for machine in machines]
    assert [code for code, _ in ends] == [0, 0], ends
    assert steps_left_out(folder)
    assert results(folder) == undisturbed
    check_examples(folder)


def other_code(folder: Path) -> str:
    """A path to this version of headtail with other code."""
    shutil.copytree(ROOT / "src", folder / "src")
    with (folder / "src" / "headtail" / "head.py").open("a") as file:
        file.write("# another line\n")
    return os.pathsep.join([str(folder / "src"), str(ROOT)])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([DATA, "--sharded", "--out", "{folder}/other"], "does not see the files of rank 0"),
        (["{folder}/missing", "--sharded", "--out", "{folder}/run"], "missing` does not exist"),
        ([f"{DATA},seed=1", "--sharded", "--out", "{folder}/run"], "Ranks have different data"),
        ([DATA, "--sharded", "--out", "{folder}/run", "--lr", "1"], "Ranks have different setti"),
        (
            [DATA, "--sharded", "--out", "{folder}/run", "--lr", "x"],
            "`--lr` must be a number",
        ),
        ([DATA, "--out", "{folder}/run"], "Write `--sharded` to let them share it"),
        (["other code"], "Ranks have different versions of headtail"),
        (["no interface"], "Set `GLOO_SOCKET_IFNAME` on each machine"),
    ],
    ids=["folder", "no data", "other data", "settings", "typed", "not sharded", "code", "network"],
)
def test_a_machine_that_differs_is_named_in_one_sentence_and_all_ranks_end(
    machines: tuple[Machine, Machine], tmp_path: Path, arguments: list[str], sentence: str
):
    usual = [DATA, "--sharded", "--out", "{folder}/run"]
    variables: list[dict[str, str]] = [{}, {}]
    if arguments == ["other code"]:
        arguments, variables = usual, [{}, {"PYTHONPATH": other_code(tmp_path)}]
    if arguments == ["no interface"]:
        arguments, variables = usual, [{"GLOO_SOCKET_IFNAME": "lo"}] * 2
    begin = time.monotonic()
    for machine, words, changed in zip(machines, (usual, arguments), variables, strict=True):
        given = [word.replace("{folder}", str(tmp_path)) for word in words]
        log = tmp_path / f"{machine.number}.log"
        machine.torchrun(log, *TRAIN, *given, *SMALL, **changed)
    ends = [machine.end() for machine in machines]
    assert all(code != 0 for code, _ in ends)
    assert time.monotonic() - begin < 150
    printed = "".join(text for _, text in ends)
    said = [line for line in printed.splitlines() if line.startswith("headtail: ")]
    assert [sentence in line for line in said] == [True], printed
    assert "headtail/cli" not in printed, "a traceback"
    kept = [path for name in ("run", "other") for path in tmp_path.glob(f"{name}/checkpoint*")]
    assert not kept
