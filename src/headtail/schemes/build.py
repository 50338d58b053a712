"""Scheme names: the only place where a name becomes an object.

[LOSS/]SAMPLER[(args)]:WEIGHTING[(args)][@m]        a sampled loss, for example
contrastive/frequency(0.75):tail(1)@256 [LOSS/]MARGIN[(args)]                               an
all-label loss, for example  logit-adjusted softmax+post-hoc                                    all
labels, adjusted at prediction time
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headtail.core.labels import Labels, check_labels
from headtail.core.margins import Adaptive, Equalised, LogitAdjusted, Margin, Power, Separable, Unit
from headtail.core.weightings import (
    Constant,
    FromMargin,
    Importance,
    InfoNCE,
    Relative,
    Tail,
    Weighting,
)
from headtail.errors import HeadtailError, check_kind
from headtail.implicit.implied import implied_margin_of, lean_of, refuse_to_correct_twice
from headtail.losses import (
    DecoupledLoss,
    Loss,
    Piece,
    SampledDecoupledLoss,
    SampledSoftmaxLoss,
    SoftmaxLoss,
    contrastive,
    hinge,
    logistic,
    squared_hinge,
)
from headtail.losses.decoupled import check_score
from headtail.samplers import (
    Adversarial,
    Block,
    FourierKernel,
    Frequency,
    Hard,
    LogUniform,
    Mixture,
    ModelSoftmax,
    QuadraticKernel,
    Queue,
    Resampled,
    Sampler,
    Tilted,
    Uniform,
    WithinBatch,
)
from headtail.schemes.grammar import Arg, Call, check_known, read_call, split_count, text_of

LOSSES = ("softmax", "contrastive", "logistic", "hinge", "squared-hinge")
SAMPLERS = (
    *(
        "uniform",
        "frequency",
        "log-uniform",
        "within-batch",
        "queue",
        "mixture",
        "model",
        "tilted",
        "hard",
        "resampled",
    ),
    *("block", "quadratic-kernel", "fourier-kernel", "adversarial"),
)
WEIGHTINGS = ("constant", "importance", "relative", "tail", "infonce", "equalised", "adaptive")
NEED_Q = ("constant", "relative", "infonce")
"""Weightings that come from no margin, and so need the q of the labels themselves."""
MARGINS = ("logit-adjusted", "equalised", "adaptive", "unit")
PAPER = tuple(
    f"{sampler}:{weighting}"
    for sampler in ("uniform", "within-batch")
    for weighting in WEIGHTINGS[:4]
)
"""The schemes of the paper's table."""


@dataclass(frozen=True)
class Scheme:
    """A parsed scheme name.

    Attributes:
        text: as typed.
        loss: softmax or a decoupled loss.
        sampler: None for all-label losses.
        weighting: None for all-label losses.
        margin: the margin of an all-label loss, None for sampled ones.
        num_negatives: what stands behind @, if anything.
        post_hoc: whether predictions are logit-adjusted afterwards.
    """

    text: str
    loss: str
    sampler: Call | None = None
    weighting: Call | None = None
    margin: Call | None = None
    num_negatives: int | None = None
    post_hoc: bool = False


def parse(text: str) -> Scheme:
    """Read a scheme name.

    >>> parse("contrastive/frequency(0.75):tail@256").sampler
    Call(name='frequency', args=(0.75,))
    >>> parse("within-bach:tail")
    Traceback (most recent call last):
    headtail.errors.HeadtailError: `within-bach` in `within-bach:tail` is no sampler. Did you mean `within-batch`? ...
    """
    check_kind("text", text, str, "within-batch:tail")
    typed = text
    text = text.strip().lower().replace("_", "-")
    rest, post_hoc = (
        (text[: -len("+post-hoc")], True) if text.endswith("+post-hoc") else (text, False)
    )
    rest, number = split_count(rest, text)
    loss, slash, rest_of = rest.partition("/")
    if slash:
        check_known(loss, LOSSES, "loss", text)
        rest = rest_of
    else:
        loss = rest if rest in LOSSES else "softmax"
    if ":" in rest:
        sampler, weighting = (read_call(part, text) for part in rest.split(":", 1))
        check_known(sampler.name, SAMPLERS, "sampler", text)
        check_known(weighting.name, WEIGHTINGS, "weighting", text)
        if sampler.name == "resampled" and weighting.name in NEED_Q:
            write = f"{rest.split(':', 1)[0]}:importance"
            raise HeadtailError(
                f"`{typed}` chooses negatives from a pool, where the q of a label is unknown, but "
                f"{weighting.name} weights need it. Write weights that come from a margin, for "
                f"example `{write}`."
            )
        return Scheme(typed, loss, sampler, weighting, None, number, post_hoc)
    margin = Call("unit") if rest in LOSSES else read_call(rest, text)
    if margin.name in SAMPLERS:
        raise HeadtailError(
            f"`{typed}` is no scheme, only its sampler. Write a weighting too, for example "
            f"`{rest}:importance`."
        )
    check_known(margin.name, (*MARGINS, *LOSSES, *PAPER), "scheme", text)
    if number is not None:
        raise HeadtailError(
            f"`{text}` uses all labels, so `@{number}` has no meaning there. Drop it."
        )
    return Scheme(typed, loss, margin=margin, post_hoc=post_hoc)


def scheme(text: str, labels: Labels, num_negatives: int | None = None, **options: Any) -> Loss:
    """Build the loss that a scheme name describes.

    Args:
        text: the name, for example `"within-batch:tail"` or `"contrastive/uniform:importance@256"`.
        labels: the label distribution.
        num_negatives: m, where the name has no `@m`; by default 256, for within-batch the whole
        batch. **options: keywords of the loss: `score`, `temperature`, `collisions`,
        `ignore_index`,
            `reduction`, `post_hoc`, and `label_smoothing` for softmax losses. They take precedence
            over the name, for example `post_hoc` over `+post-hoc`.

    >>> scheme("within-batch:tail", Labels.zipf(100))
    SampledSoftmaxLoss(
      weighting=Tail
      (sampler): WithinBatch(num_labels=100, num_negatives=all)
    )
    """
    check_labels(labels)
    parsed = parse(text)
    number = num_negatives if parsed.num_negatives is None else parsed.num_negatives
    piece = _piece(parsed.loss)
    if "piece" in options:
        write = f"hinge/{text.rpartition('/')[2]}"
        raise HeadtailError(f"`piece` is part of a scheme's name. Write for example `{write}`.")
    if parsed.post_hoc:
        options = {"post_hoc": 1.0} | options
    if piece is not None:
        options = {"piece": piece, "score": "cosine" if piece.cosine else "dot"} | options
        check_score(piece, options["score"])
    if parsed.margin is not None:
        margin = _margin(parsed.margin, labels, text)
        loss = SoftmaxLoss(margin, **options) if piece is None else DecoupledLoss(margin, **options)
    else:
        assert parsed.sampler is not None, (
            "a scheme has a margin, or else a sampler and a weighting"
        )
        assert parsed.weighting is not None
        weighting = _weighting(parsed.weighting, labels, text)
        sampler = _sampler(parsed.sampler, labels, number, text, weighting, piece)
        kind = SampledSoftmaxLoss if piece is None else SampledDecoupledLoss
        loss = kind(sampler, weighting, **options)
    if loss.post_hoc:
        refuse_to_correct_twice(lean_of(implied_margin_of(loss, batch_size=2), labels))
    return loss


def build_sampler(text: str, labels: Labels, num_negatives: int | None = None) -> Sampler:
    """Build a sampler from its name, for example `"frequency(0.75)@64"`."""
    name, number = split_count(text.strip().lower().replace("_", "-"), text)
    if ":" in name:
        raise HeadtailError(
            f"`{text}` is a whole scheme, but only a sampler is wanted. Write "
            f"`{name.partition(':')[0]}`."
        )
    call = read_call(name, text)
    check_known(call.name, SAMPLERS, "sampler", text)
    return _sampler(call, labels, num_negatives if number is None else number, text)


def _sampler(
    call: Call,
    labels: Labels,
    number: int | None,
    text: str,
    weighting: Weighting | None = None,
    piece: Piece | None = None,
) -> Sampler:
    """A sampler; `tilted` asks for the loss that it is meant for."""
    m = 256 if number is None else number
    match call.name:
        case "uniform":
            _number(call, text, None, ("excluded", "without-replacement"))
            return Uniform(labels, m, **_flags(call))
        case "frequency":
            power = _number(call, text, 1.0, ("excluded", "without-replacement"))
            return Frequency(labels, m, power, **_flags(call))
        case "log-uniform":
            _number(call, text, None, ("excluded",))
            return LogUniform(labels, m, **_flags(call))
        case "within-batch":
            _number(call, text, None)
            return WithinBatch(labels, number)
        case "queue":
            capacity = _number(call, text, float(m))
            if capacity != int(capacity):
                raise HeadtailError(
                    f"`queue` in `{text}` takes a whole number of labels to remember, but got "
                    f"{capacity:g}."
                )
            return Queue(
                labels, int(capacity), None if number is None else min(number, int(capacity))
            )
        case "model":
            _number(call, text, None, ("masked",))
            return ModelSoftmax(labels, m, exclude_target="masked" not in call.args)
        case "tilted":
            own = [arg for arg in call.args if arg != "masked"]
            margin = weighting.margin if isinstance(weighting, FromMargin) else Unit()
            if own:
                margin = _margin(_inner(call, own, MARGINS, "margin", text), labels, text)
            return Tilted(labels, m, margin, piece, exclude_target=len(own) == len(call.args))
        case "block" | "quadratic-kernel" | "fourier-kernel" | "adversarial":
            kinds = {
                "block": Block,
                "quadratic-kernel": QuadraticKernel,
                "fourier-kernel": FourierKernel,
            }
            share = _number(call, text, 32.0, ("uniform",) if call.name == "block" else ())
            if share != int(share) or share < 1:
                raise HeadtailError(
                    f"`{call.name}` in `{text}` takes the number of examples that share a draw, "
                    f"but got {share:g}."
                )
            more: dict[str, Any] = {"inside": "uniform"} if "uniform" in call.args else {}
            if (
                call.name in ("block", "fourier-kernel")
                and piece is None
                and isinstance(weighting, FromMargin)
            ):
                more |= (
                    {"margin": weighting.margin} if isinstance(weighting.margin, Separable) else {}
                )
            return kinds.get(call.name, Adversarial)(labels, m, share=int(share), **more)
        case "hard":
            k, cheap = _of_cheap(call, min(m // 4, labels.num_labels) or 1, text)
            if k >= m:
                raise HeadtailError(
                    f"`hard` in `{text}` takes {k} nearest labels of {m} negatives. Leave some to "
                    "the cheap sampler."
                )
            return Hard(_part(call, cheap, labels, m - k, text, weighting, piece), k)
        case "resampled":
            size, cheap = _of_cheap(call, 16 * m, text)
            if size < m:
                raise HeadtailError(
                    f"`resampled` in `{text}` draws {m} negatives from a pool of {size}. "
                    f"Write a larger pool, for example `resampled({16 * m})`, or fewer negatives, "
                    f"`@{size}` at most."
                )
            if cheap.name == "resampled":
                raise HeadtailError(
                    f"`resampled` in `{text}` needs a pool whose q is known. Take for example "
                    f"`resampled({size})`."
                )
            return Resampled(_sampler(cheap, labels, size, text, weighting, piece), m)
        case _:
            parts = [
                arg if isinstance(arg, Call) else read_call(str(arg), text) for arg in call.args
            ]
            if not parts:
                raise HeadtailError(
                    f"`mixture` in `{text}` needs parts, for example "
                    "`mixture(uniform,within-batch)`."
                )
            for part in parts:
                check_known(part.name, SAMPLERS, "sampler", text)
            share = [m // len(parts) + (i < m % len(parts)) for i in range(len(parts))]
            inner = zip(parts, share, strict=True)
            return Mixture(
                [_part(call, part, labels, max(1, n), text, weighting, piece) for part, n in inner]
            )


def _part(
    whole: Call,
    part: Call,
    labels: Labels,
    number: int,
    text: str,
    weighting: Weighting | None,
    piece: Piece | None,
) -> Sampler:
    """A sampler whose negatives are mixed with others: its q must be known, and the same for every
    positive.
    """
    if part.name == "resampled":
        inside = "uniform" if whole.name == "hard" else "mixture(uniform,within-batch)"
        write = f"hard({inside})" if whole.name == "hard" else f"resampled({16 * number},{inside})"
        raise HeadtailError(
            f"`resampled` in `{text}` does not know its q, which `{whole.name}` needs. Take "
            f"`{write}`."
        )
    found = _sampler(part, labels, number, text, weighting, piece)
    if getattr(found, "exclude_target", False):
        kept = [text_of(arg) for arg in part.args if arg != "excluded"] + ["masked"] * (
            part.name in ("model", "tilted")
        )
        write = f"{part.name}({','.join(kept)})" if kept else part.name
        raise HeadtailError(
            f"`{text_of(part)}` in `{text}` never draws the positive, and q then differs from "
            f"example to example. Write `{write}`."
        )
    return found


def check_batch(text: str, batch: int, negatives: int | None = None) -> None:
    """Refuse a scheme whose `@m`, or else `--negatives`, asks for more than the batch or the queue
    that they come from has.

    >>> check_batch("within-batch:tail@9999", 64)
    Traceback (most recent call last):
    headtail.errors.HeadtailError: `@9999` in `within-batch:tail@9999` is more than the 64 labels of a batch. ...
    """
    parsed = parse(text)
    m = negatives if parsed.num_negatives is None else parsed.num_negatives
    if parsed.sampler is None or m is None or parsed.sampler.name not in ("within-batch", "queue"):
        return
    held = next((int(arg) for arg in parsed.sampler.args if isinstance(arg, float)), m)
    from_batch = parsed.sampler.name == "within-batch"
    most, where = (
        (batch, "labels of a batch") if from_batch else (held, "labels that the queue remembers")
    )
    if m > most:
        larger = "a larger `batch`" if from_batch else "a longer queue"
        said, at = ("for", "--negatives ") if parsed.num_negatives is None else ("in", "@")
        raise HeadtailError(
            f"`{at}{m}` {said} `{text}` is more than the {most:,} {where}. Write `{at}{most}` at "
            f"most, or {larger}."
        )


def _of_cheap(call: Call, default: int, text: str) -> tuple[int, Call]:
    """The whole number and the cheap sampler of `name(number, sampler)`; uniform, if none is named."""
    numbers, names = (
        [arg for arg in call.args if isinstance(arg, float) == number] for number in (True, False)
    )
    if len(numbers) > 1 or any(n != int(n) or n < 1 for n in numbers):  # pyright: ignore
        raise HeadtailError(
            f"`{call.name}` in `{text}` takes one whole number of at least 1, for example "
            f"`{call.name}({default})`."
        )
    cheap = _inner(call, names, SAMPLERS, "sampler", text) if names else Call("uniform")
    return (int(numbers[0]) if numbers else default), cheap  # pyright: ignore


def _inner(
    call: Call, args: list[Arg | Call], names: tuple[str, ...], what: str, text: str
) -> Call:
    """The one name among a call's arguments."""
    if len(args) > 1 or isinstance(args[0], float):
        raise HeadtailError(
            f"`{call.name}` in `{text}` takes one {what}, for example `{call.name}({names[0]})`."
        )
    inner = args[0] if isinstance(args[0], Call) else read_call(str(args[0]), text)
    check_known(inner.name, names, what, text)
    return inner


def _weighting(call: Call, labels: Labels, text: str) -> Weighting:
    match call.name:
        case "constant" | "importance" | "relative" | "infonce":
            _number(call, text, None)
            kinds = {
                "constant": Constant,
                "importance": Importance,
                "relative": Relative,
                "infonce": InfoNCE,
            }
            return kinds[call.name]()
        case "tail":
            return Tail(labels, _number(call, text, 1.0))
        case _:
            return FromMargin(_margin(call, labels, text))


def _margin(call: Call, labels: Labels, text: str) -> Margin:
    match call.name:
        case "logit-adjusted":
            return LogitAdjusted(labels, _number(call, text, 1.0))
        case "equalised":
            power = _number(call, text, 1.0)
            return Equalised(labels, None if power == 1 else Power(power))
        case "adaptive":
            return Adaptive(labels, _number(call, text, 0.5))
        case _:
            _number(call, text, None)
            return Unit()


def _piece(loss: str) -> Piece | None:
    return {
        "contrastive": contrastive(),
        "logistic": logistic,
        "hinge": hinge,
        "squared-hinge": squared_hinge,
    }.get(loss)


def _number(call: Call, text: str, default: float | None, flags: tuple[str, ...] = ()) -> float:
    """The one number a name may take, if it has a default; whatever else stands there must be one
    of `flags`.
    """
    numbers = [arg for arg in call.args if isinstance(arg, float)]
    words = [text_of(arg) for arg in call.args if not isinstance(arg, float)]
    if len(numbers) > (default is not None) or (words and not flags):
        takes = (
            "no arguments"
            if default is None and not flags
            else "at most one number"
            if default is not None
            else "no number"
        )
        raise HeadtailError(
            f"`{call.name}` in `{text}` takes {takes}, but got "
            f"`{', '.join(map(str, numbers + words))}`."
        )
    for word in words:
        check_known(word, flags, "option", text)
    return numbers[0] if numbers else (default or 0.0)


def _flags(call: Call) -> dict[str, bool]:
    options = {"exclude_target": True} if "excluded" in call.args else {}
    return options | ({"replacement": False} if "without-replacement" in call.args else {})
