"""Training: one loop that can be stopped anywhere and goes on as if nothing had happened."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headtail.core.labels import Labels
from headtail.data.batches import Batches
from headtail.data.points import Bag, DataSet, Points, ragged_rows
from headtail.encoders import Model, ResNet
from headtail.errors import HeadtailError
from headtail.evaluation.topk import Validation
from headtail.kernels.compiled import HAS_TRITON
from headtail.losses import ExactLoss
from headtail.losses.fused import backward
from headtail.rows.decay import catch_up
from headtail.rows.optimizers import clip_grad_norm_
from headtail.training import checkpoint
from headtail.training.build_model import build_model, build_optimiser
from headtail.training.config import Run
from headtail.training.interrupts import Stopped, interrupts

CHECK_EVERY = 100
TELL_EVERY = 1.0
"""Steps, and seconds where those take longer, between looks at the loss: for NaN, for the progress
bar, for the clock.
"""
MOST_VALIDATION = 2000
"""Points are enough to choose an epoch; more would cost more than the epoch itself on large label
sets.
"""
OFTEN = 5.0
"""Seconds that may be lost: after an epoch there is a checkpoint if the last is older. An epoch may
take less than writing one.
"""
DIVERGED = 20.0
"""A loss that is this many times that of the first steps will not come back."""


@dataclass
class State:
    """Where a run stands; saved with every checkpoint.

    Attributes:
        epoch: whole epochs done.
        step: steps done in the present one.
        loss_sum: of the present epoch's steps.
        first_loss: of the first step, against which divergence is told.
        best: the best validation value so far, lower is better.
        best_epoch: epochs trained when it was reached.
        curve: (epoch, metric, value) as they come.
        finished: whether training is over.
    """

    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    first_loss: float | None = None
    best: float = math.inf
    best_epoch: int = 0
    curve: list[tuple[int, str, float]] = field(default_factory=list)
    finished: bool = False


Watch = Callable[[State, int, float], None]
"""Called now and then with the state, the steps of an epoch and the loss of the last steps; NaN
when an epoch is over.
"""


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model, its state, and the labels it was trained for."""

    model: Model
    labels: Labels
    state: State
    steps_per_epoch: int


class Trainer:
    """Trains one run on one data set, in one folder.

    Args:
        run: the settings.
        data: what to learn.
        folder: where checkpoints go; a checkpoint found there is resumed. None keeps nothing.
        device: "cpu" or "cuda".
        encoder: any module from features (a `Bag`, a dense matrix or pictures) to `[n, run.dim]`
            hidden states; None for what `run.model` names.
        save_every: seconds between checkpoints within an epoch; there is one after an epoch too,
            unless the last is seconds old.
        watch: called now and then.
        stop: an event that asks the run to save and stop; without one, Ctrl-C does.
    """

    def __init__(
        self,
        run: Run,
        data: DataSet,
        folder: str | Path | None = None,
        *,
        device: str = "cpu",
        encoder: nn.Module | None = None,
        save_every: float = 60.0,
        watch: Watch | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self.run = run
        self.save_every = save_every
        self.watch = watch
        self.stop = stop
        self.folder = None if folder is None else Path(folder)
        self.device = torch.device(device)
        run.check_together()
        train = data.train
        among, held_out = split_validation(data, run.validation)
        self.labels = training_labels(train, among, run.smoothing)
        torch.manual_seed(run.seed)
        sparse_features = isinstance(train.features, Bag)
        # Clipping sums rows first, for which a GPU's host would wait. Where rows without a gradient
        # stand still, dense is the same.
        dense = device != "cpu" and (not HAS_TRITON or (run.clip > 0 and run.optimiser != "adam"))
        shape = {"num_features": train.num_features, "picture": train.picture}
        tables = 4 * run.dim * (train.num_features + self.labels.num_labels) / 2**30
        with told_if_full(f"The model's tables ({tables:.1f} GiB)"):
            given = {
                "encoder": encoder,
                "sparse_features": sparse_features,
                "sparse": not dense,
                "device": self.device,
            }
            self.model = build_model(run, self.labels, **shape, **given).to(self.device)
        if isinstance(self.model.encoder, ResNet):
            self.model.encoder.prepare.measure(train)
            # files are augmented where they are decoded
            self.model.encoder.prepare.augment &= isinstance(train.features, Tensor)
        # All-label losses sum once a point, but a picture has one label.
        shares_sums = isinstance(self.model.head.loss, ExactLoss) and train.picture is None
        whole_points = run.batching == "points" or (run.batching == "auto" and shares_sums)
        self.optimiser = build_optimiser(run, self.model)
        if not run.clip:
            self.optimiser.inside_backward()
        self.batches = Batches(train, run.batch, run.seed, among=among, whole_points=whole_points)
        size = min(run.batch, int(self.labels.total))  # pairs, also where batches hold whole points
        self.validation = (
            None if held_out is None else Validation(held_out, self.labels, run.stop_on, size)
        )
        self.state = State()
        self._best = {}
        self._rate = None
        self._saved = time.monotonic()
        self.facts = {
            "run": settings_of(run),
            "data": data.digest,
            "sparse_features": sparse_features,
            **shape,
        }
        self._label_names = checkpoint.as_bytes(data.label_names)
        with self._determined(), told_if_full("A step"):
            self._take_step = self._make_step()
        # whatever is drawn elsewhere before `fit` changes nothing
        self._random = checkpoint.random_state(self.device)

    def fit(self) -> Trained:
        """Train to the end, or go on from the last checkpoint; the model comes back with its best
        weights.
        """
        checkpoint.restore_random_state(self._random)
        self._resume()
        listening = interrupts() if self.stop is None else nullcontext(self.stop)
        with self._determined(), told_if_full("A step"), listening as interrupted:
            while not self.state.finished:
                self._epoch(interrupted)
        if self.validation is not None and self.state.best_epoch:
            best = (
                self._best
                if self.folder is None
                else checkpoint.load(self.folder / "model.safetensors")[0]
            )
            checkpoint.restore_weights(best, self.model)
        self.optimiser.flush()
        self.model.eval()
        return Trained(self.model, self.labels, self.state, self.batches.steps)

    @contextmanager
    def _determined(self) -> Iterator[None]:
        """Ask torch, and kernels through it, for sums in an order that does not depend on timing,
        if the run wants that.
        """
        before = torch.are_deterministic_algorithms_enabled()
        tries = torch.backends.cudnn.benchmark
        if self.run.deterministic and self.device.type == "cuda":
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch insists on it
            torch.use_deterministic_algorithms(True)
        # Shapes stay the same, so it pays to try which convolution is the fastest; which one that
        # is depends on timing.
        torch.backends.cudnn.benchmark = not self.run.deterministic
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before)
            torch.backends.cudnn.benchmark = tries

    def _epoch(self, interrupted: threading.Event) -> None:
        state = self.state
        steps = self.batches.steps
        self.model.train()
        # Summed one by one from where the last checkpoint stood, so that an interruption does not
        # even change the last digit.
        total = torch.tensor(state.loss_sum, dtype=torch.float64, device=self.device)
        looked = state.step
        seen = time.monotonic()
        for batch in self.order(state.epoch, state.step):
            self._set_learning_rate(state.epoch * steps + state.step)
            total += self._take_step(batch)
            state.step += 1
            stop = interrupted.is_set()
            slow = time.monotonic() - seen > TELL_EVERY
            if (
                slow
                or state.step % CHECK_EVERY == 0
                or state.step == steps
                or stop
                or state.first_loss is None
            ):
                self._look(float(total), state.step - looked)
                looked = state.step
                seen = time.monotonic()
                if stop:
                    self._save()
                    raise Stopped
                if time.monotonic() - self._saved > self.save_every:
                    self._save()
        state.curve.append((state.epoch + 1, "loss", state.loss_sum / steps))
        state.epoch = state.epoch + 1
        state.step = 0
        state.loss_sum = 0.0
        self._choose()
        state.finished |= state.epoch >= self.run.epochs
        if self.watch is not None:
            self.watch(state, steps, math.nan)
        # then its weights are on disk already
        chosen = self.validation is not None and state.best_epoch == state.epoch
        if state.finished or chosen or time.monotonic() - self._saved > min(OFTEN, self.save_every):
            self._save()

    def order(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """What a step is called with, batch after batch of an epoch."""
        return getattr(self._take_step, "order", self.batches.order)(epoch, start)

    def _make_step(self) -> Callable[[Tensor], Tensor]:
        if not isinstance(self.batches.points.features, Bag | Tensor):
            from headtail.training.streamed import Streamed

            return Streamed(self)
        if self.device.type == "cuda":
            from headtail.training.captured import graphed_step

            return graphed_step(self)
        return self.eager_step

    def eager_step(self, ids: Tensor) -> Tensor:
        """One step on the batch of these pairs, or points; returns its loss."""
        return self.learn(self.model(self.batches.take(ids)))

    def learn(self, loss: Tensor) -> Tensor:
        """Backward and update; returns the loss without its graph."""
        self.optimiser.zero_grad(set_to_none=True)
        backward(loss)
        if self.run.clip:
            clip_grad_norm_(self.model.parameters(), self.run.clip)
        value = loss.detach().double()  # not behind the updates, for which a GPU waits
        self.optimiser.advance()
        return value

    def _set_learning_rate(self, step: int) -> None:
        rate = self.run.learning_rate(step, self.run.epochs * self.batches.steps)
        if rate == self._rate:
            return  # on a GPU, telling is a launch
        self._rate = rate
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _look(self, total: float, steps: int) -> None:
        """Take note of the loss of the last steps, and stop a run that is lost."""
        state = self.state
        loss = (total - state.loss_sum) / steps
        state.first_loss = loss if state.first_loss is None else state.first_loss
        if not math.isfinite(loss) or loss > DIVERGED * max(state.first_loss, 1.0):
            raise self._diverged(f"the loss is {loss:.4g}")
        state.loss_sum = total
        if self.watch is not None:
            self.watch(state, self.batches.steps, loss)

    def _diverged(self, what: str) -> HeadtailError:
        state = self.state
        kept = (
            ""
            if self.folder is None
            else f" The last good checkpoint, if there was one, is in `{self.folder}`."
        )
        first = state.first_loss
        before = (
            "" if first is None or not math.isfinite(first) else f", and was {first:.4g} at first"
        )
        return HeadtailError(
            f"Training `{self.run.scheme}` diverged: {what} in epoch {state.epoch + 1}, step "
            f"{state.step:,}{before}. "
            f"Try a smaller `lr` than {self.run.lr:g}, or `clip=1`.{kept}"
        )

    def _choose(self) -> None:
        """Measure on the held-out points; keep the best weights, and stop when they get no better."""
        state = self.state
        if self.validation is None:
            state.best_epoch = state.epoch
            return
        self.model.eval()
        self.optimiser.flush()
        value = self.validation.measure(self.model)
        state.curve.append((state.epoch, self.run.stop_on, value))
        lower_is_better = value if self.run.stop_on == "implicit-loss" else -value
        if lower_is_better < state.best:
            state.best = lower_is_better
            state.best_epoch = state.epoch
            self._save_model()
        state.finished |= state.epoch - state.best_epoch >= self.run.patience

    def _save(self) -> None:
        self._saved = time.monotonic()
        if self.folder is None:
            return
        if not all(bool(parameter.isfinite().all()) for parameter in self.model.parameters()):
            raise self._diverged("some weight is no finite number any more")
        if self.state.finished and (self.validation is None or not self.state.best_epoch):
            self._save_model()
        tensors, facts = checkpoint.training_state(self.model, self.optimiser)
        checkpoint.save(
            self.folder / "checkpoint.safetensors",
            tensors,
            {**facts, **self.facts, "state": asdict(self.state)},
        )

    def _save_model(self) -> None:
        if self.folder is not None:
            save_model(self.folder, self.model, self.labels, self._label_names, self.facts)
        else:
            self._best = {
                name: tensor.detach().clone()
                for name, tensor in checkpoint.weights_of(self.model).items()
            }

    def _resume(self) -> None:
        path = None if self.folder is None else self.folder / "checkpoint.safetensors"
        if path is None or not path.exists():
            return
        tensors, facts = checkpoint.load(path)
        if not {"run", "data", "state", "optimiser"} <= facts.keys():
            raise HeadtailError(
                f"`{path}` is no checkpoint of a run. Delete it to start that run anew."
            )
        if facts["run"] != settings_of(self.run) or facts["data"] != self.facts["data"]:
            raise HeadtailError(
                f"`{path}` belongs to a run with other settings or other data. Choose another "
                "folder, or delete it."
            )
        checkpoint.restore_training_state(tensors, facts, self.model, self.optimiser)
        state: dict[str, Any] = facts["state"]
        self.state = State(**{**state, "curve": [tuple(point) for point in state["curve"]]})


@contextmanager
def told_if_full(what: str) -> Iterator[None]:
    """A GPU without room for something is told in a sentence."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        free, whole = (size / 2**30 for size in torch.cuda.mem_get_info())
        raise HeadtailError(
            f"{what} found no room on the GPU: {free:.1f} of its {whole:.0f} GiB are free. Run "
            "fewer at once (`--workers`), "
            "choose a smaller `batch` or `dim`, or `--device cpu`."
        ) from error


def save_model(
    folder: Path, model: Model, labels: Labels, names: Tensor, facts: dict[str, Any]
) -> None:
    """The weights with what is needed to build the model again."""
    for parameter in model.parameters():
        catch_up(parameter)
    tensors = {
        **checkpoint.weights_of(model),
        "labels.counts": labels.counts,
        "labels.names": names,
    }
    checkpoint.save(folder / "model.safetensors", tensors, {**facts, "smoothing": labels.smoothing})


def load_model(
    folder: str | Path, encoder: nn.Module | None = None
) -> tuple[Model, Run, dict[str, Any]]:
    """The trained model of a run's folder, its settings, and what else was noted; pass the encoder
    if it was not the paper's.

    Its labels' names, or None where they had none, are noted as `label_names`; runs of an older
    headtail did not keep them.
    """
    path = Path(folder) / "model.safetensors"
    if not path.exists():
        raise HeadtailError(
            f"`{folder}` holds no trained model (`model.safetensors`). Pass the folder of a "
            "finished run."
        )
    tensors, facts = checkpoint.load(path)
    if not {"run", "smoothing", "num_features"} <= facts.keys() or "labels.counts" not in tensors:
        raise HeadtailError(f"`{path}` is no trained model. Pass the folder of a finished run.")
    run = Run(**facts["run"])
    labels = Labels(tensors["labels.counts"], facts["smoothing"])
    picture = facts.get("picture")
    shape = {
        "num_features": facts["num_features"],
        "picture": None if picture is None else (picture[0], picture[1]),
    }
    model = build_model(run, labels, **shape, encoder=encoder, sparse=False)
    checkpoint.restore_weights(tensors, model)
    names = (
        {"label_names": checkpoint.from_bytes(tensors["labels.names"])}
        if "labels.names" in tensors
        else {}
    )
    return model.eval(), run, facts | names


def settings_of(run: Run) -> dict[str, Any]:
    """A run's settings as they come back from JSON."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(run).items()
    }


def split_validation(data: DataSet, share: float) -> tuple[Tensor | None, Points | None]:
    """Ids of the points to train on (None for all), and held-out points: the data set's own, or a
    random share, equal for all.

    Where points are users, tested again later, none is held out: what is not trained could not be
        tested.
    """
    generator = torch.Generator().manual_seed(0)
    if share == 0 or (data.validation is None and data.test.seen is not None):
        return None, None
    if data.validation is not None:
        few = torch.randperm(len(data.validation), generator=generator)[:MOST_VALIDATION]
        held_out = data.validation.select(few.sort().values)
        return None, None if held_out.num_pairs == 0 else held_out
    count = min(MOST_VALIDATION, round(share * len(data.train)))
    if count == 0 or count >= len(data.train):
        return None, None
    order = torch.randperm(len(data.train), generator=generator)
    held_out = data.train.select(order[:count].sort().values)
    return (None, None) if held_out.num_pairs == 0 else (order[count:].sort().values, held_out)


def training_labels(
    train: Points, among: Tensor | None = None, smoothing: float | None = None
) -> Labels:
    """The label distribution of the points trained on; smoothed by 1 where some label never occurs,
    unless told otherwise.
    """
    values = (train.labels if among is None else ragged_rows(train.labels, among)).values
    counts = torch.bincount(values.long(), minlength=train.num_labels)
    if smoothing is None:
        smoothing = 1.0 if bool((counts == 0).any()) else 0.0
    return Labels.from_counts(counts, smoothing)
