"""The best model of a run whose ranks share the label table, and the checkpoints that know it."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from headtail import Run, Trainer, load
from headtail.files import atomic
from headtail.files.checksums import DamagedWarning
from headtail.training.engine import Engine
from headtail.training.state import State
from tests.training.sharded_checks import DATA, _folder


class _Runs:
    """A run that is begun again and again in one folder, as after kills."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trainer = self._new()

    def _new(self) -> Trainer:
        run = Run(scheme="queue:tail", dim=6, epochs=9, batch=31, negatives=5)
        return Trainer(run, load(DATA), self.folder, engine=Engine(sharded=True))

    def improve(self, epoch: int) -> None:
        """Keep weights that are this number everywhere as the best."""
        with torch.no_grad():
            for parameter in self.trainer.model.parameters():
                parameter.fill_(epoch)
        self.trainer.files.save_model(self.trainer.model)

    def save(self, epoch: int, best_epoch: int) -> None:
        """Save a checkpoint, which counts when this returns."""
        state = State(epoch=epoch, best_epoch=best_epoch, best=0.5)
        self.trainer.files.save_checkpoint(self.trainer.model, self.trainer.optimiser, state)
        self.trainer.files.finish()

    def best(self) -> tuple[int, set[float]]:
        """The best epoch by the newest checkpoint, and the weights that are taken for its."""
        self.trainer = self._new()
        model: Any = self.trainer.model
        state = self.trainer.files.load_checkpoint(model, self.trainer.optimiser, 7)
        assert state is not None
        self.trainer.files.restore_best(model)
        values = {float(value) for p in model.parameters() for value in p.detach().view(-1)}
        return state.best_epoch, values

    def kept(self) -> list[str]:
        """The names of models beside checkpoints, once all ranks are done with them."""
        dist.barrier()
        names = sorted(path.name for path in (self.folder / "checkpoints").glob("model-*"))
        dist.barrier()
        return names

    def damage_newest(self) -> None:
        """Cut a file of the newest checkpoint."""
        dist.barrier()
        if dist.get_rank() == 0:
            folder = self.folder / "checkpoints"
            newest = max(folder.glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
            (newest / "rank-0.safetensors").write_bytes(b"")
        dist.barrier()


def a_better_model_that_no_checkpoint_knows_does_not_count() -> None:
    with _folder() as folder:
        runs = _Runs(folder)
        runs.improve(1)
        runs.save(1, best_epoch=1)
        runs.improve(2)  # and killed before the checkpoint
        assert runs.best() == (1, {1.0})
        assert runs.kept() == []
        runs.improve(2)
        runs.save(2, best_epoch=2)
        assert runs.best() == (2, {2.0})
        runs.improve(3)
        assert runs.best() == (2, {2.0})


def the_checkpoint_before_a_damaged_one_still_has_its_best_model() -> None:
    with _folder() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedWarning)
        runs = _Runs(folder)
        for epoch in (1, 2, 3):
            runs.improve(epoch)
            runs.save(epoch, best_epoch=epoch)
        runs.improve(4)  # and killed before the checkpoint
        assert runs.kept() == ["model-1.safetensors", "model-2.safetensors", "model-3.safetensors"]
        runs.damage_newest()
        assert runs.best() == (2, {2.0})
        assert runs.kept() == ["model-1.safetensors"]
        # What the abandoned epochs have left does not come back.
        runs.save(3, best_epoch=2)
        runs.improve(4)
        runs.save(4, best_epoch=4)
        assert runs.best() == (4, {4.0})


def models_that_no_checkpoint_knows_any_more_are_removed() -> None:
    with _folder() as folder:
        runs = _Runs(folder)
        for epoch in (1, 2):
            runs.improve(epoch)
            runs.save(epoch, best_epoch=epoch)
        assert runs.kept() == ["model-1.safetensors"]
        for epoch in (3, 4):
            runs.save(epoch, best_epoch=2)
        assert runs.kept() == []
        assert runs.best() == (2, {2.0})


def a_file_that_can_have_one_name_only_is_kept_too() -> None:
    usual = os.link
    with _folder() as folder:
        runs = _Runs(folder)
        runs.improve(1)
        runs.save(1, best_epoch=1)
        try:
            atomic.os.link = _refuses
            runs.improve(2)
        finally:
            atomic.os.link = usual
        assert runs.kept() == ["model-1.safetensors"]
        assert runs.best() == (1, {1.0})


def _refuses(*_: Any) -> None:
    raise OSError("no second names here")
