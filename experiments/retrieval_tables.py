"""Turn the runs of `retrieval.py` into rows, tables and verdicts on the paper's claims.

    .venv/bin/python experiments/retrieval_tables.py run/evidence

writes into experiments/results
`retrieval-second.csv`          test rows of the chosen runs, by seed
`retrieval-second-tries.csv`    every rate and length that was tried, with its slices
`retrieval-second-rates.csv`    what the learning rate does to head and tail
`retrieval-second-claims.csv`   the paper's claims with differences, corrected p-values and verdicts
`retrieval-second-leans.csv`    rank correlation of predicted lean and measured shift
and prints the tables in Markdown. Intervals are 95% and include seeds and test set; the verdicts of
a data set are corrected together (Holm). Rows of the first edition (`retrieval.csv`) stay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from evidence import SLICES, Evidence
from retrieval import PROTOCOLS
from stats.correlation import rank_correlation
from stats.paired import margin_for
from stats.verdicts import Claim, Kind, verdicts
from study_protocols import contrastive_schemes, retrieval_schemes
from study_runs import Protocol
from study_tables import given_folder, read_table, rows_in, with_known, write_table
from tradeoff_tables import RESAMPLES, RESULTS, in_columns

from headtail.comparison.results import Row
from headtail.files.atomic import write_text
from headtail.files.records import to_csv


class Claimed(NamedTuple):
    """A claim of the paper about two schemes in one slice."""

    text: str
    scheme: str
    other: str
    kind: Kind
    slice: str


def _follows(text: str, schemes: Sequence[str], other: str) -> list[Claimed]:
    return [Claimed(text, s, other, "follows", x) for s in schemes for x in SLICES]


CLAIMS = (
    Claimed("constant boosts the tail", "within-batch:constant", "softmax", "above", "tail"),
    Claimed(
        "constant boosts the tail", "within-batch:constant", "uniform:constant", "above", "tail"
    ),
    Claimed("relative favours the head", "within-batch:relative", "softmax", "above", "head"),
    Claimed(
        "relative favours the head",
        "within-batch:relative",
        "within-batch:constant",
        "above",
        "head",
    ),
    *(
        Claimed("within-batch favours the tail", f"within-batch:{w}", "softmax", "above", "tail")
        for w in ("importance", "relative", "tail")
    ),
    *_follows(
        "importance follows the softmax",
        ("within-batch:importance", "uniform:importance"),
        "softmax",
    ),
    *_follows(
        "tail follows logit adjustment", ("within-batch:tail", "uniform:tail"), "logit-adjusted"
    ),
    *_follows("uniform follows the softmax", ("uniform:constant", "uniform:relative"), "softmax"),
)
"""What the paper says of its eight schemes, stated before any run of this edition."""


def claims_of(evidence: Evidence, metric: str) -> list[dict[str, str]]:
    """The verdicts on all claims about schemes that have runs: one table, corrected together."""
    about = [
        one for one in CLAIMS if one.scheme in evidence.chosen and one.other in evidence.chosen
    ]
    claims = []
    for one in about:
        result = evidence.difference(one.scheme, one.other, metric, one.slice)
        margin = margin_for(evidence.mean(one.other, metric, one.slice))
        claims.append(Claim(one.text, one.kind, result, margin))
    lines = []
    for one, verdict in zip(about, verdicts(claims), strict=True):
        key = {"dataset": evidence.name, "claim": one.text, "scheme": one.scheme}
        key |= {"against": one.other, "slice": one.slice, "metric": metric}
        values = {
            "value": f"{evidence.mean(one.scheme, metric, one.slice):.6f}",
            "reference": f"{evidence.mean(one.other, metric, one.slice):.6f}",
            "margin": f"{verdict.claim.margin:.6f}",
        }
        judged = {"p for": f"{verdict.p_for:.3g}", "p against": f"{verdict.p_against:.3g}"}
        answer = verdict.answer + (", below the margin" if verdict.small else "")
        lines.append(key | values | in_columns(verdict.claim.result) | judged | {"verdict": answer})
    return lines


def rows_of(evidence: Evidence) -> list[Row]:
    """Test rows of the chosen runs."""
    found = []
    for about in evidence.chosen.values():
        for name in about["runs"]:
            found += [row for row in evidence.store.rows(name) if row.split == "test"]
    return found


def leans_of(evidence: Evidence, metric: str) -> list[dict[str, str]]:
    """How well leans predict shifts."""
    if "softmax" not in evidence.chosen:
        return []
    found = evidence.lean_and_shift(metric)
    numbers = {"schemes": str(found.number), "rank correlation": f"{found.value:.3f}"}
    how = {"p": f"{found.p:.3g}", "exact": "yes" if found.exact else "no"}
    return [{"dataset": evidence.name} | numbers | how]


def knob_of(tries: Sequence[dict[str, str]], metric: str) -> list[dict[str, str]]:
    """What the learning rate does to head and tail, for each scheme, at the first length.

    Ranges are over rates whose held-out loss is within 1% of the best: rates between which a study
    with little data to choose by could have picked any.
    """
    lines = []
    for scheme in dict.fromkeys(line["scheme"] for line in tries):
        own = [line for line in tries if line["scheme"] == scheme]
        first = min(int(line["epochs"]) for line in own)
        own = [
            line
            for line in own
            if int(line["epochs"]) == first and math.isfinite(float(line["held_out_loss"]))
        ]
        if not own:
            continue
        best = min(float(line["held_out_loss"]) for line in own)
        near = [line for line in own if float(line["held_out_loss"]) <= best + 0.01 * abs(best)]
        shifts = [float(line[f"{metric} tail"]) - float(line[f"{metric} head"]) for line in own]
        found = rank_correlation([float(line["lr"]) for line in own], shifts)
        about = {"dataset": own[0]["dataset"], "scheme": scheme, "rates": str(len(own))}
        about |= {"rank correlation of rate and shift": f"{found.value:.3f}", "p": f"{found.p:.3g}"}
        about |= {"rates near the best": str(len(near))}
        for slice_ in ("head", "tail"):
            values = [float(line[f"{metric} {slice_}"]) for line in near]
            about[f"range {slice_}"] = f"{max(values) - min(values):.6f}"
        lines.append(about)
    return lines


def table(evidence: Evidence, columns: Sequence[tuple[str, str]]) -> str:
    """Schemes by (metric, slice): the mean, and the difference to the softmax with its interval.

    A star marks a rate or a number of epochs at the edge of what was tried.
    """
    head = "| scheme | lr | epochs | " + " | ".join(f"{m} {s}" for m, s in columns) + " |"
    lines = [head, "|---" * (len(columns) + 3) + "|"]
    for scheme, about in evidence.chosen.items():
        cells = [_cell(evidence, scheme, *column) for column in columns]
        edge = {kind: "*" if kind in about["edges"] else "" for kind in ("rate", "epochs")}
        settings = f"{about['lr']:g}{edge['rate']} | {about['epochs']}{edge['epochs']}"
        lines.append(f"| {scheme} | {settings} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(evidence: Evidence, scheme: str, metric: str, slice_: str) -> str:
    value = f"{100 * evidence.mean(scheme, metric, slice_):.1f}"
    if scheme == "softmax" or "softmax" not in evidence.chosen:
        return value
    result = evidence.difference(scheme, "softmax", metric, slice_)
    low, high = result.interval()
    return f"{value} ({100 * result.difference:+.1f}: {100 * low:+.1f} to {100 * high:+.1f})"


def write_tables(
    folder: Path, to: Path, resamples: int, protocols: Sequence[Protocol]
) -> dict[str, list[dict[str, str]]]:
    """Write the rows of all data sets that have runs, and print the tables; rows of others stay."""
    every = [
        (Evidence(folder / protocol.name, resamples), protocol)
        for protocol in protocols
        if (folder / protocol.name / "frame.npz").exists()
    ]
    rows = [row for evidence, _ in every for row in rows_of(evidence)]
    path = to / "retrieval-second.csv"
    rows = with_known(rows, rows_in(path), lambda row: row.run)
    if rows:
        write_text(path, to_csv(rows, Row))
    new: dict[str, list[dict[str, str]]] = {"tries": [], "rates": [], "claims": [], "leans": []}
    for evidence, protocol in every:
        names = [*retrieval_schemes(protocol), *_contrastive(protocol)]
        tries = evidence.tries(protocol.metric, names)
        new["tries"] += tries
        new["rates"] += knob_of(tries, protocol.metric)
        new["claims"] += claims_of(evidence, protocol.metric)
        new["leans"] += leans_of(evidence, protocol.metric)
    for name, lines in new.items():
        at = to / f"retrieval-second-{name}.csv"
        write_table(at, with_known(lines, read_table(at), lambda line: line["dataset"]))
    for evidence, protocol in every:
        print(f"\n## {evidence.name}\n\n{evidence.edges()}\n")
        print(table(evidence, [(protocol.metric, s) for s in SLICES]))
        more = [(f"recall@{k}", s) for k in (1, 50) for s in SLICES]
        more += [(f"precision@{k}", "full") for k in (1, 3, 5)]
        more += [(f"psp@{k}", "full") for k in (1, 3, 5)]
        print("\n" + table(evidence, more))
    return new


def _contrastive(protocol: Protocol) -> list[str]:
    return [] if protocol.name.endswith("-sasrec") else contrastive_schemes(protocol)


def main() -> None:
    """Write the rows and print the tables."""
    write_tables(given_folder(), RESULTS, RESAMPLES, PROTOCOLS)


if __name__ == "__main__":
    main()
