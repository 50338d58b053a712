"""The page: figures, tables and sentences set into one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from headtail.comparison.results import POPULAR, Comparison, write_text
from headtail.report.bars import recall_bars
from headtail.report.charts import prediction, rank_frequency, trade_off
from headtail.report.classes import class_curves
from headtail.report.curves import learning_curves
from headtail.report.errors import error_bars
from headtail.report.figure import finite
from headtail.report.findings import Agreement, takeaway
from headtail.report.glossary import GLOSSARY
from headtail.report.measured import RECALL, Measured, Reference
from headtail.report.tables import cards, facts_table, metrics_table, optimised_table

FACTS = ("num_features", "num_pairs", "features_per_point", "digest")
"""Facts of the data that have no card."""


def write_report(comparison: Comparison, path: str | Path) -> None:
    """Write all that a comparison tells as one offline HTML page.

    Args:
        comparison: what was measured.
        path: the file; an older one is replaced only once the new one is whole.
    """
    write_text(Path(path), render(comparison))


def render(comparison: Comparison) -> str:
    """The page as text."""
    measured = Measured(comparison)
    reference = Reference.of(measured)
    agreement = Agreement.of(measured, comparison.schemes)
    figures = {
        "rank": rank_frequency(comparison.data),
        "bars": recall_bars(measured)
        if measured.yardstick == RECALL
        else error_bars(measured, comparison.data),
        "classes": class_curves(comparison),
        "trade": trade_off(measured),
        "curves": learning_curves(comparison),
        "prediction": prediction(agreement, reference),
    }
    tables = {
        "optimised": optimised_table(comparison.schemes, measured),
        "metrics": metrics_table(measured),
        "data": facts_table("data", "The data", _data_facts(comparison.data)),
        "settings": facts_table("settings", "The settings", comparison.settings),
        "versions": facts_table("versions", "Versions", comparison.made_by.get("versions") or {}),
    }
    plotly = get_plotlyjs()
    script = _beside("page.js")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"equation": equation, "breakable": _breakable}
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False, "allow_nan": False}
    return environment.from_string(_beside("page.html")).render(
        data=comparison.data,
        made_by=comparison.made_by,
        failures=comparison.failures,
        schemes=comparison.schemes,
        takeaway=takeaway(measured, comparison.failures),
        cards=cards(comparison.data),
        figures=figures,
        tables=tables,
        slices=[
            name
            for name in ("full", "head", "torso", "tail")
            if any(c.slice == name for c in tables["metrics"].columns)
        ],
        notes=_notes(comparison.schemes),
        agreement=agreement,
        reference=reference.name,
        yardstick=measured.yardstick,
        popular=POPULAR if measured.popular else None,
        several_seeds=_several_seeds(comparison),
        glossary=GLOSSARY,
        embedded=finite(
            {
                "figures": {figure.name: figure.to_dict() for figure in figures.values() if figure},
                "tables": {table.name: table.csv for table in tables.values()},
            }
        ),
        style=Markup(_beside("page.css")),
        plotly=Markup(plotly),
        script=Markup(script),
        hashes=" ".join(f"'sha256-{_digest(text)}'" for text in (plotly, script)),
    )


def equation(text: str) -> Markup:
    """An equation as explain writes it, with its indices set low and its powers set high.

    >>> equation("Σ_{y'≠y} e^(f_y)")
    Markup('Σ<sub>y&#39;≠y</sub> e<sup>f<sub>y</sub></sup>')
    """
    safe = str(escape(text))
    safe = re.sub(r"_\{([^{}]*)\}", r"<sub>\1</sub>", safe)
    safe = re.sub(r"_(y(?:&#39;)?)", r"<sub>\1</sub>", safe)
    return Markup(re.sub(r"\^\(([^()]*)\)|\^(-?[\d.¼]+)", r"<sup>\1\2</sup>", safe))


def _breakable(name: str) -> Markup:
    """A name that may break behind its colons, slashes and commas, and does not in the middle of a
    word.
    """
    return Markup(re.sub(r"([:/,])", r"\1<wbr>", str(escape(name))))


def _data_facts(data: Mapping[str, Any]) -> dict[str, Any]:
    facts = {key.replace("_", " "): data[key] for key in FACTS if data.get(key) not in (None, "")}
    slices = data.get("slices") or {}
    sizes = {f"labels in the {name}": size for name, size in (slices.get("sizes") or {}).items()}
    return {
        "name": data.get("name", "–"),
        **facts,
        **sizes,
        **({"slices": slices["rule"]} if slices.get("rule") else {}),
    }


def _notes(schemes: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """What does not hold, and for which schemes."""
    found: dict[str, list[str]] = {}
    for name, about in schemes.items():
        for note in about.get("notes") or []:
            found.setdefault(note, []).append(name)
    return found


def _several_seeds(comparison: Comparison) -> bool:
    return (
        len({row.seed for row in comparison.rows if row.split == "test" and row.scheme != POPULAR})
        > 1
    )


def _beside(name: str) -> str:
    return files("headtail.report").joinpath(name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    """What the page's security policy lets run: this script, and nothing a name in the data might
    smuggle in.
    """
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
