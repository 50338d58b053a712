"""The paper's retrieval study: what do sampling schemes do to head and tail on real data?

    .venv/bin/python experiments/retrieval.py --data DATA --only diginetica --workers 10 --minutes 9

Delicious (m = 64), Diginetica, Nowplaying, Beauty and Gowalla (m = 256) with the paper's linear
encoder, parts of them (m = 16), and SASRec on Beauty and Diginetica. `--part` is one of

schemes      within-batch and uniform × constant, importance, relative, tail; the whole batch as
             negatives, InfoNCE, logQ corrections with other samplers, mixtures, a queue,
             `block(1)`; over all labels the softmax, with answers adjusted afterwards, logit
             adjustment and one-vs-all logistic; on Delicious with positives excluded too
contrastive  the contrastive loss over all labels and with the paper's eight schemes
batches      both targets and the whole batch as negatives on three parts, with batches of 64 and
             1,024 (`schemes` has those of 256)
negatives    uniform negatives with tail weights on Diginetica, m = 64 to 43,097, and on its part
whole        those of tradeoff.py, schemes and contrastive, in this order

Each scheme has its own search of rate and epochs (`search.py`): five rates or more, each decaying
to zero, and lengths until the held-out loss turns; whole sessions are held out. Slices are measured
for every rate that is tried. Five seeds at the chosen values (SASRec and
batches: three; Diginetica was run with `--seeds 3`).

On a GPU, losses over all labels slow sampled ones beside them: run `--losses sampled` first and
then `--losses full`, in two commands with the same --out.

The cost is stated first (`--cost`: and nothing else is done). Resumable: finished runs are kept in
--out, which all studies share, and `--minutes` stops in time. `--packed DIR` reads archives of
earlier runs from DIR and writes all finished runs there. `evidence_tables.py` makes the tables.
Results are in docs/results-retrieval.md, those of the first edition in docs/results-first.md.
"""

from __future__ import annotations

import sys

from study_cli import main_of_parts
from study_protocols import (
    BAGS,
    BATCHES,
    PARTS,
    SEQUENCES,
    batch_schemes,
    contrastive_schemes,
    every_scheme,
    negatives_schemes,
    retrieval_schemes,
)

STUDY = {
    "schemes": ((*BAGS, *PARTS, *SEQUENCES), retrieval_schemes),
    "contrastive": ((*BAGS, *PARTS), contrastive_schemes),
    "batches": (BATCHES, batch_schemes),
    "whole": ((*BAGS, *PARTS), every_scheme),
    "negatives": ((BAGS[1], PARTS[0]), negatives_schemes),
}

main = main_of_parts(__doc__, STUDY)

if __name__ == "__main__":
    sys.exit(main())
