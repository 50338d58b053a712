"""What data may ask for: limits on their sizes, and one sentence where reading fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headtail.data.bag import Bag
from headtail.data.points import DataSet, Points
from headtail.data.reading import LIMITS, Reading
from headtail.errors import HeadtailError, Setting, cannot_read, check_count, check_number

CLAIMED = 100_000
"""Labels or features that any file may claim."""
PER_ENTRY = 100
"""Labels or features that it may claim for each one that is really there."""


def check_limits(reading: Reading) -> None:
    """Refuse limits that are none."""
    for name in LIMITS:
        value = getattr(reading, name)
        if value is not None and check_number(name, value) <= 0:
            raise HeadtailError(Setting(name), f" must be positive, but got {value!r}.")
    check_number("max_expansion", reading.max_expansion, low=1)
    for name in ("max_labels", "max_features"):
        value = getattr(reading, name)
        if value is not None:
            check_count(name, value)


def check_sizes(data: DataSet, reading: Reading, where: Any, trained: bool) -> None:
    """Refuse more labels or features than the settings allow.

    Without a setting, refuse a number that the content does not account for: tables of that size
    are made for it, so a few bytes could ask for all memory. What is named is there.

    Args:
        data: as they were read.
        reading: the settings.
        where: the source, for the error.
        trained: whether the sizes are those of a model.
    """
    parts = [part for part in (data.train, data.test, data.validation) if part is not None]
    labels = None
    if data.label_names is None and not trained:
        labels = sum(part.num_pairs for part in parts)
    features = None
    if isinstance(data.train.features, Bag) and data.text is None and not trained:
        features = sum(_entries(part) for part in parts)
    numbers = {
        "labels": (data.train.num_labels, reading.max_labels, labels),
        "features": (data.train.num_features, reading.max_features, features),
    }
    for what, (number, most, entries) in numbers.items():
        allowed = most
        if allowed is None and entries is not None:
            allowed = CLAIMED + PER_ENTRY * entries
        if allowed is not None and number > allowed:
            raise _too_many(what, number, most, entries, where)


def _entries(points: Points) -> int:
    """Values of sparse features."""
    return len(points.features.columns) if isinstance(points.features, Bag) else 0


def _too_many(
    what: str, number: int, most: int | None, entries: int | None, where: Any
) -> HeadtailError:
    setting = f"max_{what}"
    if most is not None:
        return HeadtailError(
            f"`{where}` has {number:,} {what}, but ",
            Setting(setting),
            f" is {most:,}. Raise it, or pass other data.",
        )
    single = what.removesuffix("s")
    return HeadtailError(
        f"`{where}` claims {number:,} {what}, but only {entries:,} values of a {single} are there. "
        f"Number {what} from 0 without large gaps, or allow so many with ",
        Setting(setting, number),
        ".",
    )


@contextmanager
def one_sentence(source: Any) -> Iterator[None]:
    """Turn what the system says about files that cannot be read into one sentence."""
    source = source if isinstance(source, str | Path) else "data"
    try:
        yield
    except (BrokenPipeError, InterruptedError):
        raise
    except OSError as error:
        name = error.filename if isinstance(error.filename, str | Path) else source
        raise cannot_read(name, error) from error
    except MemoryError as error:
        raise HeadtailError(
            f"`{source}` needs more memory than there is ({str(error) or 'out of memory'}). Pass "
            "less of it, or use a machine with more."
        ) from error
