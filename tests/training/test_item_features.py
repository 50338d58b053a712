"""A second tower: labels have features, so that cold ones get scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from headtail import Labels, SampledSoftmaxLoss, SoftmaxLoss, Tail, WithinBatch
from headtail.cli import main
from headtail.core.draw import every_label
from headtail.data.bag import Bag
from headtail.data.facts import label_counts
from headtail.data.load import load
from headtail.data.readers.item_features import _standardised, read_items
from headtail.data.reading import Reading
from headtail.encoders import ItemHead
from headtail.errors import HeadtailError
from headtail.evaluation.topk import top_labels
from headtail.training.open_model import open_model

TOPICS = 5
PER_TOPIC = 8
SMALL = ["--dim", "16", "--epochs", "15", "--lr", "0.5", "--device", "cpu", "--validation", "0"]


def name(topic: int, number: int) -> str:
    return f"p{topic}n{number}"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def shop(tmp_path) -> Path:
    """Texts about topics with labels of these topics; the last label of each is only in the test.

    Items have the topic in a text, and a number.
    """
    rng = np.random.default_rng(0)
    for part, number, labels in (("train", 600, PER_TOPIC - 1), ("test", 200, PER_TOPIC)):
        lines = []
        for _ in range(number):
            topic = rng.integers(TOPICS)
            label = name(topic, rng.integers(labels))
            words = [f"w{topic}{i}" for i in rng.integers(0, 4, 4)]
            lines.append(f"__label__{label} {' '.join(words)}\n")
        (tmp_path / f"{part}.txt").write_text("".join(lines))
    items = [f"{name(t, n)},topic{t} thing,{n}\n" for t in range(TOPICS) for n in range(PER_TOPIC)]
    (tmp_path / "items.csv").write_text("item_id,title,price\n" + "".join(items))
    return tmp_path


def test_words_and_scaled_numbers_are_features(shop):
    items = read_items(shop / "items.csv")
    dense = items.features.to_dense()
    assert items.names[:2] == ["p0n0", "p0n1"]
    assert dense.shape == (TOPICS * PER_TOPIC, TOPICS + 2), "five topics, `thing`, the price"
    assert float(dense[:, -1].mean()) == pytest.approx(0, abs=1e-6)
    assert float(dense[:, -1].square().mean()) == pytest.approx(1)


def test_items_that_training_lacks_are_labels_if_they_have_features(shop):
    cold = {name(t, PER_TOPIC - 1) for t in range(TOPICS)}
    plain = load(shop / "train.txt", Reading(test=shop / "test.txt"))
    assert not cold & set(plain.label_names)
    how = Reading(test=shop / "test.txt", item_features=shop / "items.csv")
    data = load(shop / "train.txt", how)
    assert cold < set(data.label_names)
    assert data.test.num_pairs == 200 > plain.test.num_pairs
    assert {data.label_names[i] for i in (label_counts(data) == 0).nonzero()} == cold
    assert "for 40 of 40 labels; 5 of these never occur in training." in data.notes[-1]
    assert data.digest != plain.digest


@pytest.mark.parametrize("scheme", ["within-batch:importance", "softmax"])
def test_cold_items_are_found_by_their_features(shop, scheme, capsys):
    run = shop / "run"
    how = ["--test", str(shop / "test.txt"), "--item-features", str(shop / "items.csv")]
    train = ["train", str(shop / "train.txt"), "--out", str(run), "--scheme", scheme]
    assert main([*train, *how, *SMALL]) == 0
    reading = Reading(test=shop / "test.txt", item_features=shop / "items.csv")
    opened = open_model(run, shop / "train.txt", reading=reading)
    assert opened.note is None
    cold = label_counts(opened.data) == 0
    labels = opened.data.test.labels.values.long()
    top = top_labels(opened.model, opened.data.test, PER_TOPIC)
    found = (top == labels[:, None]).any(1)[cold[labels]].float().mean()
    assert int(cold[labels].sum()) > 10
    assert float(found) > 0.8, "chance is 0.2"
    capsys.readouterr()
    assert main(["evaluate", str(run), str(shop / "train.txt"), *how, "--device", "cpu"]) == 0
    assert "Cold" in capsys.readouterr().out


def test_a_log_keeps_cold_items_that_have_features(tmp_path):
    rows = [f"u{u},{u % 4 + i},{10 * u + i}" for u in range(12) for i in range(4)]
    (tmp_path / "log.csv").write_text("user,item,time\n" + "\n".join(rows) + "\nu0,99,1000\n")
    (tmp_path / "items.csv").write_text("item,title\n99,new\n98,new\n" + "0,old\n1,old\n")
    plain = load(tmp_path / "log.csv", Reading(split="last"))
    assert 99 not in (plain.label_names or range(plain.train.num_labels))
    data = load(tmp_path / "log.csv", Reading(split="last", item_features=tmp_path / "items.csv"))
    assert data.label_names[-2:] == [98, 99]
    assert data.items.to_dense().any(1).sum() == 4
    assert len(data.test) == len(plain.test) + 1


def test_rows_are_the_tower_and_a_residual_that_cold_labels_lack():
    items = Bag(torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 0]).int(), torch.ones(3), 2)
    labels = Labels.from_counts([5, 3, 0])
    head = ItemHead(labels, 4, SoftmaxLoss(), items)
    with torch.no_grad():
        head.residual.fill_(1.0)
    head.eval()
    tower = head.tower.weight + head.tower.bias
    torch.testing.assert_close(head.weight, tower[[0, 1, 0]] + torch.tensor([[1], [1], [0]]))
    hidden = torch.randn(6, 4)
    assert head.topk(hidden, 1).indices.flatten().equal((hidden @ head.weight.T).argmax(1))


def test_the_sampled_loss_with_every_label_drawn_is_the_exact_one():
    torch.manual_seed(0)
    items = Bag(torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 0]).int(), torch.ones(3), 2)
    labels = Labels.from_counts([5, 3, 2])
    exact = ItemHead(labels, 4, SoftmaxLoss(), items)
    from headtail import Importance

    sampled = ItemHead(labels, 4, SampledSoftmaxLoss(WithinBatch(labels), Importance()), items)
    sampled.load_state_dict(exact.state_dict(), strict=False)
    hidden, target = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 0])
    draw = every_label(3, torch.device("cpu"))
    torch.testing.assert_close(sampled(hidden, target, draw=draw), exact(hidden, target))


def test_what_does_not_fit_is_one_sentence(shop):
    (shop / "other.csv").write_text("item,title\nx,y\nz,w\n")
    with pytest.raises(HeadtailError, match=r"other.csv` describes no item that training has"):
        load(
            shop / "train.txt",
            Reading(format="raw-text", item_features=shop / "other.csv"),
        )
    labels = Labels.from_counts([5, 3])
    items = Bag(torch.tensor([0, 1]), torch.tensor([0]).int(), torch.ones(1), 1)
    with pytest.raises(HeadtailError, match="`items` has features of 1 labels, but `labels` has 2"):
        ItemHead(labels, 4, SampledSoftmaxLoss(WithinBatch(labels), Tail(labels)), items)


def test_lists_of_items_keep_cold_targets_that_have_features(tmp_path):
    for part, lists in (("train", [[1, 2, 3], [2, 3, 1]] * 5), ("test", [[1, 2, 7], [2, 1, 8]])):
        pq.write_table(pa.table({"items": lists}), tmp_path / f"{part}.parquet")
    (tmp_path / "about.csv").write_text("item,title\n7,new\n1,new\n2,old\n3,old\n")
    train = tmp_path / "train.parquet"
    test = tmp_path / "test.parquet"
    assert load(train, Reading(test=test)).test.num_pairs == 0
    data = load(train, Reading(test=test, item_features=tmp_path / "about.csv"))
    assert data.label_names == [1, 2, 3, 7]
    assert data.test.labels.values.tolist() == [3]


def test_numbers_near_the_largest_float_are_standardised_too():
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(9, 2))
    huge = numbers * [1.0, 2.0**1000]
    with np.errstate(over="raise"):
        assert np.array_equal(_standardised(huge), _standardised(numbers))
