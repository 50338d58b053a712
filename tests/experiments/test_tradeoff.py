"""The trade-off study ends as rows, an answer at equal head recall, and a figure."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from evidence import Evidence
from rank_files import Frame, save_ranks
from study_protocols import BAGS, TAUS, tau_schemes
from study_store import Done, Store, adjusted_name, adjusted_scheme
from study_tables import read_table
from tradeoff import PROTOCOLS, schemes
from tradeoff_tables import curves_of, decided, write_tables

FIGURE = Path(__file__).parents[2] / "docs" / "figures" / "tradeoff_curves.py"
N = 1500
HEAD = 0.6
"""Test points, and the head recall of the softmax."""


def kept(tau: float) -> float:
    return HEAD * (1 - 0.6 * tau)


def gained(tau: float, slope: float) -> float:
    return 0.1 + slope * (HEAD - kept(tau))


def run(store: Store, scheme: str, seed: int, head: float, tail: float, name: str = "") -> str:
    """A finished run whose head and tail recall are these, but for chance."""
    name = name or f"{scheme}-seed{seed}"
    rng = np.random.default_rng([seed, len(scheme), int(1000 * head)])
    # The same points are easy for every run, as in real data.
    easy = np.random.default_rng(0).uniform(size=N) + 0.05 * rng.normal(size=N)
    share = np.where(np.arange(N) % 2 == 0, head, tail)
    save_ranks(store.path(name, ".npz"), np.where(easy < share, 1, 0).astype(np.uint8))
    store.finish(Done(name, scheme, seed, 0.1, 8, 8, 8, 1.0, 1.0))
    return name


def search(store: Store, scheme: str, names: list[str], **more) -> None:
    about = {"scheme": scheme, "lr": 0.1, "epochs": 8, "seeds": len(names), "edges": []}
    about |= {"tries": 8, "runs": names, "lean": 0.0, "m": None} | more
    path = store.search_path(scheme)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(about))


@pytest.fixture
def folder(tmp_path):
    """Delicious with made-up ranks: all labels gain twice of what adjusting does, batches less."""
    store = Store(tmp_path / "runs" / "delicious")
    labels = np.arange(N) % 2
    frame = Frame(
        np.arange(N),
        labels,
        np.arange(N),
        np.array([0, 2]),
        np.array([100, 5]),
        np.array([N, 0.55, 1.5]),
    )
    store.folder.mkdir(parents=True)
    frame.save(store.folder / "frame.npz")
    slopes = {"full": 0.8, "within-batch": 0.1}
    for curve, names in tau_schemes(BAGS[0]).items():
        for tau, scheme in zip((0, *TAUS), names, strict=True):
            tail = gained(tau, slopes[curve])
            runs = [run(store, scheme, seed, kept(tau), tail) for seed in range(3)]
            search(store, scheme, runs, lean=tau)
    for seed in range(3):
        for tau in TAUS:
            name = adjusted_name(f"softmax-seed{seed}", tau)
            scheme = adjusted_scheme("softmax", tau)
            run(store, scheme, seed, kept(tau), gained(tau, 0.4), name)
    return tmp_path / "runs"


def test_the_better_curve_at_equal_head_is_found(folder, tmp_path, capsys):
    written = write_tables(folder, tmp_path / "rows", 200, PROTOCOLS)
    answers = {
        (line["training"], line["head kept"]): line for line in written["tradeoff-equal-head"]
    }
    assert len(answers) == 6
    for share in ("0.75", "0.5"):
        assert answers["full", share]["better"] == "training"
        assert answers["within-batch", share]["better"] == "adjusting"
        lost = HEAD * (1 - float(share))
        found = float(answers["full", share]["difference"])
        assert found == pytest.approx((0.8 - 0.4) * lost, abs=0.02)
        assert float(answers["full", share]["low"]) > 0
    assert "of 12 schemes, the chosen rate lies at an edge of those tried for 0" in (
        capsys.readouterr().out
    )


def test_a_head_recall_that_a_curve_does_not_reach_is_not_compared(folder, tmp_path):
    store = Store(folder / "delicious")
    for seed in range(3):  # post-hoc that hardly moves the head
        for tau in TAUS:
            name = adjusted_name(f"softmax-seed{seed}", tau)
            run(store, adjusted_scheme("softmax", tau), seed, kept(0.2 * tau), 0.11, name)
    lines = write_tables(folder, tmp_path / "rows", 50, PROTOCOLS)["tradeoff-equal-head"]
    assert {line["better"] for line in lines if line["head kept"] == "0.5"} == {"not reached"}


def test_with_one_seed_no_verdict_is_given(folder, tmp_path):
    several = write_tables(folder, tmp_path / "several", 50, PROTOCOLS)["tradeoff-equal-head"]
    store = Store(folder / "delicious")
    for about in store.searches():
        search(store, about["scheme"], about["runs"][:1])
    lines = write_tables(folder, tmp_path / "rows", 50, PROTOCOLS)["tradeoff-equal-head"]
    assert {line["better"] for line in lines} == {"one seed only"}
    assert not any(line["p corrected"] for line in lines)
    among = decided([*several, *lines])
    assert among[: len(several)] == several, "the correction does not count them"


def test_every_point_has_a_row_with_its_difference_to_the_softmax(folder, tmp_path):
    write_tables(folder, tmp_path / "rows", 50, PROTOCOLS)
    lines = read_table(tmp_path / "rows" / "tradeoff.csv")
    assert len(lines) == 3 * 6 * 6  # curves, τ, metrics
    tail = {
        (line["curve"], line["tau"]): line
        for line in lines
        if (line["metric"], line["slice"]) == ("recall@10", "tail")
    }
    assert float(tail["full", "0"]["difference"]) == 0
    line = tail["full", "1"]
    assert float(line["low"]) < float(line["difference"]) < float(line["high"])
    softmax = float(tail["full", "0"]["value"])
    assert float(line["value"]) - softmax == pytest.approx(float(line["difference"]), abs=2e-6)
    tries = read_table(tmp_path / "rows" / "tradeoff-tries.csv")
    assert {one["scheme"] for one in tries} == set(schemes(BAGS[0]))


def test_rows_of_data_sets_that_were_not_run_again_stay(folder, tmp_path):
    write_tables(folder, tmp_path / "rows", 20, PROTOCOLS)
    path = tmp_path / "rows" / "tradeoff.csv"
    path.write_text(path.read_text().replace("delicious", "elsewhere"))
    write_tables(folder, tmp_path / "rows", 20, PROTOCOLS)
    assert {line["dataset"] for line in read_table(path)} == {"delicious", "elsewhere"}


def test_the_lean_of_schemes_orders_their_shifts(folder):
    evidence = Evidence(folder / "delicious", resamples=20)
    found = evidence.lean_and_shift("recall@10")
    assert found.number == 3  # neither the softmax nor other strengths
    assert found.value > 0.8


def test_a_data_set_without_tail_is_judged_by_its_torso(folder):
    evidence = Evidence(folder / "delicious", resamples=20)
    assert evidence.rare == "tail"
    evidence.frame = replace(evidence.frame, of_label=np.array([0, 1]))
    assert evidence.rare == "torso"


def test_curves_begin_at_the_softmax():
    for protocol in PROTOCOLS:
        curves = curves_of(protocol)
        assert set(map(len, curves.values())) == {6}
        assert curves["full"][0] == curves["post-hoc"][0] == "softmax"


def test_the_figure_is_drawn_from_rows(folder, tmp_path):
    write_tables(folder, tmp_path / "rows", 20, PROTOCOLS)
    spec = importlib.util.spec_from_file_location("tradeoff_curves", FIGURE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.draw(tmp_path / "rows" / "tradeoff.csv", tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text()
    for colour, *_ in module.STYLES.values():
        assert colour.lower() in text
    first = text
    module.draw(tmp_path / "rows" / "tradeoff.csv", tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text() == first
