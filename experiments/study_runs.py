"""The runs of the studies: searched, trained, measured and kept (`study_store.py`), by several
processes, each with a scheme at a time.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rank_files import DEEPEST, Frame, save_ranks
from retrained import retrain
from search import Plan, Try, chosen, edges, next_tries
from study_store import (
    RETRAINED,
    Done,
    Store,
    adjusted_name,
    adjusted_scheme,
    retrained_name,
    slug,
)

from headtail.comparison.compare import Execution, outcomes
from headtail.comparison.explained import explain_schemes
from headtail.comparison.grid import Cell, folder_name
from headtail.comparison.results import Row
from headtail.comparison.rows import rows_of
from headtail.core.slices import Slices
from headtail.data.points import DataSet
from headtail.data.slices import data_slices
from headtail.errors import HeadtailError
from headtail.evaluation.measures import measures_of
from headtail.evaluation.topk import top_labels_by_tau
from headtail.files.atomic import write_text
from headtail.files.records import to_csv
from headtail.schemes import parse
from headtail.training import held_out
from headtail.training.config import Run, SettledRun, Training
from headtail.training.recipes import with_defaults
from headtail.training.trainer import Trained, Trainer

HELD_OUT = 10_000
"""Points that are held out, at most: with 2,000, rates were decided by 5.318 against 5.330."""
KEPT = re.compile(r"recall@|precision@|psp@|ndcg@10|balanced-error|coverage@|macro-recall@")
"""Metrics that are kept as rows; ranks give any other."""


@dataclass(frozen=True)
class Protocol:
    """How one data set is studied.

    Attributes:
        name: of the data set, and of its folder of results.
        training: how every run is trained; the search sets `lr` and `epochs`.
        plan: of the search, with seed 0.
        seeds: runs at the chosen rate.
        metric: what head and tail are judged by.
        final: how many times longer the runs are whose test numbers count; above 1 they are other
            runs than those of the search, hold nothing out, and keep checkpoints.
        seconds: per epoch of a run, a guess until runs are there.
        exact_seconds: of losses over all labels, where that differs much.
        generated: what to generate, as `load` takes it; "" where files are read.
        items: of the part of the data set that is taken (`parts.py`); 0 for all of it.
    """

    name: str
    training: Training
    plan: Plan
    seeds: int = 5
    metric: str = "recall@10"
    final: int = 1
    seconds: float = 1.0
    exact_seconds: float | None = None
    generated: str = ""
    items: int = 0

    def run(self, scheme: str, tried: Try, seed: int = 0) -> Run:
        """A run of the search."""
        rate, epochs = tried
        return Run.of(replace(self.training, lr=rate, epochs=epochs), scheme, seed)

    def final_run(self, scheme: str, choice: Try, seed: int) -> Run:
        """A run whose test numbers count."""
        run = self.run(scheme, choice, seed)
        if self.final == 1:
            return run
        return replace(run, epochs=self.final * choice[1], validation=0.0)


@dataclass(frozen=True)
class Also:
    """What is measured on a softmax model beside its own answers.

    Attributes:
        taus: of post-hoc adjustments.
        retrained: whether its classifier is trained again.
    """

    taus: tuple[float, ...] = ()
    retrained: bool = False

    def names(self, name: str) -> dict[str, str]:
        """Names of files of a run with that name, and their schemes."""
        found = {adjusted_name(name, tau): adjusted_scheme("softmax", tau) for tau in self.taus}
        return found | ({retrained_name(name): RETRAINED} if self.retrained else {})


@dataclass(frozen=True)
class SchemeWork:
    """All runs of one scheme, as work for a process: the search, then the other seeds.

    Attributes:
        device: "cpu" or "cuda".
        protocol: of the data set.
        folder: of its results.
        taus: post-hoc adjustments that are measured on every softmax model.
        seeds: at most so many.
    """

    device: str
    protocol: Protocol
    folder: Path
    taus: tuple[float, ...] = ()
    seeds: int | None = None

    def __call__(self, cell: Cell, data: DataSet, callback: Any, stop: Any) -> str:
        """Do the scheme's runs; returns a sentence about them."""
        warnings.simplefilter("ignore")  # within-batch never draws labels without examples
        torch.set_float32_matmul_precision("high")
        held_out.MOST_VALIDATION = HELD_OUT
        name = cell.run.scheme
        plan = self.protocol.plan
        done: dict[Try, Done] = {}
        tried: dict[Try, float] = {}
        while tries := next_tries(plan, tried):
            for one in tries:
                done[one] = self._perform(self.protocol.run(name, one), data, stop)
                tried[one] = done[one].loss
        choice = chosen(plan, tried)
        if choice is None:
            raise HeadtailError(f"Every learning rate that was tried for `{name}` diverged.")
        seeds = range(min(self.protocol.seeds, self.seeds or self.protocol.seeds))
        runs = [self.protocol.final_run(name, choice, seed) for seed in seeds]
        names = [self._perform(run, data, stop).name for run in runs]
        about = {"scheme": name, "lr": choice[0], "epochs": choice[1], "seeds": len(names)}
        about |= {"edges": edges(plan, tried), "tries": len(tried), "runs": names}
        about |= explained(with_defaults(runs[0], data), data)
        store = Store(self.folder)
        for one in done.values():
            if one.name not in names:
                store.drop_ranks(one.name)  # its rows stay, and nothing resamples its points
        write_text(store.search_path(name), json.dumps(about))
        return f"lr {choice[0]:g}, {choice[1]} epochs of {len(tried)} tries"

    def _perform(self, run: Run, data: DataSet, stop: Any) -> Done:
        # Runs of minutes keep checkpoints; those of seconds would wait for the disk.
        keeps = self.protocol.final > 1
        also = self.also(run.scheme, searching=run.validation > 0)
        return perform_run(run, data, self.folder, self.device, stop, also=also, keeps=keeps)

    def also(self, scheme: str, *, searching: bool = False) -> Also:
        """What is measured on a scheme's models beside their own answers."""
        if scheme != "softmax":
            return Also()
        return Also(self.taus, self.protocol.final > 1 and not searching)


def explained(run: SettledRun, data: DataSet) -> dict[str, Any]:
    """What is predicted of a scheme without training: its lean, in nats."""
    [about] = explain_schemes([run], data).values()
    return {"lean": about.get("lean"), "m": about.get("m")}


def perform_run(
    run: Run,
    data: DataSet,
    folder: Path,
    device: str,
    stop: Any = None,
    *,
    also: Also = Also(),  # noqa: B008 - frozen
    keeps: bool = False,
) -> Done:
    """Train and measure one run, unless it is finished.

    Args:
        run: its settings.
        data: the data set.
        folder: of the data set's results.
        device: "cpu" or "cuda".
        stop: an event that asks the run to stop.
        also: what to measure beside the model's own answers.
        keeps: whether a run that is stopped goes on from a checkpoint.
    """
    store = Store(folder)
    settled = with_defaults(run, data)
    name = folder_name(settled, data)
    done = store.find(name)
    if done is not None and all(map(store.find, also.names(name))):
        return done
    begun = time.monotonic()
    about = {"name": name, "scheme": run.scheme, "seed": run.seed}
    about |= {"lr": settled.lr, "epochs": settled.epochs}
    working = folder / "working" / name if keeps else None
    try:
        trained = Trainer(settled, data, working, device=device, stop=stop).fit()
    except HeadtailError as error:
        if "diverged" not in str(error):
            raise
        nothing = {"best_epoch": 0, "last_epoch": 0, "loss": math.inf}
        return store.finish(Done(**about, **nothing, seconds=time.monotonic() - begun))
    _measure(store, settled, data, trained, also)
    state = trained.state
    about |= {"best_epoch": state.best_epoch, "last_epoch": state.epoch}
    loss = state.best if settled.validation else math.nan
    finished = Done(**about, loss=loss, seconds=time.monotonic() - begun)
    for here, scheme in also.names(name).items():
        store.finish(replace(finished, name=here, scheme=scheme, seconds=0.0))
    if working is not None:
        shutil.rmtree(working, ignore_errors=True)
    return store.finish(finished)


def _measure(store: Store, run: SettledRun, data: DataSet, trained: Trained, also: Also) -> None:
    """Keep rows and ranks of a model, and of what is measured on it as well."""
    slices = data_slices(data)
    frame = frame_of(store.folder, data, slices)
    name = folder_name(run, data)
    k = min(DEEPEST, data.test.num_labels)
    tops = top_labels_by_tau(trained.model, data.test, k, (None, *also.taus))
    if also.retrained:
        retrain(trained.model, data.train, run.weight_decay)
        tops += top_labels_by_tau(trained.model, data.test, k, (None,))
    schemes = {name: run.scheme} | also.names(name)
    for (here, scheme), top in zip(schemes.items(), tops, strict=True):
        measures = measures_of(top, data, slices, resamples=0)
        kept = [measure for measure in measures if KEPT.match(measure.metric)]
        rows = rows_of(run, data, trained, kept, name)
        if here != name:
            changed = {"run": here, "scheme": scheme}
            rows = [replace(row, **changed) for row in rows if row.split == "test"]
        save_ranks(store.path(here, ".npz"), frame.ranks_of(top))
        write_text(store.path(here, ".csv"), to_csv(rows, Row))


def frame_of(folder: Path, data: DataSet, slices: Slices) -> Frame:
    """The frame of a data set, kept in its folder."""
    path = folder / "frame.npz"
    frame = Frame.of(data, slices)
    if not path.exists():
        frame.save(path)
    return frame


def check_uncut(data: DataSet, share: float) -> str:
    """Refuse a validation part that shares a session with training; says how it was made."""
    split = held_out.split_validation(data, share)
    if split.held_out is None:
        return "nothing is held out"
    number = f"{len(split.held_out):,} points are held out"
    if data.validation is not None:
        return f"{number}: the item of each user before the last one, later than what is trained on"
    if split.among is None:
        return f"{number}: one label of each of so many users, who are tested on others"
    rows = data.train.rows
    if rows is None or len(rows.unique()) == len(rows):
        return f"{number}: whole points"
    inside = torch.zeros(int(rows.max()) + 1, dtype=torch.bool)
    inside[rows[split.among]] = True
    assert split.held_out.rows is not None
    if bool(inside[split.held_out.rows].any()):
        raise HeadtailError("A session is in training and validation. Split by session.")
    return f"{number}: whole sessions, which are not trained on"


def perform(
    work: SchemeWork,
    data: DataSet,
    schemes: Sequence[str],
    *,
    workers: int,
    say: Callable[[str], None] = print,
) -> int:
    """Run what is missing of these schemes, several side by side; returns how many failed."""
    folder = work.folder
    seeds = min(work.protocol.seeds, work.seeds or work.protocol.seeds)
    missing = [name for name in dict.fromkeys(schemes) if not _finished(work, data, name, seeds)]
    if not missing:
        return 0
    held_out.MOST_VALIDATION = HELD_OUT
    say(f"{work.protocol.name}: {check_uncut(data, work.protocol.training.validation)}")
    frame_of(folder, data, data_slices(data))
    first = (work.protocol.plan.rates[0], work.protocol.plan.epochs)
    cells = [
        Cell(with_defaults(work.protocol.run(name, first), data), folder / "none" / slug(name))
        for name in missing
    ]
    failed = 0
    execution = Execution(workers=workers, note=say)
    with closing(outcomes(cells, data, work, execution)) as results:
        for number, (cell, sentence, error) in enumerate(results, 1):
            failed += error is not None
            ending = sentence if error is None else f"failed: {error}"
            say(f"[{number}/{len(missing)}] {work.protocol.name} {cell.run.scheme}: {ending}")
    return failed


def _finished(work: SchemeWork, data: DataSet, scheme: str, seeds: int) -> bool:
    """Whether all runs of the search and all seeds are there, and what is measured on their models.

    Runs by an earlier protocol have other names and do not count.
    """
    store = Store(work.folder)
    if not store.search_path(scheme).exists():
        return False
    protocol = work.protocol
    tried: dict[Try, float] = {}
    while tries := next_tries(protocol.plan, tried):
        for one in tries:
            done = store.find(_name(protocol.run(scheme, one), data))
            if done is None:
                return False
            tried[one] = done.loss
    choice = chosen(protocol.plan, tried)
    if choice is None:
        return False
    names = [_name(protocol.final_run(scheme, choice, seed), data) for seed in range(seeds)]
    further = [here for name in names for here in work.also(scheme).names(name)]
    return all(map(store.find, [*names, *further]))


def _name(run: Run, data: DataSet) -> str:
    return folder_name(with_defaults(run, data), data)


def cost(
    protocol: Protocol, folder: Path, schemes: Sequence[str], seeds: int, workers: int
) -> tuple[int, float, bool]:
    """How many runs are missing, about how many minutes they take, and whether that is measured.

    A search takes the first rates and three of the next length, at least; more where the best lies
    at an edge.
    """
    store = Store(folder)
    finished = {about["scheme"] for about in store.searches() if about["seeds"] >= seeds}
    left = [name for name in dict.fromkeys(schemes) if name not in finished]
    plan = protocol.plan
    search = len(plan.rates) * plan.epochs
    number = len(plan.rates)
    if 2 * plan.epochs <= plan.longest:
        search += 3 * 2 * plan.epochs
        number += 3
    final = seeds if protocol.final > 1 else seeds - 1
    epochs = search + final * protocol.final * plan.epochs
    every = [done for done in store.all() if done.seconds > 0 and done.last_epoch]
    seconds = 0.0
    measured = bool(left)
    for exact in (False, True):
        number_of = sum(over_all_labels(name) == exact for name in left)
        taken = [done for done in every if over_all_labels(done.scheme) == exact]
        per_epoch = (protocol.exact_seconds if exact else None) or protocol.seconds
        if taken:
            per_epoch = sum(done.seconds for done in taken) / sum(done.last_epoch for done in taken)
            per_epoch /= workers  # they were taken with so many beside them
        measured = measured and (bool(taken) or number_of == 0)
        seconds += number_of * epochs * per_epoch
    return len(left) * (number + final), seconds / 60, measured


def over_all_labels(scheme: str) -> bool:
    """Whether the loss of a scheme is over all labels."""
    return parse(scheme.partition("+")[0]).sampler is None
