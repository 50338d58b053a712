"""Weight decay that reaches a row when it is next read: lazy, but exact."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headtail.rows.link import PendingDecay, Rows, link_of, linked


def catch_up(table: Tensor, rows: Rows = ...) -> None:
    """Apply the weight decay that these rows of a table are still due, if any."""
    decay = _decay_of(table)
    if decay is not None:
        with torch.no_grad():
            decay.apply(table, rows)


@torch.no_grad()
def flush(module: nn.Module, *_: Any) -> None:
    """Apply pending weight decay to all rows of a module's own tables.

    It is also a hook that runs before a module's state is saved or loaded.
    """
    for table in module.parameters(recurse=False):
        catch_up(table)


def catch_up_embeddings(model: nn.Module) -> None:
    """Let sparse embeddings of torch give rows their weight decay before these are read or saved,
    as label heads do.
    """
    for module in model.modules():
        lazy = isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
        if lazy and _catch_up_looked_up not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(_catch_up_looked_up, with_kwargs=True)
            module.register_state_dict_pre_hook(flush)


def _catch_up_looked_up(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    ids = args[0] if args else kwargs["input"]
    for table in module.parameters(recurse=False):
        catch_up(table, ids.flatten())


@torch.no_grad()
def forgive(table: Tensor) -> None:
    """Forget pending weight decay, because the table was given new values."""
    decay = _decay_of(table)
    if decay is not None:
        decay.forgive()


def decays(table: Tensor) -> bool:
    """Whether an optimiser decays this table lazily: rows must catch up before they are read."""
    return _decay_of(table) is not None


def owed(table: Tensor) -> tuple[Tensor, float] | None:
    """`[L]` log-factors that rows have received and the sum that they are due, or None.

    On a GPU the host waits for the sum.
    """
    decay = _decay_of(table)
    return None if decay is None else (decay.received, float(decay.log_decay))


@torch.no_grad()
def owe(table: Tensor, log_factor: float | Tensor) -> None:
    """Multiply all rows by e^log_factor, each when it is next read."""
    link = linked(table)
    if link.decay is None:
        link.decay = PendingDecay(table)
    link.decay.add(table, log_factor)


def owes(table: Tensor, received: Tensor, log_decay: float) -> None:
    """Take over what `owed` returned, for instance from a checkpoint.

    Numbers are written in place where they are already: a CUDA graph may refer to them.
    """
    link = linked(table)
    decay = link.decay
    if decay is None or decay.received.shape != received.shape:
        decay = link.decay = PendingDecay(table)
    if decay.received.shape == received.shape:
        decay.received.copy_(received)
    else:
        decay.received = received.to(table.device)
    decay.log_decay.fill_(log_decay)
    decay.settled = False


def _decay_of(table: Tensor) -> PendingDecay | None:
    link = link_of(table)
    return None if link is None else link.decay
