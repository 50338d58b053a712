"""Recipes: settings by kind of data, those with which the paper trained on images, and those of
sequence encoders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from headtail.data.facts import Kind, kind_of
from headtail.data.points import DataSet
from headtail.errors import Sentence, Setting
from headtail.schemes import parse
from headtail.training.config import Run, SettledRun, Training


@dataclass(frozen=True)
class Defaults:
    """Settings for one kind of data, where a run leaves them open (docs/defaults.md).

    Attributes:
        batch: of large data sets; it is halved until an epoch has so many steps.
        steps: the fewest steps of an epoch: with fewer, a small data set barely moves its model.
        negatives: at most: no more than there are labels, or than are in the batch.
        epochs: passes over the training pairs.
        lr: learning rate of sampled schemes.
        exact_lr: learning rate of losses over all labels.
        dropout: share of the hidden layer.
    """

    batch: int = 256
    steps: int = 200
    negatives: int = 64
    epochs: int = 10
    lr: float = 0.02
    exact_lr: float = 0.02
    dropout: float = 0.5


DEFAULTS: dict[Kind, Defaults] = {
    "text": Defaults(1024, steps=500, negatives=256, epochs=20, lr=0.05, exact_lr=0.05),
    "sequences": Defaults(1024, negatives=1024, epochs=20, lr=0.03, exact_lr=0.03),
    "interactions": Defaults(1024, negatives=1024, epochs=30, lr=0.03, exact_lr=0.05),
    "dense": Defaults(),
    "images": Defaults(),
}
SMALLEST_BATCH = 32


def with_defaults(run: Run, data: DataSet) -> SettledRun:
    """A run with every setting decided: what it leaves open comes from `DEFAULTS`.

    Batches of small data sets are halved as long as they hold the negatives that were asked for.

    >>> from headtail.data.load import load
    >>> data = load("synthetic:points=6000,test=20,features=80,labels=12")
    >>> settled = with_defaults(Run(scheme="within-batch:tail", lr=0.3), data)
    >>> settled.lr, settled.batch, settled.negatives
    (0.3, 32, 32)
    """
    usual = DEFAULTS[kind_of(data)]
    brought = OF_ENCODER.get(run.encoder)
    if brought is not None and run.optimiser == (recipe := brought()).optimiser:
        run = replace(run, **_open(run, recipe))
    scheme = parse(run.scheme)
    wanted = scheme.num_negatives or run.negatives or 0
    exact = scheme.sampler is None
    batch = run.batch or batch_for(usual, data.train.num_pairs, wanted)
    # Labels of the batch repeat; drawing more than there are is of no use elsewhere.
    most = {"batch": batch, "past batches": usual.negatives}.get(
        scheme.source or "", data.train.num_labels
    )
    settled: dict[str, Any] = {
        "batch": batch,
        "negatives": min(usual.negatives, most),
        "epochs": usual.epochs,
        "lr": usual.exact_lr if exact else usual.lr,
        "dropout": usual.dropout,
    }
    given = {name: value for name, value in asdict(run).items() if value is not None}
    return SettledRun(**(settled | given))


def batch_for(usual: Defaults, pairs: int, negatives: int = 0) -> int:
    """The batch for so many training pairs: halved for enough steps, as long as it holds the
    negatives.

    >>> batch_for(DEFAULTS["sequences"], 40_000), batch_for(DEFAULTS["sequences"], 40_000, 300)
    (128, 512)
    """
    batch = usual.batch
    smallest = max(SMALLEST_BATCH, negatives)
    while batch // 2 >= smallest and pairs < batch * usual.steps:
        batch //= 2
    return batch


def _open(run: Run, recipe: Training) -> dict[str, Any]:
    """The recipe's values of the settings that the run leaves open."""
    return {name: getattr(recipe, name) for name, value in vars(run).items() if value is None}


def note_on_defaults(training: Training, schemes: Sequence[str], data: DataSet) -> Sentence | None:
    """What the kind of data decides about these schemes; None if every setting was given."""
    runs = [with_defaults(Run.of(training, name), data) for name in schemes]
    parts: list[str | Setting] = []
    for name in ("lr", "epochs", "batch", "negatives", "dropout"):
        about = runs if name != "negatives" else [run for run in runs if _takes_negatives(run)]
        chosen = list(dict.fromkeys(getattr(run, name) for run in about))
        if getattr(training, name) is None and chosen:
            parts += [", ", Setting(name, chosen[0]), *(f" or {other:g}" for other in chosen[1:])]
    if not parts:
        return None
    return Sentence(f"Settings chosen for {_in_words(data)}: ", *parts[1:], ".")


def _takes_negatives(run: SettledRun) -> bool:
    """Whether its scheme draws negatives and has no number of its own."""
    scheme = parse(run.scheme)
    return scheme.sampler is not None and scheme.num_negatives is None


def _in_words(data: DataSet) -> str:
    """The kind of data as a user knows it."""
    kind = kind_of(data)
    if kind != "text" or data.text is not None:
        return kind
    return "sparse rows, as for text" if data.relations is None else "triples, as for text"


def cifar() -> Training:
    """CIFAR-10-LT and CIFAR-100-LT, and other small images (appendix "Details of long-tail
    experiments").

    ResNet-56, SGD with momentum 0.9, weight decay 1e-4, batches of 128, 256 epochs, rate 0.1, a
    tenth of it from epoch 160 on and a hundredth from epoch 180 on; pad, crop and flip; m = 32.
    All weights decay. The last epoch counts: nothing is held out.

    >>> recipe = cifar()
    >>> [round(recipe.learning_rate(epoch, 256), 4) for epoch in (0, 159, 160, 179, 180, 255)]
    [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    """
    return Training(
        encoder="resnet56",
        batch=128,
        negatives=32,
        epochs=256,
        optimiser="sgd",
        momentum=0.9,
        lr=0.1,
        schedule="steps",
        drops=(160 / 256, 180 / 256),
        weight_decay=1e-4,
        dropout=0.0,
        precision="bfloat16",
        validation=0.0,
    )


def imagenet_lt() -> Training:
    """ImageNet-LT (same appendix).

    ResNet-50, SGD with momentum 0.9, weight decay 5e-4, batches of 512, 90 epochs, a cosine from
    0.4 to 0; m = 512, which for within-batch is the whole batch, and in the paper's sweep 32, 64,
    128, 256.

    >>> imagenet_lt().batch, imagenet_lt().schedule
    (512, 'cosine')
    """
    return Training(
        encoder="resnet50",
        batch=512,
        negatives=512,
        epochs=90,
        optimiser="sgd",
        momentum=0.9,
        lr=0.4,
        schedule="cosine",
        weight_decay=5e-4,
        dropout=0.0,
        precision="bfloat16",
        validation=0.0,
    )


def inaturalist() -> Training:
    """iNaturalist 2018: the paper gives no recipe, so that of ImageNet-LT with weight decay 1e-4.

    Both sets are photographs of the same size, so network, batch, rate, schedule and epochs stay.
    It has 437,513 training images, almost four times ImageNet-LT's 115,846, so it needs less
    regularisation: 1e-4 is the decay of He et al. (2016) for ImageNet.

    >>> inaturalist().weight_decay
    0.0001
    """
    return replace(imagenet_lt(), weight_decay=1e-4)


def sasrec() -> Training:
    """SASRec on sequences (Klenitskiy and Vasilev, 2023): size 64, Adam at 0.001, until ten epochs
    bring no improvement.

    A batch predicts 1,024 items, of about 128 sequences where these are short.

    >>> sasrec().optimiser, sasrec().dim
    ('adam', 64)
    """
    return Training(
        encoder="sasrec",
        dim=64,
        batch=1024,
        negatives=256,
        epochs=100,
        optimiser="adam",
        lr=1e-3,
        schedule="constant",
        dropout=0.2,
        patience=10,
    )


def gru() -> Training:
    """GRU4Rec on sequences: as `sasrec`, with one layer twice as wide.

    >>> gru().layers, gru().dim
    (1, 128)
    """
    return replace(sasrec(), encoder="gru", layers=1, dim=128)


OF_ENCODER = {"gru": gru, "sasrec": sasrec}
"""Recipes that an encoder brings along."""
RECIPES = {"cifar": cifar, "imagenet-lt": imagenet_lt, "inaturalist": inaturalist}
"""Recipes by name."""
