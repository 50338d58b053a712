"""What ranks cannot share is refused before anything is built."""

from __future__ import annotations

from headtail.data.image_files import ImageFiles
from headtail.data.points import DataSet
from headtail.errors import HeadtailError, Setting
from headtail.schemes import parse
from headtail.schemes.grammar import Call, read_call
from headtail.training.build_model import SEQUENCE_ENCODERS
from headtail.training.config import SettledRun

SPREAD = {"uniform", "within-batch", "queue", "mixture"}
"""Samplers that need the counts of a rank's own labels only. `frequency` and `log-uniform` have a
table of all labels, by which the saved model is known.
"""


def spreads_counts(scheme: str) -> bool:
    """Whether each rank needs to know the counts of its own labels only.

    >>> spreads_counts("mixture(uniform,within-batch):tail"), spreads_counts("frequency:tail")
    (True, False)
    """
    sampler = parse(scheme).sampler
    return sampler is None or _names(sampler, scheme) <= SPREAD


def _names(call: Call, scheme: str) -> set[str]:
    """The sampler and those inside it."""
    inside = [read_call(arg, scheme) if isinstance(arg, str) else arg for arg in call.args]
    parts = [_names(arg, scheme) for arg in inside if isinstance(arg, Call)]
    return {call.name}.union(*parts)


def check_sharded(run: SettledRun, data: DataSet) -> None:
    """Refuse settings and data that need the whole label table in one process."""
    sharded = Setting("sharded", True)
    if data.items is not None:
        raise HeadtailError(
            sharded,
            " spreads a table of labels over ranks, but features of items make these labels, and "
            "there is no table. Leave it out.",
        )
    if run.encoder in SEQUENCE_ENCODERS and run.tied:
        raise HeadtailError(
            sharded,
            " spreads the table of labels over ranks, which then cannot be that of the encoder "
            "too. Write ",
            Setting("tied", False),
            ".",
        )
    if data.test.known is not None:
        raise HeadtailError(
            sharded,
            " finds the best labels, but the filtered ranks of these data need the scores of all "
            "of them. Leave it out.",
        )
    if run.batching == "points" and isinstance(data.train.features, ImageFiles):
        raise HeadtailError(
            sharded, " takes image files as pairs. Write ", Setting("batching", "pairs"), "."
        )
