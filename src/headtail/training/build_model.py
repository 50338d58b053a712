"""Build a run's model and optimiser from its settings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from headtail.collectives.ranks import Ranks
from headtail.core.labels import Labels
from headtail.core.sharded_labels import ShardedLabels
from headtail.data.bag import Bag
from headtail.data.histories import Histories
from headtail.data.points import Points
from headtail.distributed.own_margin import lean_of_ranks
from headtail.distributed.replicate import average_encoder
from headtail.distributed.sharded_head import ShardedLabelHead
from headtail.encoders import (
    Bottleneck,
    GRU4Rec,
    ItemHead,
    Model,
    ResNet,
    SASRec,
    SequenceEncoder,
)
from headtail.encoders.sasrec import START
from headtail.errors import HeadtailError, Setting
from headtail.head import LabelHead
from headtail.implicit.implied import refuse_to_correct_twice
from headtail.losses import SampledLoss
from headtail.rows.optimizers import DenseSGD, RowAdagrad, RowAdam, RowSGD
from headtail.rows.row_optimizer import RowOptimizer
from headtail.schemes import parse, scheme
from headtail.training.config import SettledRun, Training

SEQUENCE_ENCODERS = ("gru", "sasrec")
"""Those that read items in order."""
SMALL_IMAGE = 64
"""Pixels of height or width up to which an image is small."""


@dataclass(frozen=True)
class TablePlacement:
    """Where tables are initialised, and which may be stored in bfloat16.

    Small tables are initialised on the CPU, so that a seed gives the same ones for every device.

    Attributes:
        device: where large tables are initialised; None for the CPU.
        large: numbers in a table from which it is large.
        narrow_on: types of devices on which large tables may be stored in bfloat16.
        ranks: those that share the label table; None where it is whole.
    """

    device: torch.device | None = None
    large: int = 2**24
    narrow_on: tuple[str, ...] = ("cuda",)
    ranks: Ranks | None = None

    def options(self, run: SettledRun, numbers: int, *, narrow: bool) -> dict[str, Any]:
        """Device and dtype of a table with this many numbers.

        Args:
            run: its `precision` decides whether a table is stored in bfloat16 where it may be.
            numbers: in the table.
            narrow: whether the table's use allows bfloat16.
        """
        if self.device is None or numbers < self.large:
            return {}
        narrow = narrow and self.device.type in self.narrow_on and run.precision == "bfloat16"
        return {"device": self.device, "dtype": torch.bfloat16 if narrow else None}


ON_CPU = TablePlacement()


def build_model(
    run: SettledRun,
    labels: Labels | ShardedLabels,
    num_features: int,
    *,
    image_size: tuple[int, int] | None = None,
    encoder: nn.Module | None = None,
    sparse_features: bool = True,
    sparse: bool = True,
    placement: TablePlacement = ON_CPU,
) -> Model:
    """A model for a run's scheme: the paper's (features → linear → labels), one of sequences, a
    ResNet for images, or one with another encoder.

    Args:
        run: its settings.
        labels: the label distribution.
        num_features: D.
        image_size: height and width if features are images.
        encoder: any module from features to `[n, run.dim]` hidden states; None for the one that
            `run.encoder` names.
        sparse_features: whether features are sparse rows or sequences.
        sparse: row-sparse gradients where the loss allows them; a ResNet's are dense.
        placement: where tables are initialised, and their dtype.
    """
    parsed = parse(run.scheme)
    loss = scheme(run.scheme, labels, run.negatives)  # pyright: ignore[reportArgumentType]
    if encoder is None:
        encoder = build_encoder(
            run, num_features, image_size, sparse=sparse and sparse_features, placement=placement
        )
    elif run.precision != "float32":
        raise HeadtailError(
            Setting("precision", "bfloat16"),
            " is for headtail's own encoders, but `encoder` is another. Write ",
            Setting("precision", "float32"),
            ".",
        )
    exact = parsed.sampler is None
    dim = run.dim
    if isinstance(encoder, ResNet):
        dim = encoder.dim
        sparse = False
    dot = loss.settings.score == "dot"
    plain = isinstance(loss, SampledLoss) and not loss.sampler.claims.looks_at_model
    numbers = labels.num_labels * dim
    table = placement.options(run, numbers, narrow=sparse and dot and plain)
    table |= {"bias": dot, "sparse": sparse and not exact}
    mask_known = run.batching == "points" and not exact
    if placement.ranks is not None:
        head = ShardedLabelHead(labels, dim, loss, placement.ranks, **table)
        return _sharded_model(encoder, head, mask_known=mask_known)
    assert isinstance(labels, Labels), "one process has whole labels"
    head = LabelHead(labels, dim, loss, **table)
    if isinstance(encoder, SASRec):
        nn.init.normal_(head.weight, std=START)
    return Model(encoder, head, mask_known=mask_known)


def _sharded_model(encoder: nn.Module, head: ShardedLabelHead, *, mask_known: bool) -> Model:
    """A model whose ranks share the head and have a copy of the encoder each."""
    if head.loss.post_hoc:
        refuse_to_correct_twice(lean_of_ranks(head), "`+post-hoc`")
    if isinstance(encoder, SASRec):
        # As in one process, and the same for any number of ranks.
        head.weight.data *= START * head.dim**0.5
    average_encoder(encoder, head)
    whole: Any = head  # it can do all that a model asks of it
    return Model(encoder, whole, mask_known=mask_known, ranks=head.ranks)


def with_second_tower(model: Model, items: Bag | None) -> Model:
    """The model with a head that computes its rows from the features of items; None changes
    nothing.
    """
    if items is None:
        return model
    head = model.head
    if isinstance(model.encoder, SequenceEncoder) and model.encoder.tied:
        raise HeadtailError(
            "Features of items make the label table, which then cannot be that of the encoder "
            "too. Write ",
            Setting("tied", False),
            ".",
        )
    computed = ItemHead(head.labels, head.weight.shape[1], head.loss, items, sparse=head.sparse)
    return Model(model.encoder, computed, mask_known=model.mask_known)


def encoder_name(run: Training, image_size: tuple[int, int] | None) -> str:
    """The encoder that `run.encoder` names; auto goes by the size of an image."""
    if run.encoder != "auto":
        return run.encoder
    if image_size is None:
        return "bag"
    return "resnet56" if max(image_size) <= SMALL_IMAGE else "resnet50"


def check_encoder(run: Training, train: Points, encoder: nn.Module | None = None) -> None:
    """Refuse an encoder that does not suit the features.

    Args:
        run: names the encoder.
        train: has the features.
        encoder: instead of the one that `run` names, or None.
    """
    name = encoder_name(run, train.image_size)
    reads_order = name in SEQUENCE_ENCODERS
    if encoder is not None:
        reads_order = isinstance(encoder, SequenceEncoder)
    images = train.image_size is not None
    if reads_order and not isinstance(train.features, Histories):
        what = "images" if images else "not sequences"
        _refuse(name, f" reads sequences in order, but the features are {what}. Write ", "auto")
    if encoder is not None or reads_order:
        return
    if name == "bag" and images:
        _refuse(name, " takes rows of numbers, but the features are images. Write ", "resnet56")
    if name != "bag" and not images:
        _refuse(name, " takes images, but the features are rows of numbers. Write ", "bag")


def _refuse(name: str, why: str, instead: str) -> None:
    raise HeadtailError(Setting("encoder", name), why, Setting("encoder", instead), ".")


def build_encoder(
    run: SettledRun,
    num_features: int,
    image_size: tuple[int, int] | None,
    *,
    sparse: bool,
    placement: TablePlacement = ON_CPU,
) -> nn.Module:
    """The encoder that `run.encoder` names."""
    name = encoder_name(run, image_size)
    if name.startswith("resnet"):
        return ResNet(
            int(name.removeprefix("resnet")),
            augment=run.augment,
            dropout=run.dropout,
            narrow=run.precision == "bfloat16",
        )
    table = placement.options(run, num_features * run.dim, narrow=sparse)
    table |= {"sparse": sparse, "dropout": run.dropout}
    if name == "bag":
        options = {"normalise": run.normalise, "feature_dropout": run.feature_dropout}
        return Bottleneck(num_features, run.dim, **options, **table)
    options = {"layers": run.layers, "length": run.length, "tied": run.tied, **table}
    if name == "gru":
        return GRU4Rec(num_features, run.dim, **options)
    return SASRec(num_features, run.dim, heads=run.heads, **options)


def build_optimiser(run: SettledRun, model: Model) -> RowOptimizer | DenseSGD:
    """The run's optimiser over all parameters of a model."""
    options: dict[str, Any] = {"lr": run.lr, "weight_decay": run.weight_decay}
    if run.optimiser == "sgd":
        kind = DenseSGD if isinstance(model.encoder, ResNet) else RowSGD
        return kind(model.parameters(), momentum=run.momentum, **options)
    rowwise = partial(RowAdagrad, per_row=True)
    kind = {"adagrad": RowAdagrad, "rowwise-adagrad": rowwise, "adam": RowAdam}[run.optimiser]
    return kind(model.parameters(), **options)


def shares_parameters(model: nn.Module) -> bool:
    """Whether some parameter belongs to two modules, or to one by two names."""
    every = [id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False)]
    return len(set(every)) < len(every)
