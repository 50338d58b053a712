"""The top of the page: which scheme to use, what it costs, and what it does to the tail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headtail.comparison.cautions import NOTHING, cautions_of, named
from headtail.comparison.results import POPULAR, Comparison
from headtail.report.measured import ERROR, SLICES, Measured, Reference
from headtail.report.seed_mean import SeedMean, duration, percent, points
from headtail.report.table import Column, Table, TableCell

FULL_SOFTMAX = "softmax"
Times = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Answer:
    """What a reader should do.

    Attributes:
        sentences: which scheme to use, its cost, and its tail.
        cautions: why the numbers may be doubtful.
        schemes: those that matter for the choice: title: name.
    """

    sentences: list[str]
    cautions: list[str]
    schemes: dict[str, str]

    @classmethod
    def of(cls, comparison: Comparison, measured: Measured) -> Answer:
        """From what was measured."""
        judged = judged_slice(measured)
        if judged is None:
            number = len(comparison.failures)
            failed = f": {number:,} run{'' if number == 1 else 's'} failed" if number else ""
            return cls([f"No scheme was measured{failed}."], [], {})
        times = comparison.made_by.get("times") or {}
        candidates = sampled(measured) or measured.schemes
        ranking = ranked(measured, candidates, judged)
        best = ranking[0]
        chosen = {"best sampled" if sampled(measured) else "best": best}
        sentences = [_recommendation(measured, ranking, judged), _cost(best, times)]
        if measured.known(measured.yardstick.metric, "tail"):
            of_tail = ranked(measured, candidates, "tail")
            sentences.append(_tail(measured, best, of_tail))
            if of_tail[0] != best and _learnt(measured, of_tail[0], "tail"):
                chosen["best on the tail"] = of_tail[0]
        if measured.known(measured.yardstick.metric, "cold"):
            sentences.append(_cold(measured, ranked(measured, candidates, "cold")))
        if FULL_SOFTMAX in measured.schemes and FULL_SOFTMAX not in chosen.values():
            chosen["full softmax"] = FULL_SOFTMAX
        if measured.of(POPULAR, measured.yardstick.metric, judged).known:
            chosen["learns nothing"] = POPULAR
        return cls([text for text in sentences if text], cautions_of(comparison), chosen)


def sampled(measured: Measured) -> list[str]:
    """The schemes that draw negatives."""
    return [name for name in measured.schemes if ":" in name]


def judged_slice(measured: Measured) -> str | None:
    """All labels if they were measured, otherwise the first slice that was."""
    order = ("full", "tail", "torso", "head")
    return next((s for s in order if measured.known(measured.yardstick.metric, s)), None)


def ranked(measured: Measured, names: Sequence[str], slice_: str) -> list[str]:
    """The schemes with a number on this slice, best first."""
    by = measured.yardstick
    known = [name for name in names if measured.of(name, by.metric, slice_).known]
    return sorted(known, key=lambda n: -by.sign * measured.of(n, by.metric, slice_).value)


def _mean(measured: Measured, name: str, slice_: str) -> SeedMean:
    return measured.of(name, measured.yardstick.metric, slice_)


def _learnt(measured: Measured, name: str, slice_: str) -> bool:
    """Whether a scheme has more than a few right answers there."""
    value = _mean(measured, name, slice_).value
    return (1 - value if measured.yardstick is ERROR else value) >= NOTHING


def _recommendation(measured: Measured, ranking: Sequence[str], slice_: str) -> str:
    by = measured.yardstick
    best = ranking[0]
    mean = _mean(measured, best, slice_)
    what = _what(measured, slice_)
    kind = "sampled scheme" if ":" in best else "scheme"
    if not _learnt(measured, best, slice_):
        return (
            f"Nothing was learnt: the best {what} of {_count(len(ranking), kind)} is "
            f"{percent(mean.value)} ({best}). Do not choose by these numbers."
        )
    if len(ranking) == 1:
        text = f"{best}, the only {kind} here, has a {what} of {percent(mean.value)}"
    else:
        text = (
            f"Use {best}: of {_count(len(ranking), kind)} it has the {by.best} {what} "
            f"({percent(mean.value)})"
        )
    text += _gap(measured, best, slice_)
    close = [n for n in ranking[1:] if mean.overlaps(_mean(measured, n, slice_))]
    if close:
        text += (
            f". Its error bar overlaps with {'that' if len(close) == 1 else 'those'} of "
            f"{named(close)}, which may be as good"
        )
    return f"{text}."


def _gap(measured: Measured, best: str, slice_: str) -> str:
    """How far the best sampled scheme is from the full softmax, if that was trained."""
    if FULL_SOFTMAX not in measured.schemes or best == FULL_SOFTMAX:
        return ""
    by = measured.yardstick
    change = Reference(measured, FULL_SOFTMAX).difference(best, by.metric, slice_)
    if not change.known:
        return ""
    if points(change.value) == "0.0":
        return ", as good as the full softmax"
    side = "above" if change.value > 0 else "below"
    return f", {100 * abs(change.value):.1f} points {side} the full softmax"


def _cost(best: str, times: Times) -> str:
    if best not in times:
        return ""
    text = f"It trained in {_time(times[best])}"
    if FULL_SOFTMAX in times and best != FULL_SOFTMAX:
        text += f"; the full softmax took {_time(times[FULL_SOFTMAX])}"
    return f"{text}."


def _time(time: Mapping[str, float]) -> str:
    return f"{duration(time['training_seconds'])} ({duration(time['step_seconds'])} per step)"


def _tail(measured: Measured, best: str, ranking: Sequence[str]) -> str:
    by = measured.yardstick
    first = ranking[0]
    top = _mean(measured, first, "tail")
    if not _learnt(measured, first, "tail"):
        return (
            f"Nothing was learnt on the tail: no {by.name} there is better than "
            f"{percent(top.value)}, so the tail does not decide between schemes."
        )
    own = _mean(measured, best, "tail")
    if first == best:
        return f"It also has the {by.best} tail {by.name} of them ({percent(top.value)})." * (
            len(ranking) > 1
        )
    numbers = f"{percent(top.value)} against {percent(own.value)}"
    if top.overlaps(own):
        return (
            f"On the tail no sampled scheme is clearly better: {first} has {numbers}, and their "
            "error bars overlap."
        )
    price = _price(measured, first, best)
    return f"For the tail, use {first}: its tail {by.name} is {numbers}{price}."


def _cold(measured: Measured, ranking: Sequence[str]) -> str:
    """How well items are found that never occur in training."""
    by = measured.yardstick
    first = ranking[0]
    top = percent(_mean(measured, first, "cold").value)
    if not _learnt(measured, first, "cold"):
        return (
            f"Items that never occur in training (cold) are not found: no {by.name} there is "
            f"better than {top}."
        )
    has = f"has the {by.best} {by.name}, {top}" if len(ranking) > 1 else f"has a {by.name} of {top}"
    return f"On items that never occur in training (cold), {first} {has}."


def _price(measured: Measured, scheme: str, other: str) -> str:
    """What a scheme costs or gains on the head against another."""
    by = measured.yardstick
    change = Reference(measured, other).difference(scheme, by.metric, "head")
    if not change.known:
        return ""
    gain = by.sign * change.value
    size = f"{100 * abs(gain):.1f}"
    if size == "0.0":
        return ", and costs nothing on the head"
    verb = "gains" if gain > 0 else "costs"
    return f", and it {verb} {size} points on the head"


def _what(measured: Measured, slice_: str) -> str:
    by = measured.yardstick
    if slice_ == "full":
        return "balanced error" if by is ERROR else f"{by.name} over all labels"
    return f"{slice_} {by.name}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def answer_table(answer: Answer, measured: Measured, times: Times) -> Table:
    """The schemes that matter, with their slices and cost."""
    metric = measured.yardstick.metric
    slices = [name for name in SLICES if measured.known(metric, name)]
    rows = []
    for title, name in answer.schemes.items():
        means = [measured.of(name, metric, slice_) for slice_ in slices]
        time = times.get(name)
        seconds, step = (None, None)
        if time is not None:
            seconds, step = time["training_seconds"], time["step_seconds"]
        cells = [TableCell(percent(mean.value), mean.value) for mean in means]
        if times:
            text = "–" if seconds is None else duration(seconds)
            detail = "" if step is None else f"{duration(step)} per step"
            cells.append(TableCell(text, seconds, detail=detail))
        rows.append([TableCell(name, name, detail=title), *cells])
    titles = {"full": "balanced"} if measured.yardstick is ERROR else {}
    headings = [Column("scheme", numeric=False)]
    headings += [Column(titles.get(name, name).capitalize()) for name in slices]
    headings += [Column("Training")] * bool(times)
    caption = f"The schemes that matter: {measured.yardstick.name} and time of training"
    return Table("answer", caption, headings, rows, [])
