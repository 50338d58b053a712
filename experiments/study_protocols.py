"""The data sets of the studies, how each is trained, and the schemes: stated before any run, but
for what is said otherwise.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from parts import read_part
from search import Plan
from sequence_models import without_history
from study_runs import Protocol

from headtail.data.load import load
from headtail.data.points import DataSet, Points
from headtail.data.reading import Reading
from headtail.errors import HeadtailError
from headtail.schemes import PAPER
from headtail.training.config import Batching, Optimiser, Training
from headtail.training.recipes import cifar, sasrec
from samplers import GENERATED

TAUS = (0.25, 0.5, 0.75, 1.0, 1.25)
"""Strengths of tail training and of post-hoc adjustment, beside 0."""
RATES = (0.0075, 0.015, 0.03, 0.06, 0.12)
SMALL_RATES = (0.00025, 0.0005, 0.001, 0.002, 0.004)
"""Of Adam, for sequence encoders."""

_BAG = Training(dropout=0.5, schedule="linear", validation=0.1, patience=4)
_PAIRS: Batching = "pairs"
"""How points with several labels are batched. By default, losses over all labels would get whole
points and sampled ones pairs, and a scheme would differ in its batches as well.
"""
_DELICIOUS = replace(_BAG, batch=256, negatives=64, feature_dropout=0.2, batching=_PAIRS)
_LARGE = replace(_BAG, batch=1024, negatives=256)
_SEQUENCE = replace(sasrec(), schedule="linear", validation=0.1, patience=4)
_IMAGES = replace(cifar(), warmup=480, validation=0.1, patience=1000)

BAGS = (
    Protocol("delicious", _DELICIOUS, Plan(RATES, 12, 96), seconds=0.15),
    Protocol("diginetica", _LARGE, Plan(RATES, 12, 48), seconds=0.5),
    Protocol("nowplaying", _LARGE, Plan(RATES, 12, 48), seconds=0.6),
    Protocol("beauty", _LARGE, Plan(RATES, 12, 96), seconds=0.25),
    Protocol("gowalla", replace(_LARGE, batching=_PAIRS), Plan(RATES, 12, 48), seconds=0.5),
)
"""Lengths are doubled as long as that lowers the held-out loss, or halved as long as that does not
raise it. Few schemes reach an end where the longest is 96. It was so everywhere until the search
on Diginetica had reached 48 for most losses of the trade-off, each with a held-out loss 1 to 2%
lower than with 24. Twice as long for all would have cost hours of a GPU. No test result of that
search had been looked at.
"""
SEQUENCES = (
    Protocol(
        "beauty-sasrec",
        replace(_SEQUENCE, dim=128, dropout=0.5, heads=1),
        Plan(SMALL_RATES, 16, 128),
        seeds=3,
        seconds=0.5,
    ),
    Protocol(
        "diginetica-sasrec",
        replace(_SEQUENCE, dim=128, dropout=0.3, length=20),
        Plan(SMALL_RATES, 12, 96),
        seeds=3,
        seconds=1.0,
    ),
)


def _part(name: str, items: int, seconds: float, batching: Batching = "auto") -> Protocol:
    training = replace(_BAG, batch=256, negatives=16, dim=64, batching=batching)
    return Protocol(
        f"{name}-part", training, Plan(RATES, 8, 256, wider=3), seconds=seconds, items=items
    )


PARTS = (
    _part("diginetica", 1500, 0.5),
    _part("nowplaying", 1500, 0.6),
    _part("beauty", 1500, 0.25),
    _part("gowalla", 1000, 0.6, _PAIRS),
)
"""Parts that two cores of a CPU train on in hours. m is about as small a share of the labels as in
the whole data sets.
"""


def _with_batch(part: Protocol, batch: int) -> Protocol:
    training = replace(part.training, batch=batch)
    seconds = part.seconds * 256 / batch
    return replace(
        part, name=f"{part.name}-batch-{batch}", training=training, seconds=seconds, seeds=3
    )


BATCHES = tuple(
    _with_batch(part, batch)
    for batch in (64, 1024)
    for part in PARTS
    if "nowplaying" not in part.name
)
"""Three of the parts with smaller and larger batches."""


def _images(name: str, negatives: int, epochs: int, seeds: int, seconds: float) -> Protocol:
    return Protocol(
        name,
        replace(_IMAGES, negatives=negatives),
        Plan((0.05, 0.1, 0.2), epochs, epochs, wider=1, shortest=epochs),
        seeds=seeds,
        metric="recall@1",
        final=4,
        seconds=seconds,
    )


IMAGES = (
    _images("cifar10-exp", 4, 57, 3, 0.14),
    _images("tiny-exp", 32, 32, 3, 0.24),
    _images("cifar10-step", 4, 28, 1, 0.28),
    _images("tiny-step", 32, 14, 1, 0.56),
)
"""Four times a search's epochs are about the 21.8k steps of the paper's recipe; with warm-up. The
number of epochs is the recipe's, so only the rate is searched: three values, and up to five.
"""
_MILLION = replace(
    _BAG, batch=1024, negatives=512, dim=64, dropout=0.0, patience=2, batching=_PAIRS
)
MILLION = (
    Protocol(
        "million-adagrad",
        replace(_MILLION, optimiser="adagrad"),
        Plan((0.025, 0.05, 0.1, 0.2, 0.4), 2, 8),
        seeds=3,
        seconds=4.0,
        exact_seconds=40.0,
        generated=GENERATED,
    ),
    Protocol(
        "million-adam",
        replace(_MILLION, optimiser="adam"),
        Plan(SMALL_RATES, 2, 8),
        seeds=3,
        seconds=4.0,
        exact_seconds=45.0,
        generated=GENERATED,
    ),
)
"""Generated data with a million labels, two million points and eight million pairs."""


def _hundredth(name: str, optimiser: Optimiser, plan: Plan, batching: Batching) -> Protocol:
    training = replace(
        _MILLION, optimiser=optimiser, batch=256, negatives=64, batching=batching, patience=4
    )
    data = GENERATED.replace("000000,", "0000,")
    return Protocol(
        f"hundredth-{name}", training, plan, seeds=3, seconds=3.0, exact_seconds=7.0, generated=data
    )


HUNDREDTH = (
    _hundredth("adagrad", "adagrad", replace(MILLION[0].plan, longest=32), _PAIRS),
    _hundredth("adam", "adam", replace(MILLION[1].plan, longest=32), _PAIRS),
    _hundredth("points", "adagrad", replace(MILLION[0].plan, longest=32), "points"),
)
"""The same with a hundredth of everything, for a CPU. In the last one, losses over all labels get
whole points, a quarter of the steps, as in the first edition of the study.
"""


@dataclass(frozen=True)
class Places:
    """Where data are: a folder with the data sets, and one with CIFAR-10's python files."""

    data: Path
    cifar: Path | None = None


def read_data(protocol: Protocol, places: Places) -> DataSet:
    """The data of a protocol."""
    name = re.sub(r"-(sasrec|part)(-batch-\d+)?$", "", protocol.name)
    if protocol.generated:
        return load(protocol.generated)
    if name.startswith(("tiny-", "cifar10-")):
        reading = Reading(profile="exp" if name.endswith("-exp") else "step")
        if name.startswith("tiny-"):
            return load(places.data / "tiny-imagenet-32", reading)
        if places.cifar is None:
            raise HeadtailError("Pass --cifar with the folder of CIFAR-10's files.")
        return load(places.cifar, reading)
    folder = places.data / name
    data = read_part(folder, protocol.items) if protocol.items else load(folder)
    # Workers get these points as they are here, instead of reading the files again.
    data = replace(data, read_as={}) if protocol.items or name == "beauty" else data
    if name != "beauty":
        return data
    # What a user has already is not recommended, as where the published numbers come from.
    changed = {part: without_history(points) for part, points in _asked(data).items()}
    return replace(data, **changed)


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
    whole = [f"within-batch:{name}@{batch}" for name in ("importance", "tail", "relative")]
    if protocol in SEQUENCES:
        return ["softmax", "logit-adjusted", *whole]
    names = [
        "softmax",
        "logit-adjusted",
        *PAPER[4:],
        *whole,
        *PAPER[:4],
        f"within-batch:constant@{batch}",
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
    # Excluding the positive matters most where there are few labels.
    excluded = [f"uniform(excluded):{name.partition(':')[2]}" for name in PAPER[:4]]
    return names + (excluded if protocol.name == "delicious" else [])


def contrastive_schemes(protocol: Protocol) -> list[str]:
    """The contrastive loss with the paper's form, over all labels and for its eight schemes."""
    assert protocol not in SEQUENCES, "sequence encoders have the softmax alone"
    return ["contrastive", *(f"contrastive/{name}" for name in (*PAPER[4:], *PAPER[:4]))]


def every_scheme(protocol: Protocol) -> list[str]:
    """All schemes of the trade-off and of the retrieval study, most important first. Losses over
    all labels fill a GPU, so a few of them side by side are enough: the others come between them.

    >>> every_scheme(BAGS[0])[:3]
    ['softmax', 'within-batch:importance@256', 'logit-adjusted(0.25)']
    >>> every_scheme(BAGS[0])[-1]
    'contrastive/uniform:tail'
    """
    curves = itertools.chain(*zip(*tau_schemes(protocol).values(), strict=True))
    others = [*retrieval_schemes(protocol), *contrastive_schemes(protocol)]
    return list(dict.fromkeys([*curves, *others]))


def negatives_schemes(protocol: Protocol) -> list[str]:
    """Uniform negatives with tail weights, from few to as many as Diginetica has labels.

    >>> negatives_schemes(BAGS[1])[::3]
    ['logit-adjusted', 'uniform:tail@1024', 'uniform:tail@43097']
    >>> negatives_schemes(PARTS[0])[::2]
    ['logit-adjusted', 'uniform:tail@64', 'uniform:tail@1500']
    """
    whole = (64, 256, 1024, 4096, 16384, 43097)
    numbers = {"diginetica": whole, "diginetica-part": (16, 64, 256, 1500)}[protocol.name]
    return ["logit-adjusted", *(f"uniform:tail@{m}" for m in numbers)]


def batch_schemes(protocol: Protocol) -> list[str]:
    """Both targets, and what approximates them with all labels of the batch.

    >>> batch_schemes(BATCHES[0])[:2]
    ['softmax', 'within-batch:importance@64']
    """
    batch = protocol.training.batch
    return [
        "softmax",
        f"within-batch:importance@{batch}",
        "logit-adjusted",
        f"within-batch:tail@{batch}",
    ]


def image_schemes(protocol: Protocol) -> list[str]:
    """All schemes of the image study, most important first; `adaptive` is the margin of LDAM."""
    assert protocol in IMAGES, "the margins are those of long-tailed images"
    full = ["softmax", "logit-adjusted", "equalised", "adaptive"]
    return [*full[:2], *PAPER[4:], *full[2:], *PAPER[:4]]


def sweep_schemes(protocol: Protocol) -> list[str]:
    """The eight schemes with other numbers of negatives, the extremes first."""
    assert protocol.name == "tiny-exp", "the sweep is on the data set with more classes"
    return [f"{name}@{m}" for m in (128, 8, 64, 16) for name in PAPER]


def million_schemes(protocol: Protocol) -> list[str]:
    """Losses over all labels, and sampled ones that approximate them.

    >>> million_schemes(HUNDREDTH[0])[:3]
    ['within-batch:importance@256', 'uniform:importance@64', 'block(1):importance@8']
    >>> million_schemes(HUNDREDTH[2])
    ['softmax', 'logit-adjusted']
    """
    assert protocol in (*MILLION, *HUNDREDTH), "these are chosen for generated data"
    exact = ["softmax", "logit-adjusted"]
    training = protocol.training
    if training.batching == "points":
        return exact
    assert isinstance(training.negatives, int), "every protocol names its negatives"
    drawn = training.negatives
    samplers = (("within-batch", training.batch), ("uniform", drawn), ("block(1)", drawn // 8))
    return [f"{name}:{w}@{m}" for w in ("importance", "tail") for name, m in samplers] + exact


Schemes = Callable[[Protocol], list[str]]
