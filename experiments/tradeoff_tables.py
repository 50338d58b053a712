"""Turn the runs of `tradeoff.py` into rows, tables and the answer at equal head recall.

    .venv/bin/python experiments/tradeoff_tables.py run/evidence

writes `tradeoff.csv` (every point of every curve, with its difference from the softmax),
`tradeoff-equal-head.csv` (which curve is better at equal head recall) and `tradeoff-tries.csv`
(every rate that was tried) into experiments/results, and prints the tables in Markdown.
`docs/figures/tradeoff_curves.py` draws the figure from these rows. Intervals are 95% and include
seeds and test set; all verdicts of the second table are corrected together (Holm).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from claim_sentences import TITLES, datasets_of, points
from evidence import Evidence
from stats.curves import KEPT, Level, at_equal_head, tail_at
from stats.paired import margin_for
from stats.verdicts import Compared, preferred
from study_protocols import TAUS, tau_schemes
from study_runs import Protocol
from study_store import adjusted_scheme
from study_tables import given_folder, in_columns, publish, read_table, with_known, write_table
from threadpoolctl import threadpool_limits
from tradeoff import PROTOCOLS, schemes

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "results-tradeoff.md"
EQUAL_HEAD = "tradeoff-equal-head"
TRAINED = {"full": "over all labels", "within-batch": "in-batch negatives"}
RESAMPLES = 10_000
ADJUSTED = "post-hoc"
ANSWERS = {"first": "training", "second": "adjusting"}
ONE_SEED = "one seed only"
MEASURED = ("difference", "low", "high", "p", "margin", "p of equality")


def curves_of(protocol: Protocol) -> dict[str, list[str]]:
    """The schemes of all three curves, from τ = 0."""
    adjusted = [adjusted_scheme("softmax", tau) for tau in TAUS]
    return tau_schemes(protocol) | {ADJUSTED: ["softmax", *adjusted]}


def curve_points(evidence: Evidence, protocol: Protocol) -> list[dict[str, str]]:
    """Every point of every curve that has runs, with differences from the softmax."""
    lines = []
    metrics = [(protocol.metric, s) for s in ("head", "torso", "tail", "full")]
    metrics += [("psp@1", "full"), ("psp@5", "full")]
    for curve, names in curves_of(protocol).items():
        for tau, scheme in zip((0.0, *TAUS), names, strict=True):
            about = evidence.chosen.get(scheme)
            if about is None or "softmax" not in evidence.chosen:
                continue
            for metric, slice_ in metrics:
                result = evidence.difference(scheme, "softmax", metric, slice_)
                key = {"dataset": evidence.name, "curve": curve, "tau": f"{tau:g}"}
                settings = {"scheme": scheme, "seeds": str(result.seeds)}
                settings |= {"lr": f"{about['lr']:g}", "epochs": str(about["epochs"])}
                settings |= {"metric": metric, "slice": slice_}
                value = {"value": f"{evidence.mean(scheme, metric, slice_):.6f}"}
                lines.append(key | settings | value | in_columns(result))
    return lines


def compared(evidence: Evidence, protocol: Protocol) -> Iterator[dict[str, str]]:
    """Training minus adjusting on the tail of one data set, for each curve and head recall."""
    curves = curves_of(protocol)
    if not all(name in evidence.chosen for name in curves[ADJUSTED]):
        return
    adjusted = evidence.curve(curves[ADJUSTED], protocol.metric)
    for name in tau_schemes(protocol):
        if not all(scheme in evidence.chosen for scheme in curves[name]):
            continue
        trained = evidence.curve(curves[name], protocol.metric)
        for share in KEPT:
            level = Level.of(share, adjusted)
            seeds = zip(adjusted.head, adjusted.tail, strict=True)
            tails = [tail_at(head, tail, level.value) for head, tail in seeds]
            reference = sum(tails) / len(tails)
            key = {"dataset": evidence.name, "training": name, "head kept": f"{share:g}"}
            key |= {"head": f"{level.value:.6f}", "seeds": str(len(tails))}
            key |= {"adjusted tail": f"{reference:.6f}"}
            result = at_equal_head(trained, adjusted, level)
            if result is None:
                yield key | dict.fromkeys(MEASURED, "")
                continue
            pair = Compared.of(result, margin_for(reference))
            about = {"margin": f"{pair.margin:.6f}", "p of equality": f"{pair.p_equal:.3g}"}
            yield key | in_columns(result) | about


def decided(lines: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Which is better at equal head recall, for all data sets: one table, corrected together.

    With one seed no verdict is given: what other seeds would change is unknown.
    """
    repeated = [line for line in lines if int(line["seeds"]) > 1]
    reached = [line for line in repeated if line["difference"]]
    columns = ("difference", "margin", "p", "p of equality")
    found = preferred([Compared(*(float(line[c]) for c in columns)) for line in reached])
    answers = {}
    for line, one in zip(reached, found, strict=True):
        answer = ANSWERS.get(one.answer, one.answer)
        answer += ", by less than the margin" if one.small else ""
        corrected = {"p corrected": f"{one.p_different:.3g}"}
        corrected |= {"p of equality corrected": f"{one.p_equal:.3g}", "better": answer}
        answers[id(line)] = corrected
    nothing = {"p corrected": "", "p of equality corrected": ""}
    for line in lines:
        if id(line) not in answers:
            better = ONE_SEED if line["difference"] else "not reached"
            answers[id(line)] = nothing | {"better": better}
    return [line | answers[id(line)] for line in lines]


def table(lines: Sequence[dict[str, str]], columns: Sequence[str], percent: set[str]) -> str:
    """Lines as Markdown."""
    shown = [
        [f"{100 * float(line[c]):.1f}" if c in percent and line[c] else line[c] for c in columns]
        for line in lines
    ]
    rows = [list(columns), ["---"] * len(columns), *shown]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def equal_head_table(lines: Sequence[dict[str, str]]) -> str:
    """Verdicts for readers, as Markdown, at the levels of head recall that both curves reach."""
    rows = ["| data | trained | head | tail, adjusted | training, points | verdict |"]
    rows.append("|---|---|--:|--:|--:|---|")
    order = datasets_of(lines)
    reached = [line for line in lines if line["difference"]]
    columns = ("difference", "low", "high")
    for line in sorted(reached, key=lambda line: order.index(line["dataset"])):
        middle, low, high = (f"{100 * float(line[c]):+.2f}".replace("-", "−") for c in columns)
        shown = f"{middle} ({low} to {high})"
        kept = f"{100 * float(line['head kept']):.0f}%"
        tail = points(line["adjusted tail"], sign=False)
        cells = [TITLES[line["dataset"]], TRAINED[line["training"]], kept, tail, shown]
        better = f"*{ONE_SEED}*" if line["better"] == ONE_SEED else line["better"]
        rows.append("| " + " | ".join([*cells, better]) + " |")
    return "\n".join(rows)


def main() -> None:
    """Write the rows, place the table of verdicts, and print all tables."""
    write_tables(given_folder(), RESULTS, RESAMPLES, PROTOCOLS)
    publish(PAGE, tables())


def tables() -> dict[str, str]:
    """The table of the page, from the rows."""
    return {"equal head": equal_head_table(read_table(RESULTS / f"{EQUAL_HEAD}.csv"))}


def write_tables(
    folder: Path, to: Path, resamples: int, protocols: Sequence[Protocol]
) -> dict[str, list[dict[str, str]]]:
    """Write the rows of all data sets that have runs; rows of others are kept."""
    every = [
        (Evidence(folder / protocol.name, resamples), protocol)
        for protocol in protocols
        if (folder / protocol.name / "frame.npz").exists()
    ]
    new = {
        "tradeoff": [line for one in every for line in curve_points(*one)],
        "tradeoff-equal-head": [line for one in every for line in compared(*one)],
        "tradeoff-tries": [
            line for e, protocol in every for line in e.tries(protocol.metric, schemes(protocol))
        ],
    }
    for name, lines in new.items():
        path = to / f"{name}.csv"
        new[name] = with_known(lines, read_table(path), lambda line: line["dataset"])
        if name == EQUAL_HEAD:
            new[name] = decided(new[name])
        write_table(path, new[name])
    percent = {"value", "difference", "low", "high", "head", "adjusted tail", "margin"}
    columns = ("dataset", "curve", "tau", "metric", "slice", "value", "difference", "low", "high")
    print(table(new["tradeoff"], columns, percent))
    if new["tradeoff-equal-head"]:
        print(
            "\n" + table(new["tradeoff-equal-head"], list(new["tradeoff-equal-head"][0]), percent)
        )
    for evidence, _ in every:
        print(f"\n{evidence.edges()}")
    return new


if __name__ == "__main__":
    with threadpool_limits(1):  # threads wait for each other where other programs run
        main()
