"""What a sharded run keeps: checkpoints of all ranks, and a model like that of one process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from headtail.distributed.checkpoint import Saving, load_checkpoint, save_checkpoint
from headtail.distributed.together import everywhere
from headtail.encoders import Model
from headtail.errors import HeadtailError, Setting
from headtail.training import checkpoint
from headtail.training.check_checkpoint import checked_state
from headtail.training.check_saved import Saved
from headtail.training.kept_models import forget_models, keep_model, restore_model
from headtail.training.run_files import CHECKPOINT_FILE, CHECKPOINTS, START_AGAIN, check_facts
from headtail.training.saved_model import MODEL_FILE, About
from headtail.training.state import State
from headtail.training.whole_model import restore_model_of_ranks, save_model_of_ranks


@final
class ShardedRunFiles:
    """The files of a run whose ranks share the label table. Every rank calls every method.

    Args:
        folder: where the files go, which all ranks can reach; or None.
        about: what the model is saved with; a checkpoint must agree with its facts.
    """

    def __init__(self, folder: Path | None, about: About) -> None:
        self.folder = folder
        self.about = about
        self._best: dict[str, Tensor] = {}
        self._saving: Saving | None = None

    def save_model(self, model: Model) -> None:
        """Keep the present weights as the best: a file as a run of one process writes it."""
        if self.folder is None:
            self._best = checkpoint.copied_weights(model)
            return
        path = self.folder / MODEL_FILE
        self.finish()
        _on_first(model, partial(keep_model, path, self.folder / CHECKPOINTS))
        save_model_of_ranks(path, model, self.about)

    def restore_best(self, model: Model) -> None:
        """Give the model the weights that were kept last."""
        if self.folder is None:
            checkpoint.restore_weights(self._best, model)
            return
        restore_model_of_ranks(self.folder / MODEL_FILE, model)

    def save_checkpoint(self, model: Model, optimiser: torch.optim.Optimizer, state: State) -> None:
        """Save all that the run needs to continue, while it goes on; there must be a folder."""
        assert self.folder is not None
        assert model.ranks is not None
        if model.ranks.rank == 0:
            forget_models(self.folder / CHECKPOINTS)
        self._saving = save_checkpoint(
            self.folder / CHECKPOINTS,
            **_trained(model, optimiser),
            facts=_as_json({**self.about.facts, "state": asdict(state)}),
            asynchronous=True,
        )

    def finish(self) -> None:
        """Wait until the last checkpoint is on the disk."""
        if self._saving is not None:
            self._saving.wait()

    def load_checkpoint(
        self, model: Model, optimiser: torch.optim.Optimizer, steps: int
    ) -> State | None:
        """Restore the last checkpoint that is not damaged, of any number of ranks; None if there
        is none.

        Args:
            model: of the run.
            optimiser: of the run.
            steps: in an epoch.
        """
        if self.folder is None:
            return None
        if (self.folder / CHECKPOINT_FILE).exists():
            raise HeadtailError(
                f"`{self.folder}` holds a run of one process. Go on with it without ",
                Setting("sharded"),
                ", or choose another folder.",
            )
        path = self.folder / CHECKPOINTS
        facts = load_checkpoint(path, **_trained(model, optimiser))
        state = None
        if facts is not None:
            check_facts(path, facts, self.about.facts)
            saved = Saved(path, {}, facts, START_AGAIN)
            state = checked_state(saved, facts["run"]["epochs"], steps)
        _on_first(model, partial(restore_model, self.folder / MODEL_FILE, path))
        return state


def _on_first(model: Model, work: Callable[[], None]) -> None:
    """Do something on the first rank before any rank goes on."""
    ranks = model.ranks
    assert ranks is not None
    everywhere(ranks, work if ranks.rank == 0 else lambda: None)


def _trained(model: Model, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    return {"head": model.head, "optimizer": optimiser, "encoder": model.encoder}


def _as_json(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts as they come back."""
    return json.loads(json.dumps(facts))
