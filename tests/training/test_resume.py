"""Runs that are interrupted in every way, and continue as if nothing had happened."""

from __future__ import annotations

import math
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from headtail.cli import main
from headtail.encoders import Bottleneck
from headtail.errors import HeadtailError
from headtail.files.cache_folder import cache_folder
from headtail.files.checksums import DamagedWarning
from headtail.files.locks import held
from headtail.kernels.cpu import bag as cpu_bag  # noqa: F401 - compiled before a test sends the cache elsewhere
from headtail.training import checkpoint
from headtail.training.callbacks import Callback
from headtail.training.engine import Engine
from headtail.training.interrupts import Stopped
from headtail.training.saved_model import load_model
from headtail.training.trainer import Trainer
from tests.training.test_train import DATA, RUNS, SMALL, Stop, assert_same_model

COMPILED = str(cache_folder() / "numba")
EVERY_STEP = Engine(check_every=1)
SAVING = Engine(check_every=1, save_every=0.0)
each_run = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)


def last_checkpoint(folder: Path) -> tuple[dict[str, torch.Tensor], dict]:
    """All that a run would continue from. `first_loss` is left out: it depends on when the loss was
    first checked, and is used for nothing but divergence.
    """
    tensors, facts = checkpoint.load(folder / "checkpoint.safetensors")
    return tensors, {**facts, "state": {**facts["state"], "first_loss": None}}


def assert_same_run(one: Path, other: Path) -> None:
    tensors, facts = last_checkpoint(one)
    tensors_too, facts_too = last_checkpoint(other)
    assert facts == facts_too
    assert tensors.keys() == tensors_too.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, tensors_too[name]), name


@each_run
def test_a_run_stopped_after_any_step_continues_bit_for_bit(run, tmp_path):
    whole = Trainer(run, DATA, tmp_path / "whole").fit()
    steps = whole.steps_per_epoch
    stops = 0
    for after in (0, 4, steps - 2, steps - 1, steps, 2 * steps + 3):
        stop = Stop(after)
        try:
            Trainer(
                run, DATA, tmp_path / "parts", engine=EVERY_STEP, callbacks=stop, stop=stop.event
            ).fit()
        except Stopped:
            stops += 1
        torch.rand(3)  # randomness used elsewhere
    assert stops == 6
    parts = Trainer(run, DATA, tmp_path / "parts", engine=EVERY_STEP).fit()
    assert_same_model(whole, parts)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@each_run
def test_saving_and_checking_after_every_step_change_nothing(run, tmp_path):
    never = Trainer(run, DATA, tmp_path / "never", engine=Engine(save_every=math.inf)).fit()
    without = Trainer(run, DATA).fit()
    always = Trainer(run, DATA, tmp_path / "always", engine=SAVING, callbacks=Callback()).fit()
    assert_same_run(tmp_path / "never", tmp_path / "always")
    assert_same_model(never, always)
    assert_same_model(never, without)


def test_a_damaged_checkpoint_is_replaced_by_the_one_before_and_the_run_ends_the_same(tmp_path):
    run = RUNS["adam with lazy decay"]
    Trainer(run, DATA, tmp_path / "whole").fit()
    stop = Stop(9)
    with pytest.raises(Stopped):
        Trainer(run, DATA, tmp_path / "parts", engine=SAVING, callbacks=stop, stop=stop.event).fit()
    last = tmp_path / "parts" / "checkpoint.safetensors"
    content = bytearray(last.read_bytes())
    content[-5] ^= 1
    last.write_bytes(content)
    with pytest.warns(DamagedWarning, match="so the run goes on from the checkpoint before"):
        Trainer(run, DATA, tmp_path / "parts").fit()
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_without_a_good_checkpoint_a_damaged_one_is_refused(tmp_path):
    run = RUNS["adam with lazy decay"]
    Trainer(run, DATA, tmp_path, engine=Engine(save_every=math.inf)).fit()
    (tmp_path / "checkpoint-before.safetensors").unlink(missing_ok=True)
    os.truncate(tmp_path / "checkpoint.safetensors", 500)
    with pytest.raises(HeadtailError, match=r"cannot be read as a checkpoint: .* Delete it to"):
        Trainer(run, DATA, tmp_path).fit()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_an_encoder_with_a_mask_of_minus_infinity_is_saved_and_resumed(tmp_path, dtype):
    class Masked(Bottleneck):
        def __init__(self) -> None:
            torch.manual_seed(0)
            super().__init__(DATA.train.num_features, SMALL.dim)
            self.register_buffer("mask", torch.full((3,), -math.inf, dtype=dtype))

    Trainer(SMALL, DATA, tmp_path, encoder=Masked()).fit()
    model, *_ = load_model(tmp_path, encoder=Masked())
    assert Trainer(SMALL, DATA, tmp_path, encoder=Masked()).fit().state.finished
    assert model.encoder.mask.isinf().all()


def test_two_runs_at_once_in_one_folder_are_refused(tmp_path):
    run = RUNS["adam with lazy decay"]
    with held(tmp_path), pytest.raises(HeadtailError, match="is in use by process"):
        Trainer(run, DATA, tmp_path).fit()


@pytest.mark.parametrize("after", [1, 7, 13])
def test_a_run_that_crashes_after_a_checkpoint_continues_bit_for_bit(after, tmp_path):
    run = RUNS["adam with lazy decay"]
    Trainer(run, DATA, tmp_path / "whole").fit()

    class Crash(Callback):
        def on_step(self, progress, loss):
            if progress.step > after:
                raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        Trainer(run, DATA, tmp_path / "parts", engine=SAVING, callbacks=Crash()).fit()
    state = last_checkpoint(tmp_path / "parts")[1]["state"]
    resumed = Trainer(run, DATA, tmp_path / "parts", engine=EVERY_STEP).fit()
    steps = resumed.steps_per_epoch
    assert state["epoch"] * steps + state["step"] == after
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


KILLER = """
import os, random, signal, sys, time, traceback
from pathlib import Path
import torch
torch.set_num_threads(1)
from headtail.training.engine import Engine
from headtail.training.saved_model import load_model
from headtail.training.trainer import Trainer
from tests.training.test_train import DATA, RUNS

engine = Engine(check_every=1, save_every=0.0)
chance, kills = random.Random(4), 0
run, folder = RUNS["adam with lazy decay"], Path(sys.argv[1])
Trainer(run, DATA, folder / "first", engine=engine).fit()  # loads what is loaded once
begun = time.monotonic()
Trainer(run, DATA, folder / "whole", engine=engine).fit()
whole = time.monotonic() - begun
while True:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            Trainer(run, DATA, folder / "parts", engine=engine).fit()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    if kills < 12:
        time.sleep(chance.uniform(0.0, 0.4) * whole)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status):
        print(kills, os.WEXITSTATUS(status))
        break
    kills += 1
"""


def test_a_run_killed_again_and_again_at_random_moments_ends_as_if_nothing_had_happened(tmp_path):
    command = [sys.executable, "-c", KILLER, tmp_path]
    root = Path(__file__).parents[2]
    # Where autograd sees a GPU it starts threads, and refuses to work in a fork of such a process.
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=root, env=hidden
    )
    kills, code = map(int, done.stdout.split())
    assert code == 0, done.stderr
    assert kills >= 2
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def breaking(trainer: Trainer, at: int, how) -> Trainer:
    """Do something in a certain step."""
    forward = trainer.model.forward
    count = [0]

    def forward_and_break(batch):
        count[0] += 1
        loss = forward(batch)
        return how(loss) if count[0] == at else loss

    trainer.model.forward = forward_and_break
    return trainer


def test_a_loss_that_is_not_a_number_stops_the_run_and_keeps_the_last_good_checkpoint(
    tmp_path,
):
    broken = breaking(
        Trainer(SMALL, DATA, tmp_path / "parts", engine=SAVING), 6, lambda loss: loss * math.nan
    )
    with pytest.raises(
        HeadtailError,
        match=r"`softmax` diverged: the loss is nan in epoch 1, step 6.*`lr` than 0.1.*parts`",
    ):
        broken.fit()
    assert last_checkpoint(tmp_path / "parts")[1]["state"]["step"] == 5
    Trainer(SMALL, DATA, tmp_path / "parts").fit()
    Trainer(SMALL, DATA, tmp_path / "whole").fit()
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_loss_that_leaps_up_stops_the_run_though_it_is_a_number(tmp_path):
    with pytest.raises(HeadtailError, match=r"diverged: the loss is \d+.* in epoch 1, step 6"):
        breaking(Trainer(SMALL, DATA, tmp_path, engine=SAVING), 6, lambda loss: 1000 * loss).fit()
    assert last_checkpoint(tmp_path)[1]["state"]["step"] == 5


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    trainer = Trainer(SMALL, DATA, tmp_path, engine=SAVING)

    def spoil(loss):
        trainer.model.encoder.weight.data[29] = math.inf  # pyright: ignore[reportAttributeAccessIssue]
        return loss

    with pytest.raises(HeadtailError, match=r"diverged: .* in epoch 1, step 4"):
        breaking(trainer, 4, spoil).fit()
    tensors, facts = last_checkpoint(tmp_path)
    assert facts["state"]["step"] == 3
    assert all(
        tensor.isfinite().all() for name, tensor in tensors.items() if name.startswith("model.")
    )


def test_ctrl_c_saves_says_how_to_continue_and_the_same_command_ends_with_the_same_table(
    tmp_path, capsys, monkeypatch
):
    for name, value in {
        "HEADTAIL_CACHE": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "300",
    }.items():
        monkeypatch.setenv(name, value)
    data = "synthetic:points=1500,test=100,features=200,labels=50"
    settings = [
        "--scheme",
        "within-batch:tail",
        "--dim",
        "16",
        "--batch",
        "16",
        "--epochs",
        "4",
        "--device",
        "cpu",
    ]
    parts, whole = (
        ["train", data, "--out", str(tmp_path / part / "run"), *settings]
        for part in ("parts", "whole")
    )

    compiled = os.environ | {"NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR", COMPILED)}
    interrupted = subprocess.Popen(
        [sys.executable, "-m", "headtail", *parts], env=compiled, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 60
    while not (tmp_path / "parts/run/events").exists() and time.monotonic() < until:
        time.sleep(0.005)
    interrupted.send_signal(signal.SIGINT)
    _, error = interrupted.communicate()
    assert interrupted.returncode == 130, error
    assert f"Stopped, and saved. To go on: headtail {shlex.join(parts)}" in error
    assert not (tmp_path / "parts/run/results.csv").exists()

    tables = []
    for command in (parts, whole):
        assert main(command) == 0
        tables.append(capsys.readouterr().out.replace("/whole/", "/parts/"))
    assert "recall@10" in tables[0]
    assert tables[0] == tables[1]
    assert (tmp_path / "parts/run/results.csv").read_bytes() == (
        tmp_path / "whole/run/results.csv"
    ).read_bytes()
