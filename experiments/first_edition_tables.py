"""Tables and verdicts of the first edition of the retrieval study, from its rows:

    .venv/bin/python experiments/first_edition_tables.py

puts them into docs/results-first.md, from experiments/results/retrieval.csv. That study kept values
by seed but no ranks of single points, so no interval includes the test set's error.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from by_seed import BySeed, Values
from claim_sentences import claims_table
from claims import Line, claimed_parts, decided
from evidence import LEAN
from stats.correlation import rank_correlation
from study_tables import publish, read_table, shown, write_table

RESULTS = Path(__file__).parent / "results"
LEANS = RESULTS / "retrieval-leans.csv"
ORDERS = RESULTS / "retrieval-lean-order.csv"
PAGE = Path(__file__).parents[1] / "docs" / "results-first.md"
README = Path(__file__).parents[1] / "README.md"
SLICES = ("head", "torso", "tail")
SETS = ("delicious", "diginetica", "nowplaying")
TITLES = {"delicious": "Delicious", "diginetica": "Diginetica", "nowplaying": "Nowplaying"}
WEIGHTS = ("constant", "importance", "relative", "tail")
SAMPLED = tuple(f"{s}:{w}" for s in ("uniform", "within-batch") for w in WEIGHTS)
EXACT = ("softmax", "logit-adjusted")
POPULAR = "most-popular"
METRICS = (
    *((f"R@10 {slice_}", "recall@10", slice_) for slice_ in (*SLICES, "full")),
    ("R@1 full", "recall@1", "full"),
    ("R@50 full", "recall@50", "full"),
    *((f"P@{k}", f"precision@{k}", "full") for k in (1, 3, 5)),
    ("PSP@1", "psp@1", "full"),
    ("balanced error", "balanced-error", "full"),
)
"""Columns of a data set's table: title, metric and slice."""
OF_SEVERAL = {"P@3", "P@5"}
"""Columns for points with several labels: with one label, P@k is Recall@k / k."""


def read_values(path: Path = RESULTS / "retrieval.csv") -> Values:
    """Test values, in the order of seeds."""
    found: dict[tuple[str, str, str, str], dict[int, float]] = {}
    for line in read_table(path):
        if line["split"] != "test":
            continue
        key = (line["dataset"], line["scheme"], line["metric"], line["slice"])
        found.setdefault(key, {})[int(line["seed"] or 0)] = float(line["value"])
    return {key: [of[seed] for seed in sorted(of)] for key, of in found.items()}


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    lines = ["| " + " | ".join(head) + " |", "|---" + "|--:" * (len(head) - 1) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def of_dataset(values: Values, dataset: str, schemes: Sequence[str]) -> str:
    """Schemes with runs by metric, mean ± standard deviation over seeds."""
    several = dataset == "delicious" or dataset.startswith("synthetic")
    columns = [c for c in METRICS if several or c[0] not in OF_SEVERAL]
    rows = []
    for scheme in schemes:
        cells = [shown(values.get((dataset, scheme, m, s), ())) for _, m, s in columns]
        if set(cells) != {"–"}:
            rows.append([scheme, *cells])
    return markdown(["scheme", *(title for title, _, _ in columns)], rows)


def at_one(values: Values) -> str:
    """Recall@1 by slice on the three data sets."""
    head = ["scheme", *(f"{TITLES[name]} {s}" for name in SETS for s in SLICES)]
    rows = [
        [scheme, *(shown(values[name, scheme, "recall@1", s]) for name in SETS for s in SLICES)]
        for scheme in (*EXACT, *SAMPLED)
    ]
    return markdown(head, rows)


def at_ten(values: Values) -> str:
    """Recall@10 on head, torso and tail, and over all labels, of the schemes that matter most."""
    schemes = (
        *EXACT,
        *(f"within-batch:{w}" for w in ("importance", "relative", "constant", "tail")),
    )
    rows = []
    for scheme in schemes:
        cells = (
            " / ".join(
                f"{100 * fmean(values[name, scheme, 'recall@10', s]):.1f}"
                for s in ("head", "tail", "full")
            )
            for name in SETS
        )
        rows.append([scheme, *cells])
    return markdown(["R@10 head / tail / full", *(TITLES[name] for name in SETS)], rows)


def orders(values: Values, leans: Sequence[Line]) -> list[Line]:
    """How well predicted leans order measured shifts: of all schemes but the softmax, which has
    neither, and of the paper's eight.
    """
    lines = []
    for name in SETS:
        data = BySeed(values, name)
        lean = {line["scheme"]: float(line["lean"]) for line in leans if line["dataset"] == name}
        for group, schemes in (("all", (EXACT[1], *SAMPLED)), ("paper", SAMPLED)):
            shifts = [data.difference(x, "softmax", "recall@10", LEAN).difference for x in schemes]
            found = rank_correlation([lean[scheme] for scheme in schemes], shifts)
            about = {"dataset": name, "group": group, "schemes": str(found.number)}
            numbers = {"correlation": f"{found.value:.3f}", "p": f"{found.p:.2g}"}
            lines.append(about | numbers)
    return lines


def orders_table(lines: Sequence[Line]) -> str:
    """These, as Markdown."""
    rows = ["| data | schemes | rank correlation | p |", "|---|---|--:|--:|"]
    for line in lines:
        which = "the paper's" if line["group"] == "paper" else "all"
        number = f"{float(line['correlation']):.2f}"
        cells = (TITLES[line["dataset"]], f"{which} {line['schemes']}", number, line["p"])
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def verdicts_of(values: Values) -> list[Line]:
    """The claims of `claims.py` on the three data sets."""
    each = (claimed_parts(BySeed(values, name), "recall@10", None) for name in SETS)
    return decided([line for parts in each for line in parts])


def tables(values: Values) -> dict[str, str]:
    """All tables of the page, by the name of their marker."""
    excluded = [f"uniform{x}:{w}" for w in WEIGHTS for x in ("", "(excluded)")]
    contrastive = [f"contrastive/{name}" for name in (EXACT[1], *SAMPLED)]
    parts = {"recall at 10": at_ten(values), "claims": claims_table(verdicts_of(values))}
    parts["leans"] = orders_table(orders(values, read_table(LEANS)))
    parts["recall at 1"] = at_one(values)
    parts["excluded"] = of_dataset(values, "delicious", excluded)
    for name in dict.fromkeys(key[0] for key in values):
        parts[name] = of_dataset(values, name, (*EXACT, *SAMPLED, POPULAR))
        if name in SETS:
            parts[f"{name} contrastive"] = of_dataset(values, name, ("contrastive", *contrastive))
    return parts


if __name__ == "__main__":
    write_table(ORDERS, orders(read_values(), read_table(LEANS)))
    publish(PAGE, tables(read_values()))
