"""Calls that differ between ranks in what they draw or differentiate; `test_ranks.py` runs it."""

from __future__ import annotations

import torch
import torch.distributed as dist

from headtail import Uniform
from headtail.core.draw import Draw
from headtail.distributed.same_call import facts_of_draw
from tests.distributed.bad_input import _alone, _head, _hidden, _last, _refused
from tests.distributed.batches import LABELS


def _draw(seed: int = 1) -> Draw:
    target = torch.tensor([1, 2] * dist.get_world_size())
    return Uniform(LABELS, 8).draw(target, generator=torch.Generator().manual_seed(seed))


def _others() -> list[Draw]:
    """What is not the draw of the other ranks."""
    draw = _draw()
    size = 2 * dist.get_world_size()
    return [
        _draw(2),
        Uniform(LABELS, 9).draw(torch.tensor([1, 2] * dist.get_world_size())),
        Uniform(LABELS, 8).describe(draw.ids, torch.zeros(size - 1, dtype=torch.int64), 8.0),
        Draw(**(draw.arguments() | {"log_q": draw.log_q + 1e-9})),
        Draw(**(draw.arguments() | {"m": 7.0})),
        draw.ids,  # pyright: ignore[reportReturnType] - is no draw
    ]


def draws_that_differ_between_ranks_are_refused():
    if _alone():
        return
    head = _head()
    for other in _others():
        draw = other if _last() else _draw()
        work = lambda draw=draw: head(_hidden(), torch.tensor([1, 2]), draw=draw)  # noqa: E731
        _refused(work, "Ranks call the head in different ways: `draw` is ")
    assert head(_hidden(), torch.tensor([1, 2]), draw=_draw()).isfinite()
    none = Draw(*(torch.zeros(0, dtype=kind) for kind in (torch.int64, torch.float64)), None, 0.0)
    assert head(_hidden(), torch.tensor([1, 2]), draw=none).isfinite()


def values_of_draws_on_a_device_are_not_looked_at():
    """Tensors without values take the place of those on a GPU: any look at them would fail."""
    ids = torch.zeros(8, dtype=torch.int64, device="meta")
    draw = Draw(ids, torch.zeros(8, dtype=torch.float64, device="meta"), None, 8.0)
    assert facts_of_draw(draw) == {"`draw`": "[8] ids on meta, made for [] targets"}


def hidden_states_that_need_gradients_on_some_ranks_only_are_refused():
    if _alone():
        return
    head = _head()
    target = torch.tensor([1, 2])
    hidden = _hidden().requires_grad_(_last())
    match = "`hidden.requires_grad` is False on rank 0 and True on rank "
    _refused(lambda: head(hidden, target), match)
    sequences = torch.zeros(1, 2, hidden.shape[1]).requires_grad_(_last())
    _refused(lambda: head(sequences, target[None]), match)
    with torch.no_grad():  # nothing will travel back
        assert head(hidden, target).isfinite()
    assert head.topk(hidden, 3).indices.shape == (2, 3)
