"""The grid of a comparison: its runs, their folders, and what a folder already holds."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headtail.comparison.kept_json import read_object
from headtail.comparison.results import ABOUT
from headtail.data.points import DataSet
from headtail.data.reading import told_apart, what_changed
from headtail.errors import HeadtailError, Sentence, Setting
from headtail.files.checksums import SUMS, damage_of
from headtail.schemes import parse
from headtail.training import checkpoint
from headtail.training.config import Run, SettledRun, Training, data_of
from headtail.training.recipes import with_defaults
from headtail.training.saved_model import MODEL_FILE, settings_of


@dataclass(frozen=True)
class Cell:
    """One run of a grid and its folder.

    Attributes:
        run: its settings.
        folder: where its files are.
        adjusts: folder of the run that trains the same weights, where this one only adjusts the
            answers; or None.
        part: what distinguishes it from other runs of its scheme and seed; empty for the only one.
    """

    run: SettledRun
    folder: Path
    adjusts: Path | None = None
    part: str = ""

    @property
    def title(self) -> str:
        """Scheme and seed, for people."""
        title = f"{self.run.scheme}, seed {self.run.seed}"
        return f"{title}, {self.part}" if self.part else title

    @property
    def done(self) -> bool:
        """Whether its results are there and match their checksums."""
        return damage_of(self.folder) is None

    def note_on_damage(self) -> str | None:
        """A sentence about results that it had and that are damaged; None if there are none."""
        damage = damage_of(self.folder) if (self.folder / SUMS).exists() else None
        return damage and f"`{self.folder}` is damaged ({damage}), so it is run again."

    @property
    def about(self) -> dict[str, str]:
        """The data it was begun on, and the slices it is measured by; empty where unknown."""
        return _about(self.folder)


def cells(
    training: Training | Mapping[str, Training],
    schemes: Sequence[str],
    seeds: int,
    data: DataSet,
    folder: str | Path,
) -> list[Cell]:
    """All runs of a comparison, seed by seed.

    A cell's folder is named after everything that decides its results, so that settings never mix.
    `X+post-hoc` is trained as `X` is: where both are in the grid, it is measured on the model of
    `X`.

    Args:
        training: how every run is trained, or those of each scheme; what it leaves open follows
            from the kind of data.
        schemes: names of schemes.
        seeds: runs per scheme, with seeds 0, 1, …
        data: the data set.
        folder: of the comparison.
    """
    how = dict.fromkeys(schemes, training) if isinstance(training, Training) else training
    runs = [
        with_defaults(Run.of(how[name], name, seed), data)
        for seed in range(seeds)
        for name in schemes
    ]
    home: dict[SettledRun | None, Path] = {
        run: Path(folder) / "cells" / folder_name(run, data) for run in runs
    }
    return [Cell(run, home[run], home.get(_unadjusted(run))) for run in runs]


def _unadjusted(run: SettledRun) -> SettledRun | None:
    """The run that ends with the same weights though it does not adjust its answers.

    Held-out points that are answered would see the adjustment, and choose another epoch; a loss
    does not.
    """
    scheme = parse(run.scheme)
    answers_choose = run.validation and run.stop_on != "implicit-loss"
    if not scheme.post_hoc or answers_choose:
        return None
    return replace(run, scheme=scheme.unadjusted)


def folder_name(run: SettledRun, data: DataSet) -> str:
    """A name that no other run has, and no other data."""
    everything = json.dumps([asdict(run), data.digest], sort_keys=True)
    digest = hashlib.blake2b(everything.encode(), digest_size=4).hexdigest()
    scheme = re.sub(r"[^a-z0-9.]+", "-", run.scheme.lower()).strip("-")
    return f"{scheme}-seed{run.seed}-{digest}"


def check_same_run(cell: Cell, data: DataSet) -> None:
    """Refuse a folder that holds another run, before anything is written."""
    files = ("results.csv", "checkpoint.safetensors", "checkpoints", "model.safetensors")
    if not any((cell.folder / name).exists() for name in files):
        return
    if (cell.folder / "data.json").exists():
        raise HeadtailError(f"`{cell.folder}` holds a comparison. Choose another folder for a run.")
    before, digest = _begun_with(cell)
    other: list[str | Setting] = []
    for name, value in settings_of(cell.run).items():
        if value != before.get(name, value):
            other += [", ", Setting(name)]
    if digest not in (None, data.digest):
        other += [", ", "data"]
    if other:
        raise HeadtailError(
            f"`{cell.folder}` holds a run with other ",
            *other[1:],
            ". Choose another folder, or delete it.",
        )


def _begun_with(cell: Cell) -> tuple[dict[str, Any], str | None]:
    """The settings and the digest of the data that a folder was begun with, where they are known.

    Where its files are damaged, its model knows them.
    """
    if cell.note_on_damage() is None:
        path = cell.folder / "run.toml"
        run = Run.read(path) if path.exists() else cell.run
        return settings_of(run), cell.about.get("data")
    try:
        _, facts = checkpoint.load(cell.folder / MODEL_FILE, only_facts=True)
    except HeadtailError:
        return {}, None
    return facts.get("run", {}), facts.get("data")


def check_same_data(folder: Path, data: DataSet) -> None:
    """Refuse a folder that holds a comparison on other data, or a single run, before anything is
    written.
    """
    if (folder / ABOUT).exists():
        raise HeadtailError(
            f"`{folder}` holds a single run. Choose another folder with ", Setting("out"), "."
        )
    tables = _read_json(folder / "data.json")
    begun = {
        path.parent: digest
        for path in sorted(folder.glob(f"cells/*/{ABOUT}"))
        if (digest := _about(path.parent).get("data")) is not None
    }
    digests = {folder: tables["digest"]} if "digest" in tables else begun
    if not digests or data.digest in digests.values():
        return
    before = {"path": tables.get("name", "other data")} | data_of(next(iter(digests)) / "run.toml")
    then, now = told_apart(before, {"path": data.name} | data.read_as)
    change = what_changed(before, data.read_as)
    if then != now:
        change = Sentence("now the data are ", now)
    raise HeadtailError(
        f"`{folder}` holds a comparison on ",
        then,
        ", but ",
        change,
        ". Choose another folder with ",
        Setting("out"),
        ", or delete it.",
    )


def _about(cell: Path) -> dict[str, Any]:
    """What a cell says about itself; nothing if that is damaged, because it is then run again."""
    try:
        return _read_json(cell / ABOUT)
    except HeadtailError:
        return {}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except OSError:
        return {}
