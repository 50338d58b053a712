"""What ranks refuse, each with the same sentence, so that none waits for the others."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from headtail import (
    CosFace,
    Frequency,
    Given,
    HeadtailError,
    Importance,
    Labels,
    LogUniform,
    ModelSoftmax,
    Ragged,
    Relative,
    SampledDecoupledLoss,
    SampledSoftmaxLoss,
    SoftmaxLoss,
    Tail,
    Uniform,
    WithinBatch,
)
from headtail.collectives.gather import gather
from headtail.core.placement import Placement
from headtail.core.sharded_labels import ShardedLabels
from headtail.distributed import ShardedLabelHead
from headtail.functional import hinge, logistic
from headtail.losses import Loss
from tests.distributed.batches import LABELS, D, L


def _last() -> bool:
    return dist.get_rank() == dist.get_world_size() - 1


def _alone() -> bool:
    return dist.get_world_size() == 1


def _refused(work: Callable[[], object], match: str) -> None:
    """All ranks raise one sentence or two with these words, and are in step afterwards."""
    with pytest.raises(HeadtailError, match=match) as caught:
        work()
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    assert gather(torch.tensor([dist.get_rank()])).tolist() == list(range(dist.get_world_size()))


def _loss(labels: Labels = LABELS, m: int = 8) -> SampledSoftmaxLoss:
    return SampledSoftmaxLoss(Uniform(labels, m), Importance())


def _head(labels: Labels = LABELS, loss: Loss | None = None, **options: Any) -> ShardedLabelHead:
    return ShardedLabelHead(labels, D, _loss(labels) if loss is None else loss, **options)


def _hidden(size: int = 2) -> torch.Tensor:
    return torch.zeros(size, D)


def a_mesh_of_two_dimensions_is_refused():
    mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("data", "rows"))
    _refused(lambda: _head(mesh=mesh), "A mesh must have one dimension, but this one has 2")
    assert _head(mesh=mesh["rows"])(_hidden(), torch.tensor([1, 2])).isfinite()


def a_rank_outside_of_the_mesh_is_refused():
    mesh = DeviceMesh("cpu", [0])
    if dist.get_rank() == 0:
        assert _head(mesh=mesh).ranks.size == 1
        gather(torch.tensor([0]))
    else:
        _refused(lambda: _head(mesh=mesh), "is not part of the mesh, which has the ranks ")


def more_ranks_than_labels_are_refused():
    if _alone():
        return
    few = Labels.from_counts([3] * (dist.get_world_size() - 1))
    _refused(lambda: _head(few, _loss(few)), "which leaves a rank without labels")


def a_last_rank_without_labels_is_refused():
    """Rows are cut as torch cuts them, so five labels leave the last of four ranks with none."""
    if dist.get_world_size() == 4:
        five = Labels.from_counts([3] * 5)
        _refused(lambda: _head(five, _loss(five)), "4 ranks for 5 labels")


def ranks_with_different_numbers_of_labels_are_refused():
    if _alone():
        return
    labels = Labels.zipf(L + _last())
    _refused(lambda: _head(labels, _loss(labels)), "Ranks have different numbers of labels")


def ranks_with_different_counts_are_refused():
    if _alone():
        return
    counts = torch.arange(1, L + 1)
    labels = Labels.from_counts(counts + 1 if _last() else counts)
    _refused(lambda: _head(labels, _loss(labels)), "Ranks have different counts of labels")
    # The same total, the same lowest count, in another order.
    labels = Labels.from_counts(counts.flip(0) if _last() else counts)
    _refused(lambda: _head(labels, _loss(labels)), "Ranks have different counts of labels")


def ranks_with_different_losses_are_refused():
    if _alone():
        return
    others = [
        (_loss(), _loss(m=9)),
        (_loss(), SampledSoftmaxLoss(Frequency(LABELS, 8), Importance())),
        (_loss(), SampledSoftmaxLoss(Uniform(LABELS, 8), Tail(LABELS))),
        (
            SampledSoftmaxLoss(Uniform(LABELS, 8), Tail(LABELS)),
            SampledSoftmaxLoss(Uniform(LABELS, 8), Tail(LABELS, 0.5)),
        ),
        (_loss(), SampledSoftmaxLoss(Uniform(LABELS, 8), Importance(), temperature=0.5)),
        (_loss(), SampledSoftmaxLoss(Uniform(LABELS, 8), Importance(), reduction="sum")),
    ]
    for pair in others:
        loss = pair[_last()]
        _refused(lambda loss=loss: _head(loss=loss), "Ranks have different losses")


def ranks_with_different_tables_are_refused():
    if _alone():
        return
    dim = D + _last()
    _refused(lambda: ShardedLabelHead(LABELS, dim, _loss()), "Ranks have different sizes")
    _refused(lambda: _head(bias=_last()), "Ranks have different sizes, dtypes or biases")
    dtype = torch.float64 if _last() else torch.float32
    _refused(lambda: _head(dtype=dtype), "Ranks have different sizes, dtypes or biases")


def ranks_with_different_versions_are_refused():
    if _alone():
        return
    other = f"1.{dist.get_rank()}"
    with mock.patch("headtail.distributed.agree.version", return_value=other):
        _refused(_head, "Ranks have different versions of headtail or torch")
    with mock.patch("torch.__version__", f"9.{dist.get_rank()}"):
        _refused(_head, "Ranks have different versions of headtail or torch")


def a_loss_that_does_not_fit_on_one_rank_is_refused_on_all():
    if _alone():
        return
    loss = _loss(Labels.zipf(5)) if _last() else _loss()
    _refused(lambda: _head(loss=loss), "`loss` samples from 5 labels")
    _refused(lambda: _head(loss=SoftmaxLoss(), sparse=True), "needs a sampled loss")


def samplers_that_ranks_cannot_share_are_refused():
    model = SampledSoftmaxLoss(ModelSoftmax(LABELS, 4), Importance())
    _refused(lambda: _head(loss=model), "`ModelSoftmax` cannot draw for a table that ranks share")
    excluding = SampledSoftmaxLoss(Uniform(LABELS, 8, exclude_target=True), Importance())
    _refused(lambda: _head(loss=excluding), "exclude_target")
    ids = torch.tensor([1, 2])
    given = Given(L, ids, log_q=lambda i: torch.zeros_like(i, dtype=torch.float64))
    loss = SampledSoftmaxLoss(given, Importance())
    _refused(lambda: _head(loss=loss), "`Given` cannot draw for a table that ranks share")


def fewer_negatives_than_ranks_are_refused():
    if _alone():
        return
    size = dist.get_world_size()
    loss = _loss(m=size - 1)
    _refused(lambda: _head(loss=loss), re.escape(f"Write `num_negatives={size}` or more."))


def a_rank_whose_labels_never_occur_is_refused_on_all():
    if _alone():
        return
    counts = torch.zeros(L, dtype=torch.int64)
    counts[0] = 5  # which lies on the first rank
    labels = Labels.from_counts(counts)
    loss = SampledSoftmaxLoss(Frequency(labels, 8), Relative())
    _refused(lambda: _head(labels, loss), "none of which occurs")


def ranks_by_counts_of_one_rank_are_refused():
    if _alone():
        return
    size = dist.get_world_size()
    share = Placement((L,)).share(dist.get_rank(), size)
    own = ShardedLabels.part_of(LABELS, share)
    _refused(lambda: LogUniform(own, 8), "`LogUniform` ranks all labels")
    loss = SampledSoftmaxLoss(LogUniform(L, 8), Tail(own))
    assert ShardedLabelHead(own, D, loss)(_hidden(), torch.tensor([1, 2])).isfinite()


def draws_for_each_example_are_refused():
    head = _head()
    draw = Uniform(LABELS, 8, exclude_target=True).draw(torch.tensor([1, 2]))
    work = lambda: head(_hidden(), torch.tensor([1, 2]), draw=draw)  # noqa: E731
    _refused(work, "`draw` must be shared by the batch")


def draws_for_other_targets_are_refused():
    head = _head()
    target = torch.tensor([1, 2])
    draw = Uniform(LABELS, 8).draw(torch.arange(2 * dist.get_world_size() + 1))
    _refused(lambda: head(_hidden(), target, draw=draw), "`draw` was made for")
    if not _alone():  # for the targets of this rank alone
        draw = Uniform(LABELS, 8).draw(target)
        _refused(lambda: head(_hidden(), target, draw=draw), "`draw` was made for 2 targets")


def draws_of_other_labels_are_refused():
    head = _head()
    draw = Uniform(100, 8).describe(
        torch.full((8,), 99), torch.zeros(2 * dist.get_world_size(), dtype=torch.int64), 8.0
    )
    _refused(lambda: head(_hidden(), torch.tensor([1, 2]), draw=draw), "draw.ids")


def draws_on_some_ranks_only_are_refused():
    if _alone():
        return
    head = _head()
    every = torch.tensor([1, 2] * dist.get_world_size())
    draw = Uniform(LABELS, 8).draw(every) if _last() else None
    work = lambda: head(_hidden(), torch.tensor([1, 2]), draw=draw)  # noqa: E731
    _refused(work, "Ranks call the head in different ways")


def a_draw_for_an_exact_loss_is_refused():
    head = _head(loss=SoftmaxLoss(), sparse=False)
    draw = Uniform(LABELS, 8).draw(torch.tensor([1, 2] * dist.get_world_size()))
    work = lambda: head(_hidden(), torch.tensor([1, 2]), draw=draw)  # noqa: E731
    _refused(work, "`draw` has no meaning for an exact loss")


def options_on_some_ranks_only_are_refused():
    if _alone():
        return
    head = _head()
    options = {"sample_weight": torch.ones(2)} if _last() else {}
    work = lambda: head(_hidden(), torch.tensor([1, 2]), **options)  # noqa: E731
    _refused(work, "Ranks call the head in different ways")


def options_that_differ_between_ranks_are_refused():
    if _alone():
        return
    softmax = _head()
    cosine = _head(loss=SampledSoftmaxLoss(Uniform(LABELS, 8), Importance(), score="cosine"))
    pieces = _head(loss=SampledDecoupledLoss(Uniform(LABELS, 8), Importance()))
    others: list[tuple[ShardedLabelHead, str, tuple[Any, Any]]] = [
        (softmax, "reduction", ("mean", "sum")),
        (softmax, "reduction", ("none", "mean")),
        (softmax, "temperature", (1.0, 0.5)),
        (softmax, "temperature", (0.5, torch.tensor(0.5))),
        (softmax, "score", ("dot", "cosine")),
        (softmax, "collisions", ("target", "none")),
        (softmax, "ignore_index", (-100, 3)),
        (softmax, "label_smoothing", (0.0, 0.1)),
        (softmax, "sample_weight", (torch.ones(2), torch.ones(2).double())),
        (cosine, "score_margin", (CosFace(0.1), CosFace(0.2))),
        (pieces, "piece", (logistic, hinge)),
    ]
    for head, name, values in others:
        options = {name: values[_last()]}
        work = lambda h=head, o=options: h(_hidden(), torch.tensor([1, 2]), **o)  # noqa: E731
        _refused(work, f"Ranks call the head in different ways: `{name}` is .* on rank 0 and ")


def the_refusal_names_both_values():
    if _alone():
        return
    options: dict[str, Any] = {"reduction": "sum" if _last() else "mean"}
    work = lambda: _head()(_hidden(), torch.tensor([1, 2]), **options)  # noqa: E731
    last = dist.get_world_size() - 1
    _refused(work, f"`reduction` is 'mean' on rank 0 and 'sum' on rank {last}. Pass the same on")


def options_that_mean_the_same_are_not_refused():
    head = _head()
    target = torch.tensor([1, 2])
    padded = torch.tensor([[1], [2]])
    ragged = Ragged.from_lists([[1, 3], [2]])
    others: list[tuple[Any, Any]] = [
        ({"temperature": 1}, {"temperature": 1.0}),
        ({}, {"ignore_index": None}),  # a promise about this rank's targets
        ({}, {"reduction": "mean", "ignore_index": -100}),
        ({"known_positives": padded}, {"known_positives": ragged}),
    ]
    for pair in others:
        assert head(_hidden(), target, **pair[_last()]).isfinite()


def hidden_states_whose_dtypes_differ_between_ranks_are_refused():
    if _alone():
        return
    head = _head()
    target = torch.tensor([1, 2])
    dtype = torch.bfloat16 if _last() else torch.float32
    match = "the dtype of `hidden` is torch.float32 on rank 0 and torch.bfloat16 on rank "
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _refused(lambda: head(_hidden().to(dtype), target), match)
        _refused(lambda: head.topk(_hidden().to(dtype), 3), match)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=_last()):
        _refused(lambda: head(_hidden(), target), "autocast is off on rank 0 and torch.bfloat16")


def a_loss_that_is_replaced_on_one_rank_is_refused_on_all():
    if _alone():
        return
    head = _head()
    target = torch.tensor([1, 2])
    assert head(_hidden(), target).isfinite()
    if _last():
        head.loss = SampledSoftmaxLoss(Uniform(LABELS, 8), Tail(LABELS))
    _refused(lambda: head(_hidden(), target), "in different ways: the loss is SampledSoftmaxLoss")


def sizes_of_captured_batches_that_differ_between_ranks_are_refused():
    if _alone():
        return
    head = _head().capture(examples=4 + 2 * _last())
    work = lambda: head(_hidden(), torch.tensor([1, 2]))  # noqa: E731
    _refused(work, "`examples` in `head.capture` is 4 on rank 0 and 6 on rank ")
    head.capture(messages=_last())
    _refused(work, "`messages` in `head.capture` is False on rank 0 and True on rank ")


def searches_that_differ_between_ranks_are_refused():
    if _alone():
        return
    head = _head()
    _refused(lambda: head.topk(_hidden(), 3 + _last()), "`topk` in different ways: `k` is 3 on ")
    post_hoc = 5.0 * _last()
    work = lambda: head.topk(_hidden(), 3, post_hoc=post_hoc)  # noqa: E731
    _refused(work, "`topk` in different ways: `post_hoc` is 0.0 on rank 0 and 5.0 on rank ")


def searches_that_mean_the_same_are_not_refused():
    head = _head()
    options: dict[str, Any] = {"post_hoc": 0} if _last() else {}
    assert head.topk(_hidden(1 + _last()), 3, **options).indices.shape == (1 + _last(), 3)


def a_bad_batch_of_one_rank_is_refused_on_all():
    head = _head()
    target = torch.tensor([1, 2])
    good: dict[str, Any] = {"hidden": _hidden(), "target": target}
    bad: list[tuple[dict[str, Any], str]] = [
        ({"target": torch.tensor([1, L])}, "`target`"),
        ({"target": torch.tensor([1, 2, 3])}, "`input` must have shape"),
        ({"target": torch.tensor([1.0, 2.0])}, "`target`"),
        ({"hidden": torch.zeros(2, D + 1)}, re.escape(f"must have shape [b, {D}]")),
        ({"hidden": torch.zeros(2, D, dtype=torch.float64)}, "float64"),
        ({"hidden": torch.zeros(D)}, "must have shape"),
        ({"sample_weight": torch.ones(3)}, "`sample_weight` must have one weight per example"),
        ({"sample_weight": torch.tensor([1.0, -1.0])}, "`sample_weight` must be numbers of at"),
        ({"known_positives": torch.ones(3, 2, dtype=torch.int64)}, "`known_positives` has 3"),
        ({"temprature": 0.1}, "`temprature` is not an option"),
    ]
    for options, match in bad:
        call = good | options if _last() else good
        _refused(lambda call=call: head(**call), match)


def a_target_that_never_occurs_is_refused_on_all():
    labels = Labels.from_counts([5, 0, *([3] * (L - 2))])
    head = _head(labels, SampledSoftmaxLoss(WithinBatch(labels), Importance()))
    target = torch.tensor([1, 2] if _last() else [3, 2])
    _refused(lambda: head(_hidden(), target), "label 1, which has no training example")
    assert head(_hidden(), torch.tensor([3, 2])).isfinite()


def a_bad_search_of_one_rank_is_refused_on_all():
    head = _head()
    good: dict[str, Any] = {"hidden": _hidden(), "k": 3}
    bad: list[tuple[dict[str, Any], str]] = [
        ({"hidden": torch.zeros(2, D + 1)}, "must have shape"),
        ({"k": L + 1}, f"there are only {L} labels"),
        ({"k": 0}, "`k`"),
        ({"exclude": [[1]]}, "`exclude`"),
        ({"exclude": [[1], [L]]}, "`exclude`"),
    ]
    for options, match in bad:
        call = good | options if _last() else good
        _refused(lambda call=call: head.topk(**call), match)
