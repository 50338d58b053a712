"""From a scheme's name to the loss or the sampler that it describes."""

from __future__ import annotations

from typing import Any

from headtail.core.labels import Labels, check_labels
from headtail.core.pieces import Piece
from headtail.core.sharded_labels import ShardedLabels
from headtail.errors import HeadtailError, Sentence, Setting
from headtail.implicit.implied import (
    POST_HOC,
    implied_margin_of,
    lean_of,
    refuse_to_correct_twice,
)
from headtail.losses import (
    DecoupledLoss,
    Loss,
    SampledDecoupledLoss,
    SampledSoftmaxLoss,
    SoftmaxLoss,
)
from headtail.losses.decoupled import check_score
from headtail.samplers import Sampler
from headtail.schemes.grammar import Call, check_known, read_call, split_count
from headtail.schemes.parse import Scheme, parse
from headtail.schemes.request import Request
from headtail.schemes.table import (
    LOSSES,
    MARGINS,
    SAMPLERS,
    SCALE,
    SCORE_MARGINS,
    WEIGHTINGS,
    queue_capacity,
)
from headtail.schemes.words import in_scheme_words


def scheme(text: str, labels: Labels, num_negatives: int | None = None, **options: Any) -> Loss:
    """Build the loss that a scheme name describes.

    Args:
        text: the name, for example `"within-batch:tail"` or `"contrastive/uniform:importance@256"`.
        labels: the label distribution.
        num_negatives: m, where the name has no `@m`; by default 256, for within-batch the whole
            batch.
        **options: keywords of the loss: `score`, `temperature`, `collisions`, `ignore_index`,
            `reduction`, `post_hoc`, and `label_smoothing` for softmax losses. They override what
            the name decides (`post_hoc` of `+post-hoc`).

    >>> scheme("within-batch:tail", Labels.zipf(100))
    SampledSoftmaxLoss(
      weighting=Tail
      (sampler): WithinBatch(num_labels=100, num_negatives=all)
    )
    """
    check_labels(labels)
    parsed = parse(text)
    piece = LOSSES[parsed.loss]
    options = _loss_options(parsed, piece, options)
    with in_scheme_words(parsed.num_negatives):
        if parsed.score_margin is not None:
            options = _by_score(parsed.score_margin, labels, parsed.text) | options
        loss = _exact_loss(parsed, labels, piece, options)
        if loss is None:
            number = num_negatives if parsed.num_negatives is None else parsed.num_negatives
            loss = _sampled_loss(parsed, labels, number, piece, options)
        if loss.post_hoc and not isinstance(labels, ShardedLabels):  # which no rank knows alone
            lean = lean_of(implied_margin_of(loss, batch_size=2), labels)
            refuse_to_correct_twice(lean, "`+post-hoc`" if parsed.post_hoc else POST_HOC)
    return loss


def _loss_options(parsed: Scheme, piece: Piece | None, options: dict[str, Any]) -> dict[str, Any]:
    if "piece" in options:
        write = f"hinge/{parsed.text.rpartition('/')[2]}"
        raise HeadtailError(f"`piece` is part of a scheme's name. Write for example `{write}`.")
    for name in ("negatives", "m"):
        if name in options:
            raise HeadtailError(
                f"`{name}` is not an option of a scheme. Write `num_negatives={options[name]!r}`, "
                f"or `@{options[name]}` in its name."
            )
    if parsed.post_hoc:
        options = {"post_hoc": 1.0} | options
    if piece is not None:
        options = {"piece": piece, "score": "cosine" if piece.cosine else "dot"} | options
        check_score(piece, options["score"])
    return options


def _by_score(call: Call, labels: Labels, text: str) -> dict[str, Any]:
    """The options of a loss with a margin on the positive's score."""
    margin = SCORE_MARGINS[call.name].build(Request(call, labels, text))
    return {"score": "cosine", "temperature": 1 / SCALE, "score_margin": margin}


def _exact_loss(
    parsed: Scheme, labels: Labels, piece: Piece | None, options: dict[str, Any]
) -> Loss | None:
    if parsed.margin is None:
        return None
    margin = MARGINS[parsed.margin.name].build(Request(parsed.margin, labels, parsed.text))
    return SoftmaxLoss(margin, **options) if piece is None else DecoupledLoss(margin, **options)


def _sampled_loss(
    parsed: Scheme,
    labels: Labels,
    number: int | None,
    piece: Piece | None,
    options: dict[str, Any],
) -> Loss:
    assert parsed.sampler is not None, "a scheme has a margin, or else a sampler and a weighting"
    assert parsed.weighting is not None
    weighting_row = WEIGHTINGS[parsed.weighting.name]
    weighting = weighting_row.build(Request(parsed.weighting, labels, parsed.text))
    request = Request(parsed.sampler, labels, parsed.text, number, weighting, piece)
    sampler = SAMPLERS[parsed.sampler.name].build(request)
    kind = SampledSoftmaxLoss if piece is None else SampledDecoupledLoss
    return kind(sampler, weighting, **options)


def build_sampler(text: str, labels: Labels, num_negatives: int | None = None) -> Sampler:
    """Build a sampler from its name, for example `"frequency(0.75)@64"`."""
    name, number = split_count(text.strip().lower().replace("_", "-"), text)
    if ":" in name:
        raise HeadtailError(
            f"`{text}` is a whole scheme, but only a sampler is wanted. Write "
            f"`{name.partition(':')[0]}`."
        )
    call = read_call(name, text)
    check_known(call.name, tuple(SAMPLERS), "sampler", text)
    wanted = num_negatives if number is None else number
    with in_scheme_words(number):
        return SAMPLERS[call.name].build(Request(call, labels, text, wanted))


def check_batch(text: str, batch: int, negatives: int | None = None) -> None:
    """Refuse a scheme that asks for more negatives than its batch or its queue holds.

    >>> check_batch("within-batch:tail@9999", 64)
    Traceback (most recent call last):
    headtail.errors.HeadtailError: `@9999` in `within-batch:tail@9999` is more than the 64 ...
    """
    parsed = parse(text)
    m = negatives if parsed.num_negatives is None else parsed.num_negatives
    if parsed.sampler is None or m is None or parsed.source not in ("batch", "past batches"):
        return
    if parsed.source == "batch":
        most = batch
        where = "labels of a batch"
        larger = Sentence("a larger ", Setting("batch"))
    else:
        most = queue_capacity(Request(parsed.sampler, Labels.zipf(1), text, m))
        where = "labels that the queue remembers"
        larger = "a longer queue"
    if m > most:
        if parsed.num_negatives is not None:
            given = f"`@{m}` in"
            write = f"`@{most}`"
        else:
            given = Sentence(Setting("negatives", m), " for")
            write = Setting("negatives", most)
        raise HeadtailError(
            given,
            f" `{text}` is more than the {most:,} {where}. Write ",
            write,
            " at most, or ",
            larger,
            ".",
        )
