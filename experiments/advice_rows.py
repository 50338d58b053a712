"""Gaps of sampled schemes to their targets, from the rows of all studies that have both."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from study_protocols import BAGS, PARTS
from study_tables import read_table

from headtail.comparison.results import read_rows
from headtail.errors import HeadtailError
from headtail.schemes import parse

RESULTS = Path(__file__).parent / "results"
SLICES = ("head", "torso", "tail", "full")
WEIGHTINGS = {"importance": "softmax", "tail": "logit-adjusted"}
NAMES = {
    "synthetic:amazoncat-13k,scale=0.1": "amazoncat",
    "synthetic:wikilshtc-325k,scale=0.1": "wikilshtc",
    "delicious-learn": "delicious",
    "diginetica-learn": "diginetica",
}
"""Names in other studies: names of sets here."""
SECOND = "evidence.csv"
"""The second edition of the retrieval study. Where it has a whole data set, all other rows of that
and of its parts are left out: their rates were not searched, and batches were not the same.
"""
SIZED = re.compile(r"-(part|\d+)$")
"""How names of parts, and of smaller models, end."""


@dataclass(frozen=True)
class Gap:
    """A sampled scheme against its target, in points of Recall@10, means over seeds.

    Attributes:
        set: the data set, or its part.
        source: the data set.
        target: "softmax" or "logit-adjusted".
        sampler: its name.
        m: number of negatives.
        exact: Recall@10 of the target, by slice.
        sampled: that of the scheme.
        study: the file that the rows are in.
    """

    set: str
    source: str
    target: str
    sampler: str
    m: int
    exact: dict[str, float]
    sampled: dict[str, float]
    study: str

    def gap(self, name: str) -> float:
        """Scheme minus target, in a slice."""
        return self.sampled[name] - self.exact[name]

    @property
    def worst(self) -> float:
        """The largest gap of head, torso and tail, without its sign."""
        return max(abs(self.gap(name)) for name in SLICES[:3])


Key = tuple[str, str, str, int]
"""Set, target, sampler ("" for the target itself), m."""


def gaps(results: Path = RESULTS) -> list[Gap]:
    """All of them."""
    found = []
    for study, rows in (
        (SECOND, _second(results)),
        ("advice.csv", _own(results)),
        ("retrieval.csv, samplers.csv", _studies(results)),
        ("defaults", _defaults(results)),
    ):
        recalls = dict(rows)
        for (name, target, sampler, m), sampled in recalls.items():
            exact = recalls.get((name, target, "", 0))
            if sampler and exact is not None:
                source = SIZED.sub("", name)
                found.append(Gap(name, source, target, sampler, m, exact, sampled, study))
    again = {one.set for one in found if one.study == SECOND} & {one.source for one in found}
    found = [one for one in found if one.study == SECOND or one.source not in again]
    known = {(one.set, one.target, one.sampler, one.m) for one in found if one.study != "defaults"}
    return [
        one
        for one in found
        if one.study != "defaults" or (one.set, one.target, one.sampler, one.m) not in known
    ]


def _second(results: Path) -> Iterator[tuple[Key, dict[str, float]]]:
    """Searched rates and epochs, five seeds, and the same batches for every loss."""
    protocols = {protocol.name: protocol for protocol in (*BAGS, *PARTS)}
    values: dict[Key, dict[str, float]] = defaultdict(dict)
    for line in read_table(results / SECOND):
        protocol = protocols.get(line["dataset"])
        if protocol is None or line["metric"] != "recall@10":
            continue
        name = line["dataset"]
        if protocol.items:
            name = f"{name.removesuffix('-part')}-{protocol.items}"
        m = line["scheme"].partition("@")[2] or protocol.training.negatives
        key = _key(name, line["scheme"], int(m or 0))
        if key is not None:
            values[key][line["slice"]] = 100 * float(line["value"])
    yield from ((key, of) for key, of in values.items() if set(of) == set(SLICES))


def _own(results: Path) -> Iterator[tuple[Key, dict[str, float]]]:
    for line in read_table(results / "advice.csv"):
        key = (line["set"], line["target"], line["sampler"], int(line["m"]))
        yield key, {name: 100 * float(line[f"test_{name}"]) for name in SLICES}


def _studies(results: Path) -> Iterator[tuple[Key, dict[str, float]]]:
    values: dict[Key, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for file in ("retrieval.csv", "samplers.csv"):
        for row in read_rows(results / file):
            name = NAMES.get(row.dataset, row.dataset)
            if (row.split, row.metric, row.loss) != ("test", "recall@10", "softmax"):
                continue
            if "-fast" in name or "generated" in name:  # other lengths; not converged
                continue
            key = _key(name, row.scheme, 0 if row.m is None else int(row.m))
            if key is not None:
                values[key][row.slice].append(100 * row.value)
    for key, by_slice in values.items():
        yield key, {name: fmean(by_slice[name]) for name in SLICES}


def _key(name: str, scheme: str, m: int) -> Key | None:
    """None for a scheme that approximates neither target."""
    bare = scheme.partition("@")[0]
    if bare in WEIGHTINGS.values():
        return name, bare, "", 0
    sampler, _, weighting = bare.rpartition(":")
    if weighting not in WEIGHTINGS or "/" in bare:
        return None
    return name, WEIGHTINGS[weighting], sampler, m


def _defaults(results: Path) -> Iterator[tuple[Key, dict[str, float]]]:
    """Of each scheme the run with the highest Recall@10 on held-out points, with batches of 1,024
    (Delicious 256).
    """
    best: dict[Key, dict[str, str]] = {}
    for path in sorted((results / "defaults").glob("*.csv")):
        for line in read_table(path):
            name = NAMES.get(line["dataset"], line["dataset"])
            if line["batch"] != ("256" if name == "delicious" else "1024"):
                continue
            if not line.get("validation_full"):
                continue
            exact = parse(line["scheme"]).sampler is None
            key = _key(name, line["scheme"], 0 if exact else int(line["negatives"]))
            if key is None:
                raise HeadtailError(f"`{line['scheme']}` has no target.")
            have = best.get(key)
            if have is None or float(line["validation_full"]) > float(have["validation_full"]):
                best[key] = line
    for key, line in best.items():
        yield key, {name: 100 * float(line[f"test_{name}"]) for name in SLICES}
