"""The table of what each scheme optimises, and its effect."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from headtail.report.measured import SLICES, Measured, Reference
from headtail.report.seed_mean import SeedMean, points
from headtail.report.table import Column, Table, TableCell

FACTS = ("name", "equation", "rho", "leans", "lean", "noise_untrained", "m")


def optimised_table(schemes: dict[str, dict[str, Any]], measured: Measured) -> Table:
    """What each scheme implicitly optimises, and its effect on head and tail against the reference.

    Args:
        schemes: what `explain` says about each scheme.
        measured: all numbers.
    """
    reference = Reference.of(measured)
    metric = measured.yardstick.metric
    slices = [name for name in SLICES if measured.known(metric, name)]
    ends = [f"{name} {metric} {end}" for name in slices for end in ("difference", "deviation")]
    csv: list[list[Any]] = [["scheme", "loss", *FACTS[1:], *ends]]
    rows = []
    for name in dict.fromkeys([*schemes, *measured.schemes]):
        about = schemes.get(name, {})
        changes = [reference.difference(name, metric, slice_) for slice_ in slices]
        rows.append(_row(name, about, changes, reference))
        numbers = [end for change in changes for end in (change.value, change.deviation)]
        csv.append([name, *(about.get(fact) for fact in FACTS), *numbers])
    caption = "What each scheme optimises, and its effect"
    return Table("optimised", caption, _headings(slices, metric), rows, csv)


def _headings(slices: list[str], metric: str) -> list[Column]:
    titles = {"full": "balanced"} if metric == "balanced-error" else {}
    return [
        Column("scheme", numeric=False),
        Column("implicit loss", numeric=False),
        Column("lean"),
        Column("untrained noise"),
        *(Column(f"Δ {titles.get(name, name)}") for name in slices),
    ]


def _row(
    name: str, about: dict[str, Any], changes: list[SeedMean], reference: Reference
) -> list[TableCell]:
    loss = about.get("name") or ("no common name" if about.get("equation") else "–")
    leans = "tail, by its answers" if name.endswith("+post-hoc") else about.get("leans") or ""
    sign = reference.measured.yardstick.sign
    return [
        TableCell(name, name),
        TableCell(loss, about.get("name") or "", detail=about.get("equation") or ""),
        replace(_lean(about.get("lean")), detail=leans),
        _noise(about.get("noise_untrained")),
        *(_change(change, name == reference.scheme, sign) for change in changes),
    ]


def _lean(value: float | None) -> TableCell:
    if value is None or not math.isfinite(value):
        return TableCell("–", None)
    text = f"{value:+.2f}" if abs(value) >= 0.005 else f"{abs(value):.2f}"
    return TableCell(text.replace("-", "−"), value)


def _noise(value: float | None) -> TableCell:
    """With significant digits, as in `explain`: little noise must not be shown as none."""
    if value is None or not math.isfinite(value):
        return TableCell("–", None)
    return TableCell(f"{value:.2g}", value)


def _change(change: SeedMean, is_reference: bool, sign: int) -> TableCell:
    """A difference to the reference, marked as up or down if it exceeds the deviation."""
    if is_reference and change.known:
        return TableCell("0", 0.0)
    clear = change.known and change.value != 0 and not abs(change.value) <= change.deviation
    mark = ""
    if clear:
        mark = "up" if sign * change.value > 0 else "down"
    several = math.isfinite(change.deviation)
    spread = f"± {100 * change.deviation:.1f}" if several else ""
    return TableCell(points(change.value), change.value, mark, spread)
