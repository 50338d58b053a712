"""Turn the runs of the retrieval study, and of generated data, into rows, verdicts and pages.

    .venv/bin/python experiments/evidence_tables.py run/evidence

writes into experiments/results
`evidence.csv`          every scheme, metric, slice and data set: mean, values by seed, difference
                        to the softmax with its 95% interval (seeds and test set) and p
`evidence-claims.csv`   the claims of `claims.py` with differences, corrected p-values and verdicts
`evidence-tries.csv`    every rate and length that was tried, with its slices
`evidence-rates.csv`    what half and twice the chosen rate do to head and tail
`evidence-alike.csv`    what settings with about the same held-out loss do to them
`evidence-leans.csv`    rank correlation of predicted lean and measured shift
and then the page (`evidence_page.py`), which follows from these rows alone; likewise `million*.csv`
and `million_page.py` for generated data, whose claims are corrected by themselves. Rows of data
sets that have no runs in the folder are kept. p in `evidence.csv` is that of one comparison;
verdicts are corrected for all claims of the table (Holm). `docs/figures/evidence.py` draws the
figure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import million_page
from claims import Line, claimed_parts, decided
from evidence import SLICES, Evidence
from evidence_page import PAGE, WRITTEN, read_rows, tables
from rate_knob import alike_of, knob_of
from study_protocols import BAGS, HUNDREDTH, IMAGES, MILLION, PARTS, SEQUENCES
from study_runs import Protocol
from study_tables import given_folder, in_columns, publish, read_table, with_known, write_table
from threadpoolctl import threadpool_limits
from tradeoff_tables import RESAMPLES, RESULTS

from headtail.errors import HeadtailError
from headtail.schemes import PAPER

PROTOCOLS = (*BAGS, *PARTS, *SEQUENCES, *IMAGES)
GENERATED = (*MILLION, *HUNDREDTH)
METRICS = (
    *((f"recall@{k}", slice_) for k in (1, 10, 50) for slice_ in SLICES),
    *((f"{name}@{k}", "full") for name in ("precision", "psp") for k in (1, 3, 5)),
    *(("balanced-error", slice_) for slice_ in SLICES),
)
"""What is measured of every scheme."""


def measured(evidence: Evidence) -> list[Line]:
    """Every scheme, metric and slice of one data set, with its difference from the softmax."""
    lines = []
    for scheme, about in evidence.chosen.items():
        for metric, slice_ in METRICS:
            values = evidence.values(scheme, metric, slice_).by_seed
            if math.isnan(values.mean()):  # no label of the test set is in that slice
                continue
            key = {"dataset": evidence.name, "scheme": scheme, "metric": metric, "slice": slice_}
            settings = {"lr": f"{about['lr']:g}", "epochs": str(about["epochs"])}
            settings |= {"edges": " ".join(about["edges"]), "seeds": str(len(values))}
            each = {"value": f"{values.mean():.6f}"}
            each |= {"by seed": " ".join(f"{value:.6f}" for value in values)}
            differs = dict.fromkeys(("difference", "low", "high", "p"), "")
            if "softmax" in evidence.chosen:
                differs = in_columns(evidence.difference(scheme, "softmax", metric, slice_))
            lines.append(key | settings | each | differs)
    return lines


def leans_of(evidence: Evidence, metric: str) -> list[Line]:
    """How well leans predict shifts, for each loss: of all schemes, and of the paper's eight."""
    lines = []
    for base in ("softmax", "contrastive"):
        for group, among in (("all", None), ("paper", PAPER)):
            if base not in evidence.chosen:
                continue
            found = evidence.lean_and_shift(metric, base, among)
            if math.isnan(found.value):  # too few schemes to have an order
                continue
            key = {"dataset": evidence.name, "loss": base, "metric": metric, "group": group}
            numbers = {"schemes": str(found.number), "rank correlation": f"{found.value:.3f}"}
            how = {"p": f"{found.p:.3g}", "exact": "yes" if found.exact else "no"}
            lines.append(key | numbers | how)
    return lines


def lines_of(evidence: Evidence, protocol: Protocol) -> dict[str, list[Line]]:
    """All rows of a data set, by the file that they go to."""
    tries = evidence.tries(protocol.metric)
    return {
        "evidence": measured(evidence),
        "evidence-claims": claimed_parts(evidence, protocol.metric, protocol.training.batch),
        "evidence-tries": tries,
        "evidence-rates": knob_of(tries, evidence.rare),
        "evidence-alike": alike_of(tries, evidence.rare),
        "evidence-leans": leans_of(evidence, protocol.metric),
    }


def refuse_loss(evidence: Evidence, known: Sequence[Line]) -> None:
    """Refuse a folder with fewer schemes than the rows have, which would be lost."""
    have = {line["scheme"] for line in known if line["dataset"] == evidence.name}
    lost = sorted(have - set(evidence.chosen))
    if lost:
        raise HeadtailError(
            f"The rows of {evidence.name} have schemes whose runs are not in the folder: "
            f"{', '.join(lost)}. Unpack their archive into it, or leave {evidence.name} out."
        )


def write_tables(
    folder: Path,
    to: Path,
    resamples: int,
    protocols: Sequence[Protocol],
    study: str = "evidence",
) -> dict[str, list[Line]]:
    """Write the rows of all data sets that have runs; returns all rows, those of others too.

    Args:
        folder: of the runs.
        to: folder of the rows.
        resamples: of the bootstrap.
        protocols: the data sets of the study.
        study: what its files begin with.
    """
    found = [
        (Evidence(folder / protocol.name, resamples), protocol)
        for protocol in protocols
        if (folder / protocol.name / "frame.npz").exists()
    ]
    for evidence, _ in found:
        refuse_loss(evidence, read_table(to / f"{study}.csv"))
    each = [lines_of(*one) for one in found]
    every = {}
    for name in WRITTEN:
        lines = [line for one in each for line in one[name]]
        path = to / f"{name.replace('evidence', study)}.csv"
        every[name] = with_known(lines, read_table(path), lambda line: line["dataset"])
        if name == "evidence-claims":
            every[name] = decided(every[name])  # all claims of the table are corrected together
        write_table(path, every[name])
    return every


def main() -> None:
    """Write the rows, and make the page from all that are there."""
    write_tables(given_folder(), RESULTS, RESAMPLES, PROTOCOLS)
    write_tables(given_folder(), RESULTS, RESAMPLES, GENERATED, million_page.STUDY)
    publish(PAGE, tables(read_rows()))
    publish(million_page.PAGE, million_page.tables())


if __name__ == "__main__":
    with threadpool_limits(1):  # threads wait for each other where other programs run
        main()
