"""What ranks do together: fail alike, and talk beside training."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_nccl_timeout

from headtail.collectives.ranks import Ranks
from headtail.errors import HeadtailError

_CPU = torch.device("cpu")
_Value = TypeVar("_Value")


def everywhere(ranks: Ranks, work: Callable[[], _Value]) -> _Value:
    """Do on every rank what needs no other rank; if one fails, all raise what the first one says.

    So no rank waits for ever for one that has failed.
    """
    result, failed = tried(work)
    problem = first_problem(ranks, None if failed is None else _sentence(failed))
    if problem is not None:
        raise_alike(problem, failed)
    return result  # pyright: ignore[reportReturnType] - which is there where nothing failed


def tried(work: Callable[[], _Value]) -> tuple[_Value | None, Exception | None]:
    """What work returns, or the error that it raises."""
    try:
        return work(), None
    except Exception as error:
        return None, error


def refuse_everywhere(ranks: Ranks, failed: Exception | None) -> NoReturn:
    """Raise what the first rank that has failed says, where it is known that one has."""
    problem = first_problem(ranks, None if failed is None else _sentence(failed))
    assert problem is not None
    raise_alike(problem, failed)


def raise_alike(problem: str, failed: Exception | None) -> NoReturn:
    """Raise the sentence that all ranks raise; the own error, with its parts, where it is that.

    An error that is a bug rather than a refusal is raised unchanged.
    """
    fault = failed is not None and not isinstance(failed, HeadtailError | OSError)
    if failed is not None and (fault or str(failed) == problem):
        raise failed
    raise HeadtailError(problem) from failed


def first_problem(ranks: Ranks, problem: str | None) -> str | None:
    """The sentence of the first rank that has one, on every rank."""
    return next(filter(None, texts_of_all(ranks, problem or "")), None)


def texts_of_all(ranks: Ranks, text: str) -> list[str]:
    """The texts of all ranks, on every rank."""
    own = list(text.encode())
    lengths = [length for (length,) in ranks.numbers([len(own)], _CPU)]
    if not any(lengths):
        return [""] * ranks.size
    padded = own + [0] * (max(lengths) - len(own))
    texts = ranks.numbers(padded, _CPU)
    return [
        bytes(text[:length]).decode(errors="replace")
        for text, length in zip(texts, lengths, strict=True)
    ]


def number_of_first(ranks: Ranks, number: int) -> int:
    """The first rank's number, on every rank."""
    return ranks.numbers([number], _CPU)[0][0]


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, HeadtailError) else f"{type(error).__name__}: {error}"


class Beside:
    """A second group of the same ranks, whose messages over TCP mix with no others: a checkpoint is
    saved while training goes on. Its ranks wait for each other as long as those of the first.

    torch makes groups with all processes only. Where the head has some of them, its own group is
    taken, and nothing is saved beside training.

    Attributes:
        parent: the group that trains.
        group: the second one.
        pending: waits for a checkpoint that is still being saved, if there is one.
    """

    def __init__(self, parent: dist.ProcessGroup) -> None:
        self.parent = parent
        self.group = parent
        self.pending: Callable[[], Any] | None = None
        if dist.get_world_size(parent) == dist.get_world_size():
            group = dist.new_group(backend="gloo", timeout=_timeout_of(parent))
            assert isinstance(group, dist.ProcessGroup), "all processes are its members"
            self.group = group

    @property
    def apart(self) -> bool:
        """Whether messages of the two groups can be sent at the same time."""
        return self.group is not self.parent

    def finish(self) -> None:
        """Wait for what is still being saved: messages of two checkpoints must not mix."""
        if self.pending is not None:
            pending, self.pending = self.pending, None
            pending()


def _timeout_of(group: dist.ProcessGroup) -> timedelta | None:
    """How long ranks of a group wait for each other; None for as long as gloo's usually do, where
    the group has only NCCL's default, which is meant for steps and not for disks.
    """
    kinds = {device.type: device for device in group._device_types}
    backend: Any = group._get_backend(kinds.get("cpu", group._device_types[0]))
    timeout: timedelta = backend.options._timeout
    by_default = "cpu" not in kinds and timeout == default_pg_nccl_timeout
    return None if by_default else timeout


# One for each group of ranks, not for each head: torch keeps a group, with its sockets and threads,
# until the world ends; and a head must wait for what another, which it replaces, is still saving.
_BESIDE: dict[str | None, Beside] = {}


def beside(ranks: Ranks) -> Beside:
    """The second group of these ranks, made where there is none. Every rank must call it."""
    parent = ranks.group
    found = _BESIDE.get(ranks.name)
    if found is None or found.parent is not parent:  # a group of a world that has ended
        found = _BESIDE[ranks.name] = Beside(parent)
    return found
