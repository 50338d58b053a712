"""A million labels: is the loss over all of them better than sampled ones, if both are tuned?

    .venv/bin/python experiments/million.py --workers 2 --minutes 9

Generated data with a million labels (two million points with four labels each). The softmax and the
logit-adjusted loss over all labels; importance and tail weights with the whole batch, 512 uniform
negatives, and 64 of `block(1)`. Once with Adagrad and once with Adam: a data set each, because
optimisers have searches of their own. Each scheme searches rate (five, and beyond where the best
is at an end) and epochs (2, 4, 8) by its held-out loss; three seeds. All get batches of 1,024
pairs: by default, losses over all labels would get whole points, and a quarter of the steps.

`--only hundredth-adagrad hundredth-adam hundredth-points` is the same with a hundredth of
everything, which a CPU trains on in an hour or two; the last has batches of whole points.

The cost is stated first (`--cost`: and nothing else is done). Resumable: finished runs are kept in
--out, and `--minutes` stops in time. `--packed DIR` reads archives of earlier runs from DIR and
writes all finished runs there. `evidence_tables.py` makes the tables. What is generated has a
trade-off of head and tail built in; real data need not behave like this.
"""

from __future__ import annotations

import sys

from study_cli import main_of_parts
from study_protocols import HUNDREDTH, MILLION, million_schemes

PARTS = {"schemes": ((*MILLION, *HUNDREDTH), million_schemes)}

main = main_of_parts(__doc__, PARTS)

if __name__ == "__main__":
    sys.exit(main())
