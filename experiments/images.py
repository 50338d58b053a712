"""The paper's long-tail study, second edition: sampling schemes on images, with a warm-up.

    .venv/bin/python experiments/images.py --data DATA --cifar cifar-10-batches-py --workers 8

Tiny-ImageNet-32 (200 classes, m = 32) and CIFAR-10-LT (m = 4) at imbalance 100, Exp with three
seeds and Step with one; ResNet-56 with the paper's CIFAR recipe, and a learning rate that rises
over the first 480 steps. `--part` is one of

schemes      over all labels the softmax, with answers adjusted afterwards and with its classifier
             trained again (`retrained.py`), logit adjustment, the equalised loss and LDAM's margin
             (`adaptive`); uniform and within-batch × constant, importance, relative, tail
contrastive  the contrastive loss over all labels and with the eight sampled schemes
sweep        the eight sampled schemes with m = 8, 16, 64 and 128 on Tiny-ImageNet-32 Exp, one seed

Each scheme has its own search of the rate (0.05, 0.1, 0.2, and beyond where the best is at an end)
in runs of a quarter of the length, by its held-out loss. Runs whose test numbers count hold nothing
out and take the recipe's 21.8k steps of 128 images.

The cost is stated first (`--cost`: and nothing else is done). Resumable: finished runs are kept in
--out, which `tradeoff.py` shares, and `--minutes` stops in time. `--packed DIR` reads archives of
earlier runs from DIR and writes all finished runs there. `evidence_tables.py` makes the tables. The
first edition is `longtail.py`, with results in docs/results-longtail.md.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from study_cli import main_of_parts
from study_protocols import IMAGES, contrastive_schemes, image_schemes, sweep_schemes

PARTS = {
    "schemes": (IMAGES, image_schemes),
    "contrastive": (IMAGES, contrastive_schemes),
    "sweep": ([replace(IMAGES[1], seeds=1)], sweep_schemes),
}

main = main_of_parts(__doc__, PARTS)

if __name__ == "__main__":
    sys.exit(main())
