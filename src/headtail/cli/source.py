"""Where the command line gets its labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headtail.cli.unused import changed, refuse
from headtail.core.labels import Labels
from headtail.data.counts import read_counts
from headtail.errors import HeadtailError, check_count
from headtail.implicit.implied import usual_slices

DEFAULT_ZIPF = 10_000


@dataclass(frozen=True)
class Source:
    """Which labels."""

    counts: Path | None = None
    """File with the number of training examples of each label: .npy, or text with one number per
    line.
    """
    zipf: int | None = None
    """Instead of a file: this many generated labels that follow Zipf's law (10000 if neither is
    given).
    """
    exponent: float = 1.0
    """Steepness of the generated labels."""
    smoothing: float = 0.0
    """Pseudo-count added to every label, for labels that never occur."""

    def labels(self) -> Labels:
        """Read or generate them."""
        if self.counts is not None and self.zipf is not None:
            raise HeadtailError("`--counts` and `--zipf` exclude each other: drop one.")
        if self.counts is not None:
            refuse(changed(self, "exponent"), "the labels of `--counts` are not generated")
            labels = read_counts(self.counts, self.smoothing)
            if labels.num_labels == 1:
                raise HeadtailError(
                    f"{self.counts} holds 1 label, which has no negatives. Count at least 2."
                )
            return labels
        number = check_count("zipf", DEFAULT_ZIPF if self.zipf is None else self.zipf)
        if number == 1:
            raise HeadtailError(
                "`--zipf` must be at least 2, but got 1: a single label has no negatives."
            )
        return Labels.from_counts(Labels.zipf(number, self.exponent).counts, self.smoothing)

    def describe(self, labels: Labels) -> str:
        """One line for people."""
        origin = str(self.counts) if self.counts else f"generated, Zipf exponent {self.exponent:g}"
        slices = usual_slices(labels)
        sizes = ", ".join(f"{size:,} {name}" for name, size in slices.sizes.items())
        return (
            f"{labels.num_labels:,} labels ({origin}), {labels.total:,.0f} examples: {sizes} "
            f"({slices.rule})"
        )
