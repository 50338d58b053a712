"""How large should the batch be, where its labels are the negatives? Rows and a table from runs of
`retrieval.py --part batches`, and from those with batches of 256 of its other parts:

    .venv/bin/python experiments/batch_tables.py run/evidence

writes experiments/results/batch.csv and the table of docs/results-advice.md. `difference` is the
Recall@10 of the whole batch as negatives minus that of the loss over all labels with the same
batch; `difference from usual`, of either, minus that of the loss over all labels with batches of
256. Three seeds, paired; intervals are 95% and include seeds and test set. Values of seeds 3 and 4,
which batches of 256 have as well, are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import fmean

from claim_sentences import TITLES, points
from evidence import SLICES, Evidence, Values, minus
from study_protocols import BATCHES, PARTS, batch_schemes
from study_runs import Protocol
from study_tables import given_folder, in_columns, publish, read_table, with_known, write_table
from threadpoolctl import threadpool_limits
from tradeoff_tables import RESAMPLES, RESULTS

Line = dict[str, str]
ROWS = RESULTS / "batch.csv"
PAGE = Path(__file__).parents[1] / "docs" / "results-advice.md"
METRIC = "recall@10"
USUAL = 256
SEEDS = 3


def batches_of(part: Protocol) -> list[Protocol]:
    """The protocols of one part of a data set, with smaller batches first.

    >>> [protocol.training.batch for protocol in batches_of(PARTS[0])]
    [64, 256, 1024]
    """
    others = [protocol for protocol in BATCHES if protocol.name.startswith(f"{part.name}-batch-")]
    return sorted([part, *others], key=lambda protocol: protocol.training.batch or 0)


def lines_of(folder: Path, part: Protocol) -> Iterator[Line]:
    """All rows of a part, if the folder has its runs with every batch."""
    protocols = batches_of(part)
    there = [(folder / protocol.name / "frame.npz").exists() for protocol in protocols]
    if len(protocols) == 1 or not all(there):
        return
    by_batch = {p.training.batch: Evidence(folder / p.name, RESAMPLES) for p in protocols}
    for protocol in protocols:
        names = batch_schemes(protocol)
        for target, sampled in zip(names[::2], names[1::2], strict=True):
            for scheme, slice_ in product((target, sampled), SLICES):
                about = {"dataset": part.name, "target": target}
                about["batch"] = str(protocol.training.batch)
                evidence = by_batch[protocol.training.batch]
                yield about | _line(evidence, by_batch[USUAL], target, scheme, slice_)


def _line(evidence: Evidence, usual: Evidence, target: str, scheme: str, slice_: str) -> Line:
    """Recall of a scheme, compared with its target's, and with that of the usual batch."""
    own = _first(evidence.values(scheme, METRIC, slice_))
    about = evidence.chosen[scheme]
    differs = {"difference": "", "low": "", "high": "", "p": ""}
    if scheme != target:
        differs = in_columns(minus(own, _first(evidence.values(target, METRIC, slice_))))
    from_usual = in_columns(minus(own, _first(usual.values(target, METRIC, slice_))))
    return {
        "scheme": scheme,
        "lr": f"{about['lr']:g}",
        "epochs": str(about["epochs"]),
        "edges": " ".join(about["edges"]),
        "seeds": str(len(own.by_seed)),
        "slice": slice_,
        "value": f"{own.by_seed.mean():.6f}",
        **differs,
        **{f"{name} from usual": number for name, number in from_usual.items()},
    }


def _first(values: Values) -> Values:
    return Values(values.by_seed[:SEEDS], values.resampled[:SEEDS])


def table(lines: list[Line]) -> str:
    """Recall of both losses by batch, and the largest gap between them; below, its mean without
    sign.
    """
    head = ("data", "target", "batch", "all labels", "whole batch", "largest gap")
    rows = [f"| {' | '.join(head)} |", "|---|---|--:|--:|--:|--:|"]
    gaps: dict[str, list[float]] = defaultdict(list)
    keys = dict.fromkeys((line["dataset"], line["target"], line["batch"]) for line in lines)
    for key in keys:
        name, target, batch = key
        own = [line for line in lines if (line["dataset"], line["target"], line["batch"]) == key]
        exact = [line for line in own if line["scheme"] == target]
        sampled = [line for line in own if line["scheme"] != target]
        worst = max(sampled[:3], key=lambda line: abs(float(line["difference"])))
        gaps[batch].append(abs(float(worst["difference"])))
        gap = f"{points(worst['difference'])} ({worst['slice']})"
        cells = (TITLES[name], target, batch, _recalls(exact), _recalls(sampled), gap)
        rows.append(f"| {' | '.join(cells)} |")
    for batch, of_batch in gaps.items():
        mean = points(fmean(of_batch), sign=False)
        rows.append(f"| mean absolute gap | both targets | {batch} | | | {mean} |")
    return "\n".join(rows)


def _recalls(lines: list[Line]) -> str:
    """Head, torso, tail and all labels; a star where the length lies at an edge."""
    star = "*" if "epochs" in lines[0]["edges"] else ""
    return " / ".join(points(line["value"], sign=False) for line in lines) + star


def main() -> None:
    """Write rows and table."""
    folder = given_folder()
    found = [line for part in PARTS for line in lines_of(folder, part)]
    lines = with_known(found, read_table(ROWS), key=lambda line: line["dataset"])
    write_table(ROWS, lines)
    publish(PAGE, {"batches": table(lines)})


if __name__ == "__main__":
    with threadpool_limits(1):  # threads wait for each other where other programs run
        main()
