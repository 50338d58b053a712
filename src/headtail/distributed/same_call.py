"""What all ranks must pass alike when they call a head.

Each rank puts it into words and sends one number, a digest of them, with numbers that ranks
exchange anyway. Only where digests differ do the words travel, for the sentence that names what
differs.
"""

from __future__ import annotations

import json
from dataclasses import fields
from operator import is_
from textwrap import shorten
from typing import Any, NoReturn

import torch
from torch import Tensor

from headtail.collectives.ranks import Ranks
from headtail.core.draw import Draw
from headtail.distributed.agree import digest_of, without_addresses
from headtail.distributed.together import texts_of_all
from headtail.errors import HeadtailError
from headtail.files.checksums import new_checksum
from headtail.losses import Loss
from headtail.losses.options import Settings

Facts = dict[str, str]
"""What must be the same, in words, by what it is."""
SHOWN = 100
"""Characters of a fact that an error shows, at most."""


def digest_of_facts(facts: Facts) -> int:
    """One number for all of them."""
    return digest_of(json.dumps(facts, sort_keys=True))


def refuse_unlike(ranks: Ranks, what: str, facts: Facts) -> NoReturn:
    """Raise one sentence on all ranks, where all of them know that their digests differ.

    Args:
        ranks: who must all call it.
        what: they call in different ways.
        facts: this rank's.
    """
    first, *others = [json.loads(text) for text in texts_of_all(ranks, json.dumps(facts))]
    rank, other = next((rank, other) for rank, other in enumerate(others, 1) if other != first)
    name = next(name for name in first | other if first.get(name) != other.get(name))
    here, there = (shorten(found.get(name, "missing"), SHOWN) for found in (first, other))
    raise HeadtailError(
        f"Ranks call {what} in different ways: {name} is {here} on rank 0 and {there} on rank "
        f"{rank}. Pass the same on all ranks."
    )


def facts_of_settings(settings: Settings, loss: Loss) -> Facts:
    """The options of a loss in one call.

    Known positives may be listed in other ways on other ranks: they travel as pairs.
    """
    facts = {
        f"`{field.name}`": _in_words(getattr(settings, field.name))
        for field in fields(settings)
        if field.name != "known_positives"
    }
    if settings.ignore_index is None:  # a promise that this rank's targets all count
        facts["`ignore_index`"] = _in_words(loss.settings.ignore_index)
    return facts


def facts_of_states(hidden: Tensor) -> Facts:
    """What decides which numbers travel, also backward, and their size."""
    kind = hidden.device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else "off"
    return {
        "the dtype of `hidden`": f"{hidden.dtype}",
        "autocast": f"{autocast}",
        "`hidden.requires_grad`": f"{hidden.requires_grad and torch.is_grad_enabled()}",
    }


def facts_of_draw(draw: Draw | None) -> Facts:
    """Negatives that were drawn ahead. On a GPU only their number: the host would wait for them."""
    if not isinstance(draw, Draw):
        return {} if draw is None else {"`draw`": type(draw).__name__}
    ids = draw.ids
    words = f"{list(ids.shape)} ids on {ids.device.type}, made for {draw.made_for} targets"
    if ids.is_cpu and draw.log_q.is_cpu:
        values = new_checksum()
        values.update(f"{float(draw.m)}".encode())
        for numbers in (ids, draw.log_q):
            values.update(numbers.detach().contiguous().numpy().data)
        words += f", with the checksum {values.hexdigest()[:8]} of ids, log q and m"
    return {"`draw`": words}


class LossFacts:
    """Facts of a head's loss, found again once the loss or a part of it is replaced."""

    def __init__(self) -> None:
        self._parts: tuple[Any, ...] = ()
        self._of_loss: Facts = {}
        self._of_settings: Facts = {}

    def of(self, loss: Loss, settings: Settings) -> Facts:
        """What decides the loss of a call.

        Args:
            loss: of the head.
            settings: its own, or with options of the call over them.
        """
        weights = getattr(loss, "weighting", None) or getattr(loss, "margin", None)
        parts = (loss, weights, getattr(loss, "sampler", None), loss.settings)
        is_same = len(parts) == len(self._parts) and all(map(is_, parts, self._parts))
        if not is_same:
            self._parts = parts
            self._of_loss = {"the loss": without_addresses(f"{loss} {weights}")}
            self._of_settings = facts_of_settings(loss.settings, loss)
        if settings is loss.settings:
            return self._of_settings | self._of_loss
        return facts_of_settings(settings, loss) | self._of_loss


def _in_words(value: Any) -> str:
    """An option's value. That of a tensor may differ by rank, and the host would wait for it."""
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype}"
    if isinstance(value, int | float):  # 1 and 1.0 are the same temperature
        return f"{float(value)!r}"
    return without_addresses(repr(value))
