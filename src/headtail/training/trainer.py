"""Training: one loop that can be stopped after any step and resumed without a trace."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headtail.collectives.accord import Accord
from headtail.collectives.ranks import Ranks
from headtail.core.labels import Labels
from headtail.core.sharded_labels import ShardedLabels
from headtail.data.bag import Bag
from headtail.data.batches import Batches
from headtail.data.histories import Histories
from headtail.data.known import kind_of_features, users_of_training
from headtail.data.points import DataSet, Points
from headtail.data.sequence_batches import SequenceBatches
from headtail.device.determinism import determinism
from headtail.device.memory import explained_out_of_memory
from headtail.device.parts import all_finite
from headtail.distributed.own_margin import lean_of_ranks
from headtail.distributed.shared_folder import check_shared
from headtail.distributed.validation import ShardedValidation
from headtail.encoders import Model, ResNet, SequenceEncoder
from headtail.errors import HeadtailError, Setting
from headtail.evaluation.validation import Validation
from headtail.files.locks import held
from headtail.kernels import dispatch
from headtail.losses import ExactLoss
from headtail.training import checkpoint
from headtail.training.build_model import (
    TablePlacement,
    build_model,
    build_optimiser,
    check_encoder,
    shares_parameters,
    with_second_tower,
)
from headtail.training.callbacks import Callback, Callbacks, Progress
from headtail.training.check_sharded import check_sharded, spreads_counts
from headtail.training.choose_step import choose_step
from headtail.training.config import Run
from headtail.training.engine import Engine
from headtail.training.held_out import (
    split_validation,
    training_labels,
    training_labels_of_ranks,
)
from headtail.training.interrupts import Stopped, interrupts
from headtail.training.pace import Pace
from headtail.training.recipes import with_defaults
from headtail.training.run_files import RunFiles
from headtail.training.saved_model import About, settings_of
from headtail.training.sharded_files import ShardedRunFiles
from headtail.training.state import State
from headtail.training.step import Learner

RECENT = 5.0
"""Seconds of work that may be lost: a checkpoint this recent is not written again after an epoch,
which may take less time than writing one.
"""
DIVERGED = 20.0
"""A loss this many times that of the first steps will not recover."""


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model, its state, and the labels it was trained for."""

    model: Model
    labels: Labels | ShardedLabels
    state: State
    steps_per_epoch: int

    def lean(self) -> float | None:
        """How far the loss leans, found by ranks that share the labels, which must all call it;
        None where the head itself knows.
        """
        return None if self.model.ranks is None else lean_of_ranks(self.model.head)  # pyright: ignore[reportArgumentType]


class Trainer:
    """Trains one run on one data set, in one folder.

    Args:
        run: the settings; those that are left open follow from the kind of data.
        data: what to learn.
        folder: where checkpoints go; a checkpoint in it is resumed. None keeps nothing.
        device: "cpu" or "cuda".
        encoder: any module from features (a `Bag`, a dense matrix or images) to `[n, run.dim]`
            hidden states, or a `SequenceEncoder`; None for the one that `run.encoder` names.
        engine: how often to check and save, and what to keep where.
        callbacks: what follows the run, for example `TensorBoard(folder)`.
        stop: an event that asks the run to save and stop; without one, Ctrl-C does.

    Attributes:
        learner: model, optimiser and batches.
        step: the way to take training steps that was chosen.
        state: how far the run has come.
    """

    def __init__(
        self,
        run: Run,
        data: DataSet,
        folder: str | Path | None = None,
        *,
        device: str = "cpu",
        encoder: nn.Module | None = None,
        engine: Engine | None = None,
        callbacks: Callback | Iterable[Callback] = (),
        stop: threading.Event | None = None,
    ) -> None:
        run.check_together()
        data.check()
        run = with_defaults(run, data)
        self.run = run
        self.engine = Engine() if engine is None else engine
        ranks = Ranks.of() if self.engine.sharded else None
        self.accord = Accord(ranks)
        self._pace = Pace(self.accord)
        # What follows the run does so on one rank.
        self.callbacks = Callbacks(callbacks if self.accord.is_first else ())
        self.stop = stop
        self.folder = None if folder is None else Path(folder)
        self.device = torch.device(device)
        train, among, held_out = split_validation(data, run.validation)
        if ranks is not None and spreads_counts(run.scheme):
            self.labels = training_labels_of_ranks(train, among, run.smoothing, ranks)
        else:
            self.labels = training_labels(train, among, run.smoothing, data.label_names)
        torch.manual_seed(run.seed)
        check_encoder(run, train, encoder)
        if ranks is not None:
            check_sharded(run, data)
        self.model = self._build_model(train, encoder, data.items)
        if ranks is None:
            self.model.head.capture(False)  # whole steps are captured instead
        self.optimiser = build_optimiser(run, self.model)
        if not run.clip:
            # A table that two modules share gets two gradients, which must be summed first; so do
            # the copies of all ranks.
            once = ranks is None and not shares_parameters(self.model)
            self.optimiser.inside_backward(at_once=once)
        self.batches = self._batches(train, among)
        # Pairs, also where batches hold whole points.
        size = min(run.batch, int(self.labels.total))
        self.validation = None
        if held_out is not None:
            validation = Validation(held_out, self.labels, run.stop_on, size)
            self.validation = validation if ranks is None else ShardedValidation(validation)
        self.state = State()
        self.files = self._files(train, data)
        self._rate = None
        self._saved = time.monotonic()
        one = torch.ones((), device=self.device)
        self.learner = Learner(run, self.model, self.optimiser, self.batches, self.device, one)
        with determinism(run.deterministic, self.device), explained_out_of_memory("A step"):
            self.step = choose_step(self.learner, self.engine)
        # Random numbers that are drawn elsewhere before `fit` change nothing.
        self._random = checkpoint.random_state(self.device)

    def fit(self, *, hold: bool = True) -> Trained:
        """Train to the end, or continue from the last checkpoint; the returned model has its best
        weights.

        Args:
            hold: keep other processes from training in the same folder meanwhile; False where the
                caller does.
        """
        if self.folder is not None and self.accord.ranks is not None:
            check_shared(self.accord.ranks, self.folder)
        if not hold or self.folder is None or not self.accord.is_first:
            return self._fit()
        with held(self.folder):
            return self._fit()

    def _fit(self) -> Trained:
        checkpoint.restore_random_state(self._random)
        steps = self.batches.steps
        state = self.files.load_checkpoint(self.model, self.optimiser, steps)
        self.state = state or self.state
        determined = determinism(self.run.deterministic, self.device)
        # torchrun passes signals on, so that ranks receive them twice.
        alone = self.accord.ranks is None
        listening = interrupts(twice=alone) if self.stop is None else nullcontext(self.stop)
        ended = False
        try:
            with determined, explained_out_of_memory("A step"), listening as interrupted:
                while not self.state.finished:
                    self._train_epoch(interrupted)
                self.files.finish()
            if self.validation is not None and self.state.best_epoch:
                self.files.restore_best(self.model)
            self.optimiser.flush()
            self.model.eval()
            ended = True
        finally:  # what fails after the last step fails too
            self.callbacks.on_end(replace(self.progress, finished=ended))
        return Trained(self.model, self.labels, self.state, self.batches.steps)

    @property
    def progress(self) -> Progress:
        """How far the run has come, as callbacks see it."""
        state = self.state
        return Progress(
            step=state.epoch * self.batches.steps + state.step,
            epoch=state.epoch,
            steps_per_epoch=self.batches.steps,
            epochs=self.run.epochs,
            best_epoch=state.best_epoch,
            finished=state.finished,
        )

    def _build_model(self, train: Points, encoder: nn.Module | None, items: Bag | None) -> Model:
        run = self.run
        # Clipping sums rows first, and a GPU's host would wait for that. Where an optimiser leaves
        # rows without a gradient alone, dense gradients give the same.
        clips_densely = run.clip > 0 and run.optimiser != "adam" and self.device.type != "cpu"
        tables = 4 * run.dim * (train.num_features + self.labels.num_labels) / 2**30
        engine = self.engine
        ranks = self.accord.ranks
        placement = TablePlacement(self.device, engine.large_table, engine.narrow_on, ranks)
        with explained_out_of_memory(f"The model's tables ({tables:.1f} GiB)"):
            model = build_model(
                run,
                self.labels,
                train.num_features,
                image_size=train.image_size,
                encoder=encoder,
                sparse_features=isinstance(train.features, Bag | Histories),
                sparse=dispatch.updates_rows(self.device) and not clips_densely,
                placement=placement,
            )
            model = with_second_tower(model, items).to(self.device)
        if isinstance(model.encoder, ResNet):
            model.encoder.prepare.measure_channels(train)
            # Image files are augmented where they are decoded.
            model.encoder.prepare.augment &= isinstance(train.features, Tensor)
        return model

    def _batches(self, train: Points, among: Tensor | None) -> Batches | SequenceBatches:
        run = self.run
        encoder = self.model.encoder
        ranks = self.accord.ranks
        part = (0, 1) if ranks is None else (ranks.rank, ranks.size)
        how: dict[str, Any] = {"among": among, "part": part}
        if isinstance(encoder, SequenceEncoder):
            return SequenceBatches(train, run.batch, run.seed, length=encoder.length, **how)
        how["whole_points"] = self._takes_whole_points(train)
        return Batches(train, run.batch, run.seed, **how)

    def _files(self, train: Points, data: DataSet) -> RunFiles | ShardedRunFiles:
        facts = {
            "run": settings_of(self.run),
            "data": data.digest,
            "sparse_features": isinstance(train.features, Bag | Histories),
            "num_features": train.num_features,
            "picture": train.image_size,
            "features": kind_of_features(data.train),
            "relations": data.relations,
            "feature_names": data.feature_names,
        }
        users = users_of_training(data.train)
        about = About(facts, data.label_names, self.labels.smoothing, data.text, users)
        kept = RunFiles if self.accord.ranks is None else ShardedRunFiles
        return kept(self.folder, about)

    def _takes_whole_points(self, train: Points) -> bool:
        if self.run.batching != "auto":
            return self.run.batching == "points"
        # An all-label loss is then computed once per point; an image has only one label.
        return isinstance(self.model.head.loss, ExactLoss) and train.image_size is None

    def _train_epoch(self, interrupted: threading.Event) -> None:
        state = self.state
        steps = self.batches.steps
        self.model.train()
        # Summed step by step from the value of the last checkpoint, so that an interruption does
        # not change even the last digit.
        total = torch.tensor(state.loss_sum, dtype=torch.float64, device=self.device)
        checked = state.step
        checked_at = time.monotonic()
        for batch in self.step.order(state.epoch, state.step):
            self._set_learning_rate(state.epoch * steps + state.step)
            total += self.step(batch)
            state.step += 1
            slow = time.monotonic() - checked_at > self.engine.check_seconds
            old = time.monotonic() - self._saved > self.engine.save_every
            due = state.step % self.engine.check_every == 0 or state.step == steps
            stop, slow, old = self._pace.any(interrupted.is_set(), slow, old, now=due)
            if not (stop or slow or due or state.first_loss is None):
                continue
            self._check_loss(float(total), state.step - checked)
            checked = state.step
            checked_at = time.monotonic()
            if stop:
                self._save()
                self.files.finish()
                raise Stopped
            if old:
                self._save()
        self._end_epoch()

    def _end_epoch(self) -> None:
        state = self.state
        steps = self.batches.steps
        loss = state.loss_sum / steps
        state.curve.append((state.epoch + 1, "loss", loss))
        state.epoch += 1
        state.step = 0
        state.loss_sum = 0.0
        metrics = {"train/loss": loss, **self._validate()}
        state.finished |= state.epoch >= self.run.epochs
        self.callbacks.on_epoch(self.progress, metrics)
        # The best weights are on disk already, and the checkpoint must not be older.
        improved = self.validation is not None and state.best_epoch == state.epoch
        [old] = self.accord.any(
            time.monotonic() - self._saved > min(RECENT, self.engine.save_every)
        )
        if state.finished or improved or old:
            self._save()

    def _set_learning_rate(self, step: int) -> None:
        rate = self.run.learning_rate(step, self.run.epochs * self.batches.steps)
        if rate == self._rate:
            return  # on a GPU, setting it is a launch
        self._rate = rate
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _check_loss(self, total: float, steps: int) -> None:
        """Record the loss of the latest steps, and stop a run that has diverged."""
        state = self.state
        loss = (total - state.loss_sum) / steps
        state.first_loss = loss if state.first_loss is None else state.first_loss
        if not math.isfinite(loss) or loss > DIVERGED * max(state.first_loss, 1.0):
            raise self._diverged(f"the loss is {loss:.4g}")
        state.loss_sum = total
        self.callbacks.on_step(self.progress, loss)

    def _diverged(self, what: str) -> HeadtailError:
        state = self.state
        first = state.first_loss
        known = first is not None and math.isfinite(first)
        before = f", and was {first:.4g} at first" if known else ""
        kept = f" The last good checkpoint, if there was one, is in `{self.folder}`."
        return HeadtailError(
            f"Training `{self.run.scheme}` diverged: {what} in epoch {state.epoch + 1}, step "
            f"{state.step:,}{before}. Try a smaller ",
            Setting("lr"),
            f" than {self.run.lr:g}, or ",
            Setting("clip", 1),
            "." if self.folder is None else f".{kept}",
        )

    def _validate(self) -> dict[str, float]:
        """Measure on the held-out points, keep the best weights, and finish when they no longer
        improve; returns what was measured.
        """
        state = self.state
        if self.validation is None:
            state.best_epoch = state.epoch
            return {}
        self.model.eval()
        self.optimiser.flush()
        value = self.accord.of_first(self.validation.measure(self.model))
        state.curve.append((state.epoch, self.run.stop_on, value))
        lower_is_better = value if self.run.stop_on == "implicit-loss" else -value
        if lower_is_better < state.best:
            state.best = lower_is_better
            state.best_epoch = state.epoch
            self.files.save_model(self.model)
        state.finished |= state.epoch - state.best_epoch >= self.run.patience
        return {f"validation/{self.run.stop_on}": value}

    def _save(self) -> None:
        self._saved = time.monotonic()
        if self.folder is None:
            return
        finite = all(map(all_finite, self.model.parameters()))
        if any(self.accord.any(not finite)):
            raise self._diverged("some weight is no longer a finite number")
        if self.state.finished and (self.validation is None or not self.state.best_epoch):
            self.files.save_model(self.model)
        self.files.save_checkpoint(self.model, self.optimiser, self.state)
