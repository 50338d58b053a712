"""The page: figures, tables and sentences in one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
import math
import re
import shlex
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from headtail.comparison.results import POPULAR, Comparison, not_finished
from headtail.errors import need
from headtail.files.atomic import write_text
from headtail.report.answer import Answer, answer_table
from headtail.report.chart import Figure
from headtail.report.class_curves import class_curves
from headtail.report.facts import cards, facts_table, tries_table
from headtail.report.learning_curves import learning_curves
from headtail.report.look import looks
from headtail.report.measured import SLICES, Measured, Reference
from headtail.report.metrics_table import metrics_table
from headtail.report.optimised_table import optimised_table
from headtail.report.prediction import Agreement, prediction
from headtail.report.rank_frequency import rank_frequency
from headtail.report.seed_mean import percent
from headtail.report.slice_bars import slice_bars
from headtail.report.table import Table
from headtail.report.trade_off import Dial, trade_off
from headtail.report.visible import visible

FACTS = ("num_features", "num_pairs", "features_per_point", "digest")
"""Facts of the data that have no card."""


def write_report(comparison: Comparison, path: str | Path) -> None:
    """Write a comparison as one offline HTML page.

    Args:
        comparison: what was measured.
        path: the file; an older one is replaced only once the new one is complete.
    """
    write_text(Path(path), render(comparison))


def render(comparison: Comparison) -> str:
    """The page as text."""
    comparison = visible(comparison)
    jinja2 = need("jinja2", extra="report", to="Writing a report")
    # jinja2 brings markupsafe, which marks text that is HTML already.
    markup = need("markupsafe", extra="report", to="Writing a report").Markup
    script = _resource("page.js")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["equation"] = lambda text: markup(equation(text))
    environment.filters["breakable"] = lambda text: markup(_breakable(text))
    environment.filters["percent"] = percent
    environment.filters["quoted"] = lambda text: shlex.quote(str(text))
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False, "allow_nan": False}
    return environment.from_string(_resource("page.html")).render(
        **_content(comparison),
        style=markup(_resource("page.css")),
        script=markup(script),
        hashes=f"'sha256-{_digest(script)}'",
    )


def equation(text: str) -> str:
    """An equation of `explain` as HTML, with subscripts and superscripts.

    >>> equation("Σ_{y'≠y} e^(f_y)")
    'Σ<sub>y&#x27;≠y</sub> e<sup>f<sub>y</sub></sup>'
    """
    safe = html.escape(text)
    safe = re.sub(r"_\{([^{}]*)\}", r"<sub>\1</sub>", safe)
    safe = re.sub(r"_(y(?:&#x27;)?)", r"<sub>\1</sub>", safe)
    return re.sub(r"\^\(([^()]*)\)|\^(-?[\d.¼]+)", r"<sup>\1\2</sup>", safe)


def _content(comparison: Comparison) -> dict[str, Any]:
    """Everything that the template shows."""
    measured = Measured(comparison)
    agreement = Agreement.of(measured, comparison.schemes)
    answer = Answer.of(comparison, measured)
    chosen = list(dict.fromkeys(answer.schemes.values()))
    dial = Dial.of(comparison, measured)
    times = comparison.made_by.get("times") or {}
    tables = _tables(comparison, measured) | {"answer": answer_table(answer, measured, times)}
    slices = {column.slice for column in tables["metrics"].columns}
    tested = {row.seed for row in comparison.rows if row.split == "test" and row.scheme != POPULAR}
    embedded = {
        "tables": {table.name: table.csv for table in tables.values()},
        "dial": dial and dial.embedded(),
    }
    return {
        "data": comparison.data,
        "made_by": comparison.made_by,
        "failures": comparison.failures,
        "missing": f"{not_finished(comparison)}." if comparison.missing else "",
        "schemes": comparison.schemes,
        "settings": comparison.settings,
        "answer": answer,
        "times": times,
        "times_note": _times_note(comparison.made_by.get("workers") or 1),
        "cards": cards(comparison.data),
        "recommended": {n: comparison.answers[n] for n in chosen if n in comparison.answers},
        "examples": (comparison.data.get("slices") or {}).get("examples"),
        "figures": _figures(comparison, measured, agreement, dial),
        "look": looks(measured.with_popular),
        "dial": dial,
        "dial_chosen": dial and dial.chosen(chosen),
        "tables": tables,
        "slices": [name for name in ("full", *SLICES[:-1]) if name in slices],
        "notes": _notes(comparison.schemes),
        "agreement": agreement,
        "reference": Reference.of(measured).name,
        "yardstick": measured.yardstick,
        "popular": POPULAR if measured.popular else None,
        "several_seeds": len(tested) > 1,
        "embedded": finite(embedded),
    }


def _times_note(workers: int) -> str:
    alone = f", {workers} runs at the same time" if workers > 1 else ""
    return f"Training: the time of all steps{alone}, without validation and tests."


def _figures(
    comparison: Comparison, measured: Measured, agreement: Agreement, dial: Dial | None
) -> dict[str, Figure | None]:
    times = comparison.made_by.get("times") or {}
    return {
        "rank": rank_frequency(comparison.data),
        "bars": slice_bars(measured, comparison.data, times),
        "classes": class_curves(comparison),
        "trade": trade_off(measured, dial),
        "curves": learning_curves(comparison),
        "prediction": prediction(agreement, Reference.of(measured)),
    }


def _tables(comparison: Comparison, measured: Measured) -> dict[str, Table]:
    versions = comparison.made_by.get("versions") or {}
    return {
        "optimised": optimised_table(comparison.schemes, measured),
        "metrics": metrics_table(measured),
        "data": facts_table("data", "The data", _data_facts(comparison.data)),
        "settings": facts_table("settings", "The settings", comparison.settings),
        "versions": facts_table("versions", "Versions", versions),
        "tries": tries_table(comparison.tries),
    }


def finite(value: Any) -> Any:
    """Numbers that are not finite become None, which JSON can write."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def _data_facts(data: Mapping[str, Any]) -> dict[str, Any]:
    slices = data.get("slices") or {}
    facts = {"name": data.get("name", "–")}
    facts |= {key.replace("_", " "): data[key] for key in FACTS if data.get(key) not in (None, "")}
    pairs = slices.get("pairs") or {}
    for name, size in (slices.get("sizes") or {}).items():
        share = f" ({pairs[name] / sum(pairs.values()):.0%} of the examples)" if pairs else ""
        facts[f"labels in the {name}"] = f"{size:,}{share}"
    if slices.get("rule"):
        facts["slices"] = slices["rule"]
    return facts


def _notes(schemes: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """Each caveat, and the schemes it applies to."""
    notes: dict[str, list[str]] = {}
    for name, about in schemes.items():
        for note in about.get("notes") or []:
            notes.setdefault(note, []).append(name)
    return notes


def _breakable(name: str) -> str:
    """A name as HTML, with line breaks after colons, slashes and commas only."""
    return re.sub(r"([:/,])", r"\1<wbr>", html.escape(name))


def _resource(name: str) -> str:
    return files("headtail.report").joinpath(name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    """For the page's security policy, which runs this script and nothing that a name in the data
    might contain.
    """
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
