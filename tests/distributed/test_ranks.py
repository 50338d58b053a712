"""A head whose rows are spread over ranks learns what one process learns from the joint batch.

Two ranks make all checks here: schemes that differ in one part train for two steps, and the
others for 20. The long tests train everything for 20 steps on two, three and four ranks, in float32
too.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.collectives.processes import checks_in, failures
from tests.distributed import (
    bad_input,
    checks,
    exact_checks,
    growing,
    other_counts,
    sizes,
    staged_checks,
    unlike_calls,
)
from tests.distributed.cases import CASES, OTHERS, PRODUCTS
from tests.distributed.equality import equal


def equal_by_name(name: str, steps: int, single: bool) -> None:
    """Cases hold functions that cannot be sent to other processes, so their names are."""
    equal(CASES[name], steps, single=single)


OWN = checks_in(checks, sizes, bad_input, growing, staged_checks, exact_checks)
OWN |= checks_in(other_counts, unlike_calls)
SHORT = {name: partial(equal_by_name, name, 2, False) for name in PRODUCTS}
SHORT |= {name: partial(equal_by_name, name, 20, False) for name in OTHERS}
LONG = {name: partial(equal_by_name, name, 20, True) for name in CASES}


def test_on_two_ranks(tmp_path: Path):
    """One test, because workers of xdist would each start ranks of their own for several."""
    assert failures(OWN | SHORT, 2, tmp_path) == {}


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_all_schemes_for_20_steps(ranks: int, tmp_path: Path):
    assert failures(LONG, ranks, tmp_path) == {}


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_other_checks(ranks: int, tmp_path: Path):
    assert failures(OWN, ranks, tmp_path) == {}
