"""Which is better at equal head recall: to train for the tail, or to adjust the answers afterwards?

    .venv/bin/python experiments/tradeoff.py --data DATA --only diginetica --workers 10 --minutes 9

Three curves over τ = 0, ¼, ½, ¾, 1, 1¼ on every data set: the logit-adjusted loss over all labels,
tail weights with all labels of the batch as negatives, and the softmax with answers adjusted
afterwards. Each trained point has its own search of rate and epochs, by its own implicit loss on
held-out points, with the same rule (`search.py`); adjusted answers use the softmax's models.
Delicious, Diginetica, Nowplaying, Beauty and Gowalla with the bag encoder, five seeds; CIFAR-10-LT
and Tiny-ImageNet-32 with ResNet-56 and warm-up, three seeds.

The cost is stated first (`--cost`: and nothing else is done). Resumable: finished runs are kept in
--out, and `--minutes` stops in time. `--packed DIR` reads archives of earlier runs from DIR and
writes all finished runs there. `tradeoff_tables.py` makes tables and figure.
"""

from __future__ import annotations

import sys

from study_cli import main_of
from study_protocols import BAGS, IMAGES, PARTS, tau_schemes
from study_runs import Protocol

PROTOCOLS = (*BAGS, *PARTS, *IMAGES[:2])


def schemes(protocol: Protocol) -> list[str]:
    """The trained points of all curves, those over all labels first: they take longest."""
    return [name for curve in tau_schemes(protocol).values() for name in curve]


main = main_of(__doc__, PROTOCOLS, schemes)

if __name__ == "__main__":
    sys.exit(main())
