"""Models that were trained on raw text: they learn, and answer texts in any file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from headtail.cli import main
from headtail.data.load import load
from headtail.data.reading import Reading
from headtail.errors import HeadtailError
from headtail.evaluation.predictions import points_of, predict
from headtail.evaluation.topk import top_labels
from headtail.training.open_model import open_model
from headtail.training.saved_model import load_model

TOPICS = ["apple", "bread", "cheese", "dates", "eggs", "figs"]
SMALL = ["--dim", "16", "--epochs", "8", "--lr", "0.5", "--scheme", "softmax", "--device", "cpu"]


def text_about(topic: str, rng: np.random.Generator) -> str:
    own = [f"{topic}{i}" for i in range(5)]
    shared = [f"word{i}" for i in range(20)]
    return " ".join([*rng.choice(own, 3), *rng.choice(shared, 5)])


def lines(number: int, seed: int, topics: list[str] = TOPICS) -> str:
    """The first topic is as frequent as all others together."""
    rng = np.random.default_rng(seed)
    chosen = [topics[0] if rng.random() < 0.5 else rng.choice(topics) for _ in range(number)]
    return "".join(f"__label__{topic} {text_about(topic, rng)}\n" for topic in chosen)


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Path:
    """Texts, and the run of a model that was trained on them."""
    folder = tmp_path_factory.mktemp("shop")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADTAIL_CACHE", str(folder / "cache"))
        (folder / "texts").mkdir()
        (folder / "texts" / "train.txt").write_text(lines(400, 0))
        (folder / "texts" / "test.txt").write_text(lines(100, 1))
        run = ["train", str(folder / "texts"), "--out", str(folder / "run"), *SMALL]
        assert main(run) == 0
    return folder


@pytest.fixture(autouse=True)
def cache(shop, monkeypatch) -> None:
    monkeypatch.setenv("HEADTAIL_CACHE", str(shop / "cache"))


def ask(shop: Path, data: Path, *options: str) -> list[str]:
    """The best label of each row, by the command."""
    out = shop / "best.parquet"
    command = ["predict", str(shop / "run"), str(data), "--k", "1", "--out", str(out), *options]
    assert main(command) == 0
    return pq.read_table(out)["label"].to_pylist()


def test_a_model_of_texts_learns_more_than_what_is_popular(shop):
    data = load(shop / "texts")
    model = load_model(shop / "run")[0]
    best = top_labels(model, data.test, 1)[:, 0]
    right = float((best == data.test.labels.values).float().mean())
    popular = float((data.test.labels.values == 0).float().mean())
    assert popular < 0.7
    assert right > 0.9


def test_new_texts_one_per_line_are_answered_by_name(shop):
    (shop / "new.txt").write_text("figs1 figs2 new words\n\nEGGS1 eggs3\n")
    answers = ask(shop, shop / "new.txt")
    assert (answers[0], answers[2]) == ("figs", "eggs")
    assert open_model(shop / "run", shop / "new.txt", only_answers=True).note is None
    assert len(answers) == 3


def test_one_text_is_enough(shop):
    (shop / "one.txt").write_text("dates1 dates2")
    assert ask(shop, shop / "one.txt") == ["dates"]


def test_labelled_texts_with_other_labels_are_answered_and_measured(shop, capsys):
    (shop / "other.txt").write_text("__label__owl figs1 figs2\n__label__bread bread1 bread2\n")
    assert ask(shop, shop / "other.txt") == ["figs", "bread"]
    opened = open_model(shop / "run", shop / "other.txt")
    assert opened.data.train.num_labels == len(TOPICS)
    assert opened.data.text.digest() == load(shop / "texts").text.digest()


def test_a_folder_of_other_texts_is_measured_with_the_terms_of_the_model(shop):
    place = shop / "others"
    place.mkdir()
    (place / "train.txt").write_text(lines(50, 2, TOPICS[2:]))
    (place / "test.txt").write_text(lines(60, 3, TOPICS[1:]))
    opened = open_model(shop / "run", place)
    assert opened.data.label_names == TOPICS
    best = top_labels(opened.model, opened.data.test, 1)[:, 0]
    assert float((best == opened.data.test.labels.values).float().mean()) > 0.9
    assert main(["evaluate", str(shop / "run"), str(place), "--device", "cpu"]) == 0


def test_texts_can_be_the_test_part(shop):
    (shop / "new.txt").write_text("figs1 figs2\n")
    assert ask(shop, shop / "texts", "--test", str(shop / "new.txt")) == ["figs"]


def test_a_list_of_texts_is_answered_from_python(shop):
    opened = open_model(shop / "run", ["cheese1 cheese2", "apple0"])
    best = predict(opened.model, points_of(opened.data), 1).labels[:, 0].tolist()
    assert [opened.data.label_names[i] for i in best] == ["cheese", "apple"]
    assert opened.note is None


def test_the_data_of_training_are_read_as_they_were(shop):
    opened = open_model(shop / "run", shop / "texts")
    assert opened.note is None
    assert opened.data.digest == load(shop / "texts").digest


def test_hashed_terms_are_saved_too(shop, tmp_path):
    run = tmp_path / "run"
    how = ["--text-features", "hashing", "--max-terms", "512"]
    assert main(["train", str(shop / "texts"), "--out", str(run), *SMALL, *how]) == 0
    opened = open_model(run, ["figs1 figs2 figs3"])
    best = predict(opened.model, points_of(opened.data), 1).labels
    assert opened.data.label_names[int(best)] == "figs"


def test_what_is_not_text_is_refused_for_a_model_of_texts(shop):
    (shop / "features.txt").write_text("0,3 1:0.5 2:1\n1 0:1\n" * 5)
    with pytest.raises(HeadtailError, match=r"on raw text, but `.*features.txt` is read as"):
        open_model(shop / "run", shop / "features.txt")
    other = load(shop / "texts", Reading(max_terms=10))
    with pytest.raises(HeadtailError, match="are not the terms that the model"):
        open_model(shop / "run", other)


def test_a_list_of_texts_is_refused_by_other_models(shop, tmp_path):
    (tmp_path / "train.txt").write_text("0,1 1:0.5 2:1\n1 0:1\n" * 20)
    command = ["train", str(tmp_path), "--out", str(tmp_path / "run"), *SMALL]
    assert main(command) == 0
    with pytest.raises(HeadtailError, match="was not trained on raw text"):
        open_model(tmp_path / "run", ["a text"])
