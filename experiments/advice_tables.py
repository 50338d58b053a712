"""Fits the law behind `headtail advise`, and tests it on data sets that were left out.

    python experiments/advice_tables.py

reads the rows of all studies (`advice_rows.py`) and the probes (advice-probes.csv), and writes

    experiments/results/advice-gaps.csv      every gap, measured and as predicted from other sources
    experiments/results/advice-errors.csv    errors of predictions, by source that was left out
    src/headtail/machine/fitted.py           the law, fitted to all sources

and the tables of docs/results-advice.md.
Parts of a data set are left out together with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from advice_rows import RESULTS, Gap, gaps
from study_tables import place_in, read_table, write_table

from headtail.core.slices import NAMES
from headtail.files.atomic import write_text
from headtail.machine.gap_law import GapLaw, exponent_of, terms

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/results-advice.md"
FITTED = ROOT / "src/headtail/machine/fitted.py"
LEAST_GAP = 0.3
"""Points; smaller gaps are within what seeds do."""
ENDS = (0.1, 0.9)
"""Quantiles of G at the ends of intervals: four of five lie between."""
SLICE_ENDS = (0.05, 0.95)
"""Those of the gaps of slices: wider, because fewer of them are known; on data sets that are left
out, about four of five lie between.
"""
LABELS = {
    "amazoncat": 1333,
    "beauty": 54_542,
    "beauty-1500": 1487,
    "delicious": 983,
    "diginetica": 43_097,
    "diginetica-1500": 1500,
    "gowalla": 40_981,
    "gowalla-1000": 1000,
    "nowplaying": 60_416,
    "nowplaying-1500": 1500,
    "wikilshtc": 32_506,
}
"""Of whole data sets and of parts in the retrieval study; advice.csv has those of other parts."""
Floats = np.ndarray


@dataclass(frozen=True)
class Case:
    """A gap, and what it is predicted from.

    Attributes:
        gap: as measured.
        alpha: of the sampler.
        x: L/m, or what else is tried.
        recall: in percent.
    """

    gap: Gap
    alpha: float
    x: float
    recall: float

    @property
    def tau(self) -> float:
        """Of the target."""
        return float(self.gap.target != "softmax")

    @property
    def terms(self) -> tuple[float, ...]:
        """What the coefficients multiply."""
        return terms(self.alpha, self.tau, self.x)

    @property
    def size(self) -> float:
        """log(G/R)."""
        return math.log(max(LEAST_GAP, self.gap.worst) / self.recall)


Basis = Literal["sampler", "points", "law", "law-probed", "probe"]
"""What gaps are predicted from: the sampler and the target alone; L/m too, in points; L/m and the
target's recall, which is the law; the same where there is a probe; the Jensen gap and the recall of
the probe.
"""
WORDS: dict[Basis, str] = {
    "sampler": "sampler, target and recall",
    "points": "sampler, target and L/m",
    "law": "sampler, target, recall and L/m: the law",
    "law-probed": "the law, on data sets with a probe",
    "probe": "sampler, target, Jensen gap and recall of the probe",
}
LEAST_JENSEN_GAP = 0.003
"""Smaller ones, in nats, are indistinguishable from 0."""


def cases(basis: Basis, results: Path = RESULTS) -> list[Case]:
    """All gaps of samplers that the law knows, for which there is what it predicts from."""
    probes = {
        (line["set"], line["target"], line["sampler"], int(line["m"])): line
        for line in read_table(results / "advice-probes.csv")
    }
    labels = LABELS | {
        line["set"]: int(line["labels"]) for line in read_table(results / "advice.csv")
    }
    found = []
    for gap in gaps(results):
        bare = gap.sampler in ("uniform", "within-batch") or gap.sampler.startswith("frequency")
        alpha = exponent_of(gap.sampler) if bare else None
        line = probes.get((gap.set, gap.target, gap.sampler, gap.m))
        if alpha is None or (line is None and "probe" in basis):
            continue
        recall = gap.exact["full"]
        x = labels[gap.set] / gap.m
        if basis == "sampler":
            x = 1.0
        elif basis == "points":
            recall = 1.0
        elif basis == "probe":
            assert line is not None, "others are left out"
            jensen = float(np.mean([float(line[f"loss_gap_{name}"]) for name in NAMES]))
            x = max(LEAST_JENSEN_GAP, jensen)
            recall = 100 * float(line["recall"])
        found.append(Case(gap, alpha, x, recall))
    return found


def sources(found: Sequence[Case]) -> list[str]:
    """Data sets, without their parts."""
    return sorted({case.gap.source for case in found})


def weights(found: Sequence[Case]) -> Floats:
    """So that every source counts the same."""
    names = [case.gap.source for case in found]
    return np.array([1 / names.count(name) for name in names])


def fit(found: Sequence[Case]) -> Floats:
    """Coefficients of least squared error of log G."""
    root = np.sqrt(weights(found))
    x = np.array([case.terms for case in found]) * root[:, None]
    y = np.array([case.size for case in found]) * root
    return np.linalg.lstsq(x, y, rcond=None)[0]


def left_out(found: Sequence[Case]) -> Floats:
    """The G of each case in points, as predicted from all other sources."""
    predicted = np.empty(len(found))
    for name in sources(found):
        inside = np.array([case.gap.source == name for case in found])
        others = [case for case, own in zip(found, inside, strict=True) if not own]
        coefficients = fit(others)
        for i in np.flatnonzero(inside).tolist():
            case = found[i]
            predicted[i] = math.exp(float(np.dot(case.terms, coefficients))) * case.recall
    return predicted


def quantiles(values: Floats, of: Floats, at: Sequence[float]) -> list[float]:
    """Weighted quantiles.

    >>> quantiles(np.array([3.0, 1.0, 2.0]), np.ones(3), [0.5])
    [2.0]
    """
    order = np.argsort(values)
    share = np.cumsum(of[order]) - of[order] / 2
    return [float(v) for v in np.interp(at, share / of.sum(), values[order])]


def law_of(found: Sequence[Case]) -> GapLaw:
    """The law fitted to these cases, with its spread where sources are left out."""
    predicted = left_out(found)
    weight = weights(found)
    missed = np.array([math.log(max(LEAST_GAP, case.gap.worst)) for case in found])
    missed -= np.log(predicted)
    low, high = quantiles(missed, weight, ENDS)
    shares: dict[str, dict[str, dict[str, tuple[float, float, float]]]] = {}
    for target in ("softmax", "logit-adjusted"):
        for kind in ("batch", "fixed"):
            chosen = [
                i
                for i, case in enumerate(found)
                if case.gap.target == target and (case.alpha == 1) == (kind == "batch")
            ]
            by_slice = {}
            for name in NAMES:
                share = np.array([found[i].gap.gap(name) / predicted[i] for i in chosen])
                ends = quantiles(share, weight[chosen], (SLICE_ENDS[0], 0.5, SLICE_ENDS[1]))
                by_slice[name] = tuple(round(end, 3) for end in ends)
            shares.setdefault(target, {})[kind] = by_slice
    xs = [case.x for case in found]
    return GapLaw(
        coefficients=tuple(round(float(c), 3) for c in fit(found)),  # type: ignore[arg-type]
        spread=(round(math.exp(low), 3), round(math.exp(high), 3)),
        shares=shares,
        lowest=float(f"{min(xs):.3g}"),
        highest=float(f"{max(xs):.3g}"),
        typical=round(math.exp(float(np.average(np.abs(missed), weights=weight))), 2),
        sources=len(sources(found)),
    )


def errors(basis: Basis, found: Sequence[Case]) -> list[dict[str, str]]:
    """By source that was left out; the law's intervals come from the other sources, too."""
    lines = []
    for name in sources(found):
        own = [case for case in found if case.gap.source == name]
        law = law_of([case for case in found if case.gap.source != name])
        expected = [law.expected(case.gap.sampler, case.tau, case.x, case.recall) for case in own]
        factors = [
            abs(math.log(max(LEAST_GAP, case.gap.worst) / gap.largest.middle))
            for case, gap in zip(own, expected, strict=True)
        ]
        inside = [
            gap.largest.low <= max(LEAST_GAP, case.gap.worst) <= gap.largest.high
            for case, gap in zip(own, expected, strict=True)
        ]
        below = [
            case.gap.worst <= gap.largest.high for case, gap in zip(own, expected, strict=True)
        ]
        slices = [
            gap.by_slice[part].low <= case.gap.gap(part) <= gap.by_slice[part].high
            for case, gap in zip(own, expected, strict=True)
            for part in NAMES
        ]
        line = {"basis": basis, "source": name, "sources": 1, "schemes": len(own)}
        line |= {"factor": f"{math.exp(np.mean(factors)):.2f}"}
        line |= {"within_two": f"{np.mean(np.array(factors) <= math.log(2)):.3f}"}
        line |= {"inside": f"{np.mean(inside):.3f}", "below": f"{np.mean(below):.3f}"}
        line |= {"slices_inside": f"{np.mean(slices):.3f}"}
        line |= {"points": f"{_points(own, expected):.2f}"} | _regret(own, expected)
        lines.append({key: str(value) for key, value in line.items()})
    return lines


def total(basis: Basis, fitted: GapLaw, found: Sequence[Case]) -> dict[str, str]:
    """The line of all sources, each counting the same."""
    lines = errors(basis, found)
    line = {"basis": basis, "source": "all", "sources": str(len(lines))}
    line["schemes"] = str(len(found))
    line["factor"] = f"{fitted.typical:.2f}"
    for name in ("within_two", "inside", "below", "slices_inside", "points"):
        line[name] = f"{np.mean([float(one[name]) for one in lines]):.3f}"
    choices = [one for one in lines if int(one["choices"])]
    for name in ("choices", "as_rule"):
        line[name] = str(sum(int(one[name]) for one in choices))
    for name in ("regret", "worst_regret"):
        line[name] = f"{np.mean([float(one[name]) for one in choices]):.2f}"
    return line


def _points(own: Sequence[Case], expected: Sequence[Any]) -> float:
    """Mean error of G in points."""
    return float(
        np.mean(
            [
                abs(case.gap.worst - gap.largest.middle)
                for case, gap in zip(own, expected, strict=True)
            ]
        )
    )


def _regret(own: Sequence[Case], expected: Sequence[Any]) -> dict[str, str]:
    """How much larger G is for the scheme that is expected to be best, of those with at least 64
    negatives that were trained on a set, than for the best of them; and for the worst. `as_rule`
    counts choices of the most negatives from the batch.
    """
    regrets = []
    spans = []
    as_rule = 0
    groups: dict[tuple[str, str], list[tuple[float, float, tuple[bool, int]]]] = {}
    for case, gap in zip(own, expected, strict=True):
        if case.gap.m >= 64:
            key = (case.gap.set, case.gap.target)
            rank = (case.gap.sampler == "within-batch", case.gap.m)
            groups.setdefault(key, []).append((gap.largest.high, case.gap.worst, rank))
    for group in groups.values():
        if len(group) > 1:
            measured = [worst for _, worst, _ in group]
            regrets.append(min(group)[1] - min(measured))
            spans.append(max(measured) - min(measured))
            as_rule += min(group)[2] == max(rank for _, _, rank in group)
    if not regrets:
        return {"choices": "0", "as_rule": "0", "regret": "", "worst_regret": ""}
    return {
        "choices": str(len(regrets)),
        "as_rule": str(as_rule),
        "regret": f"{np.mean(regrets):.2f}",
        "worst_regret": f"{np.mean(spans):.2f}",
    }


def gap_lines(found: Sequence[Case]) -> list[dict[str, str]]:
    """Every gap, measured and as predicted from other sources."""
    lines = []
    for case, predicted in zip(found, left_out(found), strict=True):
        gap = case.gap
        line = {"set": gap.set, "source": gap.source, "target": gap.target, "sampler": gap.sampler}
        line |= {"m": str(gap.m), "study": gap.study, "x": f"{case.x:.4g}"}
        line |= {f"exact_{name}": f"{gap.exact[name]:.2f}" for name in (*NAMES, "full")}
        line |= {f"gap_{name}": f"{gap.gap(name):+.2f}" for name in (*NAMES, "full")}
        lines.append(line | {"largest": f"{gap.worst:.2f}", "predicted": f"{predicted:.2f}"})
    return lines


def source_text(law: GapLaw) -> str:
    """The module with the law."""
    lines = [
        '"""The law of gaps as `experiments/advice_tables.py` fitted and wrote it; do not edit."""',
        "",
        "from __future__ import annotations",
        "",
        "from headtail.machine.gap_law import GapLaw",
        "",
        "LAW = GapLaw(",
    ]
    for name, value in asdict(law).items():
        if name != "shares":
            lines.append(f"    {name}={value!r},")
            continue
        lines.append("    shares={")
        for target, kinds in value.items():
            lines.append(f'        "{target}": {{')
            for kind, by_slice in kinds.items():
                lines.append(f'            "{kind}": {{')
                lines += [f'                "{part}": {ends!r},' for part, ends in by_slice.items()]
                lines.append("            },")
            lines.append("        },")
        lines.append("    },")
    return "\n".join([*lines, ")"]) + "\n"


def tables() -> dict[str, str]:
    """The tables of the page, from the rows."""
    lines = read_table(RESULTS / "advice-errors.csv")
    by = [
        "| data set that was left out | schemes | factor | within 2 | G inside | slices inside | "
        "regret, points | of the worst choice |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for line in lines:
        if line["basis"] == "law":
            shown = [line["source"], line["schemes"], line["factor"]]
            shares = ("within_two", "inside", "slices_inside")
            shown += [f"{float(line[name]):.0%}" for name in shares]
            by.append(f"| {' | '.join([*shown, line['regret'], line['worst_regret']])} |")
    tried = ["| predicted from | data sets | schemes | factor | regret, points |"]
    tried.append("|---|--:|--:|--:|--:|")
    for basis, words in WORDS.items():
        [line] = [one for one in lines if (one["basis"], one["source"]) == (basis, "all")]
        cells = (words, *(line[name] for name in ("sources", "schemes", "factor", "regret")))
        tried.append(f"| {' | '.join(cells)} |")
    return {"left out": "\n".join(by), "tried": "\n".join(tried)}


def law() -> GapLaw:
    """The law, fitted to all sources, with how well it chose where they were left out."""
    found = cases("law")
    fitted = law_of(found)
    return replace(fitted, regret=round(float(total("law", fitted, found)["regret"]), 2))


def main() -> None:
    """Fit, test and write."""
    lines = []
    for basis in get_args(Basis):
        found = cases(basis)
        lines += errors(basis, found)
        lines.append(total(basis, law_of(found), found))
    write_table(RESULTS / "advice-errors.csv", lines)
    write_table(RESULTS / "advice-gaps.csv", gap_lines(cases("law")))
    write_text(FITTED, source_text(law()))
    write_text(PAGE, place_in(PAGE.read_text(encoding="utf-8"), tables()))
    for line in lines:
        print(*line.values())


if __name__ == "__main__":
    main()
