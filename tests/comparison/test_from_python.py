"""Whatever `headtail compare` does can be done from Python."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import headtail.data.synthetic as synthetic
from headtail.cli import main
from headtail.comparison import explained
from headtail.comparison.compare import Execution, compare
from headtail.comparison.workers import source_of
from headtail.data.load import load
from headtail.data.reading import Reading
from headtail.errors import HeadtailError
from headtail.report import write_report
from headtail.training.config import Training
from tests.longtail import longtail

DATA = "synthetic:points=200,test=50,features=80,labels=20"
SCHEMES = ("within-batch:tail", "softmax", "softmax+post-hoc")
QUICK = Training(dim=8, epochs=1, batch=32, negatives=8)
TYPED = ["--dim", "8", "--epochs", "1", "--batch", "32", "--negatives", "8", "--seeds", "2"]


def command(folder: Path) -> list[str]:
    line = ["compare", DATA, *TYPED, "--schemes", *SCHEMES, "--out", str(folder)]
    return [*line, "--workers", "1", "--device", "cpu"]


def test_python_and_the_command_line_write_the_same_files(tmp_path):
    assert main(command(tmp_path / "typed")) == 0
    found = compare(DATA, SCHEMES, seeds=2, out=tmp_path / "called", training=QUICK, device="cpu")
    write_report(found, tmp_path / "called" / "report.html")
    typed, called = (
        {str(path.relative_to(tmp_path / name)) for path in (tmp_path / name).rglob("*.*")}
        for name in ("typed", "called")
    )
    differ = {
        name for name in typed if "events" in name or name.endswith(("times.json", "SUMS.other"))
    }
    assert {name for name in typed if "events" not in name} <= called
    for name in typed - differ - {"report.html", "made_by.json"}:
        if (tmp_path / "typed" / name).is_file():
            before = (tmp_path / "typed" / name).read_bytes()
            assert (tmp_path / "called" / name).read_bytes() == before, name


def test_data_are_loaded_once_and_each_scheme_is_explained_once(tmp_path, monkeypatch):
    loaded = []
    explained_schemes = []
    generate = synthetic.generate
    explain = explained.explain

    def counted_generate(*args):
        loaded.append(args)
        return generate(*args)

    def counted_explain(*args, **options):
        explained_schemes.append(args)
        return explain(*args, **options)

    monkeypatch.setattr(synthetic, "generate", counted_generate)
    monkeypatch.setattr(explained, "explain", counted_explain)
    assert main(command(tmp_path)) == 0
    assert len(loaded) == 1
    assert len(explained_schemes) == len(SCHEMES)


def test_a_list_of_schemes_that_is_empty_or_misspelt_is_refused_before_any_work(tmp_path):
    for schemes, words in (
        ([], "`schemes` needs at least one name"),
        (["within-bach:tail"], "Did you mean `within-batch`"),
        (["within-batch:tail@999"], "more than the 32 labels of a batch"),
    ):
        with pytest.raises(HeadtailError, match=words):
            compare(tmp_path / "nowhere", schemes, out=tmp_path / "out", training=QUICK)
    with pytest.raises(HeadtailError, match="`seeds` must be a whole number of at least 1"):
        compare(tmp_path / "nowhere", ["softmax"], seeds=0, out=tmp_path / "out")
    with pytest.raises(HeadtailError, match="`workers` must be a whole number of at least 1"):
        Execution(workers=0)
    assert not (tmp_path / "out").exists()


def test_errors_name_no_options_of_the_command_line(tmp_path):
    compare(longtail(), ["softmax"], out=tmp_path, training=QUICK, device="cpu")
    other = replace(longtail(), name="other", digest="another")
    with pytest.raises(HeadtailError, match="Choose another folder with `out`") as raised:
        compare(other, ["softmax"], out=tmp_path, training=QUICK, device="cpu")
    assert "--" not in str(raised.value)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "about.json").write_text("{}")
    with pytest.raises(HeadtailError, match="holds a single run") as raised:
        compare(other, ["softmax"], out=tmp_path / "run", training=QUICK, device="cpu")
    assert "--" not in str(raised.value)


def test_other_processes_read_the_same_data_in_the_same_way(tmp_path):
    lines = [f"{i % 5} {i % 7}:1 {7 + i % 11}:1" for i in range(40)]
    (tmp_path / "train.txt").write_text("\n".join(lines))
    (tmp_path / "other.txt").write_text("\n".join(lines[:9]))
    (tmp_path / "items.csv").write_text("item,words\n" + "".join(f"{i},w{i}\n" for i in range(5)))
    for how in (
        Reading(holdout=0.5),
        Reading(test=tmp_path / "other.txt"),
        Reading(item_features=tmp_path / "items.csv"),
    ):
        data = load(tmp_path / "train.txt", how)
        again = source_of(data)()
        assert again is not data
        assert (again.digest, again.read_as) == (data.digest, data.read_as)
        assert len(again.test) == len(data.test)
    by_hand = longtail()
    assert source_of(by_hand)() is by_hand
