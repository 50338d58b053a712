"""`train --sharded`: one run on several processes looks like a run on one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from headtail.cli import main
from headtail.comparison.results import read_rows
from headtail.data.load import load
from headtail.data.slices import data_slices
from headtail.evaluation.measures import measure_model
from headtail.training.saved_model import load_model

DATA = "synthetic:points=240,test=51,features=90,labels=37"
SMALL = ["--dim", "6", "--epochs", "2", "--batch", "32"]


def torchrun(*command: str, ranks: int = 2, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    """The outcome of a command that torchrun starts on two ranks."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*launcher, f"--nproc-per-node={ranks}", f"--max-restarts={restarts}", *command],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"COLUMNS": "100"},
    )


def sentences(run: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in run.stderr.splitlines() if line.startswith("headtail: ")]


def test_two_ranks_write_and_print_what_one_process_would(tmp_path: Path):
    out = tmp_path / "run"
    scheme = ["--scheme", "uniform:importance"]
    run = torchrun("-m", "headtail", "train", DATA, "--sharded", *SMALL, *scheme, "--out", str(out))
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("uniform:importance on") == 1
    assert run.stdout.count(f"model: {out}/model.safetensors") == 1
    assert run.stderr.count("Generated data") == 1
    assert "Traceback" not in run.stderr
    assert {path.name for path in out.iterdir()} >= {"results.csv", "run.toml", "SHA256SUMS"}
    assert not (out / "checkpoints").exists()
    data = load(DATA)
    model, *_ = load_model(out)
    measured = {row[:3] for row in measure_model(model, data, data_slices(data, "auto"))}
    tested = [row for row in read_rows(out / "results.csv") if row.split == "test"]
    assert {(row.metric, row.slice, row.value) for row in tested if row.value == row.value} == {
        row for row in measured if row[2] == row[2]
    }


def test_without_torchrun_there_is_one_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    command = ["train", DATA, "--sharded", *SMALL, "--out", str(tmp_path / "run")]
    assert main(command) == 0
    first = capsys.readouterr()
    assert "softmax on" in first.out
    assert main(command) == 0  # its results are there
    assert capsys.readouterr().out == first.out


WORDS = """
import os, sys
words = ["train", sys.argv[1], "--sharded", *sys.argv[2:]]
"""
COMMAND = """
from headtail.__main__ import main
sys.argv = ["headtail", *words]
sys.exit(main())
"""
"""The command itself, which also knows how to leave while threads are at work."""
OTHER_DATA = """
if os.environ["RANK"] == "1":
    words[1] += ",seed=1"
"""
FAILS_ALONE = """
from headtail.errors import HeadtailError
from headtail.training.step import Learner
learn = Learner.learn

def fails(self, loss):
    raise HeadtailError("The disk of this rank is on fire.")

if os.environ["RANK"] == "1":
    Learner.learn = fails
"""
SLOW_TO_TELL = """
import time
from headtail.cli import main

class Slow:
    encoding = "utf-8"

    def write(self, text):
        time.sleep(1.5 * text.startswith("headtail: "))
        sys.__stderr__.write(text)

    def __getattr__(self, name):
        return getattr(sys.__stderr__, name)

sys.stderr = Slow()
words[1] += ",seed=x"
os._exit(main(words))
"""
"""torchrun ends the rank that writes the sentence if another one ends before, here at once."""
OTHER_CODE = """
from headtail.distributed import processes
if os.environ["RANK"] == "1":
    processes._version = lambda: "another"
"""
OTHER_DEVICE = """
import torch
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg
from headtail.cli import train

if os.environ["RANK"] == "1":
    join = dist.init_process_group
    dist.init_process_group = lambda _, **options: join("cpu:gloo,cuda:fake", **options)
    torch.cuda.set_device = lambda _: None
    train.choose_device_of_rank = lambda _: "cuda"
"""
"""As on a machine with GPUs, beside one that does not see its own; a fake backend is its NCCL."""
NO_DISK = """
import resource
if os.environ["RANK"] == "1":
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
"""
OTHER_WORDS = """
if os.environ["RANK"] == "1":
    CHANGE
"""
"""Rank 1 is started with other options."""


def changed(change: str) -> str:
    return OTHER_WORDS.replace("CHANGE", change)


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        pytest.param(SLOW_TO_TELL, "must be a whole number from 0", id="slow"),
        pytest.param(OTHER_CODE, "Ranks have different versions of headtail", id="code"),
        pytest.param(
            OTHER_DEVICE, "Rank 1 on HOST works on a GPU, but rank 0 on HOST", id="device"
        ),
        pytest.param(NO_DISK, "on rank 1, File too large. The last one is", id="disk"),
        pytest.param(
            changed("words += ['--lrr', '1']"), "has no option `--lrr`", id="typed by one"
        ),
        pytest.param(
            changed("words.remove('--sharded')"), "Write `--sharded` to let them", id="not sharded"
        ),
        pytest.param(changed("words[-1] += '-2'"), "does not see the files of rank 0", id="folder"),
        pytest.param(
            changed("open(words[-1] + '-2', 'w'); words[-1] += '-2'"),
            "cannot be written: it is not a folder",
            id="not a folder",
        ),
        pytest.param(OTHER_DATA, "Ranks have different data: rank 1 has others", id="all"),
        pytest.param(FAILS_ALONE, "The disk of this rank is on fire.", id="one"),
    ],
)
def test_ranks_that_fail_say_so_once(tmp_path: Path, program: str, sentence: str):
    script = tmp_path / "program.py"
    script.write_text(WORDS + program + COMMAND)
    run = torchrun(str(script), DATA, *SMALL, "--out", str(tmp_path / "run"))
    assert run.returncode == 1  # torchrun's own
    sentence = sentence.replace("HOST", socket.gethostname())
    assert [sentence in said for said in sentences(run)] == [True], run.stderr
    assert "exitcode  : 2" in run.stderr
    assert "headtail/cli" not in run.stderr.replace("\\", "/"), "a traceback"


SHOWS_STARTS = """
print("started", flush=True)
"""
DIES_ONCE = """
import signal
from headtail.training.step import Learner

learn = Learner.learn
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"

def dies(self, loss):
    if first and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return learn(self, loss)

Learner.learn = dies
"""


def test_what_all_ranks_refuse_is_not_tried_again(tmp_path: Path):
    script = tmp_path / "program.py"
    script.write_text(WORDS + SHOWS_STARTS + COMMAND)
    command = [str(script), DATA, *SMALL, "--scheme", "unifrm:tail", "--out", str(tmp_path / "run")]
    run = torchrun(*command, restarts=2)
    assert run.returncode == 1
    assert run.stdout.count("started") >= 4  # a rank may be ended before it writes
    assert ["Did you mean `uniform`" in said for said in sentences(run)] == [True], run.stderr
    assert "exitcode  : 2" in run.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="nothing can be killed there")
def test_a_killed_rank_is_started_again(tmp_path: Path):
    script = tmp_path / "program.py"
    script.write_text(WORDS + DIES_ONCE + COMMAND)
    run = torchrun(str(script), DATA, *SMALL, "--out", str(tmp_path / "run"), restarts=1)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("model: ") == 1


@pytest.mark.long
@pytest.mark.parametrize("program", [FAILS_ALONE, NO_DISK], ids=["one", "disk"])
def test_what_may_be_otherwise_later_is_tried_again(tmp_path: Path, program: str):
    script = tmp_path / "program.py"
    script.write_text(WORDS + program + COMMAND)
    run = torchrun(str(script), DATA, *SMALL, "--out", str(tmp_path / "run"), restarts=1)
    assert run.returncode == 1
    assert len(sentences(run)) == 2, run.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--tune"], "`--tune` compares many short runs"),
        (["--scheme", "hard:constant"], "cannot draw for a table that ranks share"),
        (["--device", "cuda"], "`--device cuda` needs a GPU for each rank"),
    ],
)
def test_what_ranks_cannot_share_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
):
    if options[0] == "--device" and __import__("torch").cuda.is_available():
        pytest.skip("there is a GPU")
    command = ["train", DATA, "--sharded", *SMALL, *options, "--out", str(tmp_path / "run")]
    assert main(command) == 2
    assert sentence in capsys.readouterr().err
    assert not dist.is_initialized()
