"""A model that ranks share, saved and restored as that of one process: no rank ever holds more of
the label table than its own rows and a few thousand others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from headtail.distributed.table_file import export_rows, import_rows
from headtail.encoders import Model
from headtail.rows.decay import catch_up
from headtail.training.checkpoint import remembering, weights_of
from headtail.training.saved_model import COUNTS, About

TABLES = ("model.head.weight", "model.head.bias")
"""What each rank has its own rows of."""


def save_model_of_ranks(path: Path, model: Model, about: About) -> None:
    """Write the file that one process would write, on the first rank, a few thousand labels at a
    time. Every rank must call it.

    Args:
        path: the file.
        model: pending weight decay is applied first.
        about: what it is saved with.
    """
    head: Any = model.head
    for parameter in model.parameters():
        catch_up(parameter)
    weights = weights_of(model)
    rows = {name: weights.pop(name) for name in TABLES if name in weights}
    rows[COUNTS] = head.labels.counts

    def others() -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, facts = about.contents()
        return tensors | _of_one_process(model, weights), facts

    export_rows(head, path, rows, others)


def restore_model_of_ranks(path: Path, model: Model) -> None:
    """Read the weights of such a file, each rank its own rows. Every rank must call it."""
    head: Any = model.head
    weights = weights_of(model)
    rows = {name: weights[name] for name in TABLES if name in weights}
    encoder = {name: value for name, value in weights.items() if name.startswith("model.encoder.")}
    import_rows(head, path, rows, encoder)


def _of_one_process(model: Model, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights by the names that one process has for them: a queue's content is that of the samplers
    of all labels.
    """
    parts, wholes = (
        [f"model.{name}." for name, _ in remembering(model) if name.startswith(where)]
        for where in ("head.part", "head.loss")
    )
    renamed = dict(weights)
    for part, whole in zip(parts, wholes, strict=True):
        names = [name for name in weights if name.startswith(part)]
        renamed |= {whole + name.removeprefix(part): weights[name] for name in names}
    own = "model.head.part."
    return {name: value for name, value in renamed.items() if not name.startswith(own)}
