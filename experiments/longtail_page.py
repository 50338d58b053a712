"""The tables and verdicts of docs/results-longtail.md, from the committed rows:

    .venv/bin/python experiments/longtail_page.py

writes `longtail-claims.csv` and `longtail-leans.csv` too. Rows come from `longtail_tables.py`;
`docs/figures/longtail.py` draws the figures.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from by_seed import BySeed
from claims import Line
from evidence import LEAN
from longtail_claims import CORRECT, JOINED, claims_table, values_of, verdicts_of
from stats.correlation import rank_correlation
from study_tables import publish, read_table, rows_in, shown, write_table

import headtail as ht
from headtail.comparison.results import POPULAR, Row
from headtail.implicit.implied import implied_margin_of, lean_of

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "results-longtail.md"
COLUMNS = (
    ("Head", "balanced-error", "head"),
    ("Torso", "balanced-error", "torso"),
    ("Tail", "balanced-error", "tail"),
    ("Balanced", "balanced-error", "full"),
    ("Prior-weighted", "class-weighted-error", "full"),
)
BESIDE = {
    "tiny-step": "Tiny-ImageNet Step",
    "cifar10-exp": "CIFAR-10-LT Exp",
    "cifar10-exp-warm": "CIFAR-10-LT Exp, warm-up",
    "cifar10-step": "CIFAR-10-LT Step",
    "tiny-exp-contrastive": "Tiny-ImageNet Exp, contrastive",
}
"""Studies with one seed of most schemes, in a table together."""
IN_SWEEP = ("head", "tail", "full")
BATCH = 128
FEWEST = 5
"""Schemes of a study whose order is compared with what was predicted."""


def table(rows: Sequence[Row]) -> str:
    """Markdown table of errors in percent: schemes by slices that have classes."""
    values: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        values[row.scheme, row.metric, row.slice].append(row.value)
    columns = [
        column
        for column in COLUMNS
        if any(shown(of) != "–" for key, of in values.items() if key[1:] == column[1:])
    ]
    lines = [
        "| scheme | seeds | " + " | ".join(title for title, *_ in columns) + " |",
        "|---|" + "--:|" * (len(columns) + 1),
    ]
    for scheme in dict.fromkeys(row.scheme for row in rows):
        cells = [shown(values[scheme, *key]) for _, *key in columns]
        seeds = len({row.seed for row in rows if row.scheme == scheme})
        lines.append(
            f"| {scheme} | {'' if scheme == POPULAR else seeds} | " + " | ".join(cells) + " |"
        )
    return "\n".join(lines)


def sweep_table(rows: Sequence[Row]) -> str:
    """Markdown table of errors of schemes run with several numbers of negatives, by number. The
    sweep has seed 0 alone, so other seeds of the grid are left out.
    """
    values: dict[tuple[str, float, str], list[float]] = defaultdict(list)
    for row in rows:
        if row.m is not None and row.metric == "balanced-error" and row.seed == 0:
            values[row.scheme.partition("@")[0], row.m, row.slice].append(row.value)
    runs = dict.fromkeys((scheme, m) for scheme, m, _ in values)
    sizes = sorted({m for _, m in runs})
    lines = [
        "| head / tail / balanced | " + " | ".join(f"m = {m:g}" for m in sizes) + " |",
        "|---|" + "--:|" * len(sizes),
    ]
    for scheme, numbers in Counter(scheme for scheme, _ in runs).items():
        if numbers > 1:
            cells = [_sweep_cell(values, scheme, m) for m in sizes]
            lines.append(f"| {scheme} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _sweep_cell(values: dict[tuple[str, float, str], list[float]], scheme: str, m: float) -> str:
    means = [shown(values.get((scheme, m, slice_), ())).partition(" ")[0] for slice_ in IN_SWEEP]
    return "–" if set(means) == {"–"} else " / ".join(means)


def side_by_side(rows: Sequence[Row]) -> str:
    """Markdown table of mean errors on several studies: head / rarest slice / balanced /
    prior-weighted.
    """
    values: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        scheme = row.scheme.removeprefix("contrastive/")
        # In the study of the contrastive loss, that loss over all labels takes the softmax's place.
        scheme = "softmax" if scheme == "contrastive" else scheme
        values[row.dataset, scheme, row.metric, row.slice].append(row.value)
    lines = [
        "| head / tail / balanced / prior-weighted | " + " | ".join(BESIDE.values()) + " |",
        "|---|" + "--:|" * len(BESIDE),
    ]
    for scheme in dict.fromkeys(scheme for study, scheme, *_ in values if study == "tiny-step"):
        cells = []
        for study in BESIDE:
            each = {key[1:]: shown(values.get((study, scheme, *key[1:]), ())) for key in COLUMNS}
            means = [cell.partition(" ")[0] for cell in each.values() if cell != "–"]
            cells.append(" / ".join(means[:1] + means[-3:]) or "–")
        lines.append(f"| {scheme} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def sections(rows: Sequence[Row]) -> dict[str, str]:
    """The tables of errors by the name of their marker."""
    main = [row for row in rows if row.dataset == "tiny-exp"]
    sweep = [row for row in rows if row.dataset == "tiny-exp-sweep"]
    return {
        "tiny-exp": table(main),
        "others": side_by_side(rows),
        "sweep": sweep_table([*main, *sweep]),
    }


def leans_of(rows: Sequence[Row], classes: Sequence[Line]) -> list[Line]:
    """Whether schemes move errors from tail to head in the order of their predicted lean.

    Args:
        rows: test rows.
        classes: lines of `longtail-classes.csv`, which has the number of images of each class.
    """
    values = values_of(rows)
    lines = []
    for study in dict.fromkeys(row.dataset for row in rows):
        base = "contrastive" if study.endswith("-contrastive") else "softmax"
        schemes = {row.scheme: row.m for row in rows if row.dataset == study}
        trained = [name for name in schemes if name != POPULAR and "+" not in name]
        counts = {int(one["label"]): int(one["train"]) for one in classes if one["study"] == study}
        if base not in trained or len(trained) < FEWEST or not counts:
            continue
        labels = ht.Labels.from_counts([counts[label] for label in sorted(counts)])
        data = BySeed(values, JOINED.get(study, study))
        leans = [_lean(name, schemes[name], labels) for name in trained]
        shifts = [data.difference(name, base, CORRECT, LEAN).difference for name in trained]
        found = rank_correlation(leans, shifts)
        numbers = {"correlation": f"{found.value:.6f}", "p": f"{found.p:.3g}"}
        lines.append({"dataset": study, "schemes": str(found.number)} | numbers)
    return lines


def _lean(scheme: str, m: float | None, labels: ht.Labels) -> float:
    loss = ht.scheme(scheme if m is None else f"{scheme}@{m:g}", labels)
    return lean_of(implied_margin_of(loss, BATCH), labels)


def make(results: Path = RESULTS, page: Path = PAGE) -> None:
    """Write the verdicts and put all tables into the page."""
    rows = rows_in(results / "longtail.csv")
    verdicts = verdicts_of(values_of(rows))
    write_table(results / "longtail-claims.csv", verdicts)
    classes = read_table(results / "longtail-classes.csv")
    write_table(results / "longtail-leans.csv", leans_of(rows, classes))
    publish(page, {"claims": claims_table(verdicts)} | sections(rows))


if __name__ == "__main__":
    make()
