"""Recipes: the settings with which the paper trained on images, and those of sequence encoders."""

from __future__ import annotations

from dataclasses import replace

from headtail.training.config import Training


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
