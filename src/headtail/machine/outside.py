"""How wrong the law of gaps was on data from elsewhere, which it was never fitted to; as
`experiments/advice_outside.py` measured it.
"""

from __future__ import annotations

from typing import NamedTuple


class Outside(NamedTuple):
    """Errors on data from elsewhere.

    Attributes:
        sources: number of data sets.
        typical: the factor by which the largest gap was missed, on average.
        regret: by how many points the largest gap of the most negatives from the batch exceeded
            that of the best scheme, on average.
    """

    sources: int
    typical: float
    regret: float


OUTSIDE = Outside(sources=6, typical=2.23, regret=0.42)
