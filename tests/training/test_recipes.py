"""Settings that a run leaves open follow from the kind of data; given ones are kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headtail.core.targets import Ragged
from headtail.data.bag import Bag
from headtail.data.facts import kind_of
from headtail.data.histories import Histories
from headtail.data.points import DataSet, Points
from headtail.errors import HeadtailError
from headtail.training.config import Run, SettledRun, Training
from headtail.training.recipes import DEFAULTS, note_on_defaults, with_defaults
from headtail.training.trainer import Trainer


def points(features, labels: int = 3) -> Points:
    number = len(features)
    one_each = Ragged(torch.arange(number) % labels, torch.arange(number + 1))
    return Points(features, one_each, labels)


def bag(number: int) -> Bag:
    return Bag(torch.arange(number + 1), torch.arange(number), torch.ones(number), number)


def histories(number: int) -> Histories:
    items = torch.arange(number + 1).int()
    row = torch.zeros(number, dtype=torch.int64)
    offsets = torch.tensor([0, number + 1])
    return Histories(items, offsets, row, torch.arange(1, number + 1), 10, number + 1)


def data_of(kind: str, number: int = 60) -> DataSet:
    features = {
        "text": bag(number),
        "interactions": bag(number),
        "sequences": histories(number),
        "dense": torch.zeros(number, 4),
        "images": torch.zeros(number, 3, 8, 8, dtype=torch.uint8),
    }[kind]
    part = points(features)
    seen = part.labels if kind == "interactions" else None
    return DataSet(kind, part, replace(part, seen=seen))


@pytest.mark.parametrize("kind", DEFAULTS)
def test_each_kind_of_data_has_its_own_settings(kind):
    data = data_of(kind)
    assert kind_of(data) == kind
    usual = DEFAULTS[kind]
    sampled = with_defaults(Run(scheme="within-batch:tail"), data)
    assert (sampled.lr, sampled.epochs, sampled.dropout) == (usual.lr, usual.epochs, usual.dropout)
    assert with_defaults(Run(scheme="softmax"), data).lr == usual.exact_lr


def test_what_is_given_is_kept_and_settling_twice_changes_nothing():
    given = {"lr": 0.3, "epochs": 2, "batch": 7, "negatives": 5, "dropout": 0.1}
    settled = with_defaults(Run(**given, scheme="uniform:tail", seed=4), data_of("sequences"))
    assert settled == SettledRun(**given, scheme="uniform:tail", seed=4)
    assert with_defaults(settled, data_of("text")) == settled


def test_small_data_have_small_batches_that_hold_the_negatives_that_were_asked_for():
    sizes = [
        with_defaults(Run(scheme="within-batch:tail"), data_of("sequences", number)).batch
        for number in (60, 200 * 64, 200 * 1024)
    ]
    assert sizes == [32, 64, 1024]
    data = data_of("sequences")
    assert with_defaults(Run(scheme="within-batch:tail@100"), data).batch == 128
    assert with_defaults(Run(scheme="within-batch:tail", negatives=33), data).batch == 64


def test_no_more_negatives_than_labels_are_drawn_unless_they_are_of_the_batch():
    data = data_of("text")
    assert with_defaults(Run(scheme="uniform:tail"), data).negatives == 3
    assert with_defaults(Run(scheme="within-batch:tail"), data).negatives == 32
    assert with_defaults(Run(scheme="within-batch:tail", batch=50), data).negatives == 50


def test_an_encoder_brings_its_settings_for_its_optimiser():
    data = data_of("sequences")
    assert with_defaults(Run(encoder="sasrec", optimiser="adam"), data).lr == 1e-3
    assert with_defaults(Run(encoder="sasrec", optimiser="adam", lr=0.1), data).lr == 0.1
    assert with_defaults(Run(encoder="sasrec"), data).lr == DEFAULTS["sequences"].exact_lr


def test_the_note_names_what_was_chosen_and_nothing_that_was_given():
    data = data_of("interactions")
    note = note_on_defaults(Training(epochs=3), ["softmax", "within-batch:tail"], data)
    assert str(note) == (
        "Settings chosen for interactions: `lr=0.05` or 0.03, `batch=32`, `negatives=32`, "
        "`dropout=0.5`."
    )
    own = note_on_defaults(Training(epochs=3), ["softmax", "within-batch:tail@16"], data)
    assert "negatives" not in str(own), "no scheme takes them"
    every = Training(lr=0.1, epochs=3, batch=8, negatives=4, dropout=0.0)
    assert note_on_defaults(every, ["softmax"], data) is None


def test_the_note_says_text_of_raw_text_alone():
    data = data_of("text")
    kinds = ((None, "sparse rows, as for text"), (["likes"], "triples, as for text"))
    for relations, kind in kinds:
        note = note_on_defaults(Training(), ["softmax"], replace(data, relations=relations))
        assert str(note).startswith(f"Settings chosen for {kind}: `lr=")


def test_the_trainer_settles_what_is_open():
    trainer = Trainer(Run(dim=4, scheme="within-batch:tail"), data_of("text"))
    assert trainer.run == with_defaults(Run(dim=4, scheme="within-batch:tail"), data_of("text"))


def test_a_rate_of_zero_is_still_refused():
    with pytest.raises(HeadtailError, match="`lr` must be above 0"):
        Training(lr=0.0)
