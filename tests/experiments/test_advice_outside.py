"""What is said of the law on data from elsewhere follows from the rows."""

from __future__ import annotations

import json

from advice_outside import (
    PAGE,
    RESULTS,
    errors,
    gaps_of,
    table,
    write_dependencies,
    write_sentences,
    write_triples,
)
from study_tables import place_in, read_table

from headtail.machine.outside import OUTSIDE


def test_errors_and_table_follow_from_the_rows():
    lines = read_table(RESULTS / "advice-outside.csv")
    found = read_table(RESULTS / "advice-outside-errors.csv")
    assert errors(lines) == found
    page = PAGE.read_text(encoding="utf-8")
    assert place_in(page, {"outside": table(found)}) == page


def test_advise_quotes_these_errors():
    *sets, whole = read_table(RESULTS / "advice-outside-errors.csv")
    assert len(sets) == OUTSIDE.sources
    assert (f"{OUTSIDE.typical:.2f}", f"{OUTSIDE.regret:.2f}") == (whole["factor"], whole["regret"])


def test_triples_of_rare_entities_are_left_out(tmp_path):
    lines = [f"a\tknows\tb{i % 2}" for i in range(10)] + ["a\tknows\trare", "rare\tknows\ta"]
    write_triples("\n".join(["head_id\trelation_id\ttail_id", *lines]), tmp_path / "kg.tsv")
    header, *kept = (tmp_path / "kg.tsv").read_text().splitlines()
    assert (header, kept) == ("head\trelation\ttail", lines[:10])


def test_what_few_packages_need_is_left_out(tmp_path):
    many = ", ".join(f"lib{i} (>= 1)" for i in range(8))
    blocks = [f"Package: p{i}\nDepends: {many}, own{i} | other\n" for i in range(3)]
    blocks.append("Package: small\nDepends: lib0\n")
    write_dependencies("\n".join(blocks), tmp_path / "needs.csv")
    header, *pairs = (tmp_path / "needs.csv").read_text().splitlines()
    assert header == "user,item"
    assert sorted(pairs) == [f"p{i},lib{k}" for i in range(3) for k in range(8)]


def test_another_result_is_another_error():
    lines = read_table(RESULTS / "advice-outside.csv")
    number = next(i for i, line in enumerate(lines) if line["set"] == "sotu" and line["m"] == "64")
    changed = [*lines[:number], lines[number] | {"tail": "0.9"}, *lines[number + 1 :]]
    before, after = ({one["set"]: one for one in errors(given)} for given in (lines, changed))
    assert after["sotu"]["worst_regret"] > before["sotu"]["worst_regret"]
    assert after["moby-dick"] == before["moby-dick"]


def test_gaps_are_differences_to_the_target_of_the_same_loss():
    base = {"seed": "0", "labels": "640", "full": "0.3"}
    slices = {"head": "0.5", "torso": "0.3", "tail": "0.1"}
    target = base | slices | {"target": "softmax", "sampler": "", "m": "0"}
    sampled = target | {"sampler": "uniform", "m": "64", "tail": "0.04"}
    [gap] = gaps_of([target, sampled, sampled | {"seed": "1"}])
    assert round(gap.largest, 9) == 6.0
    assert gap.expected.points


def test_clauses_keep_words_that_occur_three_times(tmp_path):
    texts = ["A whale, a Whale! The whale: it’s a rare day.", "never read: it is too late"]
    write_sentences(texts, tmp_path / "words.jsonl", budget=5)
    lines = (tmp_path / "words.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["items"] for line in lines] == [["a", "whale", "a", "whale"]]
