"""From a run's settings to its model and optimiser."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from headtail.core.labels import Labels
from headtail.encoders import Bottleneck, Model, ResNet
from headtail.errors import HeadtailError
from headtail.head import LabelHead
from headtail.losses import SampledLoss
from headtail.rows.dense_sgd import DenseSGD
from headtail.rows.optimizers import RowAdagrad, RowAdam, RowOptimizer, RowSGD
from headtail.schemes import parse, scheme
from headtail.training.config import Run, Training

SMALL_PICTURE = 64
"""Pixels of height or width up to which a picture is small."""
LARGE = 2**24
"""Numbers in a table from which random ones are drawn on the device, where a CPU would take
seconds; and narrow, if wanted.
"""


def build_model(
    run: Run,
    labels: Labels,
    num_features: int,
    *,
    picture: tuple[int, int] | None = None,
    encoder: nn.Module | None = None,
    sparse_features: bool = True,
    sparse: bool = True,
    device: torch.device | None = None,
) -> Model:
    """A model under a run's scheme: the paper's, features → linear → labels, a ResNet for pictures,
    or with another encoder.

    Args:
        run: its settings.
        labels: the label distribution.
        num_features: D.
        picture: height and width where features are pictures.
        encoder: any module from features to `[n, run.dim]` hidden states; None for what `run.model`
            names.
        sparse_features: whether features come as a `Bag`.
        sparse: row-sparse gradients where the loss allows them; a ResNet's are dense.
        device: where large tables are made. Small ones are made on the CPU, so that a seed gives
            the same ones for every device.
    """
    parsed = parse(run.scheme)
    loss = scheme(run.scheme, labels, run.negatives)
    if encoder is None:
        encoder = build_encoder(
            run, num_features, picture, sparse=sparse and sparse_features, device=device
        )
    elif run.precision != "float32":
        raise HeadtailError(
            "`precision=bfloat16` is for our own encoders, but `encoder` is another. Write "
            "`precision=float32`."
        )
    exact = parsed.sampler is None
    dim = run.dim
    if isinstance(encoder, ResNet):
        dim = encoder.dim
        sparse = False
    dot = loss.settings.score == "dot"
    plain = isinstance(loss, SampledLoss) and not loss.sampler.looks_at_model
    made = place_of_table(run, labels.num_labels * dim, device, narrow=sparse and dot and plain)
    head = LabelHead(labels, dim, loss, bias=dot, sparse=sparse and not exact, **made)
    return Model(encoder, head, mask_known=run.batching == "points" and not exact)


def encoder_name(run: Training, picture: tuple[int, int] | None) -> str:
    """The encoder that `run.model` names, which must suit the features; auto goes by the size of a
    picture.
    """
    name = run.model
    if name == "auto":
        small = picture is not None and max(picture) <= SMALL_PICTURE
        name = "bottleneck" if picture is None else "resnet56" if small else "resnet50"
    if name == "bottleneck" and picture is not None:
        raise HeadtailError(
            "`model=bottleneck` takes rows of numbers, but the features are pictures. Write "
            "`model=resnet56`."
        )
    if name != "bottleneck" and picture is None:
        raise HeadtailError(
            f"`model={name}` takes pictures, but the features are rows of numbers. Write "
            "`model=bottleneck`."
        )
    return name


def build_encoder(
    run: Run,
    num_features: int,
    picture: tuple[int, int] | None,
    *,
    sparse: bool,
    device: torch.device | None = None,
) -> nn.Module:
    """The encoder that `run.model` names."""
    name = encoder_name(run, picture)
    if name == "bottleneck":
        return Bottleneck(
            num_features,
            run.dim,
            sparse=sparse,
            normalise=run.normalise,
            feature_dropout=run.feature_dropout,
            dropout=run.dropout,
            **place_of_table(run, num_features * run.dim, device, narrow=sparse),
        )
    return ResNet(
        int(name.removeprefix("resnet")),
        augment=run.augment,
        dropout=run.dropout,
        narrow=run.precision == "bfloat16",
    )


def place_of_table(
    run: Run, numbers: int, device: torch.device | None, *, narrow: bool
) -> dict[str, Any]:
    """Where a table of so many numbers is made, and its dtype: `run.precision` on a GPU, if it is
    large and may be narrow.
    """
    if device is None or numbers < LARGE:
        return {}
    narrow = narrow and device.type == "cuda" and run.precision == "bfloat16"
    return {"device": device, "dtype": torch.bfloat16 if narrow else None}


def build_optimiser(run: Run, model: Model) -> RowOptimizer | DenseSGD:
    """The run's optimiser over all of a model's weights."""
    options: dict[str, Any] = {"lr": run.lr, "weight_decay": run.weight_decay}
    if run.optimiser == "sgd":
        kind = DenseSGD if isinstance(model.encoder, ResNet) else RowSGD
        return kind(model.parameters(), momentum=run.momentum, **options)
    rowwise = partial(RowAdagrad, per_row=True)
    kind = {"adagrad": RowAdagrad, "rowwise-adagrad": rowwise, "adam": RowAdam}[run.optimiser]
    return kind(model.parameters(), **options)
