"""What rows say about claims, in sentences: the verdict chooses the words, so that prose cannot
contradict it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from claims import CLAIMS, Line, of_claim, verdict_of
from evidence import LEAN
from stats.verdicts import LEVEL

TITLES = {
    "delicious": "Delicious",
    "diginetica": "Diginetica",
    "nowplaying": "Nowplaying",
    "beauty": "Beauty",
    "gowalla": "Gowalla",
    "diginetica-part": "Diginetica, a part",
    "nowplaying-part": "Nowplaying, a part",
    "beauty-part": "Beauty, a part",
    "gowalla-part": "Gowalla, a part",
    "beauty-sasrec": "Beauty, SASRec",
    "diginetica-sasrec": "Diginetica, SASRec",
    "cifar10-exp": "CIFAR-10-LT Exp",
    "cifar10-step": "CIFAR-10-LT Step",
    "tiny-exp": "Tiny-ImageNet Exp",
    "tiny-step": "Tiny-ImageNet Step",
    "million-adagrad": "a million labels, Adagrad",
    "million-adam": "a million labels, Adam",
    "hundredth-adagrad": "10,000 labels, Adagrad",
    "hundredth-adam": "10,000 labels, Adam",
    "hundredth-points": "10,000 labels, Adagrad, batches of points",
}
"""Data sets as readers know them, in the order of tables."""
VERBS = {
    ("above", False): ("beats", "does not beat"),
    ("below", False): ("is below", "is not below"),
    ("above", True): ("leans to the tail compared with", "does not lean to the tail compared with"),
    ("below", True): ("leans to the head compared with", "does not lean to the head compared with"),
    ("follows", False): ("matches", "does not match"),
    ("follows", True): ("leans like", "does not lean like"),
}


def points(share: str | float, *, sign: bool = True) -> str:
    """A share as percentage points.

    >>> points(0.0181), points("-0.02"), points(0.3, sign=False)
    ('+1.8', '−2.0', '30.0')
    """
    value = round(100 * float(share), 1) + 0.0  # no negative zero
    return f"{value:{'+' if sign else ''}.1f}".replace("-", "−")


def where(slice_: str) -> str:
    """A slice in a sentence."""
    return {"full": "over all labels", LEAN: "in tail minus head"}.get(slice_, f"on the {slice_}")


def sentence(line: Line) -> str:
    """What a part of a claim says on its own, with its number."""
    holds, does_not = VERBS[line["kind"], line["slice"] == LEAN]
    scheme, other = f"`{line['scheme']}`", f"`{line['against']}`"
    place = where(line["slice"])
    margin = points(line["margin"], sign=False)
    low, high = (points(line[name]) for name in ("low", "high"))
    number = f"{points(line['difference'])} points ({low} to {high})"
    within = f" within ±{margin}" if line["kind"] == "follows" else ""
    small = f", less than the margin of {margin}" if line["small"] == "yes" else ""
    return {
        "holds": f"{scheme} {holds} {other} {place}{within}: {number}{small}.",
        "does not hold": f"{scheme} {does_not} {other} {place}{within}: {number}.",
        "inconclusive": f"Whether {scheme} {holds} {other} {place}{within} is open: {number}.",
        "vacuous": f"{scheme} {holds} {other} {place}{within}: {number}. That says nothing: "
        f"{other} is not shown to differ from the softmax there by more than {margin}.",
    }[line["part"]]


def datasets_of(lines: Sequence[Line]) -> list[str]:
    """Data sets that lines are about, in the order of tables."""
    found = dict.fromkeys(line["dataset"] for line in lines)
    return [name for name in TITLES if name in found] + [n for n in found if n not in TITLES]


def summary(lines: Sequence[Line]) -> str:
    """A claim on one data set in a cell: the verdict, and the number that decides it or how many
    parts hold.
    """
    if not lines:
        return "–"
    verdict = verdict_of(lines)
    alone = lines[0]["alone"]
    answer = f"**{verdict}**" + (f" (*{alone}*, uncorrected)" if alone != verdict else "")
    if len(lines) == 1:
        [line] = lines
        small = ", less than the margin" if line["small"] == "yes" else ""
        return f"{answer}: {points(line['difference'])}{small}"
    holding = sum(line["part"] == "holds" for line in lines)
    if "does not hold" in (verdict, alone):
        return f"{answer}: {_clearest_failure(lines)}; {holding} of {len(lines)} parts hold"
    empty = sum(line["part"] == "vacuous" for line in lines)
    vacuous = f", {empty} vacuous" if empty else ""
    return f"{answer}: {holding} of {len(lines)} parts{vacuous}"


def _not_holding(lines: Sequence[Line]) -> list[Line]:
    """The parts that do not hold by themselves, of which alone a claim may fail
    (`stats.verdicts`).
    """
    return [line for line in lines if float(line["p for"]) >= LEVEL]


def _clearest_failure(lines: Sequence[Line]) -> str:
    """The part that fails most clearly, with the scheme where a claim is about several."""
    line = min(_not_holding(lines), key=lambda line: float(line["p against"]))
    several = len({line["scheme"] for line in lines}) > 1
    scheme = f"`{line['scheme']}` " if several else ""
    return f"{scheme}{points(line['difference'])} {where(line['slice'])}"


def claims_table(lines: Sequence[Line], at_edge: Collection[tuple[str, str]] = ()) -> str:
    """Claims by data sets, as Markdown.

    Args:
        lines: verdicts on the parts of claims.
        at_edge: data sets and schemes that chose a rate or a length at an edge of what was tried; a
            star marks verdicts on them.
    """
    names = datasets_of(lines)
    head = "| claim | " + " | ".join(TITLES.get(name, name) for name in names) + " |"
    rows = [head, "|---" * (len(names) + 1) + "|"]
    for claimed in CLAIMS:
        every = [of_claim(lines, claimed.name, name) for name in names]
        cells = [summary(own) + _star(own, at_edge) for own in every]
        if set(cells) - {"–"}:
            rows.append(f"| {claimed.text} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _star(lines: Sequence[Line], at_edge: Collection[tuple[str, str]]) -> str:
    if lines and "does not hold" in (verdict_of(lines), lines[0]["alone"]):
        lines = _not_holding(lines)
    about = {(line["dataset"], line[who]) for line in lines for who in ("scheme", "against")}
    return " \\*" if about & set(at_edge) else ""


def details(lines: Sequence[Line]) -> str:
    """Every part of every claim in a sentence, as Markdown."""
    parts = []
    for claimed in CLAIMS:
        for name in datasets_of(lines):
            own = of_claim(lines, claimed.name, name)
            if own:
                verdict = verdict_of(own)
                parts.append(f"**{claimed.text}: {verdict} on {TITLES.get(name, name)}.**")
                parts[-1] += "".join(f"\n- {sentence(line)}" for line in own)
    return "\n\n".join(parts)
