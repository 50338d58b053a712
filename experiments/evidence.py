"""What the runs of a study show: values by seed and resample, paired differences, tables of tries.

One resample of users or sessions per data set is shared by all seeds, schemes, slices and metrics.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rank_files import Frame, read_ranks
from stats.correlation import RankCorrelation, rank_correlation
from stats.curves import Curve
from stats.paired import Paired, paired
from stats.resample import Floats, Resample
from study_store import RETRAINED, Store, adjusted_name, adjusted_scheme, retrained_name

SLICES = ("head", "torso", "tail", "full")
VARIANT = re.compile(r"(logit-adjusted|:tail)\(|uniform:tail@")
"""Schemes with another τ than 1, and those of the sweep over m."""
LEAN = "tail − head"
"""In place of a slice: the metric on the rarest slice minus that on the head."""


class Values(NamedTuple):
    """A metric of a scheme: `[seeds]` on the test set, and `[seeds, r]` in its resamples."""

    by_seed: Floats
    resampled: Floats


def minus(left: Values, right: Values) -> Paired:
    """A difference paired by seed and by resample, for the seeds that both have."""
    seeds = min(len(left.by_seed), len(right.by_seed))
    by_seed = left.by_seed[:seeds] - right.by_seed[:seeds]
    resampled = left.resampled[:seeds] - right.resampled[:seeds]
    return paired(by_seed.tolist(), resampled.mean(axis=0))


class Evidence:
    """The finished runs of one data set.

    Args:
        folder: of the data set's results.
        resamples: of the test set.
    """

    def __init__(self, folder: Path, resamples: int = 1000) -> None:
        self.store = Store(folder)
        self.name = folder.name
        self.resamples = resamples
        self.values = lru_cache(maxsize=None)(self._values)

    @cached_property
    def frame(self) -> Frame:
        """The test pairs."""
        return self.store.frame()

    @cached_property
    def resample(self) -> Resample:
        """The one resample that everything shares."""
        return Resample.of(self.frame.group, self.resamples)

    @cached_property
    def chosen(self) -> dict[str, dict[str, Any]]:
        """Scheme: what its search chose, and its runs by seed; what was measured on the softmax's
        models too.
        """
        found = {about["scheme"]: about for about in self.store.searches()}
        softmax = found.get("softmax")
        if softmax is None:
            return found
        taus = self._adjusted(softmax["runs"][0])
        also: dict[str, Callable[[str], str]] = {RETRAINED: retrained_name}
        also |= {adjusted_scheme("softmax", tau): partial(adjusted_name, tau=tau) for tau in taus}
        for scheme, name_of in also.items():
            runs = [name_of(name) for name in softmax["runs"]]
            if all(map(self.store.find, runs)):
                found[scheme] = softmax | {"scheme": scheme, "runs": runs, "lean": None}
        return found

    def _adjusted(self, name: str) -> list[float]:
        paths = (self.store.folder / "runs").glob(f"{name}-post-hoc*.json")
        return sorted(float(path.stem.rpartition("-post-hoc")[2]) for path in paths)

    @property
    def rare(self) -> str:
        """The rarest slice that the test set has: tail, or torso where no label is that rare."""
        present = set(np.unique(self.frame.of_label[self.frame.label]).tolist())
        return SLICES[max(present)]

    def _values(self, scheme: str, metric: str, slice_: str) -> Values:
        if slice_ == LEAN:
            tail, head = (self.values(scheme, metric, name) for name in (self.rare, "head"))
            return Values(tail.by_seed - head.by_seed, tail.resampled - head.resampled)
        paths = (self.store.path(name, ".npz") for name in self.chosen[scheme]["runs"])
        ratios = [self.frame.ratio(read_ranks(path), metric, slice_) for path in paths]
        above, below = (np.stack(part) for part in zip(*ratios, strict=True))
        with np.errstate(invalid="ignore"):  # no label of the test set is in that slice: nan
            by_seed = above.sum(axis=1) / below.sum(axis=1)
        return Values(by_seed, self.resample.ratio(above, below))

    def mean(self, scheme: str, metric: str, slice_: str) -> float:
        """The mean over seeds."""
        return float(self.values(scheme, metric, slice_).by_seed.mean())

    def difference(self, scheme: str, other: str, metric: str, slice_: str) -> Paired:
        """A scheme minus another, paired by seed and by resample."""
        return minus(self.values(scheme, metric, slice_), self.values(other, metric, slice_))

    def curve(self, schemes: list[str], metric: str) -> Curve:
        """Head and tail along some schemes, for the seeds that all of them have."""
        seeds = min(len(self.chosen[name]["runs"]) for name in schemes)
        parts = []
        for slice_ in ("head", self.rare):
            each = [self.values(name, metric, slice_) for name in schemes]
            by_seed = np.stack([values.by_seed[:seeds] for values in each], axis=1)
            resampled = np.stack([values.resampled[:seeds] for values in each], axis=1)
            parts.append((by_seed, resampled))
        (head, heads), (tail, tails) = parts
        return Curve(head, tail, heads, tails)

    def shift(self, scheme: str, metric: str, base: str = "softmax") -> float:
        """A scheme's gain on the tail over the loss over all labels, minus its gain on the head."""
        return self.difference(scheme, base, metric, LEAN).difference

    def lean_and_shift(
        self, metric: str, base: str = "softmax", among: Collection[str] | None = None
    ) -> RankCorrelation:
        """Whether schemes shift in the order of their predicted lean.

        The base has neither and is left out; so are other strengths, and other numbers of
        negatives, of a scheme that is there.

        Args:
            metric: of the shifts.
            base: "softmax" or "contrastive", for the schemes with that loss.
            among: these schemes alone, by their names without the loss; None for all.
        """
        known = [
            name
            for name, about in self.chosen.items()
            if about.get("lean") is not None
            and name.startswith("contrastive") == (base == "contrastive")
            and name != base
            and not VARIANT.search(name)
            and (among is None or name.removeprefix("contrastive/") in among)
        ]
        # Leans that are equal on paper may differ in their last digits.
        leans = [round(self.chosen[name]["lean"], 9) for name in known]
        return rank_correlation(leans, [self.shift(name, metric, base) for name in known])

    def tries(self, metric: str, schemes: Collection[str] | None = None) -> list[dict[str, str]]:
        """Every run with seed 0 and held-out points, with its slices: is the rate a knob?

        Args:
            metric: of the slices.
            schemes: which ones; None for all that were trained.
        """
        lines = []
        for done in self.store.all():
            scheme = done.scheme
            about = self.chosen.get(scheme)
            wanted = "+" not in scheme if schemes is None else scheme in schemes
            if done.seed or not wanted or np.isnan(done.loss):
                continue
            tested = {
                row.slice: row.value
                for row in self.store.rows(done.name)
                if row.split == "test" and row.metric == metric
            }
            picked = about is not None and (done.lr, done.epochs) == (about["lr"], about["epochs"])
            settings = {"dataset": self.name, "scheme": scheme, "lr": f"{done.lr:g}"}
            settings |= {"epochs": str(done.epochs), "best_epoch": str(done.best_epoch)}
            settings |= {"last_epoch": str(done.last_epoch), "held_out_loss": f"{done.loss:.6f}"}
            settings |= {"chosen": "yes" if picked else "no", "metric": metric}
            slices = {s: f"{tested.get(s, np.nan):.6f}" for s in SLICES}
            lines.append(settings | slices)
        return sorted(
            lines, key=lambda line: (line["scheme"], int(line["epochs"]), float(line["lr"]))
        )

    def edges(self) -> str:
        """How many chosen values lie at an edge of what was tried, in a sentence."""
        searched = self.store.searches()
        rate, epochs = (
            sum(kind in about["edges"] for about in searched) for kind in ("rate", "epochs")
        )
        return (
            f"{self.name}: of {len(searched)} schemes, the chosen rate lies at an edge of those "
            f"tried for {rate}, and the chosen number of epochs for {epochs}."
        )
