"""What holds of the paper: its claims by verdict, and in one table by study, for docs/results.md.
From committed rows alone:

    .venv/bin/python experiments/paper_claims.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import first_edition_tables
import longtail_claims
from claim_sentences import TITLES, datasets_of
from claims import CLAIMS, Line, of_claim, verdict_of
from study_tables import publish, read_table

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "results.md"
CLAIMED = (
    "constant against softmax",
    "constant against uniform",
    "infonce against softmax",
    "constant in balanced error",
    "constant in prior-weighted error",
    "constant is best of the standard schemes",
    "relative against constant",
    "relative against softmax",
    "importance follows softmax",
    "importance of the whole batch follows softmax",
    "uniform follows softmax",
    "tail follows logit adjustment",
    "tail of the whole batch follows logit adjustment",
    "uniform tail follows logit adjustment",
    "tail weights are best",
    "logit adjustment against softmax",
    "logit adjustment against tail weights",
    "head is given up for tail",
    "within-batch favours the tail",
    "masked follows excluded",
    "fewer negatives",
    "contrastive loss",
)
"""The claims of the paper, and what is asked of whole batches, in the order of the table."""
TEXTS = {claimed.name: claimed.text for claimed in (*longtail_claims.ON_IMAGES, *CLAIMS)}
SHORT = TITLES | {
    "diginetica-part": "part of Diginetica",
    "nowplaying-part": "part of Nowplaying",
    "beauty-part": "part of Beauty",
    "gowalla-part": "part of Gowalla",
    "tiny-exp": "Tiny Exp",
    "tiny-step": "Tiny Step",
    "cifar10-exp": "CIFAR Exp",
    "cifar10-step": "CIFAR Step",
    "cifar10-exp-warm": "CIFAR Exp with warm-up",
}
"""Data sets below the title of their study."""
WORDS = {
    ("holds", True): "**holds**: ",
    ("does not hold", True): "**does not**: ",
    ("holds", False): "*holds*, uncorrected: ",
    ("does not hold", False): "*does not*, uncorrected: ",
    ("vacuous", True): "vacuous: ",
    ("vacuous", False): "vacuous: ",
    ("inconclusive", True): "undecided: ",
}
"""A verdict, and whether it is corrected for the study's other claims."""
DECIDED = {
    (True, False): "**Holds** on every data set where the runs decide it:",
    (False, True): "**Does not hold** on any data set where the runs decide it (in brackets, how "
    "many of its parts do):",
    (True, True): "**Holds on some data sets, and not on others:**",
    (False, False): "**Undecided** in all of these studies:",
}
"""Whether a claim holds somewhere and fails somewhere, after correction."""
UNTESTED = "**One seed only**, so that no verdict is given:"
Studies = Mapping[str, Sequence[Line]]
"""Title of a column: verdicts on the parts of claims."""


def read_studies(folder: Path = RESULTS) -> dict[str, list[Line]]:
    """The verdicts of all studies."""
    second = read_table(folder / "evidence-claims.csv")
    images = read_table(folder / "longtail-claims.csv")
    first = first_edition_tables.read_values(folder / "retrieval.csv")
    return {
        "[first edition](results-first.md), three seeds": first_edition_tables.verdicts_of(first),
        "[second edition](results-retrieval.md), three or five seeds": second,
        "[images](results-longtail.md), three seeds": images,
    }


def summary(studies: Studies) -> str:
    """Claims by what the runs decide about them, all studies taken together; of a data set that is
    in both editions, the second counts. Where a claim holds on some data sets, their names matter
    more than how many of its parts hold on the others.
    """
    groups: dict[str, list[str]] = {title: [] for title in (*DECIDED.values(), UNTESTED)}
    for claim in CLAIMED:
        found: dict[str, Sequence[Line]] = {}
        for lines in studies.values():
            for own in filter(None, (of_claim(lines, claim, name) for name in datasets_of(lines))):
                found[SHORT.get(own[0]["dataset"], own[0]["dataset"])] = own
        holds, fails = (
            [name for name, own in found.items() if verdict_of(own) == wanted]
            for wanted in ("holds", "does not hold")
        )
        where = _listed(holds)
        if fails and holds:
            where += f"; not {_listed(fails)}"
        elif fails:
            where = ", ".join(f"{name}{_of_parts(found[name])}" for name in fails)
        repeated = any(int(line["seeds"]) > 1 for own in found.values() for line in own)
        title = DECIDED[bool(holds), bool(fails)] if repeated else UNTESTED
        groups[title].append(f"  - {TEXTS[claim]}{f' ({where})' if where else ''}")
    parts = ["\n".join([f"- {title}", *own]) for title, own in groups.items() if own]
    return "\n".join(parts)


def _of_parts(lines: Sequence[Line]) -> str:
    """How many parts of a claim hold, if it has several."""
    holding = sum(line["part"] == "holds" for line in lines)
    return f" {holding} of {len(lines)}" if len(lines) > 1 else ""


def _listed(names: Sequence[str]) -> str:
    """Names of data sets, with all parts together.

    >>> _listed(["Delicious", "part of Beauty", "part of Gowalla"])
    'Delicious, parts of Beauty and Gowalla'
    >>> _listed([])
    ''
    """
    parts = [name.removeprefix("part of ") for name in names if name.startswith("part of ")]
    whole = [name for name in names if not name.startswith("part of ")]
    if not parts:
        return ", ".join(whole)
    joined = " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
    return ", ".join([*whole, f"part{'s' if len(parts) > 1 else ''} of {joined}"])


def cell(lines: Sequence[Line], claim: str) -> str:
    """Data sets of a study by their verdict on a claim; a dash where it was not tested."""
    found: dict[tuple[str, bool], list[str]] = {}
    tested = [of_claim(lines, claim, name) for name in datasets_of(lines)]
    for own in filter(None, tested):
        if all(int(line["seeds"]) > 1 for line in own):
            name = SHORT.get(own[0]["dataset"], own[0]["dataset"])
            found.setdefault(answer(own), []).append(name)
    parts = [words + _listed(found[key]) for key, words in WORDS.items() if key in found]
    return "; ".join(parts) or ("one seed only" if any(tested) else "–")


def answer(lines: Sequence[Line]) -> tuple[str, bool]:
    """The verdict on a claim, or what it would be if no other claim were tested; and which."""
    verdict = verdict_of(lines)
    alone = lines[0]["alone"]
    return (verdict, True) if alone == verdict or verdict != "inconclusive" else (alone, False)


def table(studies: Studies) -> str:
    """Claims by studies, as Markdown."""
    rows = ["| the paper's claim | " + " | ".join(studies) + " |"]
    rows.append("|---" * (len(studies) + 1) + "|")
    for claim in CLAIMED:
        cells = (cell(lines, claim) for lines in studies.values())
        rows.append(f"| {TEXTS[claim]} | {' | '.join(cells)} |")
    return "\n".join(rows)


def tables() -> dict[str, str]:
    """What the page shows, from the rows."""
    studies = read_studies()
    return {"summary": summary(studies), "paper": table(studies)}


if __name__ == "__main__":
    publish(PAGE, tables())
