"""How wrong the law of gaps was on data from elsewhere, which it was never fitted to; as
`experiments/advice_outside.py` measured it.
"""

from __future__ import annotations

from typing import NamedTuple


class Outside(NamedTuple):
    """Errors on data from elsewhere.

    Attributes:
        sources: number of data sets.
        typical: by which factor the largest gap was missed on average.
        regret: by how many points the largest gap of the scheme that was ranked first exceeded that
            of the best one, on average.
    """

    sources: int
    typical: float
    regret: float


OUTSIDE = Outside(sources=4, typical=2.16, regret=0.43)
