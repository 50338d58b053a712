"""`headtail advise`."""

from __future__ import annotations

import json
import re
import sys
import warnings
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

import torch
import tyro
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from headtail.cli.bench import BATCHES, HEADINGS, milliseconds
from headtail.cli.console import Console
from headtail.cli.on_model import NUMBERS, WITH_MODEL, OnTrained, advice, measured_table, to_dict
from headtail.cli.options import with_options
from headtail.cli.source import Chosen, Source
from headtail.cli.tables import left_out
from headtail.cli.unused import changed, refuse
from headtail.device import environment
from headtail.device.choice import Device
from headtail.device.memory import memory_left
from headtail.errors import HeadtailError, check_count, check_number
from headtail.implicit.quality import frontier
from headtail.machine.advise import (
    MOST_EXPLAINED,
    NEGATIVES,
    REFERENCES,
    SCHEMES,
    Advice,
    Approximation,
    approximation,
    choose,
)
from headtail.machine.measured import Machine, bench_file, saved
from headtail.machine.shape import Shape
from headtail.schemes import parse

MOST_LABELS = 200_000_000
"""More than one machine trains."""
UNITS = {"": 1, "k": 10**3, "m": 10**6}


@dataclass(frozen=True)
class Advise:
    """Exact, chunked or sampled loss? Predicts time and memory of a training step, and shows which
    loss a scheme approximates.

    Predictions come from what `headtail bench` measured here, or else from reference figures. Which
    sampler, and how many negatives, a trained model needs does not follow from label counts:
    --model measures that on one.
    """

    labels: str | None = None
    """How many labels, for example 3e6, 3_000_000 or 3M; they are taken to follow Zipf's law. Or
    say --counts.
    """
    source: Annotated[Source, tyro.conf.OmitArgPrefixes] = field(default_factory=Source)
    """Which labels."""
    dim: int = 512
    """Size of the hidden states."""
    batch: int | None = None
    """Examples in a batch; by default 256, and 1024 on a GPU."""
    device: Device = "auto"
    """Where you will train; a GPU need not be there yet."""
    memory: float | None = None
    """GiB of memory there, if not what is free here now."""
    negatives: Annotated[tuple[int, ...], tyro.conf.arg(metavar="M …")] = NEGATIVES
    """Numbers of negatives for which a step with the sampled loss is predicted."""
    schemes: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SCHEME …")] = SCHEMES
    """Sampled schemes to describe: the loss over all labels that each approximates."""
    trained: Annotated[OnTrained, tyro.conf.OmitArgPrefixes] = field(default_factory=OnTrained)
    """A trained model: then samplers are measured on it, with m of 16, 64 and 256, instead of
    predicted.
    """
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> int:
        """Predict and print."""
        self.trained.check()
        if self.trained.model is not None:
            return self._on_model()
        self._check()
        device = (
            ("cuda" if torch.cuda.is_available() else "cpu")
            if self.device == "auto"
            else self.device
        )
        batch = BATCHES[device] if self.batch is None else check_count("batch", self.batch)
        machine, basis = _basis(device)
        memory = self._memory(device)
        source = (
            self.source if self.labels is None else replace(self.source, zipf=count_of(self.labels))
        )
        chosen = source.choose(self.trained.data, self.trained.reading)
        labels = chosen.labels
        shape = Shape(labels.num_labels, self.dim, batch, min(256, labels.num_labels))
        looking = Console(stderr=True).status(
            f"looking at {len(self.schemes)} schemes for {labels.num_labels:,} labels"
        )
        with looking, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            schemes, missing = self._approximations(chosen, batch)
        advice = choose(shape, self._fewer_than(labels.num_labels), schemes, machine, memory)
        if self.json:
            sys.stdout.write(json.dumps(_dict(advice, basis, memory, missing), indent=2) + "\n")
            return 0
        console = Console()
        console.print(Text(chosen.about, style="dim"))
        console.print(Text(basis, style="dim"), soft_wrap=True)
        console.print(_costs(advice, shape, memory, measured=machine is not REFERENCES[device]))
        console.print(_losses(advice, shape))
        for line in left_out(missing):
            console.print(line)
        console.print(Text(_known(advice), style="bold"))
        for line in _unknown(advice):
            console.print(line)
        console.print(Text(_code(advice, shape)), soft_wrap=True)
        return 0

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
            changed(self, "dim", "memory", "schemes", "negatives")
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
        check_count("dim", self.dim)
        for m in self.negatives:
            check_count("negatives", m)
        if not self.negatives:
            raise HeadtailError("`--negatives` needs at least one number, for example 256.")
        if not self.schemes:
            raise HeadtailError(
                "`--schemes` needs at least one name, for example `uniform:importance`."
            )
        for name in self.schemes:
            if parse(name).sampler is None:
                raise HeadtailError(
                    f"`{name}` uses all labels, which is looked at anyway. Write a sampled scheme: "
                    "`uniform:tail`."
                )

    def _memory(self, device: str) -> int:
        if self.memory is not None:
            return int(check_number("memory", self.memory, low=1e-3) * 2**30)
        there = (
            memory_left(device)
            if device == "cpu" or torch.cuda.is_available()
            else REFERENCES[device].memory
        )
        if there is None:
            raise HeadtailError(
                "The memory of this machine cannot be determined. Write it in GiB, for example "
                "`--memory 64`."
            )
        return there

    def _fewer_than(self, labels: int) -> list[int]:
        """The numbers of negatives that are fewer than the labels, or half of the labels."""
        return [m for m in dict.fromkeys(self.negatives) if m < labels] or [max(1, labels // 2)]

    def _approximations(
        self, chosen: Chosen, batch: int
    ) -> tuple[list[Approximation], dict[str, str]]:
        known = []
        missing = {}
        for name in dict.fromkeys(self.schemes):
            try:
                known.append(approximation(name, chosen.labels, batch, chosen.slices))
            except HeadtailError as error:
                missing[name] = with_options(error, Advise)
        return known, missing


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


def _basis(device: str) -> tuple[Machine, str]:
    """The measurement to predict from, and a sentence about it."""
    reference = REFERENCES[device]
    here = device == "cpu" or torch.cuda.is_available()
    found = saved(device) if here else None
    if found is None:
        advice = " `headtail bench` measures yours." if here else ""
        return reference, f"Predicted from figures of another machine: {reference.name}.{advice}"
    if found.name != environment.machine(device):
        return reference, (
            f"Predicted from figures of another machine: {reference.name}. "
            f"`{bench_file(device)}` is of {found.name}: `headtail bench` measures this one."
        )
    return (
        found,
        f"Predicted from what `headtail bench` measured here on {found.date}: {found.name}.",
    )


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(
        title=title,
        title_style="bold",
        title_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for column in columns:
        table.add_column(column, justify="left" if column == columns[0] else "right", no_wrap=True)
    table.caption_justify = "left"
    return table


def _costs(advice: Advice, shape: Shape, memory: int, *, measured: bool) -> Table:
    title = f"A training step of the label head, batch {shape.batch:,}, dim {shape.dim:,}"
    table = _table(title, ("loss", "ms", "examples/s", "GiB", f"fits {memory / 2**30:,.0f} GiB"))
    for one in advice.estimates:
        name = HEADINGS[one.method]
        name = f"{name}, m = {one.shape.negatives:,}" if one.method == "sampled" else name
        fits = Text("yes") if one.fits else Text("no", style="red")
        speed = f"{shape.batch / one.seconds:,.0f}"
        table.add_row(name, milliseconds(one.seconds), speed, f"{one.memory / 2**30:,.2f}", fits)
    if not any(one.method == "chunked" for one in advice.estimates):
        table.add_row(HEADINGS["chunked"], *["–"] * 3, "not in this torch")
    trust = (
        "right within a factor of about 2"
        if measured
        else "for that other machine; ratios carry over better than times"
    )
    table.caption = f"Expected, not measured: {trust}."
    return table


def _losses(advice: Advice, shape: Shape) -> Table:
    table = _table(
        "The loss that a sampled scheme approximates", ("scheme", "loss over all labels", "lean")
    )
    for one in advice.schemes:
        lean = "0" if one.leans == "neither" else f"{one.lean:+.2f}"
        table.add_row(one.scheme, one.loss or "no common name", lean)
    table.columns[1].justify = "left"
    table.caption = (
        "The more negatives, the closer. lean: in nats, above 0 to the tail, below 0 to the head."
    )
    if shape.labels > MOST_EXPLAINED:
        table.caption += f"\nFor the {MOST_EXPLAINED:,} most frequent labels."
    return table


def _known(advice: Advice) -> str:
    """What follows from time and memory alone."""
    if advice.verdict == "nothing fits":
        least = min(one.memory for one in advice.estimates) / 2**30
        return (
            f"Nothing fits: even the leanest needs {least:,.1f} GiB. Use a smaller `--dim`, or a "
            "machine with more memory."
        )
    if advice.all_labels is None:
        return "A loss over all labels does not fit into memory; a sampled one does."
    whole = f"the {HEADINGS[advice.all_labels.method]}"
    if advice.verdict == "all labels":
        return (
            f"Use {whole}: it has no sampling noise, and sampling is not expected to save much "
            "time."
        )
    saved = [
        f"{_times(advice.all_labels.seconds / one.seconds)} as fast with m = "
        f"{one.shape.negatives:,}"
        for one in advice.sampled
    ]
    return (
        f"{whole.capitalize()} fits into memory and has no sampling noise. A sampled step is "
        f"expected to be {', '.join(saved)}."
    )


def _unknown(advice: Advice) -> list[Text]:
    """What does not follow from them, and how to find out."""
    if advice.verdict not in ("open", "sampled"):
        return []
    return [Text(line) for line in (NOT_KNOWN, *FIND_OUT)]


NOT_KNOWN = (
    "Not known without a trained model: which sampler, and how many negatives, are good enough. To "
    "find out:"
)
FIND_OUT = (
    "- `headtail compare DATA --schemes softmax SCHEME@M …` trains schemes and compares them on "
    "head and tail;",
    "- `headtail explain --model RUN --data DATA` measures samplers on a trained model, against "
    "the exact gradient.",
)


def _code(advice: Advice, shape: Shape) -> str:
    """How to take the loss over all labels."""
    if advice.all_labels is None:
        return ""
    if advice.all_labels.method == "chunked":
        return (
            f"    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size={shape.chunk}, "
            "chunking_method=None)\n"
            "    loss = torch.nn.functional.linear_cross_entropy(hidden, table, target, "
            "options=options)"
        )
    return f'    head = ht.LabelHead(labels, {shape.dim}, ht.scheme("softmax", labels))'


def _times(ratio: float) -> str:
    return f"about {float(f'{ratio:.2g}'):,.0f} times" if ratio >= 10 else f"{ratio:.1f} times"


def _dict(advice: Advice, basis: str, memory: int, missing: dict[str, str]) -> dict[str, Any]:
    open_question = advice.verdict in ("open", "sampled")
    return {
        "basis": basis,
        "memory": memory,
        **asdict(advice),
        "not_known": NOT_KNOWN if open_question else None,
        "find_out": list(FIND_OUT) if open_question else [],
        "left_out": missing,
    }
