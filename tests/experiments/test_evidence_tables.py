"""Runs end as rows, and tables, verdicts and answers follow from the rows alone."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from pathlib import Path

import images
import million
import numpy as np
import pytest
import retrieval
import torch
from claim_sentences import points
from claims import CLAIMS, LEAN, Part, here
from evidence import Evidence
from evidence_page import FILES, alike_table, edges, others_table, rates_table, read_rows, tables
from evidence_tables import METRICS, PROTOCOLS, write_tables
from rank_files import Frame, save_ranks
from rate_knob import alike_of, knob_of
from retrained import balanced_classifier
from search import Plan
from study_cli import run_study
from study_protocols import (
    BAGS,
    IMAGES,
    MILLION,
    Places,
    contrastive_schemes,
    image_schemes,
    million_schemes,
    read_data,
    retrieval_schemes,
)
from study_runs import SchemeWork, cost, perform, perform_run
from study_store import Done, Store
from study_tables import read_table, write_table

from answers import NOT_YET, QUESTIONS, answers, chance
from headtail.errors import HeadtailError
from headtail.schemes import PAPER
from tests.experiments.test_study_runs import SHOP, typed, write_sessions
from tests.experiments.test_tradeoff import search
from tests.longtail import longtail

FIGURE = Path(__file__).parents[2] / "docs" / "figures" / "evidence.py"
N = 3000
EQUAL = {"tradeoff-equal-head": []}
"""Rows of another study."""
SHARES = {
    "softmax": (0.5, 0.3, 0.2),
    "logit-adjusted": (0.2, 0.3, 0.4),
    "within-batch:constant": (0.3, 0.3, 0.3),
    "within-batch:importance": (0.5, 0.3, 0.2),
    "within-batch:importance@256": (0.5, 0.3, 0.2),
    "within-batch:infonce@256": (0.3, 0.3, 0.3),
    "within-batch:relative": (0.6, 0.3, 0.1),
    "within-batch:tail": (0.2, 0.3, 0.4),
    "uniform:constant": (0.5, 0.3, 0.2),
    "uniform:importance": (0.7, 0.2, 0.05),
}
"""Recall on head, torso and tail."""
LEANS = {
    "within-batch:constant": 1.0,
    "within-batch:infonce@256": 1.5,
    "within-batch:tail": 2.0,
    "within-batch:relative": -1.0,
}


def build(
    folder: Path, shares: dict[str, tuple[float, float, float]], seeds: int = 5, noise=0.002
) -> Path:
    """Runs on Delicious whose recalls are these, but for chance."""
    store = Store(folder / "delicious")
    store.folder.mkdir(parents=True)
    every = np.arange(N)
    label = every % 3
    counts = np.array([100, 30, 5])
    frame = Frame(every, label, every // 2, np.array([0, 1, 2]), counts, np.array([N, 0.55, 1.5]))
    frame.save(store.folder / "frame.npz")
    for scheme, of_slice in shares.items():
        names = []
        for seed in range(seeds):
            rng = np.random.default_rng([seed, len(scheme)])
            easy = np.random.default_rng(0).uniform(size=N) + noise * rng.normal(size=N)
            ranks = np.where(easy < np.array(of_slice)[label], 1, 0).astype(np.uint8)
            name = f"{scheme.replace(':', '-')}-seed{seed}"
            save_ranks(store.path(name, ".npz"), ranks)
            store.finish(Done(name, scheme, seed, 0.1, 8, 8, 8, 1.0, 1.0))
            names.append(name)
        edges = ["rate"] if scheme == "softmax" else []
        search(store, scheme, names, lean=LEANS.get(scheme, 0.0), edges=edges)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build(tmp_path_factory.mktemp("runs"), SHARES)


@pytest.fixture(scope="module")
def rows(folder, tmp_path_factory):
    return write_tables(folder, tmp_path_factory.mktemp("rows"), 200, PROTOCOLS)


def parts_of(rows) -> dict[tuple[str, str, str, str], str]:
    return {
        (line["claim"], line["scheme"], line["against"], line["slice"]): line["part"]
        for line in rows["evidence-claims"]
    }


def verdicts_of(rows) -> dict[str, str]:
    return {line["claim"]: line["verdict"] for line in rows["evidence-claims"]}


def test_every_metric_has_its_difference_to_the_softmax(folder, rows):
    lines = {(x["scheme"], x["metric"], x["slice"]): x for x in rows["evidence"]}
    assert len(lines) == len(rows["evidence"]) == len(SHARES) * len(METRICS)
    line = lines["within-batch:constant", "recall@10", "tail"]
    assert float(line["difference"]) == pytest.approx(0.1, abs=0.02)
    assert float(line["low"]) < float(line["difference"]) < float(line["high"])
    seeds = [float(value) for value in line["by seed"].split()]
    assert np.mean(seeds) == pytest.approx(float(line["value"]), abs=1e-6)
    assert len(seeds) == int(line["seeds"]) == 5
    direct = Evidence(folder / "delicious", 200).difference(
        "within-batch:constant", "softmax", "recall@10", "tail"
    )
    assert direct.interval() == pytest.approx((float(line["low"]), float(line["high"])), abs=1e-6)
    assert direct.test_error > 0  # what other users would change is part of it
    softmax = lines["softmax", "psp@3", "full"]
    assert (float(softmax["difference"]), softmax["p"]) == (0, "1")


def test_trainings_with_the_longest_length_that_stopped_early_are_counted():
    key = {"dataset": "delicious", "chosen": "yes"}
    every = {"softmax": "epochs", "logistic": "rate epochs", "uniform:tail": ""}
    lines = [{"scheme": name, "edges": found} for name, found in every.items()]
    last = {"softmax": 48, "logistic": 20, "uniform:tail": 20}
    tries = [key | {"scheme": n, "epochs": "48", "last_epoch": str(e)} for n, e in last.items()]
    assert "for 1, and the chosen number of epochs for 2 (1 of these stopped" in edges(lines, tries)
    tries[1]["chosen"] = "no"
    assert "of these" not in edges(lines, tries)


def test_verdicts_follow_from_the_ranks(rows):
    found = verdicts_of(rows)
    assert found["constant against softmax"] == "holds"
    assert found["relative against softmax"] == "holds"
    assert found["importance follows softmax"] == "holds"
    assert found["importance of the whole batch follows softmax"] == "holds"
    every = "within-batch favours the tail"
    assert found[every] == "does not hold"
    part = parts_of(rows)
    assert part[every, "within-batch:relative", "softmax", "tail"] == "does not hold"
    assert part[every, "within-batch:importance", "softmax", "tail"] == "does not hold"
    assert part[every, "within-batch:tail", "softmax", "tail"] == "holds"
    # A claim is judged once all of its schemes have run.
    assert "uniform follows softmax" not in found


def test_a_wrong_sign_flips_the_verdict(tmp_path):
    swapped = SHARES | {
        "softmax": SHARES["within-batch:constant"],
        "within-batch:constant": SHARES["softmax"],
    }
    wrong = build(tmp_path / "runs", swapped)
    found = verdicts_of(write_tables(wrong, tmp_path / "rows", 200, PROTOCOLS))
    assert found["constant against softmax"] == "does not hold"
    assert found["head is given up for tail"] == "does not hold"


def test_following_is_vacuous_where_the_reference_is_at_the_softmax(rows):
    found = parts_of(rows)
    claim = "tail follows logit adjustment", "within-batch:tail", "logit-adjusted"
    assert found[*claim, "head"] == found[*claim, "tail"] == "holds"
    assert found[*claim, "torso"] == "vacuous"
    assert verdicts_of(rows)[claim[0]] == "holds"
    line = next(x for x in rows["evidence-claims"] if x["part"] == "vacuous")
    assert line["apart"] == "no"
    text = tables(rows | EQUAL)["claims in sentences"]
    assert "That says nothing: `logit-adjusted` is not shown to differ from the softmax" in text


def test_a_claim_is_vacuous_where_the_reference_is_at_the_softmax_everywhere(tmp_path):
    same = SHARES | {"logit-adjusted": SHARES["softmax"], "within-batch:tail": SHARES["softmax"]}
    found = verdicts_of(
        write_tables(build(tmp_path / "runs", same), tmp_path / "rows", 200, PROTOCOLS)
    )
    assert found["tail follows logit adjustment"] == "vacuous"


def test_a_gain_below_its_error_leaves_a_claim_open(tmp_path):
    near = dict.fromkeys(("softmax", "within-batch:constant"), SHARES["softmax"])
    near["within-batch:constant"] = (0.5, 0.3, 0.22)  # the error is 1.1 points
    few = build(tmp_path / "runs", near, seeds=2, noise=0.2)
    found = verdicts_of(write_tables(few, tmp_path / "rows", 200, PROTOCOLS))
    assert found["constant against softmax"] == "inconclusive"


def test_one_seed_decides_nothing(tmp_path):
    one = build(tmp_path / "runs", SHARES, seeds=1)
    lines = write_tables(one, tmp_path / "rows", 200, PROTOCOLS)["evidence-claims"]
    said = {(line["part"], line["verdict"], line["seeds"]) for line in lines}
    assert said == {("inconclusive", "inconclusive", "1")}


def test_rows_are_not_lost_to_a_folder_with_fewer_schemes(folder, rows, tmp_path):
    lines = rows["evidence"]
    write_table(tmp_path / "evidence.csv", [*lines, lines[0] | {"scheme": "block(1):tail"}])
    before = (tmp_path / "evidence.csv").read_text()
    with pytest.raises(HeadtailError, match="not in the folder: block\\(1\\):tail"):
        write_tables(folder, tmp_path, 100, PROTOCOLS)
    assert (tmp_path / "evidence.csv").read_text() == before


def test_rows_of_other_data_sets_stay(folder, tmp_path):
    first = write_tables(folder, tmp_path, 20, PROTOCOLS)
    for path in tmp_path.glob("*.csv"):
        path.write_text(path.read_text().replace("delicious", "elsewhere"))
    again = write_tables(folder, tmp_path, 20, PROTOCOLS)
    for name, lines in first.items():
        assert len(again[name]) == 2 * len(lines), name
        assert read_table(tmp_path / f"{name}.csv") == again[name]
        datasets = {line["dataset"] for line in again[name]}
        assert datasets == ({"delicious", "elsewhere"} if lines else set())


def test_the_page_is_made_from_rows_alone(rows, folder, tmp_path):
    parts = tables(rows | EQUAL)
    write_tables(folder, tmp_path, 200, PROTOCOLS)
    assert tables(read_rows(tmp_path)) == parts
    about = parts["data sets"]
    assert about.startswith(
        "### Delicious\n\nOf 10 schemes, the chosen rate lies at an edge of those"
    )
    evidence = Evidence(folder / "delicious")
    head, torso, tail, full = (
        f"{100 * evidence.mean('softmax', 'recall@10', slice_):.1f}"
        for slice_ in ("head", "torso", "tail", "full")
    )
    assert f"| softmax | 0.1* | 8 | {head} | {torso} | {tail} | {full} |" in about
    at_one = 100 * evidence.mean("softmax", "recall@1", "head")
    assert f"\n| softmax | {at_one:.1f} |" in about
    for column in ("Recall@10 head", "R@1 tail", "R@50 full", "PSP@1", "balanced error"):
        assert column in about


def test_the_table_orders_schemes_by_the_tail_and_shows_intervals(rows):
    about = tables(rows | EQUAL)["data sets"]
    lines = about.partition("| scheme | lr ")[2].partition("\n\n")[0].splitlines()[2:]
    names = [line.split(" | ")[0].removeprefix("| ") for line in lines]
    assert names[0] == "softmax"
    assert set(names) == set(SHARES)
    assert {names[1], names[2]} == {"logit-adjusted", "within-batch:tail"}
    assert names[-1] == "uniform:importance"
    row = next(x for x in rows["evidence"] if picks(x, "uniform:importance", "recall@10", "tail"))
    low, high = float(row["low"]), float(row["high"])
    ends = f"({points(row['difference'])} ± {points((high - low) / 2, sign=False)})"
    assert ends in lines[-1].split(" | ")[5]


def test_precision_is_shown_where_points_have_several_labels(rows):
    assert "P@3" not in others_table(rows["evidence"])
    several = [
        line | {"value": "0.9"} if line["metric"] == "precision@1" else line
        for line in rows["evidence"]
    ]
    assert "P@3" in others_table(several)


def picks(line: dict[str, str], *key: str) -> bool:
    return (line["scheme"], line["metric"], line["slice"]) == key


def test_leans_order_shifts(rows):
    every, paper = rows["evidence-leans"]
    assert (every["group"], every["schemes"]) == ("all", str(len(SHARES) - 1))  # no softmax
    assert (paper["group"], paper["schemes"]) == ("paper", "6")
    assert float(every["rank correlation"]) > 0.5


def test_leans_that_differ_in_their_last_digits_are_equal(folder):
    evidence = Evidence(folder / "delicious", resamples=20)
    before = evidence.lean_and_shift("recall@10")
    constant = evidence.chosen["uniform:constant"]
    assert constant["lean"] == evidence.chosen["uniform:importance"]["lean"] == 0
    evidence.chosen["uniform:constant"] = constant | {"lean": 8.9e-16}
    assert evidence.lean_and_shift("recall@10") == before


def test_the_smallest_p_of_random_orders_is_shown_as_a_bound():
    line = {"p": "1e-05", "exact": "no"}
    assert chance(line) == "≤ 1e-05"
    assert chance(line | {"p": "0.002"}, "= ") == "= 0.002"
    assert chance(line | {"exact": "yes"}) == "1e-05"


def test_answers_follow_the_verdicts(rows):
    text = answers(rows)
    line = next(x for x in text.splitlines() if "InfoNCE on in-batch negatives" in x)
    assert "**Yes** on Delicious (+" in line
    flipped = [
        x | {"verdict": "does not hold"} if x["claim"] == "infonce against softmax" else x
        for x in rows["evidence-claims"]
    ]
    other = answers(rows | {"evidence-claims": flipped})
    line = next(x for x in other.splitlines() if "InfoNCE on in-batch negatives" in x)
    assert "**No** on Delicious" in line
    assert "**Yes**" not in line


def test_answers_say_what_is_not_measured_yet():
    text = tables({name: [] for name in FILES})["answers"]
    assert text.count(NOT_YET) == len(QUESTIONS)


def tried(lr: float, loss: float, head: float, tail: float, epochs: int = 8) -> dict[str, str]:
    numbers = {"lr": lr, "epochs": epochs, "held_out_loss": loss, "head": head, "tail": tail}
    about = {name: f"{number:g}" for name, number in numbers.items()}
    chosen = "yes" if (lr, epochs) == (0.04, 8) else "no"
    return {"dataset": "x", "scheme": "softmax", "chosen": chosen} | about


def test_the_rate_is_shown_as_a_knob_of_head_and_tail():
    lines = [
        tried(0.01, 5.5, 0.60, 0.10),
        tried(0.02, 5.1, 0.53, 0.195),
        tried(0.04, 5.00, 0.50, 0.21),
        tried(0.08, float("inf"), 0.0, 0.0),  # diverged
        tried(0.02, 4.9, 0.1, 0.9, epochs=16),  # another length
        tried(0.02, 4.9, 0.1, 0.9) | {"scheme": "another"},
    ]
    same, own = knob_of(lines)
    assert (same["rate"], same["lr"], same["length"], own["length"]) == (
        "half",
        "0.04",
        "same",
        "own",
    )
    assert float(same["loss"]) == pytest.approx(0.02)
    assert float(same["tail"]) == pytest.approx(-0.015)
    assert float(same["head"]) == pytest.approx(0.03)
    assert float(own["loss"]) == pytest.approx(-0.02)
    assert float(own["tail"]) == pytest.approx(0.69)
    assert rates_table([same, own]).splitlines()[-2:] == [
        "| x | `softmax` | half of 0.04 | the same: 8 for 8 | +2.0% | +3.0 | −1.5 |",
        "| x | `softmax` | half of 0.04 | its best: 16 for 8 | −2.0% | −40.0 | +69.0 |",
    ]
    seeds = {"dataset": "x", "scheme": "softmax", "metric": "recall@10", "slice": "tail"}
    seeds |= {"by seed": "0.1 0.2 0.4", "seeds": "3", "edges": "", "difference": ""}
    seeds |= {"value": "0.2333"}
    text = answers({"evidence-rates": [same, own], "evidence": [seeds]})
    assert "from one seed to another: x 1.5, 69.0 and 20.0." in text


def test_a_star_marks_verdicts_on_schemes_at_an_edge_of_what_was_tried(rows):
    page = tables(rows | EQUAL)["claims"]  # the softmax chose such a rate
    [beats] = [line for line in page.splitlines() if "beat the full softmax on the tail |" in line]
    [leans] = [line for line in page.splitlines() if "compared with constant weights" in line]
    assert beats.endswith(r" \* |")
    assert "*" not in leans.replace("**", "")


def test_settings_with_about_the_same_held_out_loss_show_what_the_choice_leaves_open():
    lines = [
        tried(0.02, 5.006, 0.53, 0.195),
        tried(0.04, 5.004, 0.50, 0.21),
        tried(0.04, 5.000, 0.47, 0.20, epochs=16),
        tried(0.08, float("inf"), 0.0, 0.0),  # diverged
    ]
    [line] = alike_of(lines)
    assert line["settings"] == "0.04/8 0.04/16"
    assert (line["tail low"], line["tail high"]) == ("0.200000", "0.210000")
    assert alike_table([line]).splitlines()[-1] == (
        "| x | `softmax` | 2 | 47.0 to 50.0 | 20.0 to 21.0 |"
    )


def test_claims_are_about_schemes_of_the_study():
    parts = [here(part, "tail", 256) for claimed in CLAIMS for part in claimed.parts]
    names = {name for part in parts for name in (part.scheme, part.other)}
    known = {*retrieval_schemes(BAGS[0]), *contrastive_schemes(BAGS[0])}
    assert names <= known
    assert set(PAPER) <= names
    assert len({claimed.name for claimed in CLAIMS}) == len(CLAIMS)
    assert here(Part("a@batch", "b", "above", "tail"), "torso", 64) == (
        "a@64",
        "b",
        "above",
        "torso",
    )


@pytest.mark.parametrize(
    ("study", "part", "name", "runs"),
    [
        (retrieval, "contrastive", "gowalla", len(contrastive_schemes(BAGS[4])) * (5 + 3 + 4)),
        (retrieval, "negatives", "diginetica", 7 * (5 + 3 + 4)),
        (images, "schemes", "tiny-step", len(image_schemes(IMAGES[3])) * (3 + 1)),
        (images, "sweep", "tiny-exp", 32 * (3 + 1)),
        (million, "schemes", "million-adam", 8 * (5 + 3 + 2)),
    ],
)
def test_the_cost_of_a_part_is_stated(study, part, name, runs, monkeypatch, capsys, tmp_path):
    words = ["--data", "x", "--out", str(tmp_path), "--cost", "--only", name]
    words += ["--part", part] if study is not million else []
    monkeypatch.setattr("sys.argv", ["study.py", *words])
    assert study.main() == 0
    assert capsys.readouterr().out.startswith(f"{name}: {runs} runs")


@pytest.mark.filterwarnings("ignore:.*never draws:UserWarning")
def test_real_runs_end_as_rows_tables_and_answers(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "cache"))
    write_sessions(tmp_path / "shop")
    shop = replace(SHOP, plan=Plan((0.1, 0.2), 1, 1, wider=0))
    schemes = ["softmax", "logit-adjusted", "within-batch:tail@32"]
    given = typed(tmp_path, tmp_path / "runs")
    assert run_study(given, [shop], lambda _: schemes) == 0
    rows = write_tables(tmp_path / "runs", tmp_path / "rows", 50, [shop])
    assert {line["scheme"] for line in rows["evidence"]} >= {*schemes, "softmax+post-hoc(1)"}
    claims = {line["claim"] for line in rows["evidence-claims"]}
    assert claims == {
        "logit adjustment against softmax",
        "tail of the whole batch follows logit adjustment",
    }
    assert len(rows["evidence-tries"]) == 2 * len(schemes)
    assert all(0 <= float(line["tail"]) <= 1 for line in rows["evidence-tries"])
    text = "\n".join(tables(rows | EQUAL).values())
    assert "shop" in text
    assert "nan" not in text


def test_a_classifier_that_is_trained_again_weighs_classes_equally(tmp_path):
    # Two classes with the same hidden state: the loss is lowest where both have the same score,
    # however many examples they have.
    hidden = torch.ones(101, 1)
    labels = torch.tensor([0] * 100 + [1])
    weight, bias = balanced_classifier(hidden, labels, 2, 1e-4)
    score = weight[:, 0] + bias
    assert float(score[0] - score[1]) == pytest.approx(0, abs=1e-6)
    data = longtail()
    slow = replace(SHOP, training=replace(SHOP.training, encoder="auto"), final=2)
    slow = replace(slow, metric="recall@1", plan=Plan((0.1, 0.2), 1, 1, wider=0))
    assert perform(SchemeWork("cpu", slow, tmp_path / "x"), data, ["softmax"], workers=1) == 0
    evidence = Evidence(tmp_path / "x", resamples=20)
    assert "softmax+retrained" in evidence.chosen
    lean = evidence.difference("softmax+retrained", "softmax", "recall@1", LEAN)
    assert lean.difference > 0  # it gives up head for tail
    [about] = Store(tmp_path / "x").searches()
    assert len(list((tmp_path / "x" / "runs").glob("*retrained.json"))) == len(about["runs"])


def test_the_figure_is_drawn_from_rows_and_is_the_same_again(folder, tmp_path):
    write_tables(folder, tmp_path, 20, PROTOCOLS)
    spec = importlib.util.spec_from_file_location("evidence_figure", FIGURE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.draw(tmp_path / "evidence.csv", tmp_path / "figure.svg")
    first = (tmp_path / "figure.svg").read_text()
    for colour, *_ in module.STYLES.values():
        assert colour.lower() in first
    module.draw(tmp_path / "evidence.csv", tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text() == first
    drawn = module.read(tmp_path / "evidence.csv")["delicious"]
    assert drawn["within-batch:constant"]["tail"][0] == pytest.approx(10, abs=2)
    assert "softmax" not in drawn


def test_answers_about_adjusting_and_negatives_come_from_their_rows(rows):
    equal = [("full", "training"), ("full", "training, by less than the margin")]
    equal += [("full", "equal"), ("within-batch", "adjusting"), ("full", "not reached")]
    key = {"dataset": "diginetica", "metric": "recall@10", "slice": "tail", "edges": ""}
    key |= {"seeds": "5", "difference": "0.01"}
    swept = [
        key | {"scheme": scheme, "value": value}
        for scheme, value in (
            ("uniform:tail@1024", "0.2"),
            ("uniform:tail@64", "0.1"),
            ("uniform:tail", "0.9"),
            ("logit-adjusted", "0.3"),
        )
    ]
    lines = [{"training": training, "better": better} for training, better in equal]
    text = answers({"evidence": swept, "tradeoff-equal-head": lines})
    assert (
        "trained with all labels, 3 comparisons: equal in 1, training is better in 1, training is "
        "better by less than the margin in 1; with in-batch negatives, 1 comparison: adjusting is "
        "better in 1."
    ) in text
    assert "Diginetica 10.0 with 64, 20.0 with 1,024; over all labels 30.0." in text


@pytest.mark.filterwarnings("ignore:.*never draws:UserWarning")
@pytest.mark.parametrize("protocol", MILLION, ids=lambda protocol: protocol.name)
def test_generated_data_need_no_files_and_every_scheme_trains(protocol, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "cache"))
    shape = "synthetic:labels=300,points=400,test=50,features=500,labels-a-point=4"
    small = replace(protocol, generated=shape, training=replace(protocol.training, dim=4, batch=64))
    data = read_data(small, Places(Path("nowhere")))
    assert data.train.num_labels == 300
    for name in million_schemes(protocol):
        run = small.run(name.replace("@1024", "@64"), (protocol.plan.rates[0], 1))
        assert math.isfinite(perform_run(run, data, tmp_path / "x", "cpu").loss), name
    assert {done.scheme.partition(":")[0] for done in Store(tmp_path / "x").all()} == {
        *("softmax", "logit-adjusted", "within-batch", "uniform", "block(1)")
    }


def test_the_cost_of_losses_over_all_labels_is_their_own(tmp_path):
    protocol = replace(SHOP, seconds=1.0, exact_seconds=10.0)
    epochs = 3 * 1 + 3 * 2 + 1
    _, minutes, measured = cost(protocol, tmp_path, ["softmax", "uniform:tail"], 2, 1)
    assert minutes == pytest.approx(epochs * (10 + 1) / 60)
    assert not measured
    store = Store(tmp_path)
    store.finish(Done("a", "softmax", 0, 0.1, 1, 1, 1, 1.0, 5.0))
    _, minutes, measured = cost(protocol, tmp_path, ["softmax", "uniform:tail"], 2, 1)
    assert minutes == pytest.approx(epochs * (5 + 1) / 60)
    assert not measured
    assert cost(protocol, tmp_path, ["softmax"], 2, 1)[2]
