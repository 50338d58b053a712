"""What the paper claims about long-tailed images, and what rows of the study say about it.

Values are shares of test images answered correctly, the mean over classes: 1 − error, so that above
is better. Claims that other pages judge too come from `claims.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from by_seed import BySeed, Values
from claim_sentences import points, where
from claims import (
    CLAIMS,
    SAME_BUT_CONTRASTIVE,
    SAMPLED,
    WEIGHTS,
    Claimed,
    Line,
    Part,
    claimed_parts,
    decided,
    of_claim,
    verdict_of,
)

from headtail.comparison.results import Row
from headtail.errors import HeadtailError

CORRECT = "correct"
PRIOR = "prior-weighted"
"""In place of a slice: all classes, weighted by their training images."""
TITLES = {
    "tiny-exp": "Tiny-ImageNet Exp",
    "tiny-step": "Tiny-ImageNet Step",
    "cifar10-exp": "CIFAR-10-LT Exp",
    "cifar10-step": "CIFAR-10-LT Step",
    "cifar10-exp-warm": "CIFAR-10-LT Exp, warm-up",
}
JOINED = {"tiny-exp-sweep": "tiny-exp", "tiny-exp-contrastive": "tiny-exp"}
"""Studies that add schemes to another one's data set."""
CONSTANT = "within-batch:constant"
KNOWN = {claimed.name: claimed for claimed in CLAIMS}


def _beats(scheme: str, others: Iterable[str], slice_: str) -> tuple[Part, ...]:
    return tuple(Part(scheme, other, "above", slice_) for other in others if other != scheme)


def _loses(pairs: Iterable[tuple[str, str]], slice_: str) -> tuple[Part, ...]:
    return tuple(Part(scheme, other, "below", slice_) for scheme, other in pairs)


def _weights(sampler: str) -> list[str]:
    return [f"{sampler}:{name}" for name in WEIGHTS]


ON_IMAGES = (
    KNOWN["logit adjustment against softmax"],
    Claimed(
        "adjustment afterwards",
        "The softmax adjusted after training beats the softmax on the tail",
        _beats("softmax+post-hoc", ["softmax"], "tail"),
    ),
    Claimed(
        "tail weights are best",
        "With either sampler, tail weights beat all other weights on the tail",
        _beats("uniform:tail", _weights("uniform"), "tail")
        + _beats("within-batch:tail", _weights("within-batch"), "tail"),
    ),
    KNOWN["relative against constant"],
    Claimed(
        "relative on the head",
        "In-batch, relative weights beat the full softmax on the head",
        _beats("within-batch:relative", ["softmax"], "head"),
    ),
    Claimed(
        "constant in prior-weighted error",
        "In-batch constant weights lose to the full softmax in prior-weighted error",
        _loses([(CONSTANT, "softmax")], PRIOR),
    ),
    Claimed(
        "constant in balanced error",
        "In-batch constant weights beat the full softmax in balanced error",
        _beats(CONSTANT, ["softmax"], "full"),
    ),
    KNOWN["constant against softmax"],
    KNOWN["constant against uniform"],
    Claimed(
        "constant is best of the standard schemes",
        "Of all weights but tail weights, in-batch constant ones are best on the tail",
        _beats(CONSTANT, [name for name in SAMPLED if not name.endswith(":tail")], "tail"),
    ),
    KNOWN["within-batch favours the tail"],
    KNOWN["head is given up for tail"],
    KNOWN["tail follows logit adjustment"],
    KNOWN["uniform tail follows logit adjustment"],
    Claimed(
        "logit adjustment against tail weights",
        "The logit-adjusted loss beats tail weights on the tail, as sampling adds variance",
        _beats("logit-adjusted", ["uniform:tail", "within-batch:tail"], "tail"),
    ),
    Claimed(
        "fewer negatives",
        "Fewer negatives, 8 instead of 128, lose in balanced error with every scheme",
        _loses([(f"{n}@8", f"{n}@128") for n in SAMPLED if n != "within-batch:tail"], "full"),
    ),
    Claimed(
        "contrastive loss",
        "The contrastive loss, sampled or not, loses to the softmax in balanced error",
        _loses(SAME_BUT_CONTRASTIVE, "full"),
    ),
)
"""From the paper's section on long-tail benchmarks, the caption of its first figure and its
appendix. "tail" is the rarest slice that a test set has.
"""


def values_of(rows: Iterable[Row]) -> Values:
    """Shares of correct answers by data set, scheme and slice, in the order of seeds."""
    found: dict[tuple[str, str, str, str], dict[int, float]] = {}
    for row in rows:
        if row.metric in ("balanced-error", "class-weighted-error"):
            slice_ = row.slice if row.metric == "balanced-error" else PRIOR
            key = (JOINED.get(row.dataset, row.dataset), row.scheme, CORRECT, slice_)
            found.setdefault(key, {})[row.seed] = 1 - row.value
    for key, of in found.items():
        if sorted(of) != list(range(len(of))):
            raise HeadtailError(f"{key} has seeds {sorted(of)}, which must count from 0.")
    return {key: [of[seed] for seed in sorted(of)] for key, of in found.items()}


def verdicts_of(values: Values) -> list[Line]:
    """The verdicts on all parts of all claims about all data sets."""
    present = {key[0] for key in values}
    names = [name for name in TITLES if name in present]
    each = (claimed_parts(BySeed(values, name), CORRECT, None, ON_IMAGES) for name in names)
    return decided([line for parts in each for line in parts])


def claims_table(lines: Sequence[Line]) -> str:
    """Claims by data sets, as Markdown."""
    present = {line["dataset"] for line in lines}
    names = [name for name in TITLES if name in present]
    rows = ["| claim | " + " | ".join(TITLES[name] for name in names) + " |"]
    rows += ["|---" * (len(names) + 1) + "|"]
    for claimed in ON_IMAGES:
        cells = [cell(of_claim(lines, claimed.name, name)) for name in names]
        rows.append(f"| {claimed.text} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def cell(lines: Sequence[Line]) -> str:
    """The verdict on a claim and its number: of several parts, the part that decides."""
    if not lines:
        return "–"
    verdict = verdict_of(lines)
    alone = lines[0]["alone"]
    if verdict == "inconclusive" != alone:
        answer = f"*{alone}* (uncorrected)"
        verdict = alone
    else:
        answer = verdict if verdict == "inconclusive" else f"**{verdict}**"
    failing = [line for line in lines if line["part"] == verdict == "does not hold"]
    line = min(failing or lines, key=_support)
    return f"{answer}, {'at worst ' if len(lines) > 1 else ''}{_number(line, lines)}"


def _number(line: Line, lines: Sequence[Line]) -> str:
    low, high = (points(line[name]) for name in ("low", "high"))
    known = f"({low} to {high})" if int(line["seeds"]) > 1 else "(one seed)"
    several = len({other["slice"] for other in lines}) > 1
    place = f" {where(line['slice'])}" if several else ""
    return f"{points(line['difference'])} {known}{place}"


def _support(line: Line) -> float:
    """How far a difference speaks for a claim."""
    difference = float(line["difference"])
    return {"above": difference, "below": -difference, "follows": -abs(difference)}[line["kind"]]
