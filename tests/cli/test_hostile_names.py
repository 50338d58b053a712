"""Whatever labels and folders are called, results are kept, and a terminal sees plain text."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from PIL import Image

from headtail.cli import main
from headtail.files.names import original

LABELS = ("caf\udce9", "\x1b[31mred", "a\nb\rc", "[red]x[bold]", "\u202eevil", "=cmd|'x'!A0")
FOLDER = "d\udce9\x1b]8;;evil\x07[bold]"
SMALL = ["--dim", "4", "--epochs", "1", "--device", "cpu"]
CONTROLS = {chr(code) for code in (*range(32), *range(0x7F, 0xA0))}
NOT_PLAIN = (CONTROLS | set("\u202e\u2066\u200b\u2028")) - {"\n"}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Folders of images, one per label, with names that are not UTF-8 among them."""
    place = tmp_path_factory.mktemp("hostile") / FOLDER
    for i in range(24):
        home = place / ("train" if i < 18 else "test") / LABELS[i % 6]
        home.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(i).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        with (home / f"{i}.png").open("wb") as file:
            Image.fromarray(pixels).save(file, format="png")
    return place


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """A table with hostile labels."""
    place = tmp_path_factory.mktemp("hostile") / FOLDER
    place.mkdir()
    names = [*LABELS[1:], "nul\0", "</script>", "\x9b31m", "z" * 3000]
    for part, number in (("train", 36), ("test", 18)):
        rows = [{"text": f"word{i % 9} more", "label": names[i % 9]} for i in range(number)]
        (place / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place


def plain(capsys, *words, code=0):
    """Run a command, and check that its output has no character that a terminal would obey."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == code
    printed = "".join(capsys.readouterr())
    assert not NOT_PLAIN & set(printed), NOT_PLAIN & set(printed)
    assert printed.isprintable() or "\n" in printed
    return printed


def test_every_command_prints_plain_text_and_keeps_all_results(lines, tmp_path, capsys):
    run = tmp_path / "run\x1b[2J"
    both = tmp_path / "both\x1b[2J"
    assert "\\x1b[31mred" in plain(capsys, "stats", lines)
    facts = json.loads(plain(capsys, "stats", lines, "--json"))
    assert any(name == "\x1b[31mred" for name, _ in facts["most_frequent"])
    plain(capsys, "train", lines, "--out", run, *SMALL)
    plain(capsys, "evaluate", run, lines, "--out", tmp_path / "numbers.csv")
    plain(capsys, "predict", run, lines, "--out", tmp_path / "best.csv")
    plain(capsys, "export", run, "--to", "safetensors", "--out", tmp_path / "vectors\x1b")
    plain(capsys, "explain", "--data", lines)
    plain(capsys, "explain", "uniform:tail", "--data", lines)
    schemes = ["--schemes", "softmax", "uniform:tail", "--workers", "1"]
    plain(capsys, "compare", lines, "--out", both, *schemes, *SMALL)
    assert "[bold]" in plain(capsys, "report", both)
    plain(capsys, "evaluate", both, lines, "--scheme", "softmax")
    names = json.loads((tmp_path / "vectors\x1b" / "labels.json").read_text())
    assert set(LABELS[1:]) < set(names)
    assert set(map(original, pd.read_csv(tmp_path / "best.csv")["label"])) <= set(names)


def test_folders_of_images_that_are_not_utf_8_are_trained_tested_and_answered(
    images, tmp_path, capsys
):
    run = tmp_path / "run"
    small = ["--encoder", "resnet20", "--epochs", "1", "--batch", "6", "--device", "cpu"]
    plain(capsys, "train", images, "--out", run, *small)
    assert (run / "classes.csv").exists()
    for name in ("best.csv", "best.parquet"):
        plain(capsys, "predict", run, images, "--out", tmp_path / name)
    for best in (pd.read_csv(tmp_path / "best.csv"), pq.read_table(tmp_path / "best.parquet")):
        columns = best if isinstance(best, pd.DataFrame) else best.to_pandas()
        assert set(map(original, columns["label"])) == set(LABELS)
        assert all(os.path.exists(images / original(path)) for path in columns["path"])


@pytest.mark.parametrize(
    "words",
    [
        ["\x1b[31mtrain"],
        ["train", "no\x1b[2Jsuch\udce9"],
        ["train", "--\x1b[31mlr", "1"],
        ["train", "--epochs", "\x1b[31m"],
        ["train", "synthetic", "\x1b[31mmore"],
        ["train", "--device", "\x1b[31m\udce9"],
        ["train", "--scheme", "[red]\x1b"],
        ["explain", "uniform:\x1b]8;;x\x07"],
        ["audit", "\u202e"],
        ["report", "\x9b31m\udce9"],
        ["stats", "x" * 100_000],
    ],
)
def test_errors_are_plain_text(words, capsys):
    capsys.readouterr()
    try:
        code = main(words)
    except SystemExit as leaving:
        code = leaving.code
    assert code == 2
    printed = capsys.readouterr().err
    assert not NOT_PLAIN & set(printed)
    assert len(printed) < 5000
    printed.encode()


@pytest.mark.parametrize(
    "settings", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}]
)
def test_a_terminal_that_is_not_utf_8_is_no_reason_to_stop(lines, settings):
    environment = {**os.environ, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", **settings}
    command = [sys.executable, "-m", "headtail", "stats", os.fsencode(lines)]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in done.stdout
