"""Targets: what headtail itself has written. Models, checkpoints and comparisons are damaged, and
commands go on with them.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from headtail.cli import main
from headtail.cli.progress import TrainingBars
from headtail.files.atomic import write_text
from headtail.training.callbacks import Callback
from tests.fuzz.damage import damage_bytes, damage_content, files_in
from tests.fuzz.engine import Case, output
from tests.fuzz.readers import run_command
from tests.fuzz.seeds import FORMATS
from tests.fuzz.verdicts import Wrong

QUICK = ["--dim", "4", "--device", "cpu", "--batch", "8"]
MODELS = {
    "sparse": ("xc", 0, ["--scheme", "within-batch:tail"]),
    "text": ("fasttext", 0, []),
    "users": ("delimited", 4, ["--format", "interactions"]),
    "sequences": ("delimited", 0, ["--encoder", "sasrec"]),
    "dense": ("npz", 0, ["--scheme", "softmax"]),
}
"""The kinds of models: which data they are trained on, and how."""
_TIMES = re.compile(r".*(second|time|per s|speed|memory).*\n", re.IGNORECASE)


class _StopAfter(Callback):
    """Presses Ctrl-C after an epoch."""

    def on_epoch(self, progress, metrics) -> None:
        if progress.epoch >= 2:
            os.kill(os.getpid(), signal.SIGINT)


def write_runs(folder: Path, seeds: Path) -> None:
    """Train a model of each kind, stop a run in the middle, compare two schemes, and keep what the
    commands that are tried later print about them.
    """
    for name, (format_name, number, how) in MODELS.items():
        place = folder / "models" / name
        source = shutil.copytree(seeds / format_name / str(number), place / "data")
        data = str(source / FORMATS[format_name][number].data)
        _succeed(["train", data, *how, *QUICK, "--epochs", "1", "--out", str(place / "run")])
        (place / "arguments").write_text("\n".join([data, *_reading(how)]))
    data = str(shutil.copytree(seeds / "xc" / "0", folder / "data"))
    schemes = ["--schemes", "softmax", "within-batch:tail"]
    words = ["compare", data, *QUICK, *schemes, "--epochs", "1", "--workers", "1"]
    _succeed([*words, "--out", str(folder / "comparison")])
    (folder / "compare").write_text("\n".join(words))
    words = ["train", data, *QUICK, "--scheme", "within-batch:tail", "--epochs", "4"]
    kept = TrainingBars.callbacks
    TrainingBars.callbacks = lambda _, __: [_StopAfter()]
    main([*words, "--out", str(folder / "stopped")])
    TrainingBars.callbacks = kept
    assert (folder / "stopped" / "checkpoint.safetensors").exists()
    assert not (folder / "stopped" / "results.csv").exists()
    (folder / "train").write_text("\n".join(words))
    output()


def _reading(how: list[str]) -> list[str]:
    return how if "--format" in how else []


def _succeed(words: list[str]) -> None:
    code = main(words)
    printed, said = output()
    if code:
        raise RuntimeError(f"{words} gives {code}: {printed} {said}")


def _wanted(make, place: Path) -> str:
    """What a command gives for files that are whole; kept beside them."""
    if not place.exists():
        write_text(place, make())
    return place.read_text()


@dataclass(frozen=True)
class UseDamagedModel:
    """A damaged model answers as before, or is refused."""

    runs: Path

    def __call__(self, folder: Path, case: Case) -> bool:
        rng = case.random()
        kind = rng.choice(list(MODELS))
        place = self.runs / "models" / kind
        command = rng.choice(("predict", "evaluate", "export"))
        run = shutil.copytree(place / "run", folder / "run")
        data = (place / "arguments").read_text().split("\n")

        def result() -> str | None:
            out = folder / "out.csv" if command == "predict" else folder / "out"
            words = {
                "predict": ["predict", str(run), *data, "--out", str(out)],
                "evaluate": ["evaluate", str(run), *data],
                "export": ["export", str(run), "--to", "safetensors", "--out", str(out)],
            }[command]
            accepted, printed = _printed([*words, "--device", "cpu"], folder)
            if not accepted and out.exists():
                raise Wrong("leftover", f"headtail {command} fails and leaves its output")
            written = _digest(out)
            shutil.rmtree(out, ignore_errors=True)
            out.unlink(missing_ok=True)
            return printed + written if accepted else None

        return _same_after_damage(run, rng, result, place / f"wanted-{command}", f"model ({kind})")


@dataclass(frozen=True)
class ResumeDamagedRun:
    """A run with a damaged checkpoint gives the results of a whole one, or is refused."""

    runs: Path

    def __call__(self, folder: Path, case: Case) -> bool:
        run = folder / "run"
        words = (self.runs / "train").read_text().split("\n")

        def result() -> str | None:
            accepted, printed = _printed([*words, "--out", str(run)], folder)
            return printed if accepted else None

        shutil.copytree(self.runs / "stopped", run)
        if not (self.runs / "wanted-train").exists():
            write_text(self.runs / "wanted-train", result() or "")
            shutil.rmtree(run)
            shutil.copytree(self.runs / "stopped", run)
        return _same_after_damage(
            run, case.random(), result, self.runs / "wanted-train", "checkpoint"
        )


@dataclass(frozen=True)
class ReportDamagedComparison:
    """A damaged comparison is shown, continued or used as before, or refused."""

    runs: Path

    def __call__(self, folder: Path, case: Case) -> bool:
        rng = case.random()
        place = shutil.copytree(self.runs / "comparison", folder / "comparison")
        words = (self.runs / "compare").read_text().split("\n")
        command = rng.choice(("report", "compare", "predict"))
        data = words[1]
        line = {
            "report": ["report", str(place)],
            "compare": [*words, "--out", str(place)],
            "predict": [
                *("predict", str(place), data, "--scheme", "softmax"),
                *("--out", str(folder / "out.csv")),
            ],
        }[command]

        def result() -> str | None:
            accepted, printed = _printed(line, folder)
            written = _digest(folder / "out.csv")
            (folder / "out.csv").unlink(missing_ok=True)
            return printed + written if accepted else None

        wanted = self.runs / f"wanted-{command}"
        return _same_after_damage(place, rng, result, wanted, f"comparison ({command})")


def _same_after_damage(place: Path, rng, result, kept: Path, what: str) -> bool:
    """Whether files are accepted after damage; accepted and different is a finding.

    Damage that knows the format may be a change that its owner makes: it must not break anything,
    but it may change results.
    """
    wanted = _wanted(lambda: result() or "", kept)
    path = rng.choice(files_in(place))
    blind = rng.random() < 0.6
    (damage_bytes if blind else damage_content)(path, rng)
    seen = result()
    if blind and seen is not None and seen != wanted:
        name = re.sub(r"-seed.*", "", path.name)
        raise Wrong("silent change", f"{what}: {name} is damaged, results differ", seen[-500:])
    return seen is not None


def _printed(words: list[str], folder: Path) -> tuple[bool, str]:
    """Whether a command succeeds, and what it prints, without paths and times."""
    accepted, printed = run_command(words, folder)
    return accepted, _TIMES.sub("", printed.replace(str(folder), ""))


def _digest(path: Path) -> str:
    files = files_in(path) if path.is_dir() else [path] if path.is_file() else []
    return " ".join(hashlib.blake2b(file.read_bytes()).hexdigest() for file in files)
