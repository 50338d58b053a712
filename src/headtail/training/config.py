"""Run: all settings that decide how a model is trained, saved with its results."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from headtail.data.reading import LONGEST_SEQUENCE
from headtail.errors import (
    HeadtailError,
    Sentence,
    Setting,
    check_choice,
    check_count,
    check_kind,
    check_number,
    nearest,
)
from headtail.files.names import encodable, original
from headtail.files.regular import regular

Optimiser = Literal["adagrad", "rowwise-adagrad", "adam", "sgd"]
Schedule = Literal["constant", "linear", "cosine", "steps"]
Batching = Literal["auto", "pairs", "points"]
Encoder = Literal["auto", "bag", "gru", "sasrec", "resnet20", "resnet32", "resnet56", "resnet50"]
Precision = Literal["float32", "bfloat16"]
DROP = 0.1
"""The factor on the learning rate at each of `drops`."""


@dataclass(frozen=True)
class Training:
    """How to train, whatever the scheme."""

    encoder: Encoder = "auto"
    """What turns features into hidden states: bag (the sum of the features' rows of a table, the
    paper's linear layer), gru or sasrec, which read sequences in order, or a ResNet, for images.
    auto: bag; for images resnet56 up to 64 pixels, else resnet50.
    """
    dim: int = 512
    """Size of the hidden layer; a ResNet has its own."""
    layers: int = 2
    """Layers of gru and sasrec."""
    heads: int = 2
    """Heads of each attention layer of sasrec."""
    length: int = 50
    """Most items of a sequence that gru and sasrec look at, up to 10,000."""
    tied: bool = True
    """Whether gru and sasrec read items from the label table, instead of from a table of their own.
    """
    batch: int | None = None
    """Pairs in a batch; for gru and sasrec items that are predicted. By default, the kind of data
    decides.
    """
    negatives: int | None = None
    """Number of negatives m, where the scheme has no @m; for within-batch that many of the batch.
    By default, the kind of data decides.
    """
    epochs: int | None = None
    """Passes over the training pairs, at most. By default, the kind of data decides."""
    optimiser: Optimiser = "adagrad"
    """adagrad (the same for sparse and dense gradients), rowwise-adagrad (one number of state per
    row: faster, and half the memory), adam (on the CPU, moments of untouched rows do not change),
    sgd (with a ResNet torch's own, dense).
    """
    momentum: float = 0.0
    """Of sgd."""
    lr: float | None = None
    """Learning rate at its highest. By default, the kind of data and of loss decides."""
    schedule: Schedule = "linear"
    """How the learning rate falls over the run: constant (it does not), linear or cosine (to zero),
    steps (at drops).
    """
    drops: tuple[float, ...] = ()
    """For steps: shares of the run; after each, the learning rate is divided by ten."""
    warmup: int = 0
    """Steps at the start over which the learning rate rises."""
    weight_decay: float = 0.0
    """Weight decay of all weights: decoupled; for a ResNet trained by sgd coupled, as in torch."""
    dropout: float | None = None
    """Share of the hidden layer that is dropped in training. By default, the kind of data decides.
    """
    feature_dropout: float = 0.0
    """Share of the features that is dropped in training."""
    normalise: bool = True
    """Scale each point's features to length 1."""
    augment: bool = True
    """Crop and mirror images at random in training."""
    precision: Precision = "float32"
    """On a GPU: of a ResNet's layers, and of other large tables with sparse gradients,
    which then take half the memory and are rounded at random. Sums are float32 in any case, and so
    are a ResNet's weights and everything on a CPU.
    """
    clip: float = 0.0
    """Largest gradient norm; 0 does not clip."""
    deterministic: bool = False
    """Repeat and resume bit for bit on a GPU too, somewhat slower; a CPU always does."""
    smoothing: float | None = None
    """Pseudo-count added to every label in the prior; by default 0, or 1 where some label never
    occurs in training.
    """
    batching: Batching = "auto"
    """pairs: shuffled (point, label) pairs. points: whole points, all their labels masked as
    negatives; within-batch q is then not the prior. auto: pairs for sampled schemes; points for
    all-label losses, which are the same and then computed once per point.
    """
    validation: float = 0.05
    """Share of the training points held out (at most 2000 of them) to choose the best epoch; 0
    keeps the last.
    """
    stop_on: Literal["implicit-loss", "recall@10", "precision@1"] = "implicit-loss"
    """What is measured on the held-out points: the loss over all labels that the scheme implicitly
    optimises, or a metric.
    """
    patience: int = 3
    """Epochs without improvement after which training stops."""

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {name: value for name, value in given.items() if value is not None}
        counts = {"dim", "layers", "heads", "batch", "negatives", "epochs", "patience"}
        for name in given.keys() & counts:
            check_count(name, given[name])
        check_count("length", self.length, LONGEST_SEQUENCE)
        for name in given.keys() & {"lr", "weight_decay", "clip", "warmup", "smoothing"}:
            check_number(name, given[name], low=0)
        for name in given.keys() & {"dropout", "feature_dropout", "validation", "momentum"}:
            if not 0 <= check_number(name, given[name]) < 1:
                raise HeadtailError(
                    Setting(name),
                    f" is a share from 0 up to but not including 1, but got {given[name]!r}.",
                )
        if self.lr == 0:
            raise HeadtailError(Setting("lr"), " must be above 0, or nothing is learned.")
        for name in ("normalise", "deterministic", "augment", "tied"):
            check_kind(name, getattr(self, name), bool, "True")
        check_choice("optimiser", self.optimiser, get_args(Optimiser))
        check_choice("schedule", self.schedule, get_args(Schedule))
        check_choice("batching", self.batching, get_args(Batching))
        check_choice("encoder", self.encoder, get_args(Encoder))
        check_choice("precision", self.precision, get_args(Precision))
        check_choice("stop_on", self.stop_on, ("implicit-loss", "recall@10", "precision@1"))
        if not isinstance(self.drops, tuple | list):
            raise HeadtailError(
                Setting("drops"),
                f" are shares of the run, for example 0.6 0.8, but got {self.drops!r}.",
            )
        # A list if they were read from a file.
        object.__setattr__(self, "drops", tuple(self.drops))
        if any(not 0 < check_number("drops", share) < 1 for share in self.drops):
            raise HeadtailError(
                Setting("drops"),
                " are shares of the run between 0 and 1, but got "
                f"{', '.join(map(str, self.drops))}.",
            )

    def check_together(self) -> None:
        """Refuse settings that contradict each other. Single settings are checked earlier; a recipe
        may still change some in between.
        """
        if self.momentum and self.optimiser != "sgd":
            raise HeadtailError(
                Setting("momentum"),
                " is for sgd, but ",
                Setting("optimiser"),
                f" is {self.optimiser}. Write ",
                Setting("optimiser", "sgd"),
                ", or drop it.",
            )
        if bool(self.drops) != (self.schedule == "steps"):
            drops = Setting("drops")
            schedule = Sentence(Setting("schedule"), f" is {self.schedule}")
            raise HeadtailError(
                drops,
                " belong to ",
                Setting("schedule", "steps"),
                ", and only to it, but ",
                schedule if self.drops else Sentence("there are no ", drops),
                ".",
            )

    def learning_rate(self, step: int, steps: int) -> float:
        """The learning rate of one of `steps` steps."""
        assert self.lr is not None, "the data have decided it before any step"
        rise = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        done = step / max(1, steps)
        dropped = DROP ** sum(done >= share for share in self.drops)
        fall = {
            "constant": 1.0,
            "linear": 1 - done,
            "cosine": (1 + math.cos(math.pi * done)) / 2,
            "steps": dropped,
        }[self.schedule]
        return self.lr * rise * fall


@dataclass(frozen=True)
class Run(Training):
    """One training run: how to train, what, and from which seed.

    >>> Run(scheme="within-batch:tail", schedule="linear", lr=0.1).learning_rate(step=50, steps=100)
    0.05
    >>> Run(epochs=0)
    Traceback (most recent call last):
    headtail.errors.HeadtailError: `epochs` must be a whole number of at least 1, but got 0.
    """

    scheme: str = "softmax"
    """What to train: a scheme name such as within-batch:tail, or an all-label loss such as softmax.
    """
    seed: int = 0
    """Seed of all randomness: initial weights, order, negatives, dropout."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kind("scheme", self.scheme, str, "within-batch:tail")
        check_kind("seed", self.seed, int, "0")
        if not 0 <= self.seed < 2**63:
            raise HeadtailError(
                Setting("seed"),
                f" must be a whole number from 0 to 2^63 − 1, but got {self.seed}.",
            )

    @classmethod
    def of(cls, training: Training, scheme: str, seed: int = 0) -> Run:
        """A scheme and a seed, trained like that."""
        values: dict[str, Any] = asdict(training)
        return cls(**(values | {"scheme": scheme, "seed": seed}))

    def to_toml(self) -> str:
        """As TOML; fields that are None are left out."""
        return to_toml(asdict(self))

    @classmethod
    def from_toml(cls, text: str, where: str = "run.toml") -> Run:
        """From TOML; an unknown field is refused by name. The table `[data]` is about the data, and
        is skipped.
        """
        try:
            values = read_toml(text)
        except (ValueError, RecursionError) as error:
            raise HeadtailError(f"`{where}` is not valid TOML: {error}.") from error
        values.pop("data", None)
        names = [field.name for field in fields(cls)]
        for name in values:
            if name not in names:
                raise HeadtailError(
                    f"`{name}` in `{where}` is not a setting of a run.{nearest(name, names)}"
                )
        try:
            return cls(**values)
        except HeadtailError as error:
            raise HeadtailError(f"In `{where}`, ", error.sentence) from error

    @classmethod
    def read(cls, path: str | Path) -> Run:
        """From a file."""
        try:
            return cls.from_toml(regular(Path(path)).read_text(encoding="utf-8"), str(path))
        except OSError as error:
            raise HeadtailError(f"`{path}` cannot be read: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise HeadtailError(f"`{path}` is not valid TOML: it is not UTF-8 text.") from error


@dataclass(frozen=True)
class SettledRun(Run):
    """A run with every setting decided: what `headtail.training.recipes.with_defaults` makes of a
    run and its data.
    """

    batch: int = 256
    negatives: int = 64
    epochs: int = 10
    lr: float = 0.02
    dropout: float = 0.5


def to_toml(values: dict[str, Any], data: dict[str, Any] | None = None) -> str:
    """Settings as TOML, with the options that the data were read with in the table `[data]`.

    Values of None are left out; one that differs from scheme to scheme is a table.

    >>> print(to_toml({"lr": {"softmax": 0.1, "uniform:tail": 0.2}}), end="")
    lr = { "softmax" = 0.1, "uniform:tail" = 0.2 }
    >>> print(to_toml({"lr": 0.1, "clip": None}, {"path": "shop", "last": 5}), end="")
    lr = 0.1
    <BLANKLINE>
    [data]
    path = "shop"
    last = 5
    """
    settings = _toml_lines(values)
    options = _toml_lines(data or {})
    return f"{settings}\n[data]\n{options}" if options else settings


def _toml_lines(values: dict[str, Any]) -> str:
    known = {name: value for name, value in values.items() if value is not None}
    return "".join(f"{name} = {_toml_value(value)}\n" for name, value in known.items())


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        inside = (f"{_toml_value(key)} = {_toml_value(one)}" for key, one in value.items())
        return f"{{ {', '.join(inside)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    return _toml_string(value) if isinstance(value, str) else json.dumps(value)


def _toml_string(text: str) -> str:
    """Text in quotes; JSON's escapes of characters above U+FFFF are not TOML's."""
    quoted = json.dumps(encodable(text), ensure_ascii=False)
    escapes = (c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)
    return quoted if quoted.isprintable() else "".join(escapes)


def read_toml(text: str) -> dict[str, Any]:
    """The inverse of `to_toml`."""
    return _originals(tomllib.loads(text))


def _originals(value: Any) -> Any:
    """Names as they were before `encodable` made them fit for a file."""
    if isinstance(value, dict):
        return {original(key): _originals(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_originals(inner) for inner in value]
    return original(value) if isinstance(value, str) else value


def data_of(path: Path) -> dict[str, Any]:
    """The options that a run's data were read with, from its `run.toml`; empty if it has none."""
    try:
        options = read_toml(regular(path).read_text(encoding="utf-8")).get("data", {})
    except (OSError, ValueError, RecursionError):
        return {}
    return options if isinstance(options, dict) else {}
