"""The data sets of the studies, how each is trained, and the schemes: stated before any run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from search import Plan
from sequence_models import without_history
from study_runs import Protocol

from headtail.data.load import load
from headtail.data.points import DataSet, Points
from headtail.data.reading import Reading
from headtail.errors import HeadtailError
from headtail.schemes import PAPER
from headtail.training.config import Training
from headtail.training.recipes import cifar, sasrec

TAUS = (0.25, 0.5, 0.75, 1.0, 1.25)
"""Strengths of tail training and of post-hoc adjustment, beside 0."""
RATES = (0.0075, 0.015, 0.03, 0.06, 0.12)
SMALL_RATES = (0.00025, 0.0005, 0.001, 0.002, 0.004)
"""Of Adam, for sequence encoders."""

_BAG = Training(dropout=0.5, schedule="linear", validation=0.1, patience=4)
_DELICIOUS = replace(_BAG, batch=256, negatives=64, feature_dropout=0.2)
_LARGE = replace(_BAG, batch=1024, negatives=256)
_SEQUENCE = replace(sasrec(), schedule="linear", validation=0.1, patience=4)
_IMAGES = replace(cifar(), warmup=480, validation=0.1, patience=1000)

BAGS = (
    Protocol("delicious", _DELICIOUS, Plan(RATES, 12, 48), seconds=0.15),
    Protocol("diginetica", _LARGE, Plan(RATES, 12, 24), seconds=0.5),
    Protocol("nowplaying", _LARGE, Plan(RATES, 12, 24), seconds=0.6),
    Protocol("beauty", _LARGE, Plan(RATES, 12, 24), seconds=0.25),
    Protocol("gowalla", _LARGE, Plan(RATES, 12, 48), seconds=0.5),
)
SEQUENCES = (
    Protocol(
        "beauty-sasrec",
        replace(_SEQUENCE, dim=128, dropout=0.5, heads=1),
        Plan(SMALL_RATES, 16, 32),
        seeds=3,
        seconds=0.5,
    ),
    Protocol(
        "diginetica-sasrec",
        replace(_SEQUENCE, dim=128, dropout=0.3, length=20),
        Plan(SMALL_RATES, 12, 24),
        seeds=3,
        seconds=1.0,
    ),
)
IMAGES = (
    Protocol(
        "cifar10-exp",
        replace(_IMAGES, negatives=4),
        Plan((0.05, 0.1, 0.2), 57, 57, wider=1),
        seeds=3,
        metric="recall@1",
        final=4,
        seconds=0.14,
    ),
    Protocol(
        "tiny-exp",
        _IMAGES,
        Plan((0.05, 0.1, 0.2), 32, 32, wider=1),
        seeds=3,
        metric="recall@1",
        final=4,
        seconds=0.24,
    ),
)
"""Four times a search's epochs are the 21.8k steps of the paper's recipe; with warm-up."""


@dataclass(frozen=True)
class Places:
    """Where data are: a folder with the data sets, and one with CIFAR-10's python files."""

    data: Path
    cifar: Path | None = None


def read_data(protocol: Protocol, places: Places) -> DataSet:
    """The data of a protocol."""
    name = protocol.name.removesuffix("-sasrec")
    if name == "tiny-exp":
        return load(places.data / "tiny-imagenet-32", Reading(profile="exp"))
    if name == "cifar10-exp":
        if places.cifar is None:
            raise HeadtailError("Pass --cifar with the folder of CIFAR-10's files.")
        return load(places.cifar, Reading(profile="exp"))
    data = load(places.data / name)
    if name != "beauty":
        return data
    # What a user has already is not recommended, as where the published numbers come from.
    # Workers get these points as they are here, instead of reading the files again.
    changed = {part: without_history(points) for part, points in _asked(data).items()}
    return replace(data, **changed, read_as={})


def _asked(data: DataSet) -> dict[str, Points]:
    assert data.validation is not None, "one item of each user is left out for validation"
    return {"test": data.test, "validation": data.validation}


def tau_schemes(protocol: Protocol) -> dict[str, list[str]]:
    """The trained curves: the loss over all labels, and all labels of the batch as negatives.

    >>> tau_schemes(BAGS[0])["full"][:3]
    ['softmax', 'logit-adjusted(0.25)', 'logit-adjusted(0.5)']
    >>> tau_schemes(BAGS[0])["within-batch"][:2]
    ['within-batch:importance@256', 'within-batch:tail(0.25)@256']
    """
    batch = protocol.training.batch
    full = ["softmax", *(_with_tau("logit-adjusted", tau) for tau in TAUS)]
    tail = [f"{_with_tau('within-batch:tail', tau)}@{batch}" for tau in TAUS]
    return {"full": full, "within-batch": [f"within-batch:importance@{batch}", *tail]}


def _with_tau(name: str, tau: float) -> str:
    return name if tau == 1 else f"{name}({tau:g})"


def retrieval_schemes(protocol: Protocol) -> list[str]:
    """All schemes of the retrieval study, most important first."""
    batch = protocol.training.batch
    assert batch is not None, "every protocol names its batch"
    if protocol in SEQUENCES:
        weightings = ("importance", "tail", "relative")
        return ["softmax", *(f"within-batch:{name}@{batch}" for name in weightings)]
    return [
        "softmax",
        "logit-adjusted",
        *PAPER[4:],
        *PAPER[:4],
        *(f"within-batch:{name}@{batch}" for name in ("importance", "tail", "constant")),
        f"within-batch:infonce@{batch}",
        "log-uniform:importance",
        "frequency(0.75):importance",
        "mixture(within-batch,uniform):importance",
        "mixture(within-batch,uniform):tail",
        f"queue({8 * batch}):importance@{2 * batch}",
        "block(1):importance@64",
        "block(1):tail@64",
        "logistic",
    ]


def contrastive_schemes(protocol: Protocol) -> list[str]:
    """The contrastive loss with the paper's form, over all labels and for its eight schemes."""
    assert protocol in BAGS, "images have the long-tail study"
    return ["contrastive", *(f"contrastive/{name}" for name in (*PAPER[4:], *PAPER[:4]))]


Schemes = Callable[[Protocol], list[str]]
