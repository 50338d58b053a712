"""What a sharded run keeps: checkpoints of all ranks, and a model like that of one process."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor

from headtail.core.labels import Labels
from headtail.data.known import Users
from headtail.data.text_features import TextFeatures
from headtail.distributed.checkpoint import Saving, load_checkpoint, save_checkpoint
from headtail.encoders import Model
from headtail.errors import HeadtailError, Setting
from headtail.files.tensors import as_bytes
from headtail.training import checkpoint
from headtail.training.check_checkpoint import checked_state
from headtail.training.check_saved import Saved
from headtail.training.run_files import CHECKPOINT_FILE, CHECKPOINTS, START_AGAIN, check_facts
from headtail.training.saved_model import MODEL_FILE, save_weights
from headtail.training.state import State
from headtail.training.whole_model import TABLES, weights_of_all


@final
class ShardedRunFiles:
    """The files of a run whose ranks share the label table. Every rank calls every method.

    Args:
        folder: where the files go, which all ranks can reach; or None.
        facts: about run and data, saved in all files; a checkpoint must agree with them.
        labels: the distribution that is trained for.
        text: how raw texts become features, or None.
        users: of the training points, where features are users; or None.
    """

    def __init__(
        self,
        folder: Path | None,
        facts: dict[str, Any],
        labels: Labels,
        text: TextFeatures | None = None,
        users: Users | None = None,
    ) -> None:
        self.folder = folder
        self.facts = facts
        self.labels = labels
        self.text = text
        self.users = users
        self._best: dict[str, Tensor] = {}
        self._saving: Saving | None = None

    def save_model(self, model: Model) -> None:
        """Keep the present weights as the best: a file as a run of one process writes it."""
        if self.folder is None:
            weights = checkpoint.weights_of(model)
            self._best = {name: tensor.detach().clone() for name, tensor in weights.items()}
            return
        weights = weights_of_all(model)
        if weights:
            names = as_bytes(self.labels.names)
            about = (self.labels, names, self.facts, self.text, self.users)
            save_weights(self.folder, weights, *about)

    def restore_best(self, model: Model) -> None:
        """Give the model the weights that were kept last."""
        if self.folder is None:
            checkpoint.restore_weights(self._best, model)
            return
        head: Any = model.head
        dist.barrier(group=head.ranks.group)  # the first rank has written them
        tensors, _ = checkpoint.load(self.folder / MODEL_FILE)
        own = head.share.labels()
        weights = checkpoint.weights_of(model)
        for name in weights.keys() & tensors.keys():
            weights[name] = tensors[name][own] if name in TABLES else tensors[name]
        checkpoint.restore_weights(weights, model)

    def save_checkpoint(self, model: Model, optimiser: torch.optim.Optimizer, state: State) -> None:
        """Save all that the run needs to continue, while it goes on; there must be a folder."""
        assert self.folder is not None
        self._saving = save_checkpoint(
            self.folder / CHECKPOINTS,
            **_trained(model, optimiser),
            facts=_as_json({**self.facts, "state": asdict(state)}),
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
        if facts is None:
            return None
        check_facts(path, facts, self.facts)
        return checked_state(Saved(path, {}, facts, START_AGAIN), facts["run"]["epochs"], steps)


def _trained(model: Model, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    return {"head": model.head, "optimizer": optimiser, "encoder": model.encoder}


def _as_json(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts as they come back."""
    return json.loads(json.dumps(facts))
