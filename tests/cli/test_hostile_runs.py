"""Commands on the folder of a run that is damaged, or that somebody else has made."""

from __future__ import annotations

import builtins
import io
import os
import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors
import torch

from headtail.cli import main
from headtail.files.tensors import save_tensors
from headtail.training import checkpoint

DATA = "synthetic:points=200,test=50,features=80,labels=20"
HOW = ["--scheme", "softmax", "--dim", "8", "--epochs", "1", "--batch", "32"]
READ_FROM_A_RUN = {".safetensors", ".json", ".toml", ".csv"}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", DATA, *HOW, "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def comparison(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("comparisons") / "comparison"
    assert main(["compare", DATA, *comparing(folder)]) == 0
    return folder


def comparing(folder: Path) -> list[str]:
    quick = ["--seeds", "1", "--dim", "8", "--epochs", "1", "--batch", "32"]
    return ["--schemes", "softmax", "softmax+post-hoc", *quick, "--out", str(folder)]


def commands(folder: Path, out: Path) -> dict[str, list[str]]:
    return {
        "evaluate": ["evaluate", str(folder), DATA],
        "predict": ["predict", str(folder), DATA, "--out", str(out / "top.csv")],
        "export": ["export", str(folder), "--to", "safetensors", "--out", str(out / "vectors")],
        "export torch": ["export", str(folder), "--to", "torch", "--out", str(out / "program")],
        "explain": ["explain", "uniform:importance", "--model", str(folder), "--data", DATA],
    }


@pytest.mark.parametrize("command", commands(Path(), Path()))
def test_weights_that_are_not_finite_are_reported_by_every_command(run, tmp_path, capsys, command):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    tensors, facts = checkpoint.load(folder / "model.safetensors")
    tensors["model.head.weight"][2, :3] = float("nan")
    save_tensors(folder / "model.safetensors", tensors, facts)
    assert main(commands(folder, tmp_path)[command]) == 2
    said = capsys.readouterr()
    assert "3 of the 160 values of `model.head.weight` are NaN or infinite" in said.err
    assert said.err.count("\n") == 1
    assert not (tmp_path / "top.csv").exists()
    assert not (tmp_path / "vectors").exists()


@pytest.mark.parametrize("command", ["evaluate", "predict", "export"])
@pytest.mark.parametrize("content", [b"", b"\xff" * 16, b"{}", b"[" * 100_000])
@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint.safetensors", "run.toml"])
def test_a_damaged_file_is_one_sentence_or_none(run, tmp_path, capsys, name, content, command):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    (folder / name).write_bytes(content)
    code = main(commands(folder, tmp_path)[command])
    said = capsys.readouterr().err
    assert "Traceback" not in said
    if name == "model.safetensors":
        assert code == 2
        assert str(folder / name) in said


@pytest.mark.parametrize("content", ["[]", "3", "", "{", "[" * 100_000, '{"data": []}'])
@pytest.mark.parametrize("name", ["about.json", "run.toml"])
def test_a_run_with_a_damaged_file_is_run_again(run, tmp_path, capsys, name, content):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    (folder / name).write_text(content)
    assert main(["train", DATA, *HOW, "--out", str(folder)]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert f"(`{name}` does not match its checksum), so it is run again" in said
    assert (folder / "run.toml").read_text() == (run / "run.toml").read_text()
    assert (folder / "about.json").read_text().startswith("{")
    assert main(["evaluate", str(folder), DATA]) == 0


@pytest.mark.parametrize("options", ['last = "x"', "last = 0", "user = 3", "root = [1]"])
def test_options_of_the_wrong_kind_in_a_runs_settings_are_refused(run, tmp_path, capsys, options):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    settings = (folder / "run.toml").read_text().partition("[data]")[0]
    (folder / "run.toml").write_text(f"{settings}\n[data]\n{options}\n")
    (tmp_path / "rows.txt").write_text("0 1:1\n1 2:1\n")
    out = str(tmp_path / "top.csv")
    assert main(["predict", str(folder), str(tmp_path / "rows.txt"), "--out", out]) == 2
    assert "run.toml` is damaged" in capsys.readouterr().err


class Opened:
    """Notes every file below a folder that Python opens, and refuses to unpickle any."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder.resolve()
        self.names: set[str] = set()
        for module in (builtins, io):
            patch.setattr(module, "open", self._noting(open))
        patch.setattr(os, "open", self._noting(os.open))
        for module, name in ((pickle, "load"), (pickle, "loads"), (torch, "load")):
            patch.setattr(module, name, self._refusing(getattr(module, name)))
        # It opens files without Python's help.
        patch.setattr(safetensors, "safe_open", self._noting(safetensors.safe_open))
        arrays = np.load
        patch.setattr(np, "load", lambda path, *a, **k: arrays(path, *a, **k | self._note(path)))

    def _noting(self, opens):
        def note_and_open(path, *args, **options):
            self._note(path)
            return opens(path, *args, **options)

        return note_and_open

    def _note(self, path) -> dict[str, bool]:
        if isinstance(path, str | os.PathLike):
            place = Path(os.path.realpath(os.fspath(path)))
            if self.folder in place.parents:
                parts = place.relative_to(self.folder).parts
                unfinished = any(part.startswith(".") for part in parts)  # it is being written
                self.names |= set() if unfinished else {place.name}
        return {"allow_pickle": False}

    def _refusing(self, load):
        def refuse_or_load(*args, **options):
            caller = sys._getframe(1).f_globals["__name__"]
            assert caller.startswith("numba."), "something but compiled kernels is unpickled"
            return load(*args, **options)

        return refuse_or_load


@pytest.mark.parametrize("command", [*commands(Path(), Path()), "report", "compare"])
def test_only_safetensors_json_toml_csv_and_checksums_are_read_from_a_run(
    run, comparison, tmp_path, monkeypatch, command
):
    folder = comparison if command in ("report", "compare") else run
    for name in ("weights.pkl", "model.pt", "arrays.npy", "optimizer.bin"):
        (folder / name).write_bytes(b"\x80\x04cos\nsystem\n.")  # what nothing may look at
    lines = commands(folder, tmp_path) | {
        "report": ["report", str(folder), "--out", str(tmp_path / "report.html")],
        "compare": ["compare", DATA, *comparing(folder)],
    }
    with monkeypatch.context() as patch:
        opened = Opened(folder, patch)
        assert main(lines[command]) == 0
    read = {name for name in opened.names if not name.startswith("SHA256SUMS")}
    suffixes = {Path(name).suffix for name in read} - ({".html"} if command == "compare" else set())
    assert read, "the folder is read at all"
    assert suffixes <= READ_FROM_A_RUN, read
