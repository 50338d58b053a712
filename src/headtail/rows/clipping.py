"""Clipping of gradients, row-sparse ones among them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import torch
from torch import Tensor

from headtail.collectives.ranks import Ranks
from headtail.errors import HeadtailError, check_number
from headtail.kernels.dispatch import row_kernels
from headtail.kernels.gradient import RowGradient
from headtail.rows.fixed_gradient import place_of
from headtail.rows.gradients import as_rows, as_sparse, whole_gradient
from headtail.rows.link import ranks_of, taker_of


def clip_grad_norm_(parameters: Iterable[Tensor] | Tensor, max_norm: float) -> Tensor:
    """`torch.nn.utils.clip_grad_norm_` for row-sparse gradients too.

    Entries of a row are summed before the norm is taken. The norm is that of the whole model: of a
    table whose rows are spread over ranks (`ShardedLabelHead`), or of what `fully_shard` has
    spread, all ranks' parts count, and all other parameters, which must have the same gradient on
    all ranks, count once. Every rank must call it then, with the same parameters.

    Args:
        parameters: dense and sparse ones together.
        max_norm: the largest norm that is left alone.

    Returns:
        The norm before clipping.

    >>> table = torch.nn.Parameter(torch.zeros(5, 1))
    >>> torch.nn.functional.embedding(torch.tensor([1, 1]), table, sparse=True).sum().backward()
    >>> clip_grad_norm_([table], max_norm=1.0)
    tensor(2.)
    >>> table.grad.to_dense().norm()
    tensor(1.0000)
    """
    if max_norm != math.inf:
        check_number("max_norm", max_norm, low=0)
    copied: list[Tensor] = []
    spread: dict[Ranks, list[Tensor]] = {}
    for p in _listed(parameters):
        ranks = _holders(p)
        (copied if ranks is None else spread.setdefault(ranks, [])).append(p)
    with torch.no_grad():
        values, norm = _measure(_with_gradient(copied))
        for ranks, tables in spread.items():
            own_values, own_norm = _measure(_with_gradient(tables))
            values += own_values
            norm = _joint_norm(ranks, norm, own_norm.to(tables[0].device))
        _shorten(values, norm, max_norm)
    return norm


def clip_grad_value_(parameters: Iterable[Tensor] | Tensor, clip_value: float) -> None:
    """`torch.nn.utils.clip_grad_value_` for row-sparse gradients too.

    Entries of a row are summed before each of its numbers is clipped, as in a dense gradient; rows
    without entries have a gradient of 0, which clipping would not change.

    Args:
        parameters: dense and sparse ones together.
        clip_value: the largest absolute value of a number that is left alone.

    >>> table = torch.nn.Parameter(torch.zeros(5, 1))
    >>> torch.nn.functional.embedding(torch.tensor([1, 1]), table, sparse=True).sum().backward()
    >>> clip_grad_value_([table], clip_value=1.5)
    >>> table.grad.to_dense().flatten()
    tensor([0.0000, 1.5000, 0.0000, 0.0000, 0.0000])
    """
    bound = check_number("clip_value", clip_value, low=0)
    with torch.no_grad():
        for p in _with_gradient(_listed(parameters)):
            _summed(p).clamp_(-bound, bound)


def _listed(parameters: Iterable[Tensor] | Tensor) -> list[Tensor]:
    return [parameters] if isinstance(parameters, Tensor) else list(parameters)


def _with_gradient(parameters: list[Tensor]) -> list[Tensor]:
    """Parameters that have a gradient, with all of it in `.grad`."""
    for p in parameters:
        taker = taker_of(p)
        if taker is not None and taker.at_once:
            raise HeadtailError(
                "A table that is updated at once, inside backward, has no gradient left to clip. "
                "Write `inside_backward()` without `at_once=True`."
            )
    return [p for p in parameters if _gather(p)]


def _holders(p: Tensor) -> Ranks | None:
    """The ranks that hold a parameter together; None where each has all of it."""
    placements = getattr(p, "placements", None)  # of a DTensor, a class that is slow to import
    if placements is None:
        return ranks_of(p)
    spread = [axis for axis, placement in enumerate(placements) if placement.is_shard()]
    if len(spread) > 1:
        raise HeadtailError(
            f"A parameter of shape {list(p.shape)} is spread over {len(spread)} dimensions of its "
            "mesh. Clip parameters that are spread over one dimension."
        )
    return Ranks.of(p.device_mesh.get_group(spread[0])) if spread else None  # pyright: ignore[reportAttributeAccessIssue]


def _joint_norm(ranks: Ranks, copied: Tensor, own: Tensor) -> Tensor:
    """The norm of all ranks' own numbers, and of those that all ranks have copies of."""
    # Each rank sends its part of the copies' square too: a kernel may sum in another order on
    # another rank, but all ranks should clip by one factor, to the last bit.
    total = own.double().square() + copied.to(own.device).double().square() / ranks.size
    total = total.to(ranks.meeting_place(total.device))
    ranks.reduce_(total)
    return total.sqrt()


def _shorten(values: list[Tensor], norm: Tensor, max_norm: float) -> None:
    """Scale numbers with this norm, in place."""
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # torch's own guard against a zero norm
    for kind, same in itertools.groupby(values, lambda v: (v.device, v.dtype)):
        torch._foreach_mul_(list(same), scale.to(*kind))  # pyright: ignore[reportPrivateImportUsage]


def _measure(parameters: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    """The numbers in the `.grad` of these, and their norm."""
    if not parameters:
        return [], torch.tensor(0.0)
    values: list[Tensor] = []
    norms: list[Tensor] = []
    dense: list[Tensor] = []
    for p in parameters:
        norm = _norm_by_kernel(p)
        if norm is None:
            dense.append(_summed(p))
        else:
            assert p.grad is not None
            values.append(p.grad._values())
            norms.append(norm)
    values += dense
    exact = torch.float64 if any(v.dtype == torch.float64 for v in values) else torch.float32
    # A few launches for all of them, where that matters.
    norms += torch._foreach_norm(dense, 2, exact) if dense else ()  # pyright: ignore[reportPrivateImportUsage]
    device = norms[0].device
    norm = torch.linalg.vector_norm(torch.stack([n.to(device, exact) for n in norms]))
    return values, norm


def _gather(p: Tensor) -> bool:
    """Move entries that wait into `.grad`; whether there is a gradient at all."""
    grad = whole_gradient(p)
    p.grad = as_sparse(p, grad) if isinstance(grad, RowGradient) else grad
    return grad is not None


def _norm_by_kernel(p: Tensor) -> Tensor | None:
    """The norm of a sparse gradient whose entries stay where they are; None without a kernel."""
    assert p.grad is not None
    gradient = as_rows(p.grad)
    if gradient is None or p.device.type != "cuda" or not len(gradient.rows):
        return None
    kernels = row_kernels(p, p.numel())
    if kernels is None:
        return None

    def norm() -> Tensor:
        return kernels.squares_of_rows(gradient, len(p)).sum().sqrt()

    place = place_of(p, p.grad)
    return norm() if place is None else place[0].norm(place[1], norm)


def _summed(p: Tensor) -> Tensor:
    """The numbers of a dense gradient that are here, or of a sparse one after entries of a row were
    summed.
    """
    assert p.grad is not None
    if hasattr(p.grad, "to_local"):
        return p.grad.to_local()  # pyright: ignore[reportAttributeAccessIssue]
    if not p.grad.is_sparse:
        return p.grad
    p.grad = p.grad.coalesce()
    return p.grad._values()
