"""What a trained model's file says about the model, checked before the model is built."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args

import torch
from torch import nn

from headtail.core.labels import Labels
from headtail.data.bag import Bag
from headtail.data.known import Kind, Users
from headtail.data.text_features import TextFeatures, TextKind
from headtail.encoders import ResNet, SequenceEncoder
from headtail.errors import nearest
from headtail.training.build_model import build_encoder
from headtail.training.check_saved import FLOATS, Saved
from headtail.training.config import SettledRun

MOST_FEATURES = 2**40
"""More features than any table has room for."""
MOST_PIXELS = 2**26
"""More pixels than any network sees of an image."""
MOST_WORDS = 100
"""More words than a term of a text has."""
TENSORS = {
    *("labels.counts", "labels.names", "text.terms", "text.idf"),
    *("users.names", "users.had", "users.had_offsets"),
}
"""What there is beside the weights."""
ITEMS = "model.head.item_"
TOWER = "model.head.tower.weight"


def checked_run(saved: Saved) -> SettledRun:
    """The settings of the run; unknown ones are refused by name."""
    for name in saved.tensors:
        if name not in TENSORS and not name.startswith("model."):
            saved.refuse(f"it holds `{name}`, which no model has")
    settings = saved.fact("run", dict)
    known = {field.name: field for field in fields(SettledRun)}
    for name, value in settings.items():
        if name not in known:
            near = nearest(name, known)
            saved.refuse(f"its run has the setting `{name[:60]}`, which is unknown.{near}")
        if value is None and known[name].default is not None:
            saved.refuse(f"its run has no value for `{name}`")
    with saved.explained("the settings of its run"):
        return SettledRun(**settings)


def checked_labels(saved: Saved) -> Labels:
    """The labels with their names."""
    counts = saved.tensor("labels.counts", (None,), (torch.int64, torch.float64))
    if "labels.names" in saved.tensors:  # runs of an older headtail did not save them
        saved.facts["label_names"] = saved.names("labels.names", len(counts))
    with saved.explained("`labels.counts` and `smoothing`"):
        return Labels(counts, saved.fact("smoothing", float, int), saved.facts.get("label_names"))


def check_features(saved: Saved, num_labels: int) -> tuple[int, int] | None:
    """Refuse facts about the features that contradict each other; the size of images, or None."""
    number = saved.whole("num_features", 1, MOST_FEATURES)
    kind = saved.facts.get("features")
    if not isinstance(kind, str | None) or kind not in (None, *get_args(Kind)):
        saved.refuse(f"its `features` are of an unknown kind ({str(kind)[:60]})")
    saved.name_list("relations")
    saved.name_list("feature_names", number)
    relations = saved.facts.get("relations")
    expected = {"histories": num_labels}.get(kind or "", number)
    expected = expected if relations is None else num_labels + len(relations)
    if expected != number:
        saved.refuse(f"its `num_features` is {number:,}, but must be {expected:,}")
    if "data" in saved.facts:
        saved.fact("data", str)
    if (kind == "users") != ("users.names" in saved.tensors):
        saved.refuse("its `features` contradict its tensors `users.names`")
    size = saved.facts.get("picture")
    if (size is not None) != (kind == "images") and kind is not None:
        saved.refuse("its `features` contradict its `picture`")
    return None if size is None else _image_size(saved, number)


def _image_size(saved: Saved, num_features: int) -> tuple[int, int]:
    size = saved.fact("picture", list)
    if len(size) != 2 or any(type(side) is not int or side < 1 for side in size):
        saved.refuse("its `picture` is not a height and a width")
    height, width = size
    if height * width > MOST_PIXELS or num_features != 3 * height * width:
        saved.refuse(f"its `picture` is {height} × {width}, but `num_features` is {num_features:,}")
    return height, width


def check_sizes(
    saved: Saved,
    run: SettledRun,
    num_labels: int,
    image_size: tuple[int, int] | None,
    encoder: nn.Module | None,
) -> None:
    """Compare the sizes that the settings imply with the tensors, before any of them is allocated.

    Args:
        saved: the file.
        run: the settings of the run.
        num_labels: L.
        image_size: height and width of images, or None.
        encoder: the module that was trained, if it was not one of headtail's.
    """
    if run.layers > max(len(saved.tensors), SettledRun.layers):
        saved.refuse(f"its run has {run.layers:,} `layers`, but few tensors")
    if encoder is None:
        with saved.explained("the settings of its encoder"), torch.device("meta"):
            encoder = build_encoder(run, saved.facts["num_features"], image_size, sparse=False)
        for name, value in [*encoder.named_parameters(), *encoder.named_buffers()]:
            dtypes = FLOATS if value.is_floating_point() else (value.dtype,)
            saved.tensor(f"model.encoder.{name}", tuple(value.shape), dtypes)
    dim = encoder.dim if isinstance(encoder, ResNet) else run.dim
    table = "model.head.residual" if TOWER in saved.tensors else "model.head.weight"
    if isinstance(encoder, SequenceEncoder) and encoder.tied:
        table = "model.encoder.weight"
    saved.tensor(table, (num_labels, dim), FLOATS)


def items_of(saved: Saved, num_labels: int) -> Bag | None:
    """The features of the labels, where the model has a second tower."""
    if TOWER not in saved.tensors:
        return None
    rows = len(saved.tensor(TOWER, (None, None), FLOATS))
    columns = saved.ids(f"{ITEMS}columns", None, rows)
    values = saved.tensor(f"{ITEMS}values", (len(columns),), (torch.float32,))
    saved.check_finite(f"{ITEMS}values", values)
    offsets = saved.offsets(f"{ITEMS}offsets", num_labels, len(columns))
    return Bag(offsets, columns, values, rows)


def users_of(saved: Saved, num_features: int, num_labels: int) -> Users | None:
    """The users of training and what they had, where features are users."""
    if "users.names" not in saved.tensors:
        return None
    names = saved.names("users.names", num_features)
    if names is None:
        saved.refuse("its users have no names")
    return Users(names, saved.ragged("users.had", num_features, num_labels))


def text_of(saved: Saved, num_features: int) -> TextFeatures | None:
    """How raw texts become features, where the model was trained on texts."""
    if "text" not in saved.facts:
        return None
    facts = saved.fact("text", dict)
    if facts.keys() != {"kind", "ngrams", "num_columns"}:
        saved.refuse("its `text` has other facts than those of texts")
    kind, words, columns = facts["kind"], facts["ngrams"], facts["num_columns"]
    if kind not in get_args(TextKind) or type(words) is not int or not 1 <= words <= MOST_WORDS:
        saved.refuse("its `text` has an unknown kind, or terms of an impossible length")
    if type(columns) is not int or columns != num_features or columns >= 2**31:
        saved.refuse(f"its `text` has not {num_features:,} columns, as the model has")
    terms = columns if kind == "tfidf" else 0
    saved.tensor("text.terms", (None,), (torch.uint8,))
    saved.check_finite("text.idf", saved.tensor("text.idf", (terms,), (torch.float32,)))
    with saved.explained("`text.terms`"):
        text = TextFeatures.saved(saved.tensors, facts)
    if len(text.terms) != terms or len({*text.terms}) != terms:
        saved.refuse(f"`text.terms` are not {terms:,} different terms")
    return text
