"""What a sharded run keeps: distributed checkpoints of all ranks, and a model like any other."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from headtail.core.labels import Labels
from headtail.data.known import Users
from headtail.data.text_features import TextFeatures
from headtail.encoders import Model
from headtail.errors import HeadtailError
from headtail.files.atomic import sync
from headtail.files.tensors import as_bytes, from_bytes
from headtail.training import checkpoint
from headtail.training.check_checkpoint import checked_state
from headtail.training.check_saved import Saved
from headtail.training.run_files import START_AGAIN
from headtail.training.saved_model import MODEL_FILE, save_weights
from headtail.training.sharded_state import (
    ShardedState,
    as_distributed,
    as_one_process,
    is_of_rows,
)
from headtail.training.state import State

CHECKPOINTS = "checkpoints"
"""The folder of a sharded run's checkpoints, each a folder named after its step."""
COMMITTED = ".metadata"
"""The file of a checkpoint that is written last: without it, there is none."""
FACTS = "facts"
KEPT = 2
"""Checkpoints that are kept: the last, and the one before it."""


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

    def save_model(self, model: Model) -> None:
        """Keep the present weights as the best: a file as a run of one process writes it."""
        if self.folder is None:
            weights = checkpoint.weights_of(model)
            self._best = {name: tensor.detach().clone() for name, tensor in weights.items()}
            return
        weights = as_one_process(model)
        if weights:
            names = as_bytes(self.labels.names)
            about = (self.labels, names, self.facts, self.text, self.users)
            save_weights(self.folder, weights, *about)

    def restore_best(self, model: Model) -> None:
        """Give the model the weights that were kept last."""
        if self.folder is None:
            checkpoint.restore_weights(self._best, model)
            return
        dist.barrier(group=_head(model).ranks.group)  # the first rank has written them
        tensors, _ = checkpoint.load(self.folder / MODEL_FILE)
        own = _head(model).share.labels()
        weights = checkpoint.weights_of(model)
        for name in weights:
            if is_of_rows(name, 2):
                weights[name] = tensors[name][own]
            elif name in tensors:
                weights[name] = tensors[name]
        checkpoint.restore_weights(weights, model)

    def save_checkpoint(self, model: Model, optimiser: torch.optim.Optimizer, state: State) -> None:
        """Save all that the run needs to continue; there must be a folder."""
        assert self.folder is not None
        head = _head(model)
        for buffer in model.encoder.buffers():
            head.ranks.copy_first(buffer)  # as evaluation sees them
        own = ShardedState.of(model, optimiser)
        facts = {**self.facts, "optimiser": own.numbers, "state": asdict(state)}
        place = self.folder / CHECKPOINTS / f"{state.epoch:06}-{state.step:09}"
        if head.ranks.rank == 0 and place.exists():
            shutil.rmtree(place)  # a part of one, or one from before a change of ranks
        dist.barrier(group=head.ranks.group)
        tensors: dict[str, Tensor] = {
            **own.copies,
            **{name: as_distributed(rows, head) for name, rows in own.rows.items()},
            FACTS: as_bytes(facts),
        }
        dcp.save(tensors, storage_writer=FileSystemWriter(place), process_group=head.ranks.group)
        if head.ranks.rank == 0:
            sync(place)
            for old in _committed(self.folder)[KEPT:]:
                shutil.rmtree(old)

    def load_checkpoint(
        self, model: Model, optimiser: torch.optim.Optimizer, steps: int
    ) -> State | None:
        """Restore the last committed checkpoint, of any number of ranks; None if there is none.

        Args:
            model: of the run.
            optimiser: of the run.
            steps: in an epoch.
        """
        found = [] if self.folder is None else _committed(self.folder)
        if not found:
            return None
        path = found[0]
        head = _head(model)
        tensors = _empty(path, model)
        spread = {
            name: as_distributed(tensor, head) if is_of_rows(name, tensor.dim()) else tensor
            for name, tensor in tensors.items()
        }
        dcp.load(spread, checkpoint_id=path, process_group=head.ranks.group)
        facts = from_bytes(tensors.pop(FACTS))
        if any(facts.get(name) != self.facts[name] for name in ("run", "data")):
            raise HeadtailError(
                f"`{path}` belongs to a run with other settings or other data. Choose another "
                "folder, or delete it."
            )
        state = checked_state(Saved(path, tensors, facts, START_AGAIN), facts["run"]["epochs"], steps)
        rows = {name: t for name, t in tensors.items() if is_of_rows(name, t.dim())}
        copies = {name: t for name, t in tensors.items() if name not in rows}
        ShardedState(rows, copies, facts["optimiser"]).restore(model, optimiser)
        return state


def _head(model: Model) -> Any:
    """The sharded head of a model."""
    return model.head


def _committed(folder: Path) -> list[Path]:
    """The checkpoints of a run, the last first; parts of others are none."""
    places = [path.parent for path in (folder / CHECKPOINTS).glob(f"*/{COMMITTED}")]
    return sorted(places, reverse=True)


def _empty(path: Path, model: Model) -> dict[str, Tensor]:
    """Tensors for what a checkpoint holds, as far as this rank needs it."""
    head = _head(model)
    tensors: dict[str, Tensor] = {}
    for name, about in FileSystemReader(path).read_metadata().state_dict_metadata.items():
        if not isinstance(about, TensorStorageMetadata):
            raise HeadtailError(f"`{path}` holds `{name}`, which no run saves. {START_AGAIN}")
        shape = list(about.size)
        if is_of_rows(name, len(shape)):
            if shape[0] != head.labels.num_labels:
                raise HeadtailError(
                    f"`{path}` is of a table of {shape[0]:,} labels, but there are "
                    f"{head.labels.num_labels:,}. Choose another folder, or delete it."
                )
            shape[0] = len(head.share)
        device = "cpu" if name == FACTS else head.weight.device
        tensors[name] = torch.empty(shape, dtype=about.properties.dtype, device=device)
    return tensors
