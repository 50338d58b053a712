"""`headtail advise`."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field, fields, replace
from typing import Annotated

import torch
import tyro
from rich.text import Text

from headtail.cli.advice import Answer, Given, answer_dict
from headtail.cli.advice_tables import print_answer
from headtail.cli.bench import BATCHES
from headtail.cli.console import Console
from headtail.cli.on_model import NUMBERS, WITH_MODEL, OnTrained, advice, measured_table, to_dict
from headtail.cli.options import with_options
from headtail.cli.source import Chosen, Source
from headtail.cli.tables import left_out
from headtail.cli.unused import as_typed, changed, refuse
from headtail.data.facts import kind_of
from headtail.data.points import DataSet
from headtail.data.reading import Reading
from headtail.device.choice import Device
from headtail.device.memory import memory_left
from headtail.errors import HeadtailError, Setting, check_count, check_number
from headtail.evaluation.samplers_on_model import ExactTarget
from headtail.implicit.quality import frontier
from headtail.machine.advise import (
    EPOCHS,
    MINUTES,
    NEGATIVES,
    Plan,
    choose,
    costs_of,
    larger_batch_cost,
    numbers,
)
from headtail.machine.expect import candidates_for, whole_batch
from headtail.machine.shape import Shape
from headtail.machine.target import Target
from headtail.training.recipes import DEFAULTS

MOST_LABELS = 200_000_000
"""More than one machine trains."""
MOST_PAIRS = 10**13
"""More than anyone trains on."""
UNITS = {"": 1, "k": 10**3, "m": 10**6}


@dataclass(frozen=True)
class Advise:
    """Which loss to train with: all labels, or which sampler with how many negatives?

    Measures the training step of the label head here. Where the loss over all labels takes too long
    or does not fit, predicts how far sampled schemes would end from it after training, by slice,
    and reports how wrong such predictions were on data sets that were left out
    (docs/results-advice.md).
    """

    data: Annotated[str | None, tyro.conf.arg(metavar="DATA")] = None
    """Data as for headtail train; with --model, the data of that run."""
    labels: str | None = None
    """Instead of data, how many labels, for example 3e6, 3_000_000 or 3M; they are taken to follow
    Zipf's law. Or say --counts.
    """
    pairs: str | None = None
    """With --labels: how many training pairs, for example 2e7; without it, the rarest label is
    taken to have 10.
    """
    target: ExactTarget | None = None
    """The loss over all labels that sampling should approximate: softmax, unless you say otherwise,
    or logit-adjusted; with --model any of them, by default that of the run.
    """
    tau: float = 1.0
    """τ of --target logit-adjusted."""
    dim: int = 512
    """Size of the hidden states."""
    batch: int | None = None
    """Examples in a batch; by default what headtail train takes for your data, else 256, and 1024
    on a GPU.
    """
    epochs: int | None = None
    """Passes over the training pairs; by default what headtail train takes for your data, else 20.
    """
    minutes: float = MINUTES
    """Minutes that the label head may take in a whole training."""
    device: Device = "auto"
    """Where you will train; what is not in this machine is not measured."""
    memory: float | None = None
    """GiB of memory there, if not what is free here now."""
    negatives: Annotated[tuple[int, ...], tyro.conf.arg(metavar="M …")] = NEGATIVES
    """Numbers of negatives to consider, besides the whole batch."""
    recall: float | None = None
    """Recall@10 of a model that you have, in percent: gaps are then shown in points."""
    json: bool = False
    """Print JSON for programs."""
    source: Annotated[Source, tyro.conf.OmitArgPrefixes] = field(default_factory=Source)
    """Which labels."""
    trained: Annotated[OnTrained, tyro.conf.OmitArgPrefixes] = field(default_factory=OnTrained)
    """A trained model: then samplers are measured on it, with m of 16, 64 and 256, instead of
    predicted.
    """
    reading: Annotated[Reading, tyro.conf.OmitArgPrefixes] = field(default_factory=Reading)
    """How to read the data."""

    def run(self) -> int:
        """Measure, predict and print."""
        self.trained.check(self.data, self.reading)
        if self.trained.model is not None:
            return self._on_model()
        target = self._target()
        self._check()
        device = (
            ("cuda" if torch.cuda.is_available() else "cpu")
            if self.device == "auto"
            else self.device
        )
        memory = self._memory(device)
        chosen = self._choose()
        plan = self._plan(chosen, device, memory)
        few = numbers(self.negatives, plan.shape.labels, plan.shape.batch)
        with Console(stderr=True).status("measuring steps"):
            costs = costs_of(plan, few)
        shape = plan.shape
        candidates = candidates_for(target, shape.labels, shape.batch, costs, self.recall)
        advice = choose(plan, costs, candidates)
        with Console(stderr=True).status("measuring a larger batch"):
            larger = whole_batch(target, larger_batch_cost(plan, advice.best), self.recall)
        answer = Answer(target, plan, costs, advice, self._given(chosen), larger)
        if self.json:
            sys.stdout.write(json.dumps(answer_dict(answer), indent=2) + "\n")
            return 0
        console = Console()
        console.print(Text(chosen.about, style="dim"))
        print_answer(console, answer)
        return 0

    def _target(self) -> Target:
        name = self.target or "softmax"
        if name not in ("softmax", "logit-adjusted"):
            raise HeadtailError(
                f"`--target {name}` has no tested predictions. Choose softmax or logit-adjusted, "
                "or measure samplers on a trained model with `--model`."
            )
        if name == "softmax":
            refuse(changed(self, "tau"), "the softmax has no τ; it needs `--target logit-adjusted`")
            return Target(0.0)
        return Target(check_number("tau", self.tau, low=1e-3, high=4.0))

    def _choose(self) -> Chosen:
        source = self.source
        if self.labels is not None:
            source = replace(source, zipf=count_of(self.labels))
        chosen = source.choose(self.data, self.reading)
        if self.pairs is not None:
            about = f"{chosen.labels.num_labels:,} labels, {self._pairs(chosen):,} training pairs"
            return chosen._replace(about=about)
        if self.labels is not None:
            return chosen._replace(about=f"{chosen.about}; `--pairs` sets the number of examples")
        return chosen

    def _pairs(self, chosen: Chosen) -> int:
        """Training pairs."""
        if self.pairs is None:
            return int(chosen.labels.total)
        return count_of(self.pairs, "pairs", 1, MOST_PAIRS)

    def _given(self, chosen: Chosen) -> Given:
        counts = chosen.labels.counts
        too_many = tuple(m for m in self.negatives if m >= len(counts))
        return Given(
            data=self.data,
            kind=None if chosen.data is None else kind_of(chosen.data),
            options=(
                *as_typed(self, "dim", "epochs", "device"),
                *as_typed(self.source, "slices", "smoothing"),
                *as_typed(self.reading, *(option.name for option in fields(Reading))),
            ),
            unseen=int((counts == 0).sum()),
            smoothing=chosen.labels.smoothing,
            too_many=() if self.negatives == NEGATIVES else too_many,
        )

    def _plan(self, chosen: Chosen, device: str, memory: int) -> Plan:
        pairs = self._pairs(chosen)
        batch = BATCHES[device]
        epochs = EPOCHS
        if chosen.data is not None:
            batch = chosen.batch
            epochs = DEFAULTS[kind_of(chosen.data)].epochs
        shape = Shape(
            chosen.labels.num_labels,
            self.dim,
            batch if self.batch is None else check_count("batch", self.batch),
            1,
        )
        return Plan(
            shape,
            pairs,
            epochs if self.epochs is None else check_count("epochs", self.epochs),
            self.minutes,
            device,
            memory,
            here=device == "cpu" or torch.cuda.is_available(),
            labels_per_point=1.0 if chosen.data is None else _labels_per_point(chosen.data),
        )

    def _on_model(self) -> int:
        if (
            self.labels is not None
            or self.source.counts is not None
            or self.source.zipf is not None
        ):
            raise HeadtailError(
                "`--model` has labels of its own: drop `--labels`, `--counts` and `--zipf`."
            )
        refuse(
            changed(self, "pairs", "dim", "memory", "negatives", "tau", "epochs", "minutes")
            + changed(self, "recall")
            + changed(self.source, "exponent", "smoothing", "slices"),
            WITH_MODEL,
        )
        options = self.trained
        settings = options.settings(self.target, NUMBERS, 256 if self.batch is None else self.batch)
        found, missing, about, target = options.measure(
            self.data, self.reading, settings, self.device
        )
        missing = {name: with_options(sentence, Advise) for name, sentence in missing.items()}
        best, sentence = advice(found, options.budget)
        if self.json:
            answer = {
                **to_dict(found, missing, options.budget),
                "best": None if best is None else best.scheme,
            }
            sys.stdout.write(json.dumps(answer, indent=2) + "\n")
            return 0
        console = Console()
        console.print(Text(about, style="dim"))
        best_of = frontier(found)
        console.print(measured_table(best_of, target, console.width))
        for line in left_out(missing):
            console.print(line)
        if len(best_of) < len(found):
            rest = (
                f"{len(found) - len(best_of)} of the {len(found)} losses that were measured are "
                "left out"
            )
            console.print(
                Text(
                    f"{rest}: another is quicker and more exact. `headtail explain --model` shows "
                    "all.",
                    style="dim",
                )
            )
        console.print(Text(sentence, style="bold"))
        if best is not None:
            console.print(Text(f'    loss = ht.scheme("{best.scheme}", labels)'), soft_wrap=True)
        return 0

    def _check(self) -> None:
        if self.labels is not None and (
            self.source.counts is not None or self.source.zipf is not None
        ):
            raise HeadtailError("`--labels` excludes `--counts` and `--zipf`: drop one.")
        if (self.labels, self.source.counts, self.source.zipf, self.data) == (None,) * 4:
            raise HeadtailError(
                "How many labels are there? Write for example `--labels 3e6`, `--counts FILE` or "
                "`--data DATA`."
            )
        if self.labels is None:
            refuse(changed(self, "pairs"), "only with `--labels` is their number not known")
        if self.recall is not None:
            _check_recall(self.recall)
        check_count("dim", self.dim)
        check_number("minutes", self.minutes, low=1e-3)
        for m in self.negatives:
            check_count("negatives", m)

    def _memory(self, device: str) -> int:
        if self.memory is not None:
            return int(check_number("memory", self.memory, low=1e-3) * 2**30)
        there = memory_left(device) if device == "cpu" or torch.cuda.is_available() else None
        if there is None:
            raise HeadtailError(
                "The memory there is not known here. Write it in GiB, for example `--memory 64`."
            )
        return there


def _labels_per_point(data: DataSet) -> float:
    """On average, of points that have labels; an image counts once per label."""
    points = int((data.train.labels.offsets.diff() > 0).sum())
    return 1.0 if data.train.image_size else data.train.num_pairs / max(1, points)


def _check_recall(recall: float) -> None:
    if 0 < recall < 1:
        raise HeadtailError(
            Setting("recall"),
            f" is in percent, from 1 to 100, but got {recall:g}. Write {100 * recall:g}, if that "
            "is what you mean.",
        )
    check_number("recall", recall, low=1, high=100)


def count_of(text: str, option: str = "labels", low: int = 2, high: int = MOST_LABELS) -> int:
    """A number of labels or pairs as people write it.

    >>> [count_of(text) for text in ("3e6", "3_000_000", "2.5M", "100k", "1,000")]
    [3000000, 3000000, 2500000, 100000, 1000]
    """
    match = re.fullmatch(
        r"([0-9][0-9_,]*(?:\.[0-9]+)?(?:[eE]\+?[0-9]{1,2})?)([kKmM]?)", text.strip()
    )
    number = float(re.sub("[_,]", "", match[1])) * UNITS[match[2].lower()] if match else 0.0
    if not low <= number <= high or number != int(number):
        raise HeadtailError(
            f"`--{option}` must be a whole number from {low} to {high:,}, such as 3e6 or "
            f"3_000_000, but got {text!r}."
        )
    return int(number)
