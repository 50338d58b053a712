"""More negatives than labels are announced before they cost anything."""

from __future__ import annotations

from headtail.cli import main
from headtail.data.synthetic import generate
from headtail.training.config import Training
from headtail.training.notes import needless_negatives

DATA = "synthetic:points=40,test=10,features=80,labels=12"


def test_more_negatives_than_labels_are_announced_with_what_to_write_instead():
    data = generate(DATA)
    schemes = ["uniform:tail", "softmax", "frequency(0.5):importance@30000", "within-batch:tail"]
    note = str(needless_negatives(schemes, Training(negatives=300, batch=64), data))
    assert note.startswith("uniform:tail and frequency(0.5):importance@30000 draw up to 30,000 ")
    assert "2,500 times as many labels as a loss over all of them" in note
    assert "Write `negatives=3` or fewer, or a loss over all labels." in note


def test_a_usual_number_of_negatives_is_not_worth_a_word():
    data = generate(DATA)
    schemes = ["uniform:tail", "softmax", "within-batch:tail"]
    assert needless_negatives(schemes, Training(), data) is None
    assert needless_negatives(schemes, Training(negatives=256), data) is None


def test_train_and_compare_announce_it_with_their_options(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    quick = [DATA, "--epochs", "1", "--dim", "4", "--negatives", "300", "--device", "cpu"]
    assert main(["train", *quick, "--scheme", "uniform:tail", "--out", str(tmp_path / "a")]) == 0
    assert "Write `--negatives 3` or fewer" in capsys.readouterr().err
    compare = ["compare", *quick, "--schemes", "uniform:tail", "--workers", "1"]
    assert main([*compare, "--out", str(tmp_path / "b")]) == 0
    assert "uniform:tail draws up to 300 negatives for 12 labels" in capsys.readouterr().err
