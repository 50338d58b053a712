"""Holding out a part of the points for testing."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from headtail.data.points import Points
from headtail.errors import HeadtailError, check_number


def hold_out(points: Points, share: float, seed: int = 0) -> tuple[Points, Points]:
    """Keep a random share of the points for testing.

    The same points, share and seed give the same parts, each in the original order.

    >>> from headtail.data.points import Points
    >>> points = Points(torch.arange(10.0)[:, None], Ragged.from_lists([[0]] * 10), 1)
    >>> train, test = hold_out(points, 0.2)
    >>> len(train), len(test)
    (8, 2)
    """
    if not 0 < check_number("share", share) < 1:
        raise HeadtailError(f"`share` must be between 0 and 1, both excluded, but got {share!r}.")
    if len(points) < 2:
        raise HeadtailError(
            f"Holding points out needs at least 2 of them, but there are {len(points)}. Pass a "
            "test file."
        )
    train, test = held_out_rows(len(points), share, seed)
    return points.select(train), points.select(test)


class Parts(NamedTuple):
    """The parts of a data set; the test part may have been held out of training.

    Attributes:
        points: part: its points.
        whole: all points that are now training and test points; None where nothing was held out.
        mark: what to add to the digest.
        notes: what a user should know.
    """

    points: dict[str, Points]
    whole: Points | None = None
    mark: str = ""
    notes: tuple[str, ...] = ()


def with_test_part(
    points: dict[str, Points], share: float, what: str = "points", seed: int = 0
) -> Parts:
    """Hold a share of the training part out for testing, where there is no test part.

    Args:
        points: part: its points.
        share: of the training points.
        what: a point is called, in the plural.
        seed: of the choice.
    """
    if "test" in points:
        return Parts(points)
    whole = points["train"]
    train, test = hold_out(whole, share, seed)
    note = f"There is no test part: {share:.0%} of the {what} are held out for testing."
    return Parts(points | {"train": train, "test": test}, whole, f"-{share:g}", (note,))


def held_out_rows(
    number: int, share: float, seed: int = 0
) -> tuple[Int64[Tensor, " k"], Int64[Tensor, " h"]]:
    """The rows that `hold_out` keeps for training and for testing, of so many, in order."""
    held = min(max(round(share * number), 1), number - 1)
    order = torch.randperm(number, generator=torch.Generator().manual_seed(seed))
    return order[held:].sort().values, order[:held].sort().values
