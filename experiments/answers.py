"""The first screen of a page of results: questions that people have, each with an answer, a number
and a link. All of it is made from rows, so it cannot say what they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from statistics import fmean, median
from typing import NamedTuple

from claim_sentences import TITLES, datasets_of, points, where
from claims import Line, of_claim, verdict_of
from stats.correlation import DRAWS

Rows = Mapping[str, Sequence[Line]]
"""Lines by file, without `.csv`."""
NOT_YET = "Not measured yet."
EQUAL_HEAD = "tradeoff-equal-head"
"""The file that says which is better at equal head recall."""
TEXT = {
    "holds": "Yes",
    "does not hold": "No",
    "inconclusive": "The runs do not decide it",
    "vacuous": "Yes, but the softmax does so too",
}
"""Verdicts as answers."""


class Question(NamedTuple):
    """A question, the function that answers it from rows, and where to read on."""

    text: str
    answer: Callable[[Rows], str]
    link: str


def _titles(names: Sequence[str]) -> str:
    return ", ".join(TITLES.get(name, name) for name in names)


def _claim(name: str) -> Callable[[Rows], str]:
    """An answer from the verdicts on one claim: data sets by verdict, each with its number."""

    def answer(rows: Rows) -> str:
        lines = rows.get("evidence-claims", ())
        found: dict[str, list[str]] = {}
        for dataset in datasets_of(lines):
            own = of_claim(lines, name, dataset)
            if own:
                verdict = verdict_of(own)
                title = TITLES.get(dataset, dataset)
                found.setdefault(verdict, []).append(f"{title} ({_number(own)})")
        parts = [f"**{text}** on {'; '.join(found[v])}" for v, text in TEXT.items() if v in found]
        return ". ".join(parts) + "." if parts else NOT_YET

    return answer


def _number(lines: Sequence[Line]) -> str:
    """The largest difference among the parts that decide a verdict."""
    verdict = verdict_of(lines)
    deciding = [line for line in lines if line["part"] == verdict]
    line = max(deciding or lines, key=lambda line: abs(float(line["difference"])))
    low, high = points(line["low"]), points(line["high"])
    return f"{points(line['difference'])} points {where(line['slice'])}, {low} to {high}"


def _leans(rows: Rows) -> str:
    every = rows.get("evidence-leans", ())
    lines = [
        line
        for dataset in datasets_of(every)
        for line in every
        if (line["dataset"], line["loss"], line["group"]) == (dataset, "softmax", "all")
    ]
    each = [
        f"{TITLES.get(line['dataset'], line['dataset'])} {line['rank correlation']} "
        f"(p {chance(line, '= ')}, {line['schemes']} schemes)".replace("-", "−", 1)
        for line in lines
    ]
    if not each:
        return NOT_YET
    clear = [line for line in lines if float(line["p"]) < 0.05]
    right = [line for line in clear if float(line["rank correlation"]) > 0]
    share = f"**{'Roughly' if len(right) == len(lines) else 'In part' if right else 'No'}**"
    about = (
        f"the predicted lean orders the measured shifts on {len(right)} of {len(lines)} data sets"
    )
    return f"{share}: {about}. Rank correlation: {'; '.join(each)}."


def chance(line: Line, equals: str = "") -> str:
    """The p-value of a rank correlation; the smallest that random orders can show is a bound."""
    p = float(line["p"])
    smallest = 1.01 / (DRAWS + 1)
    return f"≤ {p:.0e}" if line["exact"] == "no" and p <= smallest else f"{equals}{line['p']}"


def _rate(rows: Rows) -> str:
    """What half and twice the chosen rate do to the tail: the median over schemes."""
    lines = rows.get("evidence-rates", ())
    if not lines:
        return NOT_YET
    each = []
    for dataset in datasets_of(lines):
        own = [line for line in lines if line["dataset"] == dataset]
        same, best = (_moved(own, length) for length in ("same", "own"))
        seeds = _between_seeds(rows, dataset)
        each.append(f"{TITLES.get(dataset, dataset)} {same}, {best} and {seeds}")
    return (
        "**Yes.** Half or twice the chosen rate, whichever changes more, moves tail recall by so "
        "many points (the median over schemes): with the same epochs, with those that suit the "
        f"other rate best, and, for comparison, from one seed to another: {'; '.join(each)}. So "
        "every scheme has its own search, of both."
    )


def _between_seeds(rows: Rows, dataset: str) -> str:
    """How far the tails of two seeds are apart, on average; the median over schemes."""
    apart = []
    slices = [
        line
        for line in rows.get("evidence", ())
        if (line["dataset"], line["metric"]) == (dataset, _metric(rows, dataset))
    ]
    rare = "tail" if any(line["slice"] == "tail" for line in slices) else "torso"
    for line in slices:
        values = [float(value) for value in line["by seed"].split()]
        if line["slice"] == rare and len(values) > 1:
            apart.append(fmean(abs(a - b) for a, b in combinations(values, 2)))
    return points(median(apart), sign=False) if apart else "–"


def _moved(lines: Sequence[Line], length: str) -> str:
    """By how many points a scheme's tail moves at most; the median over schemes."""
    of_scheme: dict[str, float] = {}
    for line in lines:
        if line["length"] == length:
            tail = abs(float(line["tail"]))
            of_scheme[line["scheme"]] = max(tail, of_scheme.get(line["scheme"], 0.0))
    return points(median(of_scheme.values()), sign=False)


def _price(rows: Rows) -> str:
    """What the head pays for the tail, with the logit-adjusted loss."""
    lines = [
        line
        for line in rows.get("evidence", ())
        if line["scheme"] == "logit-adjusted" and line["difference"]
    ]
    each = []
    for dataset in datasets_of(lines):
        of_slice = {
            line["slice"]: line
            for line in lines
            if line["dataset"] == dataset and line["metric"] == _metric(rows, dataset)
        }
        rare = next((name for name in ("tail", "torso") if name in of_slice), None)
        if rare is None or "head" not in of_slice:
            continue
        head, tail = (points(of_slice[name]["difference"]) for name in ("head", rare))
        each.append(f"{TITLES.get(dataset, dataset)} {head} on the head for {tail} on the {rare}")
    return f"Logit adjustment against the softmax: {'; '.join(each)}." if each else NOT_YET


def _metric(rows: Rows, dataset: str) -> str:
    """What a data set is judged by."""
    found = (
        line["metric"] for line in rows.get("evidence-leans", ()) if line["dataset"] == dataset
    )
    return next(found, "recall@10")


def _negatives(rows: Rows) -> str:
    """Uniform negatives with tail weights, from few to many, and what they approximate."""
    found: dict[str, dict[str, str]] = {}
    for line in rows.get("evidence", ()):
        if (line["metric"], line["slice"]) == ("recall@10", "tail"):
            value = points(line["value"], sign=False)
            found.setdefault(line["dataset"], {})[line["scheme"]] = value
    parts = []
    for dataset, of_scheme in found.items():
        named = {name.partition("@")[2]: v for name, v in of_scheme.items() if _swept(name)}
        if named:
            each = ", ".join(f"{named[m]} with {int(m):,}" for m in sorted(named, key=int))
            exact = of_scheme["logit-adjusted"]
            parts.append(f"{TITLES.get(dataset, dataset)} {each}; over all labels {exact}")
    return f"Tail Recall@10: {'. '.join(parts)}." if parts else NOT_YET


def _swept(scheme: str) -> bool:
    return scheme.startswith("uniform:tail@")


_BETTER = {
    "equal": "equal in",
    "training": "training is better in",
    "training, by less than the margin": "training is better by less than the margin in",
    "adjusting": "adjusting is better in",
    "adjusting, by less than the margin": "adjusting is better by less than the margin in",
    "inconclusive": "undecided in",
}
"""How training compares with adjusting the answers."""


def _adjusting(rows: Rows) -> str:
    """Training for the tail, or adjusting the softmax's answers: at equal head recall."""
    lines = [line for line in rows.get(EQUAL_HEAD, ()) if line["better"] in _BETTER]
    if not lines:
        return NOT_YET
    parts = []
    titles = {"full": "trained with all labels", "within-batch": "with in-batch negatives"}
    for training in dict.fromkeys(line["training"] for line in lines):
        own = [line["better"] for line in lines if line["training"] == training]
        counts = (f"{words} {own.count(word)}" for word, words in _BETTER.items() if word in own)
        title = titles.get(training, training)
        number = f"{len(own)} comparison{'s' if len(own) > 1 else ''}"
        parts.append(f"{title}, {number}: {', '.join(counts)}")
    return f"Tail recall at equal head recall, {'; '.join(parts)}."


def _trusted(rows: Rows) -> str:
    lines = [line for line in rows.get("evidence", ()) if "+" not in line["scheme"]]
    chosen = {(line["dataset"], line["scheme"]): line for line in lines}
    if not chosen:
        return NOT_YET
    rate, epochs = (
        sum(kind in line["edges"].split() for line in chosen.values())
        for kind in ("rate", "epochs")
    )
    seeds = fmean(int(line["seeds"]) for line in chosen.values())
    return (
        f"Of {len(chosen)} searches, {rate} chose a rate and {epochs} a number of epochs at an "
        f"edge of what was tried; {seeds:.1f} seeds on average. Intervals include seeds and test "
        "set, and verdicts are corrected for all claims of the table."
    )


QUESTIONS = (
    Question(
        "I train with InfoNCE on in-batch negatives. Does that favour rare labels?",
        _claim("infonce against softmax"),
        "#the-paper-s-claims",
    ),
    Question(
        "Does the logQ correction (importance weights) on a whole batch give me the full softmax?",
        _claim("importance of the whole batch follows softmax"),
        "#the-paper-s-claims",
    ),
    Question(
        "And if the positive is corrected as well (relative weights): does that favour the head?",
        _claim("relative of the whole batch against softmax"),
        "#the-paper-s-claims",
    ),
    Question(
        "Do tail weights on the whole batch replace the logit-adjusted loss over all labels?",
        _claim("tail of the whole batch follows logit adjustment"),
        "#the-paper-s-claims",
    ),
    Question(
        "What does a better tail cost on the head?",
        _price,
        "results-tradeoff.md",
    ),
    Question(
        "Should I train for the tail, or adjust the answers afterwards?",
        _adjusting,
        "results-tradeoff.md",
    ),
    Question(
        "How many uniform negatives do tail weights need to reach the logit-adjusted loss?",
        _negatives,
        "#tables",
    ),
    Question(
        "Is the loss over all labels better than the whole batch as negatives?",
        _claim("softmax against importance of the whole batch"),
        "#the-paper-s-claims",
    ),
    Question(
        "Can I tell before training which way a scheme leans?",
        _leans,
        "#does-the-predicted-lean-order-the-schemes",
    ),
    Question(
        "Is the learning rate a knob of head and tail too?",
        _rate,
        "#is-the-learning-rate-a-knob-of-head-and-tail-too",
    ),
    Question("How far can I trust these numbers?", _trusted, "#how-it-was-done"),
)


def answers(rows: Rows) -> str:
    """Questions with answers, numbers and links, as a Markdown table.

    Args:
        rows: lines by file, as `evidence_tables.write_tables` returns them.
    """
    lines = (f"| {q.text} | {q.answer(rows)} | [more]({q.link}) |" for q in QUESTIONS)
    return "\n".join(["| question | answer | more |", "|---|---|---|", *lines])
