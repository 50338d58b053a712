"""`headtail advise`."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
import tyro
from rich.text import Text

from headtail.cli.advice import Answer, answer_dict, print_answer
from headtail.cli.bench import BATCHES
from headtail.cli.console import Console
from headtail.cli.on_model import NUMBERS, WITH_MODEL, OnTrained, advice, measured_table, to_dict
from headtail.cli.options import with_options
from headtail.cli.source import Chosen, Source
from headtail.cli.tables import left_out
from headtail.cli.unused import changed, refuse
from headtail.data.facts import kind_of
from headtail.device.choice import Device
from headtail.device.memory import memory_left
from headtail.errors import HeadtailError, check_count, check_number
from headtail.implicit.quality import frontier
from headtail.machine.advise import (
    EPOCHS,
    MINUTES,
    NEGATIVES,
    Plan,
    choose,
    costs_of,
    numbers,
)
from headtail.machine.expect import candidates_for
from headtail.machine.shape import Shape
from headtail.machine.target import Target
from headtail.training.recipes import DEFAULTS, batch_for

MOST_LABELS = 200_000_000
"""More than one machine trains."""
UNITS = {"": 1, "k": 10**3, "m": 10**6}


@dataclass(frozen=True)
class Advise:
    """Which loss to train with: all labels, or which sampler with how many negatives?

    Measures the training step of the label head here. Where the loss over all labels takes too long
    or does not fit, predicts how far sampled schemes would end from it after training, by slice,
    and reports how wrong such predictions were on data sets that were left out
    (docs/results-advice.md).
    """

    labels: str | None = None
    """How many labels, for example 3e6, 3_000_000 or 3M; they are taken to follow Zipf's law. Or
    say --counts or --data.
    """
    source: Annotated[Source, tyro.conf.OmitArgPrefixes] = field(default_factory=Source)
    """Which labels."""
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
    trained: Annotated[OnTrained, tyro.conf.OmitArgPrefixes] = field(default_factory=OnTrained)
    """A trained model: then samplers are measured on it, with m of 16, 64 and 256, instead of
    predicted.
    """
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> int:
        """Measure, predict and print."""
        self.trained.check(targets=True)
        if self.trained.model is not None:
            return self._on_model()
        target = self._target()
        self._check()
        source = (
            self.source if self.labels is None else replace(self.source, zipf=count_of(self.labels))
        )
        device = (
            ("cuda" if torch.cuda.is_available() else "cpu")
            if self.device == "auto"
            else self.device
        )
        memory = self._memory(device)
        chosen = source.choose(self.trained.data, self.trained.reading)
        plan = self._plan(chosen, device, memory)
        few = numbers(self.negatives, plan.shape.labels, plan.shape.batch)
        with Console(stderr=True).status("measuring steps"):
            costs = costs_of(plan, few)
        shape = plan.shape
        candidates = candidates_for(target, shape.labels, shape.batch, costs, self.recall)
        kind = None if chosen.data is None else kind_of(chosen.data)
        answer = Answer(target, plan, costs, choose(plan, costs, candidates), kind)
        if self.json:
            sys.stdout.write(json.dumps(answer_dict(answer), indent=2) + "\n")
            return 0
        console = Console()
        console.print(Text(chosen.about, style="dim"))
        print_answer(console, answer)
        return 0

    def _target(self) -> Target:
        name = self.trained.target or "softmax"
        if name not in ("softmax", "logit-adjusted"):
            raise HeadtailError(
                f"`--target {name}` has no tested predictions. Choose softmax or logit-adjusted, "
                "or measure samplers on a trained model with `--model`."
            )
        if name == "softmax":
            refuse(changed(self, "tau"), "the softmax has no τ; it needs `--target logit-adjusted`")
            return Target(0.0)
        return Target(check_number("tau", self.tau, low=1e-3, high=4.0))

    def _plan(self, chosen: Chosen, device: str, memory: int) -> Plan:
        pairs = int(chosen.labels.total)
        batch = BATCHES[device]
        epochs = EPOCHS
        if chosen.data is not None:
            usual = DEFAULTS[kind_of(chosen.data)]
            batch = batch_for(usual, pairs)
            epochs = usual.epochs
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
            changed(self, "dim", "memory", "negatives", "tau", "epochs", "minutes", "recall")
            + changed(self.source, "exponent", "smoothing", "slices"),
            WITH_MODEL,
        )
        options = self.trained
        found, missing, about, target = options.measure(
            NUMBERS, 256 if self.batch is None else self.batch, self.device
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
        if (self.labels, self.source.counts, self.source.zipf, self.trained.data) == (None,) * 4:
            raise HeadtailError(
                "How many labels are there? Write for example `--labels 3e6`, `--counts FILE` or "
                "`--data DATA`."
            )
        if self.recall is not None:
            check_number("recall", self.recall, low=1e-3, high=100)
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


def count_of(text: str) -> int:
    """A number of labels as people write it.

    >>> [count_of(text) for text in ("3e6", "3_000_000", "2.5M", "100k", "1,000")]
    [3000000, 3000000, 2500000, 100000, 1000]
    """
    match = re.fullmatch(
        r"([0-9][0-9_,]*(?:\.[0-9]+)?(?:[eE]\+?[0-9]{1,2})?)([kKmM]?)", text.strip()
    )
    number = float(re.sub("[_,]", "", match[1])) * UNITS[match[2].lower()] if match else 0.0
    if not 2 <= number <= MOST_LABELS or number != int(number):
        raise HeadtailError(
            f"`--labels` must be a whole number from 2 to {MOST_LABELS:,}, such as 3e6 or "
            f"3_000_000, but got {text!r}."
        )
    return int(number)
