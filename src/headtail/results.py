"""Results: one row a number. Everything shown anywhere is a row in `results.csv`."""

from __future__ import annotations

import csv
import io
import json
import os
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

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


COLUMNS = tuple(field.name for field in fields(Row))
_NUMBERS = {"m": float, "seed": int, "epoch": float, "step": int, "value": float, "low": float, "high": float}


def to_csv(rows: Iterable[Row]) -> str:
    """Rows as CSV text; numbers keep every digit."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        values = (getattr(row, name) for name in COLUMNS)
        writer.writerow(["" if value is None else repr(value) if isinstance(value, float) else value for value in values])
    return text.getvalue()


def read_rows(path: Path) -> list[Row]:
    """Rows of a `results.csv`."""
    try:
        with path.open(newline="") as file:
            return [_row(line) for line in csv.DictReader(file)]
    except OSError as error:
        raise HeadtailError(f"`{path}` cannot be read: {error.strerror}. Is it a folder made by `headtail compare`?") from error
    except (KeyError, ValueError, TypeError) as error:
        raise HeadtailError(f"`{path}` is no results file of headtail: its columns must be {', '.join(COLUMNS)}.") from error


def write_text(path: Path, text: str) -> None:
    """Write a file beside and rename it, so that a reader sees the old content or the new, never a half."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise HeadtailError(f"`{path}` cannot be written: {error.strerror}. What was there before is untouched.") from error


@dataclass(frozen=True)
class Comparison:
    """All that a folder made by `headtail compare` tells.

    Attributes:
        rows: every number.
        data: facts about the data (`data.json`): name, train_points, test_points, num_features, num_labels, num_pairs,
            labels_per_point, features_per_point, never_seen, gini, imbalance, digest, notes (list of sentences), slices
            ({"rule": sentence, "sizes": {slice: labels}, "last_rank": {slice: rank of its rarest label, from 1}}) and
            curve ([[rank, count], …], about 300 log-spaced points of the rank–frequency curve).
        schemes: what `explain` says of each scheme (`schemes.json`), in the order asked for: name, equation, rho, leans
            ("head", "tail" or "neither"), lean (nats), noise (nats or None), m, notes.
        settings: the configuration (`run.toml`) by name.
        made_by: command, finished, versions (name: version), machine (`made_by.json`).
        failures: scheme and seed ("within-batch:tail, seed 0") of cells that failed: the sentence why.
    """

    rows: list[Row]
    data: dict[str, Any]
    schemes: dict[str, dict[str, Any]]
    settings: dict[str, Any]
    made_by: dict[str, Any]
    failures: dict[str, str]

    @classmethod
    def read(cls, folder: Path) -> Comparison:
        """From a folder."""
        try:
            return cls(
                rows=read_rows(folder / "results.csv"),
                data=_json(folder / "data.json"),
                schemes=_json(folder / "schemes.json"),
                settings=tomllib.loads((folder / "run.toml").read_text()),
                made_by=_json(folder / "made_by.json"),
                failures=_json(folder / "failures.json"),
            )
        except OSError as error:
            raise HeadtailError(f"`{folder}` is no finished comparison: {error.filename} is missing.") from error
        except ValueError as error:
            raise HeadtailError(
                f"`{folder}` is damaged: {error}. Run `headtail compare` again; finished cells are kept."
            ) from error


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def _row(line: dict[str, str]) -> Row:
    values: dict[str, Any] = {
        name: (_NUMBERS[name](text) if text else None) if name in _NUMBERS else text for name, text in line.items()
    }
    return Row(**values)
