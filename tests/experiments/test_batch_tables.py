"""Rows of the study of batches compare each loss with the right one."""

from __future__ import annotations

import batch_tables
import pytest
from batch_tables import batches_of, lines_of, table
from study_protocols import BATCHES, PARTS, batch_schemes

from headtail.schemes import check_batch
from tests.experiments.test_evidence_tables import build

EXACT = {64: (0.5, 0.3, 0.2), 256: (0.6, 0.3, 0.2), 1024: (0.6, 0.4, 0.2)}
SAMPLED = {64: (0.5, 0.3, 0.1), 256: (0.5, 0.3, 0.2), 1024: (0.6, 0.4, 0.25)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(batch_tables, "RESAMPLES", 50)
    for protocol in batches_of(PARTS[0]):
        batch = protocol.training.batch
        softmax, importance, adjusted, tail = batch_schemes(protocol)
        shares = {softmax: EXACT[batch], importance: SAMPLED[batch]}
        shares |= {adjusted: EXACT[batch], tail: SAMPLED[batch]}
        build(tmp_path / str(batch), shares, seeds=5 if batch == 256 else 3)
        (tmp_path / str(batch) / "delicious").rename(tmp_path / protocol.name)
    return tmp_path


@pytest.fixture
def lines(folder):
    return list(lines_of(folder, PARTS[0]))


def test_the_whole_batch_is_compared_with_all_labels_and_the_same_batch(lines):
    found = {(line["batch"], line["scheme"], line["slice"]): line for line in lines}
    assert len(found) == len(lines) == 3 * 4 * 4
    for batch, sampled in SAMPLED.items():
        for slice_, value, exact, usual in zip(
            ("head", "torso", "tail"), sampled, EXACT[batch], EXACT[256], strict=True
        ):
            line = found[str(batch), f"within-batch:importance@{batch}", slice_]
            assert float(line["value"]) == pytest.approx(value, abs=0.03)
            assert float(line["difference"]) == pytest.approx(value - exact, abs=0.02)
            assert float(line["difference from usual"]) == pytest.approx(value - usual, abs=0.02)
            assert float(line["low"]) < float(line["difference"]) < float(line["high"])
    assert {line["seeds"] for line in lines} == {"3"}


def test_a_loss_over_all_labels_is_compared_with_that_of_the_usual_batch_alone(lines):
    own = [line for line in lines if line["scheme"] == "softmax" and line["slice"] == "head"]
    assert {line["difference"] for line in own} == {""}
    differences = {line["batch"]: float(line["difference from usual"]) for line in own}
    assert differences["256"] == 0
    assert differences["64"] == pytest.approx(-0.1, abs=0.02)


def test_the_table_names_the_slice_with_the_largest_gap_and_has_their_mean(lines):
    rows = table(lines).split("\n")
    row = next(row for row in rows if "softmax | 64" in row)
    assert row.endswith("(tail) |")
    shown = [row.split("|")[-2].split()[0] for row in rows if "| 64 |" in row]
    *gaps, mean = (abs(float(one.replace("−", "-"))) for one in shown)
    assert gaps == pytest.approx([10, 10], abs=2)
    assert mean == pytest.approx(sum(gaps) / 2, abs=0.1)


def test_a_part_without_one_of_the_batches_has_no_rows(folder):
    (folder / f"{PARTS[0].name}-batch-64" / "frame.npz").unlink()
    assert list(lines_of(folder, PARTS[0])) == []


def test_a_part_that_has_one_batch_only_has_no_rows(folder):
    alone = next(part for part in PARTS if batches_of(part) == [part])
    (folder / PARTS[0].name).rename(folder / alone.name)
    assert list(lines_of(folder, alone)) == []


def test_every_batch_can_hold_its_negatives():
    for protocol in BATCHES:
        assert protocol.seeds == batch_tables.SEEDS
        for scheme in batch_schemes(protocol):
            check_batch(scheme, protocol.training.batch)
