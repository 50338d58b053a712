"""Labels in words, and as a notebook shows them."""

from __future__ import annotations

from collections.abc import Sequence

from headtail.core.columns import Names
from headtail.core.frequencies import LabelFrequencies
from headtail.core.html import curve, frame, table
from headtail.files.names import shown

POINTS = 80
"""Points of the curve."""
FEW = 10
"""Labels below which a curve shows less than the table."""
LONGEST = 60
"""Characters of a name."""
FIRST = 3
"""Labels that are shown from the beginning."""


def describe_labels(labels: LabelFrequencies) -> str:
    """How many labels and examples there are, and how uneven they are.

    >>> from headtail import Labels
    >>> describe_labels(Labels.from_counts([5, 0, 2], smoothing=1))
    '3 labels, 7 examples, 0 to 5 per label, 1 never seen, smoothing 1'
    """
    low, high = labels.counts.aminmax()
    noun = "label" if labels.num_labels == 1 else "labels"
    facts = [f"{labels.num_labels:,} {noun}", f"{_number(labels.total)} examples"]
    facts.append(f"{_number(low.item())} to {_number(high.item())} per label")
    if labels.never_seen:
        facts.append(f"{labels.never_seen:,} never seen")
    if labels.smoothing:
        facts.append(f"smoothing {labels.smoothing:g}")
    return ", ".join(facts)


def labels_html(labels: LabelFrequencies, description: str, names: Names | None) -> str:
    """The curve of counts by rank, and a few labels.

    Args:
        labels: how often each label occurs.
        description: the same in words.
        names: of the labels, or None.
    """
    counts, order = labels.counts.cpu().sort(descending=True, stable=True)
    size = labels.num_labels
    drawn = ""
    if size >= FEW:
        ranks = [round(size ** (i / (POINTS - 1))) for i in range(POINTS)]
        alt = "examples per label by rank, log–log"
        drawn = curve([float(counts[rank - 1]) for rank in ranks], alt)
    chosen = sorted({*range(1, min(FIRST, size) + 1), (size + 1) // 2, size})
    rows = [
        [
            f"{rank:,}",
            _name(int(order[rank - 1]), names),
            _number(counts[rank - 1].item()),
            f"{100 * counts[rank - 1].item() / labels.total:.2g}%",
        ]
        for rank in chosen
    ]
    body = table(["rank", "label", "examples", "share"], rows, words=2)
    return frame("Labels", description, drawn, body)


def _name(label: int, names: Sequence[str | int] | None) -> str:
    return str(label) if names is None else shown(names[label], LONGEST)


def _number(value: float) -> str:
    """Whole numbers with all their digits.

    >>> _number(74861.0), _number(0.25)
    ('74,861', '0.25')
    """
    return f"{int(value):,}" if float(value).is_integer() else f"{value:,.6g}"
