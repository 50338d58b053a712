"""One run on several ranks, which share its label table."""

from __future__ import annotations

from collections.abc import Iterable

from headtail.collectives.accord import Accord
from headtail.collectives.ranks import Ranks
from headtail.comparison.cell import run_cell
from headtail.comparison.grid import Cell
from headtail.comparison.results import Row
from headtail.core.slices import Slices
from headtail.data.points import DataSet
from headtail.distributed.agree import refuse_differences
from headtail.evaluation.dial import dial_of
from headtail.evaluation.measures import best_labels
from headtail.training.callbacks import Callback
from headtail.training.engine import Engine
from headtail.training.trainer import Trainer

SHARDED = Engine(sharded=True)


def run_sharded_cell(
    cell: Cell,
    data: DataSet,
    slices: Slices,
    ranks: Ranks,
    *,
    device: str = "cpu",
    callbacks: Callback | Iterable[Callback] = (),
) -> list[Row]:
    """As `run_cell`, on all ranks, which must all call it. The first rank writes the files, and has
    the rows; others have none.

    Args:
        cell: the run and its folder, which all ranks can reach.
        data: the data set, the same on all ranks.
        slices: head, torso and tail.
        ranks: who share the label table and every batch.
        device: "cpu" or "cuda".
        callbacks: what follows the training, on the first rank.
    """
    refuse_differences(ranks, {"data": f"{data.digest}", "settings": f"{cell.run}"})
    accord = Accord(ranks)
    [done] = accord.any(accord.is_first and cell.done)
    if accord.is_first:
        options = {"device": device, "callbacks": callbacks, "engine": SHARDED}
        return run_cell(cell, data, slices, **options)
    if not done:
        _follow(cell, data, slices, device)
    return []


def _follow(cell: Cell, data: DataSet, slices: Slices, device: str) -> None:
    """Take part in all that the first rank does with all others."""
    trainer = Trainer(cell.run, data, cell.folder, device=device, engine=SHARDED)
    trained = trainer.fit(hold=False)
    best_labels(trained.model, data)
    dial_of(trained.model, data, slices, trained.lean())
