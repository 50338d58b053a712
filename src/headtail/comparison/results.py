"""Results: one row a number. Everything shown anywhere is a row in `results.csv`."""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
import tomllib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from headtail.errors import HeadtailError


@dataclass(frozen=True)
class Row:
    """One number.

    Attributes:
        run: name of the run's folder; empty for what has none.
        dataset: name of the data.
        split: "train", "validation", "test", or "explain" for what is known before training.
        loss: "softmax", "contrastive", …
        scheme: as typed, or "most-popular".
        m: number of negatives; empty for all-label losses.
        seed: of the run.
        epoch: epochs trained, a fraction in between.
        step: batches trained.
        slice: "full", "head", "torso" or "tail".
        metric: for example "recall@10".
        value: the number.
        low: lower end of its 95% bootstrap interval, or None.
        high: upper end, or None.
    """

    run: str
    dataset: str
    split: str
    loss: str
    scheme: str
    m: float | None
    seed: int
    epoch: float
    step: int
    slice: str
    metric: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class ClassError:
    """The error of one label under one run; a row of `classes.csv`.

    Attributes:
        dataset: name of the data.
        scheme: as typed.
        m: number of negatives; empty for all-label losses.
        seed: of the run.
        label: its id.
        name: what it is called in the source; empty where ids are its names.
        train: its training examples.
        test: its test points.
        error: the share of them for which another label came first; nan where there are none.
    """

    dataset: str
    scheme: str
    m: float | None
    seed: int
    label: int
    name: str
    train: int
    test: int
    error: float


Record = TypeVar("Record", Row, ClassError)
CLASSES = "classes.csv"
POPULAR = "most-popular"
"""The scheme of the baseline's rows: the most frequent labels for everybody."""
COLUMNS = tuple(field.name for field in fields(Row))
_NUMBERS = {"int": int, "float": float, "float | None": float}
"""How the fields of these kinds are read and written; all others are words."""
AGAIN = "Delete it and run the command that made it again."


def to_csv(rows: Iterable[Record], kind: type[Record] = Row) -> str:
    """Rows as CSV text; numbers keep every digit."""
    text = io.StringIO()
    columns = [(field.name, str(field.type)) for field in fields(kind)]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([name for name, _ in columns])
    for row in rows:
        writer.writerow([_text(what, getattr(row, name)) for name, what in columns])
    return text.getvalue()


def read_rows(path: str | Path, kind: type[Record] = Row) -> list[Record]:
    """Rows of a `results.csv`, or of a `classes.csv`."""
    columns = tuple(field.name for field in fields(kind))
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            lines = list(csv.reader(file))
    except OSError as error:
        raise HeadtailError(
            f"`{path}` cannot be read: {error.strerror}. Is it a folder made by `headtail compare`?"
        ) from error
    except (csv.Error, UnicodeError) as error:
        raise HeadtailError(f"`{path}` is no CSV file: {error}. {AGAIN}") from error
    if not lines or tuple(lines[0]) != columns:
        raise HeadtailError(
            f"`{path}` is no results file of headtail: its columns must be {', '.join(columns)}. "
            f"{AGAIN}"
        )
    return [
        _row(line, kind, f"`{path}` is damaged in row {number}")
        for number, line in enumerate(lines[1:], start=2)
        if line
    ]


def write_text(path: Path, text: str) -> None:
    """Write a file beside and rename it, so that a reader sees the old content or the new, never a
    half.
    """

    def write(beside: Path) -> None:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    write_beside(path, write)


def write_beside(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` make a file beside `path`, and give it that name once it is whole; if that fails,
    nothing stays behind.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.touch()
        # what the user lets a plain file have; some writers make theirs for its owner alone
        mode = beside.stat().st_mode & 0o777
        write(beside)
        beside.chmod(mode)
        beside.replace(path)
    except BaseException as error:  # Ctrl-C too leaves nothing behind
        with suppress(OSError):
            beside.unlink()
        if not isinstance(error, OSError):
            raise
        raise HeadtailError(
            f"`{path}` cannot be written: {error.strerror or error}. What was there before is "
            "untouched."
        ) from error


def check_writable(folder: Path, advice: str) -> None:
    """Make a folder, and refuse one that takes no files before any work is done for it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        why = (
            "it is no folder"
            if isinstance(error, FileExistsError | NotADirectoryError)
            else error.strerror
        )
        raise HeadtailError(f"`{folder}` cannot be written: {why}. {advice}") from error


@dataclass(frozen=True)
class Comparison:
    """All that a folder made by `headtail compare` tells.

    Attributes:
        rows: every number.
        data: facts about the data (`data.json`): name, train_points, test_points, num_features,
            num_labels, num_pairs, labels_per_point, features_per_point, never_seen, gini,
            imbalance, digest, notes (list of sentences), slices ({"rule": sentence, "sizes":
            {slice: labels}, "last_rank": {slice: rank of its rarest label, from 1}, "rarest":
            {slice: examples of its rarest label}, "pairs": {slice: training pairs}}) and curve
            ([[rank, count], …], about 300 log-spaced points of the rank–frequency curve), and task
            ("classification" or "retrieval").
        schemes: what `explain` says of each scheme (`schemes.json`), in the order asked for: name,
            equation, rho, leans ("head", "tail" or "neither"), lean (nats), noise (nats or None),
            m, notes.
        settings: the configuration (`run.toml`) by name.
        made_by: command, finished, versions (name: version), machine (`made_by.json`).
        failures: scheme and seed ("within-batch:tail, seed 0") of cells that failed: the sentence
            why.
        classes: the error of each label, for classification (`classes.csv`).
    """

    rows: list[Row]
    data: dict[str, Any]
    schemes: dict[str, dict[str, Any]]
    settings: dict[str, Any]
    made_by: dict[str, Any]
    failures: dict[str, str]
    classes: list[ClassError] = field(default_factory=list)

    @classmethod
    def read(cls, folder: str | Path) -> Comparison:
        """From a folder."""
        folder = Path(folder)
        classes = folder / CLASSES
        try:
            return cls(
                data=_json(folder / "data.json"),
                schemes=_json(folder / "schemes.json"),
                settings=tomllib.loads((folder / "run.toml").read_text(encoding="utf-8")),
                made_by=_json(folder / "made_by.json"),
                failures=_json(folder / "failures.json"),
                rows=read_rows(folder / "results.csv"),
                classes=read_rows(classes, ClassError) if classes.exists() else [],
            )
        except OSError as error:
            raise HeadtailError(
                f"`{folder}` is no finished comparison: `{error.filename}` cannot be read. Pass "
                "one made by `headtail compare`."
            ) from error
        except HeadtailError:
            raise
        except ValueError as error:
            raise HeadtailError(
                f"`{folder}` is damaged: {error}. Run `headtail compare` again; finished cells are "
                "kept."
            ) from error


def _json(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} holds no JSON object")
    return found


def _row(line: list[str], kind: type[Record], damaged: str) -> Record:
    columns = fields(kind)
    if len(line) != len(columns):
        raise HeadtailError(
            f"{damaged}: it has {len(line)} columns instead of {len(columns)}. {AGAIN}"
        )
    try:
        return kind(
            *(_value(str(column.type), text) for column, text in zip(columns, line, strict=True))
        )
    except ValueError as error:
        raise HeadtailError(f"{damaged}: {error}. {AGAIN}") from error


def _text(what: str, value: Any) -> str:
    """As it would be written again after reading it: 1.0, not 1, for what is a float."""
    return "" if value is None else repr(_NUMBERS[what](value)) if what in _NUMBERS else value


def _value(what: str, text: str) -> Any:
    if what not in _NUMBERS:
        return text
    return None if text == "" and what.endswith("None") else _NUMBERS[what](text)
