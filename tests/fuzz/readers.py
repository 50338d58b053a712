"""Targets: every reader, behind `headtail.load` and `headtail stats`; and the cache between two
loads.
"""

from __future__ import annotations

import hashlib
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

import headtail
from headtail.cli import main
from headtail.data.points import DataSet, Points
from headtail.files.checksums import DamagedWarning
from tests.fuzz.damage import damage_content, damage_files, files_in
from tests.fuzz.engine import Case, output
from tests.fuzz.seeds import FORMATS, Seed
from tests.fuzz.verdicts import LONGEST, Wrong, of_output, of_sentence

CACHED = ("xc", "fasttext", "delimited", "interactions", "npz", "triples", "cifar")
"""Formats whose cache entries are damaged."""


def write_seeds(folder: Path) -> None:
    """Write all valid data, each variant into a folder of its own."""
    for name, seeds in FORMATS.items():
        for i, seed in enumerate(seeds):
            place = folder / name / str(i)
            place.mkdir(parents=True)
            seed.write(place)


@dataclass(frozen=True)
class ReadDamaged:
    """Damaged data of one format are loaded and used, or shown by `headtail stats`."""

    seeds: Path
    name: str

    def __call__(self, folder: Path, case: Case) -> bool:
        rng = case.random()
        place, seed = _copy_of(self.seeds, self.name, rng, folder)
        data = damage_files(place, rng, seed.data)
        if rng.random() < 0.25 and not seed.options:
            return run_command(["stats", str(place / data)], folder).accepted
        use(headtail.load(place / data, **_options(seed, place)))
        return True


@dataclass(frozen=True)
class ReadDamagedCache:
    """The cache is damaged between two loads, which must give equal data, or refuse."""

    seeds: Path

    def __call__(self, folder: Path, case: Case) -> bool:
        rng = case.random()
        place, seed = _copy_of(self.seeds, rng.choice(CACHED), rng, folder)
        options = _options(seed, place)
        wanted = digest_of(headtail.load(place / seed.data, **options))
        damaged = rng.choice(files_in(folder / ".cache"))
        damage_content(damaged, rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DamagedWarning)  # it says that the entry is made again
            data = headtail.load(place / seed.data, **options)
        use(data)
        if digest_of(data) != wanted:
            name = damaged.name if damaged.parent.name != "digests" else "a digest"
            raise Wrong("silent change", f"cache: {name} is damaged, and other data are loaded")
        return True


def _copy_of(seeds: Path, name: str, rng: Any, folder: Path) -> tuple[Path, Seed]:
    number = rng.randrange(len(FORMATS[name]))
    place = shutil.copytree(seeds / name / str(number), folder / "data")
    return place, FORMATS[name][number]


def _options(seed: Seed, place: Path) -> dict[str, Any]:
    paths = {"item_features"}
    return {k: place / value if k in paths else value for k, value in seed.options.items()}


def use(data: DataSet) -> None:
    """Look at a few points of each part, at all labels, and at what is shown."""
    str(data)
    for name, points in data.parts.items():
        labels = points.labels
        sizes = labels.offsets.diff()
        inside = not len(labels.values) or (
            int(labels.values.min()) >= 0 and int(labels.values.max()) < points.num_labels
        )
        if not inside or int(labels.offsets[-1]) != len(labels.values) or bool((sizes < 0).any()):
            raise Wrong("invalid data", f"labels of the {name} part are outside their range")
        few = points.select(torch.arange(min(3, len(points))))
        if few.image_size is not None and not isinstance(few.features, torch.Tensor) and len(few):
            few.features.decoded(torch.tensor([0]), train=False, seed=0)


def digest_of(data: DataSet) -> str:
    """A digest of everything that a model would see."""
    digest = hashlib.blake2b(repr((data.label_names, data.relations)).encode())
    for name, points in data.parts.items():
        digest.update(f"{name} {points.num_labels} {points.num_features}".encode())
        for tensor in _tensors(points):
            digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _tensors(points: Points) -> list[torch.Tensor]:
    features = points.features if isinstance(points.features, torch.Tensor) else None
    held = [features] if features is not None else list(vars(points.features).values())
    for ragged in (points.labels, points.seen, points.known):
        held += [] if ragged is None else [ragged.values, ragged.offsets]
    return [tensor for tensor in held if isinstance(tensor, torch.Tensor)]


class Ran(NamedTuple):
    """A command that has run: whether it succeeded, and what it printed."""

    accepted: bool
    printed: str


def run_command(arguments: list[str], folder: Path, longest: int = LONGEST) -> Ran:
    """Run a command of headtail. What it prints must be plain, and an error one sentence of at most
    `longest` characters, which may repeat what was typed.
    """
    door = f"headtail {arguments[0]}"
    try:
        code = main(arguments)
    except SystemExit as leaving:
        code = leaving.code
    printed, said = output()
    if verdict := of_output(printed, door) or of_output(said, door):
        raise Wrong(verdict.kind, verdict.key, verdict.detail)
    if code in (0, None, 1):
        return Ran(code != 1, printed)
    last = said.strip().split("\n")[-1]
    if not last.startswith("headtail: "):
        raise Wrong("not a sentence", f"{door} leaves with {code}", said[-400:])
    verdict = of_sentence(last, folder, door, longest)
    if verdict.is_finding:
        raise Wrong(verdict.kind, verdict.key, verdict.detail)
    return Ran(False, printed)
