"""Turn the lines of `defaults.py` into the tables of docs/defaults.md.

    python experiments/defaults_tables.py

reads every CSV file in `experiments/results/defaults`, writes the tables into the page and prints
them. A default that no run has measured is marked as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from study_tables import publish, read_table

from headtail.data.facts import Kind
from headtail.schemes import parse
from headtail.training.recipes import DEFAULTS

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "defaults"
PAGE = HERE.parent / "docs" / "defaults.md"
SCHEMES = ("within-batch:importance", "within-batch:tail", "softmax")
LOSS_GAP = 0.02
"""How far the default's implicit loss may be from the best, as a share of the best."""
RECALL_SHARE = 0.95
"""The share of the best Recall@10 that the default must reach."""
Line = dict[str, str]


@dataclass(frozen=True)
class Study:
    """A data set of the sweep: its name, its kind, and the batch that its size leads to."""

    data: str
    name: str
    kind: Kind
    batch: int


STUDIES = (
    Study("delicious", "Delicious", "text", 256),
    Study("synthetic:wikilshtc-325k,scale=0.1", "generated (WikiLSHTC-325K × 0.1)", "text", 1024),
    Study("diginetica", "Diginetica", "sequences", 1024),
    Study("nowplaying", "Nowplaying", "sequences", 1024),
    Study("beauty", "Beauty", "sequences", 1024),
    Study("gowalla", "Gowalla", "interactions", 1024),
)


def runs_of(lines: Sequence[Line], study: Study, scheme: str) -> list[Line]:
    """The runs of a scheme with the default batch and negatives: all rates and epochs."""
    usual = DEFAULTS[study.kind]
    negatives = str(usual.negatives) if parse(scheme).sampler is not None else ""
    wanted = {
        "dataset": study.data,
        "scheme": scheme,
        "batch": str(study.batch),
        "negatives": negatives,
        "dropout": f"{usual.dropout:g}",
    }
    return [line for line in lines if all(line[name] == value for name, value in wanted.items())]


def default_of(runs: Sequence[Line], study: Study, scheme: str) -> Line | None:
    """The run with the default rate and epochs, if there is one."""
    usual = DEFAULTS[study.kind]
    rate = usual.lr if parse(scheme).sampler is not None else usual.exact_lr
    wanted = (f"{rate:g}", str(usual.epochs))
    return next((line for line in runs if (line["lr"], line["epochs"]) == wanted), None)


def judged(scheme: str) -> str:
    """The slice that a scheme is meant for."""
    return "tail" if scheme.endswith(":tail") else "full"


def claim_row(study: Study, scheme: str, runs: Sequence[Line]) -> str:
    """One row of the table: the default against the best of the sweep."""
    finished = [line for line in runs if line["curve"]]
    default = default_of(finished, study, scheme)
    if default is None:
        return f"| {study.name} | {scheme} | {len(runs)} | not run yet | | | | |"
    best_loss = min(finished, key=lambda line: float(line["implicit_loss"]))
    gap = float(default["implicit_loss"]) / float(best_loss["implicit_loss"]) - 1
    cells = [
        f"{float(default['implicit_loss']):.3f}",
        f"{float(best_loss['implicit_loss']):.3f} ({_setting(best_loss)})",
        _marked(f"{100 * gap:.1f}%", gap <= LOSS_GAP),
    ]
    for part in ("validation", "test"):
        column = f"{part}_{judged(scheme)}"
        best = max(finished, key=lambda line: float(line[column]))
        share = float(default[column]) / float(best[column])
        text = f"{100 * float(default[column]):.1f} of {100 * float(best[column]):.1f}"
        cells.append(_marked(f"{text} = {100 * share:.0f}%", share >= RECALL_SHARE))
    return f"| {study.name} | {scheme} | {len(finished)} | {' | '.join(cells)} |"


def claim_table(lines: Sequence[Line]) -> str:
    """The defaults against the sweep; misses are bold."""
    rows = [
        claim_row(study, scheme, runs_of(lines, study, scheme))
        for study in STUDIES
        for scheme in SCHEMES
    ]
    head = (
        "| data | scheme | runs | implicit loss of the default | best (rate, epochs) | gap | "
        "Recall@10, held-out | Recall@10, test |"
    )
    return "\n".join([head, "|---|---|--:|--:|---|--:|---|---|", *rows])


def wider_table(lines: Sequence[Line]) -> str:
    """The defaults against every run of the sweep, with other batches and negatives too."""
    rows = ["| data | scheme | runs | gap of the loss | Recall@10, held-out | best: m, batch |"]
    rows.append("|---|---|--:|--:|--:|---|")
    for study in STUDIES:
        for scheme in SCHEMES:
            default = default_of(runs_of(lines, study, scheme), study, scheme)
            every = [
                line
                for line in lines
                if (line["dataset"], line["scheme"]) == (study.data, scheme) and line["curve"]
            ]
            if default is None:
                rows.append(f"| {study.name} | {scheme} | {len(every)} | not run yet | | |")
                continue
            best = min(every, key=lambda line: float(line["implicit_loss"]))
            gap = float(default["implicit_loss"]) / float(best["implicit_loss"]) - 1
            column = f"validation_{judged(scheme)}"
            share = float(default[column]) / max(float(line[column]) for line in every)
            cells = (
                _marked(f"{100 * gap:.1f}%", gap <= LOSS_GAP),
                _marked(f"{100 * share:.0f}%", share >= RECALL_SHARE),
                f"{best['negatives'] or 'all'}, {best['batch']}",
            )
            rows.append(f"| {study.name} | {scheme} | {len(every)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def rates_table(lines: Sequence[Line]) -> str:
    """The implicit loss of every rate, with its best number of epochs."""
    rates = sorted({float(line["lr"]) for line in lines if line["lr"]})
    rows = ["| data | scheme | " + " | ".join(f"{rate:g}" for rate in rates) + " |"]
    rows.append("|---|---" + "|--:" * len(rates) + "|")
    for study in STUDIES:
        for scheme in SCHEMES:
            cells = []
            for rate in rates:
                losses = [
                    float(line["implicit_loss"])
                    for line in runs_of(lines, study, scheme)
                    if float(line["lr"]) == rate and line["implicit_loss"]
                ]
                cells.append(f"{min(losses):.2f}" if losses else "–")
            rows.append(f"| {study.name} | {scheme} | {' | '.join(cells)} |")
    return "\n".join(rows)


def settings_table() -> str:
    """The defaults themselves."""
    rows = [
        "| kind | rate, sampled | rate, all labels | epochs | batch | negatives | dropout |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for kind, usual in DEFAULTS.items():
        numbers = (usual.lr, usual.exact_lr, usual.epochs, usual.batch, usual.negatives)
        shown = " | ".join(f"{number:g}" for number in (*numbers, usual.dropout))
        rows.append(f"| {kind} | {shown} |")
    return "\n".join(rows)


def _setting(line: Line) -> str:
    return f"{line['lr']}, {line['epochs']}"


def _marked(text: str, kept: bool) -> str:
    return text if kept else f"**{text}**"


def tables() -> dict[str, str]:
    """The tables of the page, from the rows."""
    lines = [line for path in sorted(RESULTS.glob("*.csv")) for line in read_table(path)]
    return {
        "settings": settings_table(),
        "claim": claim_table(lines),
        "wider": wider_table(lines),
        "rates": rates_table(lines),
    }


if __name__ == "__main__":
    publish(PAGE, tables())
