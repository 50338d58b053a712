"""What a run keeps: its checkpoint and its best model."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from headtail.distributed.checkpoint_contents import DamagedError, read_contents
from headtail.distributed.checkpoint_folder import newest_first
from headtail.encoders import Model
from headtail.errors import HeadtailError, Setting
from headtail.files.atomic import keep
from headtail.files.checksums import DamagedWarning
from headtail.files.tensors import save_tensors
from headtail.training import checkpoint
from headtail.training.check_checkpoint import check_optimiser, check_random, checked_state
from headtail.training.check_saved import Saved
from headtail.training.saved_model import AGAIN, MODEL_FILE, About, save_model
from headtail.training.state import State

CHECKPOINT_FILE = "checkpoint.safetensors"
PREVIOUS_FILE = "checkpoint-before.safetensors"
"""The checkpoint before the last, for a disk that damages the last."""
CHECKPOINT_FILES = (CHECKPOINT_FILE, PREVIOUS_FILE)
CHECKPOINTS = "checkpoints"
"""The folder of checkpoints of a run whose ranks share the label table."""
START_AGAIN = "Delete it to start that run again."
"""What to do about a checkpoint that cannot be used."""


def note_if_stopped(folder: Path) -> list[str]:
    """A note, if the run in this folder was stopped before its end, or still runs."""
    path = folder / CHECKPOINT_FILE
    if shared := newest_first(folder / CHECKPOINTS):
        path = shared[0]
        facts = _facts_of_ranks(path)
    elif path.exists():
        _, facts = checkpoint.load(path, only_facts=True)
    else:
        return []
    state, run = (facts.get(name) for name in ("state", "run"))
    if not isinstance(state, dict) or not isinstance(run, dict):
        raise HeadtailError(
            f"`{path}` is damaged: it does not say how far the run came. {START_AGAIN}"
        )
    if state.get("finished", True):
        return []
    return [
        f"The run in `{folder}` has not reached its end: its model is the best of the first "
        f"{state.get('epoch')} of {run.get('epochs')} epochs. To finish it, train again with the "
        "same settings and folder."
    ]


def _facts_of_ranks(path: Path) -> dict[str, Any]:
    try:
        return read_contents(path).description["facts"]
    except (DamagedError, KeyError) as error:
        raise HeadtailError(f"`{path}` is damaged: {error}. {START_AGAIN}") from error


def check_facts(path: Path, saved: dict[str, Any], own: dict[str, Any]) -> None:
    """Refuse a checkpoint of another run, or of other data."""
    if any(saved.get(name) != own[name] for name in ("run", "data")):
        raise HeadtailError(
            f"`{path}` belongs to a run with other settings or other data. Choose another "
            "folder, or delete it."
        )


def _last_good(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A checkpoint; where it is damaged, the one before it, if there is one."""
    try:
        return checkpoint.load(path)
    except HeadtailError as damage:
        before = path.with_name(PREVIOUS_FILE)
        if not before.exists():
            raise
        loaded = checkpoint.load(before)
        warnings.warn(
            f"{damage.args[0].partition(': ')[0]}, so the run goes on from the checkpoint before.",
            DamagedWarning,
            stacklevel=3,
        )
        return loaded


@final
class RunFiles:
    """The files of a run in its folder; without a folder, the best weights in memory.

    Args:
        folder: where the files go, or None.
        about: what the model is saved with; a checkpoint must agree with its facts.
    """

    def __init__(self, folder: Path | None, about: About) -> None:
        self.folder = folder
        self.about = about
        self._best: dict[str, Tensor] = {}

    def save_model(self, model: Model) -> None:
        """Keep the present weights as the best."""
        if self.folder is not None:
            save_model(self.folder, model, self.about)
            return
        self._best = checkpoint.copied_weights(model)

    def restore_best(self, model: Model) -> None:
        """Give the model the weights that were kept last."""
        tensors = self._best
        if self.folder is not None:
            path = self.folder / MODEL_FILE
            tensors, facts = checkpoint.load(path)
            Saved(path, tensors, facts, AGAIN).check_weights(model)
        checkpoint.restore_weights(tensors, model)

    def save_checkpoint(self, model: Model, optimiser: torch.optim.Optimizer, state: State) -> None:
        """Save all that the run needs to continue; there must be a folder."""
        assert self.folder is not None
        tensors, facts = checkpoint.training_state(model, optimiser)
        facts = {**facts, **self.about.facts, "state": asdict(state)}
        path = self.folder / CHECKPOINT_FILE
        keep(path, self.folder / PREVIOUS_FILE)
        save_tensors(path, tensors, facts)

    def finish(self) -> None:
        """Nothing: all is on the disk already."""

    def load_checkpoint(
        self, model: Model, optimiser: torch.optim.Optimizer, steps: int
    ) -> State | None:
        """Restore the last checkpoint that is not damaged; None if there is none.

        Args:
            model: of the run.
            optimiser: of the run.
            steps: in an epoch.
        """
        if self.folder is None:
            return None
        path = self.folder / CHECKPOINT_FILE
        if newest_first(self.folder / CHECKPOINTS):
            raise HeadtailError(
                f"`{self.folder}` holds a run whose ranks share the label table. Go on with it "
                "with ",
                Setting("sharded", True),
                ", or choose another folder.",
            )
        if not path.exists():
            return None
        tensors, facts = _last_good(path)
        if not {"run", "data", "state", "optimiser"} <= facts.keys():
            raise HeadtailError(f"`{path}` is not a checkpoint of a run. {START_AGAIN}")
        check_facts(path, facts, self.about.facts)
        saved = Saved(path, tensors, facts, START_AGAIN)
        state = checked_state(saved, self.about.facts["run"]["epochs"], steps)
        saved.check_weights(model)
        check_optimiser(saved, model, optimiser)
        check_random(saved)
        with saved.explained("the states of its samplers"):
            checkpoint.restore_training_state(tensors, facts, model, optimiser)
        return state
