"""Whether a loss can train the table of a label head."""

from __future__ import annotations

from headtail.core.frequencies import LabelFrequencies
from headtail.errors import HeadtailError, PythonName, check_kind, check_num_labels
from headtail.losses.modules import ExactLoss, Loss, SampledLoss


def check_loss(
    loss: Loss, labels: LabelFrequencies, sparse: bool, placement: str = "device"
) -> None:
    """Refuse a loss for other labels, or one that needs more rows than a table can give.

    Args:
        loss: what to train.
        labels: those of the table.
        sparse: whether the table has row-sparse gradients.
        placement: where the table lies.
    """
    check_kind("loss", loss, Loss, "SampledSoftmaxLoss(WithinBatch(labels), Tail(labels))")
    if placement == "host":
        _check_host(loss, sparse)
    if sparse and not isinstance(loss, SampledLoss):
        raise HeadtailError(
            "`sparse=True` needs a sampled loss: an exact loss touches every row. Write "
            "`sparse=False`."
        )
    if isinstance(loss, SampledLoss) and loss.sampler.num_labels != labels.num_labels:
        raise HeadtailError(
            f"`loss` samples from {loss.sampler.num_labels} labels, but `labels` has "
            f"{labels.num_labels}."
        )
    if isinstance(loss, ExactLoss):
        check_num_labels("loss.margin", loss.margin.num_labels, "`labels` has", labels.num_labels)


def _check_host(loss: Loss, sparse: bool) -> None:
    """Refuse what would read or write all of a table in host memory in a step."""
    if not isinstance(loss, SampledLoss):
        raise HeadtailError(
            '`placement="host"` needs a sampled loss, for example `scheme("within-batch:tail", '
            "labels)`: an exact loss reads every row in every step."
        )
    if loss.sampler.claims.looks_at_model:
        raise HeadtailError(
            '`placement="host"` needs a sampler that does not look at the model, but ',
            PythonName(f"headtail.{type(loss.sampler).__name__}"),
            " does, and would read every row. Choose another scheme, for example "
            "`within-batch:importance`.",
        )
    if not sparse:
        raise HeadtailError(
            '`placement="host"` needs row-sparse gradients: a dense one is as large as the table. '
            "Write `sparse=True`."
        )
