"""The page of the retrieval study: docs/results-retrieval.md, from its rows alone.

    .venv/bin/python experiments/evidence_page.py

`evidence_tables.py` makes the rows and then the page too. Data sets that get rows get their tables
on the page without anything else to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from claim_sentences import TITLES, claims_table, datasets_of, details, points
from claims import Line
from study_tables import publish, read_table

from answers import EQUAL_HEAD, answers, chance

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "results-retrieval.md"
WRITTEN = (
    "evidence",
    *(f"evidence-{name}" for name in ("claims", "tries", "rates", "alike", "leans")),
)
"""Rows of this study, without `.csv`."""
FILES = (*WRITTEN, EQUAL_HEAD)
"""Rows that the page shows."""
SLICES = ("head", "torso", "tail", "full")
OTHERS = (
    *((f"R@1 {slice_}", "recall@1", slice_) for slice_ in SLICES),
    *((f"R@50 {slice_}", "recall@50", slice_) for slice_ in SLICES),
    *((f"P@{k}", f"precision@{k}", "full") for k in (3, 5)),
    ("PSP@1", "psp@1", "full"),
    ("balanced error", "balanced-error", "full"),
)
"""Columns of a data set's second table: title, metric and slice."""
OF_SEVERAL = {"P@3", "P@5"}
"""Columns for points with several labels: with one label, P@k is Recall@k / k."""
Rows = Mapping[str, Sequence[Line]]
"""Lines by file, without `.csv`."""


def read_rows(folder: Path = RESULTS, study: str = "evidence") -> dict[str, list[Line]]:
    """All rows of the page of a study."""
    return {name: read_table(folder / f"{name.replace('evidence', study)}.csv") for name in FILES}


def tables(rows: Rows) -> dict[str, str]:
    """Everything that the page shows, by the name of its marker."""
    return {
        "answers": answers(rows),
        "claims": claims_table(rows["evidence-claims"], at_edge(rows["evidence"])),
        "claims in sentences": details(rows["evidence-claims"]),
        "leans": leans_table(rows["evidence-leans"]),
        "rates": rates_table(rows["evidence-rates"]),
        "alike": alike_table(rows["evidence-alike"]),
        "data sets": "\n\n".join(_of_dataset(rows, name) for name in _datasets(rows)),
    }


def at_edge(lines: Sequence[Line]) -> set[tuple[str, str]]:
    """Data sets and schemes whose chosen rate or length lies at an edge of what was tried."""
    return {(line["dataset"], line["scheme"]) for line in lines if line["edges"]}


def _datasets(rows: Rows) -> list[str]:
    return datasets_of(rows["evidence"])


def _of_dataset(rows: Rows, name: str) -> str:
    """The part of the page about one data set."""
    own = [line for line in rows["evidence"] if line["dataset"] == name]
    tries = [line for line in rows["evidence-tries"] if line["dataset"] == name]
    sentence = edges(own, tries)
    parts = [f"### {TITLES.get(name, name)}", sentence, main_table(own), others_table(own)]
    return "\n\n".join(parts)


def edges(lines: Sequence[Line], tries: Sequence[Line] = ()) -> str:
    """How many chosen values of a data set lie at an edge of what was tried, in a sentence; and,
    of those with the longest training, how many stopped before its end.
    """
    chosen = {line["scheme"]: line["edges"].split() for line in lines}
    chosen = {name: found for name, found in chosen.items() if "+" not in name}
    rate, epochs = (sum(kind in found for found in chosen.values()) for kind in ("rate", "epochs"))
    stopped = [
        line["scheme"]
        for line in tries
        if line["chosen"] == "yes"
        and "epochs" in chosen.get(line["scheme"], ())
        and int(line["last_epoch"]) < int(line["epochs"])
    ]
    early = f" ({len(stopped)} of these stopped early)" if stopped else ""
    return (
        f"Of {len(chosen)} schemes, the chosen rate lies at an edge of those tried for {rate}, and "
        f"the chosen number of epochs for {epochs}{early}; a star marks them."
    )


def main_table(lines: Sequence[Line]) -> str:
    """Schemes by slice: the metric that a data set is judged by, those best on the tail first, with
    the difference from the softmax and its interval.
    """
    metric = _metric(lines)
    cells = _cells(lines)
    columns = [slice_ for slice_ in SLICES if ("softmax", metric, slice_) in cells]
    rare = columns[-2]
    names = [name for name in _schemes(lines) if name != "softmax"]
    names.sort(key=lambda name: -float(cells[name, metric, rare]["value"]))
    head = "| scheme | lr | epochs | " + " | ".join(f"{metric} {s}" for s in columns) + " |"
    rows = [head.replace("recall", "Recall"), "|---|--:|--:|" + "--:|" * len(columns)]
    for name in ("softmax", *names):
        shown = [_difference(cells[name, metric, slice_]) for slice_ in columns]
        rows.append(f"| {name} | {_settings(cells[name, metric, 'full'])} | {' | '.join(shown)} |")
    return "\n".join(rows)


def _metric(lines: Sequence[Line]) -> str:
    """Recall@1 for data with one right class, Recall@10 for all others."""
    return "recall@1" if lines[0]["dataset"].startswith(("cifar10-", "tiny-")) else "recall@10"


def _settings(line: Line) -> str:
    """Rate and epochs, with a star at an edge; for adjusted answers, those of the softmax."""
    marks = ["*" if kind in line["edges"].split() else "" for kind in ("rate", "epochs")]
    return f"{line['lr']}{marks[0]} | {line['epochs']}{marks[1]}"


def _difference(line: Line) -> str:
    value = points(line["value"], sign=False)
    if line["scheme"] == "softmax" or not line["difference"]:
        return value
    half = (float(line["high"]) - float(line["low"])) / 2
    return f"{value} ({points(line['difference'])} ± {points(half, sign=False)})"


def others_table(lines: Sequence[Line]) -> str:
    """Schemes by other metrics, without differences."""
    cells = _cells(lines)
    several = _several_labels(cells)
    columns = [
        (title, metric, slice_)
        for title, metric, slice_ in OTHERS
        if ("softmax", metric, slice_) in cells and (several or title not in OF_SEVERAL)
    ]
    head = "| scheme | " + " | ".join(title for title, _, _ in columns) + " |"
    rows = [head, "|---|" + "--:|" * len(columns)]
    for name in _schemes(lines):
        values = (cells[name, metric, slice_]["value"] for _, metric, slice_ in columns)
        rows.append(f"| {name} | {' | '.join(points(value, sign=False) for value in values)} |")
    return "\n".join(rows)


def _several_labels(cells: Mapping[tuple[str, str, str], Line]) -> bool:
    """Whether points have several labels: else P@1 is Recall@1."""
    precision, recall = (cells["softmax", f"{name}@1", "full"] for name in ("precision", "recall"))
    return precision["value"] != recall["value"]


def _cells(lines: Sequence[Line]) -> dict[tuple[str, str, str], Line]:
    return {(line["scheme"], line["metric"], line["slice"]): line for line in lines}


def _schemes(lines: Sequence[Line]) -> list[str]:
    names = dict.fromkeys(line["scheme"] for line in lines)
    return sorted(names, key=lambda name: (name != "softmax", "+" in name, name))


def leans_table(lines: Sequence[Line]) -> str:
    """How well predicted leans order measured shifts."""
    rows = ["| data | schemes | rank correlation | p |", "|---|---|--:|--:|"]
    for name in datasets_of(lines):
        for line in lines:
            if (line["dataset"], line["loss"]) == (name, "softmax"):
                value = line["rank correlation"].replace("-", "−")
                which = "the paper's" if line["group"] == "paper" else "all"
                about = f"{which} {line['schemes']}"
                rows.append(f"| {TITLES.get(name, name)} | {about} | {value} | {chance(line)} |")
    return "\n".join(rows)


def rates_table(lines: Sequence[Line]) -> str:
    """What half and twice the chosen rate change: of the softmax, and of the scheme whose tail
    changes most where each rate has the length that suits it.
    """
    rows = [
        "| data | scheme | rate | epochs | held-out loss | head | tail |",
        "|---|---|---|---|--:|--:|--:|",
    ]
    for name in datasets_of(lines):
        own = [line for line in lines if line["dataset"] == name]
        most = max((line for line in own if line["length"] == "own"), key=_tail_change)
        for line in own:
            if line["scheme"] == "softmax" or line is most:
                loss = f"{100 * float(line['loss']):+.1f}%".replace("-", "−")
                of = "of " if line["rate"] == "half" else ""
                rate = f"{line['rate']} {of}{line['lr']}"
                length = "the same" if line["length"] == "same" else "its best"
                cells = (TITLES.get(name, name), f"`{line['scheme']}`", rate)
                cells += (f"{length}: {line['other epochs']} for {line['epochs']}", loss)
                changes = " | ".join(points(line[slice_]) for slice_ in ("head", "tail"))
                rows.append(f"| {' | '.join(cells)} | {changes} |")
    return "\n".join(rows)


def _tail_change(line: Line) -> float:
    return abs(float(line["tail"]))


def alike_table(lines: Sequence[Line]) -> str:
    """Between which values of head and tail the held-out loss leaves the choice: for the softmax,
    and for the scheme whose tail differs most.
    """
    rows = ["| data | scheme | settings | head | tail |", "|---|---|--:|--:|--:|"]
    for name in datasets_of(lines):
        own = [line for line in lines if line["dataset"] == name]
        for line in own:
            if line["scheme"] == "softmax" or line is max(own, key=_tail_range):
                ranges = (_range(line, slice_) for slice_ in ("head", "tail"))
                cells = (TITLES.get(name, name), f"`{line['scheme']}`", line["number"], *ranges)
                rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _range(line: Line, slice_: str) -> str:
    low, high = (points(line[f"{slice_} {end}"], sign=False) for end in ("low", "high"))
    return low if low == high else f"{low} to {high}"


def _tail_range(line: Line) -> float:
    return float(line["tail high"]) - float(line["tail low"])


if __name__ == "__main__":
    publish(PAGE, tables(read_rows()))
