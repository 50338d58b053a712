"""Results: one row per number. Everything shown anywhere is a row in `results.csv`."""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from headtail.comparison.kept_json import read_object
from headtail.comparison.shown import comparison_html
from headtail.errors import HeadtailError, Setting, nearest
from headtail.files.atomic import delete, write_text
from headtail.files.checksums import SUMS, check_sums, damage_of, write_sums
from headtail.files.records import read_csv, to_csv
from headtail.files.regular import regular
from headtail.training.config import read_toml, to_toml

RESULTS = "results.csv"
CLASSES = "classes.csv"
TRIES = "tries.csv"
"""File of a comparison with the short runs that chose its settings."""
ABOUT = "about.json"
"""File of a run's folder with the digest of its data and the rule of its slices."""
TIMES = "times.json"
"""File of a run's folder with its times, by scheme: these differ from machine to machine."""
ANSWERS = "answers.json"
"""File with a few test points and what the model of each scheme answers."""
UNFINISHED = "unfinished.json"
"""File of a comparison that runs or was stopped: folder of each cell: its scheme and seed."""
BEGUN = "unfinished.csv"
"""The rows of such a comparison that need no training; `results.csv` is there once it is done."""
TABLES = ("data.json", "schemes.json", "run.toml", "failures.json", ANSWERS)
"""The other files of a comparison."""
DIAL = "post-hoc"
"""The split of answers that are adjusted after training, followed by τ: "post-hoc(0.25)"."""
POPULAR = "most-popular"
"""The scheme of the baseline's rows: the most frequent labels for every point."""


@dataclass(frozen=True)
class Row:
    """One number: a row of `results.csv`.

    Attributes:
        run: name of the run's folder; empty for what has none.
        dataset: name of the data.
        split: "train", "validation", "test", "post-hoc(τ)" for the test points with answers that
            are adjusted with τ, or "explain" for what is known before training.
        loss: "softmax", "contrastive", …
        scheme: as typed, or "most-popular".
        m: number of negatives; empty for all-label losses.
        seed: of the run.
        epoch: epochs trained, a fraction within an epoch.
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
    """The error of one label under one run: a row of `classes.csv`.

    Attributes:
        dataset: name of the data.
        scheme: as typed.
        m: number of negatives; empty for all-label losses.
        seed: of the run.
        label: its id.
        name: its name in the source; empty where labels are named by their ids.
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


@dataclass(frozen=True)
class Try:
    """A short run that tuning made: a row of `tries.csv`.

    Attributes:
        scheme: as typed.
        lr: learning rate.
        epochs: as many as it was allowed.
        best_epoch: the one with the best value; 0 if the run diverged.
        metric: what was measured on the held-out points.
        value: the best of it; nan if the run diverged.
        chosen: "yes" for the best try of its scheme, else "no".
    """

    scheme: str
    lr: float
    epochs: int
    best_epoch: int
    metric: str
    value: float
    chosen: str = "no"

    @property
    def badness(self) -> float:
        """Lower is better, whatever the metric."""
        if math.isnan(self.value):
            return math.inf
        return self.value if self.metric == "implicit-loss" else -self.value


COLUMNS = tuple(field.name for field in fields(Row))


def read_rows(path: str | Path) -> list[Row]:
    """Rows of a `results.csv`."""
    return read_csv(path, Row)


@dataclass(frozen=True, repr=False)
class Comparison:
    """Everything in a folder made by `headtail compare`.

    Attributes:
        rows: every number.
        data: facts about the data (`data.json`): name, train_points, test_points, num_features,
            num_labels, num_pairs, labels_per_point, features_per_point, never_seen, gini,
            imbalance, digest, notes (list of sentences), slices ({"rule": sentence, "sizes":
            {slice: labels}, "last_rank": {slice: rank of its rarest label, from 1}, "rarest":
            {slice: examples of its rarest label}, "pairs": {slice: training pairs}, "examples":
            {slice: [[label, its count], …]}}) and curve
            ([[rank, count], …], about 300 log-spaced points of the rank–frequency curve), and task
            ("classification" or "retrieval").
        schemes: what `explain` finds for each scheme (`schemes.json`), in the order asked for:
            name, equation, rho, leans ("head", "tail" or "neither"), lean (nats),
            noise_untrained (nats or None), m, notes.
        settings: the configuration by name, and how the data were read as "data" (`run.toml`).
        made_by: command, finished, versions (name: version), machine, workers (runs at the same
            time), folder (of the results) and times ({scheme: {"step_seconds",
            "training_seconds"}}, means over seeds) (`made_by.json`).
        failures: for cells that failed, scheme and seed ("within-batch:tail, seed 0"): the reason,
            in a sentence.
        classes: the error of each label, for classification (`classes.csv`).
        answers: scheme: a few test points with their right labels and the answers of its first
            model (`answers.json`), as `headtail.evaluation.examples.examples_of` returns them.
        missing: scheme and seed of the cells that a stopped comparison has not finished.
        tries: the short runs that chose learning rate and epochs (`tries.csv`); empty without
            tuning.
    """

    rows: list[Row]
    data: dict[str, Any]
    schemes: dict[str, dict[str, Any]]
    settings: dict[str, Any]
    made_by: dict[str, Any]
    failures: dict[str, str]
    classes: list[ClassError] = field(default_factory=list)
    answers: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    tries: list[Try] = field(default_factory=list)

    @classmethod
    def read(cls, folder: str | Path) -> Comparison:
        """From a folder. Of a comparison that was stopped, or still runs, the finished cells."""
        folder = Path(folder)
        try:
            data = read_object(folder / "data.json")
            check_sums(folder, "Run the comparison again; finished runs are kept.")
            stopped = not (folder / RESULTS).exists()
            comparison = cls(
                data=data,
                schemes=read_object(folder / "schemes.json"),
                settings=read_toml(regular(folder / "run.toml").read_text(encoding="utf-8")),
                made_by=read_object(folder / "made_by.json"),
                failures=read_object(folder / "failures.json"),
                rows=read_rows(folder / (BEGUN if stopped else RESULTS)),
                classes=read_classes(folder),
                answers=first_answers([folder]),
                tries=read_csv(tries, Try) if (tries := folder / TRIES).exists() else [],
            )
            return comparison._with_cells(folder) if stopped else comparison
        except OSError as error:
            raise HeadtailError(
                f"`{folder}` is not a finished comparison: `{error.filename}` cannot be read. Pass "
                "the folder of one."
            ) from error
        except HeadtailError:
            raise
        except ValueError as error:
            raise HeadtailError(
                f"`{folder}` is damaged: {error}. Run the comparison again; finished runs are kept."
            ) from error

    @property
    def metric(self) -> str:
        """The metric that head and tail are judged by, "balanced-error" (lower is better) for
        classification and else "recall@10".
        """
        return "balanced-error" if self.data.get("task") == "classification" else "recall@10"

    def means(self, metric: str | None = None) -> dict[str, dict[str, float]]:
        """A metric on the test points by scheme and slice, as the mean over seeds; NaN where
        nothing decides it.

        Args:
            metric: for example "ndcg@10"; by default `metric`.
        """
        tested = [row for row in self.rows if row.split == "test"]
        measured = {row.metric for row in tested}
        if metric is not None and metric not in measured:
            raise HeadtailError(
                Setting("metric"), f" {metric!r} was not measured.{nearest(metric, measured)}"
            )
        metric = metric or self.metric
        # Of a run that was tested more than once, the last test counts.
        in_order = sorted(tested, key=lambda row: row.step)
        last = {
            (row.scheme, row.slice, row.seed): row.value for row in in_order if row.metric == metric
        }
        values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for row in tested:
            if (value := last.pop((row.scheme, row.slice, row.seed), None)) is not None:
                values[row.scheme][row.slice].append(value)
        return {
            scheme: {slice_: fmean(of_seeds) for slice_, of_seeds in by_slice.items()}
            for scheme, by_slice in values.items()
        }

    def __repr__(self) -> str:
        return f"Comparison({self._description})"

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        lower = self.metric == "balanced-error"
        notes = [f"{title} failed: {reason}" for title, reason in self.failures.items()]
        notes += [f"{not_finished(self)}."] if self.missing else []
        losses = {
            scheme: (about.get("name") or "").partition(" (")[0]  # without its source
            for scheme, about in self.schemes.items()
        }
        detail = f"{self._description}; {self.metric}, {'lower' if lower else 'higher'} is better"
        return comparison_html(detail, self.means(), losses, lower_is_better=lower, notes=notes)

    @property
    def _description(self) -> str:
        """Schemes, seeds and data in words."""
        seeds = len({row.seed for row in self.rows if row.run}) or 1
        of = f"{_count(len(self.schemes), 'scheme')}, {_count(seeds, 'seed')}"
        facts = {"labels": "num_labels", "training points": "train_points"}
        sizes = [f"{self.data[key]:,} {word}" for word, key in facts.items() if key in self.data]
        return ", ".join([f"{of} on {self.data.get('name', 'unknown data')}", *sizes])

    def _with_cells(self, folder: Path) -> Comparison:
        """With the results of the cells that are finished, and the names of the others."""
        titles = {folder / name: title for name, title in read_object(folder / UNFINISHED).items()}
        rule = self.data.get("slices", {}).get("rule")
        done = [cell for cell in titles if damage_of(cell) is None and _slices(cell) == rule]
        return replace(
            self,
            rows=self.rows + [row for cell in done for row in read_rows(cell / RESULTS)],
            classes=[row for cell in done for row in read_classes(cell)],
            made_by=self.made_by | {"times": mean_times(done)},
            answers=first_answers(done),
            missing=[title for cell, title in titles.items() if cell not in done],
        )

    def begin(self, folder: Path, cells: Mapping[Path, str]) -> None:
        """Write what is known before any cell is finished, so that a comparison that is stopped can
        be read; `cells` maps each folder to scheme and seed.
        """
        titles = {os.path.relpath(cell, folder): title for cell, title in cells.items()}
        for name in (SUMS, RESULTS):
            delete(folder / name)
        self._write_tables(folder)
        write_text(folder / BEGUN, to_csv(self.rows, Row))
        write_text(folder / UNFINISHED, json.dumps(titles, indent=1))
        write_sums(folder, (*TABLES, CLASSES, TRIES, BEGUN, UNFINISHED), ["made_by.json"])

    def write(self, folder: Path) -> None:
        """To a folder; `read` gives it back."""
        delete(folder / SUMS)
        self._write_tables(folder)
        write_text(folder / RESULTS, to_csv(self.rows, Row))
        write_sums(folder, (*TABLES, CLASSES, TRIES, RESULTS), ["made_by.json"])
        for name in (UNFINISHED, BEGUN):
            delete(folder / name)

    def _write_tables(self, folder: Path) -> None:
        settings = {name: value for name, value in self.settings.items() if name != "data"}
        write_text(folder / "run.toml", to_toml(settings, self.settings["data"]))
        for name in ("data", "schemes", "made_by", "failures", "answers"):
            write_text(folder / f"{name}.json", json.dumps(getattr(self, name), indent=1))
        if self.classes:
            write_text(folder / CLASSES, to_csv(self.classes, ClassError))
        else:  # a file there is from other runs
            delete(folder / CLASSES)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def not_finished(comparison: Comparison) -> str:
    """Which runs a stopped comparison lacks, and how to go on; without a full stop."""
    command = comparison.made_by.get("command")
    again = f": {command}" if command else ""
    number = len(comparison.missing)
    runs = "1 run is" if number == 1 else f"{number:,} runs are"
    return (
        f"{runs} not finished: {'; '.join(comparison.missing)}. The same comparison again goes on "
        f"where this one stopped{again}"
    )


def read_classes(folder: Path) -> list[ClassError]:
    """The errors by class in a folder; none for retrieval."""
    path = folder / CLASSES
    return read_csv(path, ClassError) if path.exists() else []


def mean_times(cells: Iterable[Path]) -> dict[str, dict[str, float]]:
    """Scheme: its mean times over the cells in these folders."""
    gathered: dict[str, list[dict[str, float]]] = defaultdict(list)
    for cell in cells:
        if (cell / TIMES).exists():
            for scheme, times in read_object(cell / TIMES).items():
                gathered[scheme].append(times)
    return {
        scheme: {name: fmean(times[name] for times in all_times) for name in all_times[0]}
        for scheme, all_times in gathered.items()
    }


def first_answers(folders: Iterable[Path]) -> dict[str, list[dict[str, Any]]]:
    """Scheme: the answers in the first of these folders that has some."""
    answers: dict[str, list[dict[str, Any]]] = {}
    for folder in folders:
        if (folder / ANSWERS).exists():
            answers = read_object(folder / ANSWERS) | answers
    return answers


def _slices(cell: Path) -> str | None:
    """The rule of the slices that a finished cell was measured by."""
    return read_object(cell / ABOUT).get("slices")
