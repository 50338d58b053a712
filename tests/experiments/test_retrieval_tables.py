"""The tables of the retrieval study: verdicts follow from rows, and what is not run again stays."""

from __future__ import annotations

import numpy as np
import pytest
import retrieval
from evidence import Evidence
from rank_files import Frame, save_ranks
from retrieval_tables import CLAIMS, PROTOCOLS, knob_of, write_tables
from study_protocols import BAGS, contrastive_schemes, retrieval_schemes
from study_store import Done, Store
from study_tables import read_table

from headtail.comparison.results import Row, read_rows
from headtail.files.atomic import write_text
from headtail.files.records import to_csv
from headtail.schemes import PAPER
from tests.experiments.test_tradeoff import search

N = 3000
SHARES = {
    "softmax": (0.5, 0.3, 0.2),
    "logit-adjusted": (0.2, 0.3, 0.4),
    "within-batch:constant": (0.3, 0.3, 0.3),
    "within-batch:importance": (0.5, 0.3, 0.2),
    "within-batch:relative": (0.6, 0.3, 0.1),
    "within-batch:tail": (0.2, 0.3, 0.4),
    "uniform:constant": (0.5, 0.3, 0.2),
    "uniform:importance": (0.7, 0.2, 0.05),
}
"""Recall on head, torso and tail."""


def build(folder, shares, lean):
    store = Store(folder)
    store.folder.mkdir(parents=True)
    every = np.arange(N)
    label = every % 3
    counts = np.array([100, 30, 5])
    frame = Frame(every, label, every // 2, np.array([0, 1, 2]), counts, np.array([N, 0.55, 1.5]))
    frame.save(store.folder / "frame.npz")
    for scheme, of_slice in shares.items():
        names = []
        for seed in range(5):
            rng = np.random.default_rng([seed, len(scheme)])
            easy = np.random.default_rng(0).uniform(size=N) + 0.002 * rng.normal(size=N)
            ranks = np.where(easy < np.array(of_slice)[label], 1, 0).astype(np.uint8)
            name = f"{scheme.replace(':', '-')}-seed{seed}"
            save_ranks(store.path(name, ".npz"), ranks)
            row = Row(name, "delicious", "test", "softmax", scheme, 64, seed, 8, 10, "full",
                      "recall@10", frame.value(ranks, "recall@10"))  # fmt: skip
            write_text(store.path(name, ".csv"), to_csv([row], Row))
            store.finish(Done(name, scheme, seed, 0.1, 8, 8, 8, 1.0, 1.0))
            names.append(name)
        search(store, scheme, names, lean=lean.get(scheme, 0.0))


@pytest.fixture
def folder(tmp_path):
    lean = {"within-batch:constant": 1.0, "within-batch:tail": 2.0, "within-batch:relative": -1.0}
    build(tmp_path / "runs" / "delicious", SHARES, lean)
    return tmp_path / "runs"


def test_verdicts_follow_from_the_ranks(folder, tmp_path):
    lines = write_tables(folder, tmp_path / "rows", 200, PROTOCOLS)["claims"]
    verdicts = {(line["scheme"], line["against"], line["slice"]): line["verdict"] for line in lines}
    assert verdicts["within-batch:constant", "softmax", "tail"] == "holds"
    assert verdicts["within-batch:constant", "uniform:constant", "tail"] == "holds"
    assert verdicts["within-batch:relative", "softmax", "head"] == "holds"
    assert verdicts["within-batch:relative", "softmax", "tail"] == "does not"
    assert verdicts["within-batch:importance", "softmax", "tail"] == "holds"  # it follows
    assert verdicts["uniform:importance", "softmax", "tail"] == "does not"
    assert verdicts["within-batch:tail", "logit-adjusted", "head"] == "holds"
    # Schemes without runs are not judged.
    assert not any(line["scheme"] == "uniform:tail" for line in lines)


def test_rows_tries_and_leans_are_written_and_others_stay(folder, tmp_path, capsys):
    to = tmp_path / "rows"
    write_tables(folder, to, 50, PROTOCOLS)
    rows = read_rows(to / "retrieval-second.csv")
    assert len(rows) == 5 * len(SHARES)
    [lean] = read_table(to / "retrieval-second-leans.csv")
    assert lean["schemes"] == str(len(SHARES))
    assert float(lean["rank correlation"]) > 0.5
    assert lean["exact"] == "yes"
    assert len(read_table(to / "retrieval-second-tries.csv")) == len(SHARES)
    head = 100 * Evidence(folder / "delicious").mean("softmax", "recall@10", "head")
    assert f"| softmax | 0.1 | 8 | {head:.1f} |" in capsys.readouterr().out
    path = to / "retrieval-second-claims.csv"
    path.write_text(path.read_text().replace("delicious", "elsewhere"))
    write_tables(folder, to, 50, PROTOCOLS)
    assert {line["dataset"] for line in read_table(path)} == {"delicious", "elsewhere"}
    assert len(read_rows(to / "retrieval-second.csv")) == len(rows)


def test_claims_are_about_schemes_of_the_study():
    names = {name for one in CLAIMS for name in (one.scheme, one.other)}
    assert names <= set(retrieval_schemes(BAGS[0]))
    assert set(PAPER) <= names | {"uniform:tail"}


def test_the_contrastive_loss_is_an_option_of_the_study(monkeypatch, capsys, tmp_path):
    words = ["--contrastive", "--data", "x", "--out", str(tmp_path), "--cost", "--only", "gowalla"]
    monkeypatch.setattr(retrieval.sys, "argv", ["retrieval.py", *words])
    assert retrieval.main() == 0
    tries = len(contrastive_schemes(BAGS[4])) * (5 + 3 + 4)
    assert capsys.readouterr().out.startswith(f"gowalla: {tries} runs")


def tried(lr: float, loss: float, head: float, tail: float, epochs: int = 8) -> dict[str, str]:
    numbers = {"lr": lr, "epochs": epochs, "held_out_loss": loss}
    numbers |= {"recall@10 head": head, "recall@10 tail": tail}
    about = {name: f"{number:g}" for name, number in numbers.items()}
    return {"dataset": "x", "scheme": "softmax"} | about


def test_the_rate_is_shown_as_a_knob_of_head_and_tail():
    lines = [
        tried(0.01, 5.5, 0.60, 0.10),
        tried(0.02, 5.02, 0.53, 0.195),
        tried(0.04, 5.00, 0.50, 0.21),
        tried(0.08, float("inf"), 0.0, 0.0),  # diverged
        tried(0.02, 4.9, 0.1, 0.9, epochs=16),  # another length
    ]
    [knob] = knob_of(lines, "recall@10")
    assert knob["rates"] == "3"
    assert knob["rates near the best"] == "2"
    assert float(knob["range tail"]) == pytest.approx(0.015)
    assert float(knob["range head"]) == pytest.approx(0.03)
    assert knob["rank correlation of rate and shift"] == "1.000"
