"""A number with its error bar, and how both are written."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class SeedMean:
    """A mean over seeds with its error bar.

    Attributes:
        value: the mean over seeds; NaN where nothing was measured.
        low: lower end of the error bar: mean − sample deviation over seeds, or the bootstrap
            interval of a single seed; or NaN.
        high: its upper end.
        seeds: how many seeds it is the mean of.

    >>> SeedMean.of({0: 0.2, 1: 0.4}).value
    0.30000000000000004
    """

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    seeds: int = 0

    @classmethod
    def of(
        cls, by_seed: dict[int, float], interval: tuple[float | None, float | None] = (None, None)
    ) -> SeedMean:
        """From one number per seed; `interval` is the error bar if there is a single seed."""
        finite = [value for value in by_seed.values() if math.isfinite(value)]
        if not finite:
            return cls()
        mean = statistics.fmean(finite)
        if len(finite) > 1:
            deviation = statistics.stdev(finite)
            return cls(mean, mean - deviation, mean + deviation, len(finite))
        low, high = (math.nan if end is None else end for end in interval)
        return cls(mean, low, high, 1)

    @property
    def known(self) -> bool:
        """Whether there is a number."""
        return math.isfinite(self.value)

    @property
    def has_bar(self) -> bool:
        """Whether there is an error bar."""
        return math.isfinite(self.low + self.high)

    @property
    def deviation(self) -> float:
        """The sample deviation over seeds; NaN if there is only one."""
        return self.high - self.value if self.seeds > 1 else math.nan

    def overlaps(self, other: SeedMean) -> bool:
        """Whether the two error bars touch, so that it is open which of the two is larger."""
        bars = self.has_bar and other.has_bar
        return bars and self.low <= other.high and other.low <= self.high


def percent(value: float | None, digits: int | None = None) -> str:
    """A share in percent, or – where there is none; small shares have more digits.

    >>> percent(0.3123), percent(0.0004), percent(float("nan"))
    ('31.2%', '0.04%', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    digits = digits_of(value) if digits is None else digits
    return f"{100 * value:.{digits}f}%".replace("-", "−")


def digits_of(share: float) -> int:
    """Digits after the point that show a share in percent."""
    size = 100 * abs(share)
    return 1 if size == 0 or size >= 0.995 else 2 if size >= 0.00995 else 3


def points(value: float | None) -> str:
    """A difference of shares in percentage points, with its sign.

    >>> points(-0.041), points(0.00004)
    ('−4.1', '0.0')
    """
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{100 * value:+.1f}".replace("-", "−")
    return "0.0" if text in ("+0.0", "−0.0") else text


def with_error(mean: SeedMean) -> str:
    """A share with its error bar: ± deviation over seeds, or an interval.

    >>> with_error(SeedMean(0.3, 0.28, 0.32, seeds=3))
    '30.0% ± 2.0'
    >>> with_error(SeedMean(0.3, 0.27, 0.34, seeds=1))
    '30.0% (27.0 to 34.0)'
    """
    if not mean.known or not mean.has_bar:
        return percent(mean.value)
    digits = digits_of(mean.value)
    if mean.seeds > 1:
        return f"{percent(mean.value)} ± {100 * mean.deviation:.{digits}f}"
    low, high = (f"{100 * end:.{digits}f}" for end in (mean.low, mean.high))
    return f"{percent(mean.value)} ({low} to {high})"


def duration(seconds: float) -> str:
    """A time in a unit that suits it.

    >>> duration(0.0042), duration(3.1), duration(75), duration(9000)
    ('4.2 ms', '3.1 s', '1.2 min', '2.5 h')
    """
    for unit, size, until in (("ms", 0.001, 1), ("s", 1, 60), ("min", 60, 3600)):
        if seconds < until:
            number = seconds / size
            return f"{number:.1f} {unit}" if number < 10 else f"{number:.0f} {unit}"
    return f"{seconds / 3600:.1f} h"
