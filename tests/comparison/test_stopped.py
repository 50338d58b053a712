"""A stopped comparison: what is finished is read, and what is missing has a name."""

from __future__ import annotations

import pytest

from headtail.cli import main
from headtail.comparison.compare import Execution, compare
from headtail.comparison.results import Comparison
from headtail.files.leftovers import temporary_name
from headtail.training.config import Training

DATA = "synthetic:points=60,test=20,features=80,labels=12"
QUICK = Training(dim=4, epochs=1, batch=16, negatives=4)
SCHEMES = ("uniform:tail", "softmax", "softmax+post-hoc")


class Interrupted(Exception):
    """What a test stops a comparison with."""


def stop(*_: object) -> None:
    raise Interrupted


@pytest.fixture
def stopped(tmp_path):
    with pytest.raises(Interrupted):
        compare(DATA, SCHEMES, out=tmp_path, training=QUICK, execution=Execution(finished=stop))
    return tmp_path


def schemes_in(comparison: Comparison) -> set[str]:
    return {row.scheme for row in comparison.rows if row.split == "test"}


def test_finished_cells_are_read_and_the_others_are_named(stopped):
    found = Comparison.read(stopped)
    assert schemes_in(found) == {"most-popular", "uniform:tail"}
    assert found.missing == ["softmax, seed 0", "softmax+post-hoc, seed 0"]
    assert list(found.schemes) == list(SCHEMES)
    assert list(found.made_by["times"]) == ["uniform:tail"]
    assert list(found.answers) == ["uniform:tail"]


def test_the_report_shows_what_is_finished_and_the_terminal_what_is_not(stopped, capsys):
    assert main(["report", str(stopped)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "uniform:tail" in shown
    assert (
        "2 runs are not finished: softmax, seed 0; softmax+post-hoc, seed 0. The same comparison "
        "again goes on where this one stopped."
    ) in shown
    assert (stopped / "report.html").exists()


def test_once_it_is_finished_nothing_is_missing_and_no_row_is_twice(stopped):
    found = compare(DATA, SCHEMES, out=stopped, training=QUICK)
    assert found.missing == []
    assert set(found.answers) == set(SCHEMES)
    assert schemes_in(found) == {"most-popular", *SCHEMES}
    keys = [(r.run, r.split, r.scheme, r.slice, r.metric, r.epoch) for r in found.rows]
    assert len(keys) == len(set(keys))
    assert sorted(path.name for path in stopped.glob("unfinished*")) == []


def test_a_cell_measured_by_other_slices_is_missing(stopped):
    again = Execution(finished=stop)
    with pytest.raises(Interrupted):
        compare(
            DATA,
            ["softmax", "uniform:tail"],
            out=stopped,
            training=QUICK,
            slices="count",
            execution=again,
        )
    assert Comparison.read(stopped).missing == ["uniform:tail, seed 0"]


def test_times_of_training_and_of_a_step_are_kept_for_every_scheme(tmp_path):
    found = compare(DATA, SCHEMES, seeds=2, out=tmp_path, training=QUICK)
    times = found.made_by["times"]
    assert set(times) == set(SCHEMES)
    assert times["softmax+post-hoc"] == times["softmax"], "the model is the same"
    assert all(0 < each["step_seconds"] < each["training_seconds"] for each in times.values())


def test_what_a_killed_process_left_beside_a_finished_cell_is_removed(stopped):
    [cell] = [path.parent for path in stopped.glob("cells/*/SHA256SUMS")]
    left = cell / f".SHA256SUMS.{temporary_name(cell).name.split('.')[-2].split('-')[0]}-1-1.part"
    left.mkdir()
    compare(DATA, SCHEMES, out=stopped, training=QUICK)
    assert not left.exists()
