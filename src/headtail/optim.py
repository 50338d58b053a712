"""Row-wise optimisers: a step costs what the touched rows cost, however many labels there are."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from types import EllipsisType
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from headtail.errors import HeadtailError, check_number

Rows: TypeAlias = Tensor | EllipsisType
"""Row ids, or `...` for all of them."""


class _Pending:
    """Weight decay that rows of one table have yet to receive: row i is due the factor e^(log_decay − received_i)."""

    def __init__(self, table: Tensor) -> None:
        self.log_decay = 0.0
        self.settled = 0.0  # the log_decay up to which every row has received it all
        self.received = torch.zeros(len(table), dtype=torch.float64, device=table.device)

    def add(self, log_factor: float) -> None:
        self.log_decay += log_factor

    def apply(self, table: Tensor, rows: Rows) -> None:
        if self.settled == self.log_decay and len(self.received) == len(table):
            return
        self.fit(table)
        factor = (self.log_decay - self.received[rows]).exp().reshape(-1, *[1] * (table.dim() - 1))
        exact = torch.promote_types(table.dtype, torch.float32)  # a bfloat16 factor would lose most of a small decay
        if rows is ...:
            table.mul_(factor.to(exact))
            self.settled = self.log_decay
        else:
            table[rows] = (table[rows] * factor.to(exact)).to(table.dtype)
        self.received[rows] = self.log_decay

    def forgive(self) -> None:
        """The table has new values, which owe nothing."""
        self.received.fill_(self.log_decay)
        self.settled = self.log_decay

    def fit(self, table: Tensor) -> None:
        if self.received.device != table.device:
            self.received = self.received.to(table.device)
        if len(self.received) < len(table):  # rows that the table has gained have missed nothing
            new = self.received.new_full((len(table) - len(self.received),), self.log_decay)
            self.received = torch.cat([self.received, new])


# Held beside the table and not in the optimiser: what is owed outlives the optimiser that owes it.
_PENDING: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


@torch.no_grad()
def catch_up(table: Tensor, rows: Rows = ...) -> None:
    """Apply the weight decay that these rows of a table have been spared so far; nothing where none is pending."""
    if table in _PENDING:
        _PENDING[table].apply(table, rows)


@torch.no_grad()
def forgive(table: Tensor) -> None:
    """Forget pending weight decay, because the table was given new values."""
    if table in _PENDING:
        _PENDING[table].forgive()


def owed(table: Tensor) -> tuple[Tensor, float] | None:
    """Lazy weight decay as `[L]` log-factors that rows have received and the sum they should have, or None where there is none."""
    pending = _PENDING.get(table)
    return None if pending is None else (pending.received, pending.log_decay)


def owes(table: Tensor, received: Tensor, log_decay: float) -> None:
    """Take over what `owed` told, for instance from a checkpoint."""
    pending = _PENDING[table] = _Pending(table)
    pending.received, pending.log_decay, pending.settled = received.to(table.device), log_decay, math.nan


def clip_grad_norm_(parameters: Iterable[Tensor] | Tensor, max_norm: float) -> Tensor:
    """`torch.nn.utils.clip_grad_norm_` that understands row-sparse gradients: rows drawn twice are summed before the norm is taken.

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
    owners = [p for p in ([parameters] if isinstance(parameters, Tensor) else parameters) if p.grad is not None]
    for p in owners:
        if p.grad is not None and p.grad.is_sparse:
            p.grad = p.grad.coalesce()
    values = [p.grad.values() if p.grad.is_sparse else p.grad for p in owners if p.grad is not None]
    if not values:
        return torch.tensor(0.0)
    exact = torch.float64 if any(v.dtype == torch.float64 for v in values) else torch.float32
    norms = [torch.linalg.vector_norm(v, dtype=exact).to(values[0].device) for v in values]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # torch's own guard against a zero norm
    for v in values:
        v.mul_(scale.to(v.device, v.dtype))
    return norm


class RowOptimizer(torch.optim.Optimizer, ABC):
    """An ordinary optimiser that touches only the rows which have a gradient.

    Momentum and moments of untouched rows stand still, as in torch's SparseAdam. Weight decay is decoupled, and lazy but exact:
    a row that was not touched for a while is multiplied by all the factors (1 − lr·decay) it missed, with the learning rates
    of those steps, before it is read or touched again. `LabelHead` sees to that; if you read such a table yourself, call
    `flush()` first. Saving the head or the optimiser does it by itself.

    Dense gradients are taken too: then every row is touched.
    """

    def __init__(self, params: Any, lr: float, weight_decay: float, **defaults: Any) -> None:
        check_number("lr", lr, low=0)
        check_number("weight_decay", weight_decay, low=0)
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, **defaults})

    @abstractmethod
    def update(self, p: Tensor, rows: Rows, grad: Tensor, group: dict[str, Any]) -> None:
        """Change `p[rows]` given the gradient of just these rows."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take one step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                rows, grad = _touched(p.grad)
                self._decay(p, rows, group)
                self.update(p, rows, grad, group)
        return loss

    def flush(self) -> None:
        """Apply all pending weight decay to all rows. Costs O(L) if there is any."""
        for group in self.param_groups:
            for p in group["params"]:
                catch_up(p)

    def state_dict(self) -> dict[str, Any]:
        """As torch's; weight decay is flushed first, so that it needs no bookkeeping on disk."""
        self.flush()
        return super().state_dict()

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and deepcopy: nothing may be left pending."""
        self.flush()
        return super().__getstate__()

    def _decay(self, p: Tensor, rows: Rows, group: dict[str, Any]) -> None:
        # A learning rate may be a tensor on a GPU, where reading it makes the host wait: only decay needs its value.
        amount = float(group["lr"]) * group["weight_decay"] if group["weight_decay"] else 0.0
        if amount >= 1:
            raise HeadtailError(f"`lr · weight_decay` must stay below 1, but is {amount:g}: such a step would flip every weight.")
        if amount == 0 or rows is ...:
            catch_up(p, rows)  # what an earlier, sparse step with decay may have left
            if amount:
                p.mul_(1 - amount)
            return
        if p not in _PENDING:
            _PENDING[p] = _Pending(p)
        _PENDING[p].add(math.log1p(-amount))
        catch_up(p, rows)

    def _row_state(self, p: Tensor, name: str, fill: float) -> Tensor:
        """A state tensor shaped like p; rows that p has gained since the last step start with `fill`."""
        state = self.state[p]
        if name not in state:
            state[name] = torch.full_like(p, fill)
        elif p.dim() and len(state[name]) < len(p):
            state[name] = torch.cat([state[name], torch.full_like(p[len(state[name]) :], fill)])
        return state[name]


class RowSGD(RowOptimizer):
    r"""SGD on touched rows: $v \leftarrow \mu v + g,\; θ \leftarrow (1 - \eta\lambda)\,θ - \eta v$.

    Args:
        params: parameters, dense or with row-sparse gradients.
        lr: η.
        momentum: μ; the velocity of untouched rows stands still.
        weight_decay: λ.

    >>> table = torch.nn.Parameter(torch.ones(3, 2))
    >>> torch.nn.functional.embedding(torch.tensor([1]), table, sparse=True).sum().backward()
    >>> RowSGD([table], lr=0.5).step()
    >>> table.data
    tensor([[1.0000, 1.0000],
            [0.5000, 0.5000],
            [1.0000, 1.0000]])
    """

    def __init__(self, params: Any, lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        check_number("momentum", momentum, low=0, high=1)
        super().__init__(params, lr, weight_decay, momentum=momentum)

    def update(self, p: Tensor, rows: Rows, grad: Tensor, group: dict[str, Any]) -> None:
        """One step of SGD."""
        if group["momentum"]:
            velocity = self._row_state(p, "momentum_buffer", 0.0)
            grad = velocity[rows] * group["momentum"] + grad
            velocity[rows] = grad
        p[rows] = p[rows] - group["lr"] * grad


class RowAdagrad(RowOptimizer):
    r"""Adagrad on touched rows: $G \leftarrow G + g^2,\; θ \leftarrow (1 - \eta\lambda)\,θ - \eta\, g / (\sqrt{G} + \epsilon)$.

    Args:
        params: parameters, dense or with row-sparse gradients.
        lr: η.
        eps: ε.
        initial_accumulator_value: where G starts.
        weight_decay: λ.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        eps: float = 1e-10,
        initial_accumulator_value: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        check_number("initial_accumulator_value", initial_accumulator_value, low=0)
        super().__init__(params, lr, weight_decay, eps=eps, initial_accumulator_value=initial_accumulator_value)

    def update(self, p: Tensor, rows: Rows, grad: Tensor, group: dict[str, Any]) -> None:
        """One step of Adagrad."""
        total = self._row_state(p, "sum", group["initial_accumulator_value"])
        if _by_kernel(p, total, rows, grad, group):
            return
        now = total[rows] + grad * grad
        total[rows] = now
        p[rows] = p[rows] - group["lr"] * grad / (now.sqrt() + group["eps"])


class RowAdam(RowOptimizer):
    r"""Adam on touched rows, step for step torch's SparseAdam, with decoupled weight decay added.

    Args:
        params: parameters, dense or with row-sparse gradients.
        lr: η.
        betas: decay rates of the two moments.
        eps: ε.
        weight_decay: λ.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        if not isinstance(betas, tuple | list) or len(betas) != 2 or not all(0 <= check_number("betas", b) < 1 for b in betas):
            raise HeadtailError(f"`betas` must be two numbers from 0 up to but not including 1, but got {betas!r}.")
        super().__init__(params, lr, weight_decay, betas=betas, eps=eps)

    def update(self, p: Tensor, rows: Rows, grad: Tensor, group: dict[str, Any]) -> None:
        """One step of Adam."""
        (beta1, beta2), state = group["betas"], self.state[p]
        state["step"] = step = state.get("step", 0) + 1
        first, second = self._row_state(p, "exp_avg", 0.0), self._row_state(p, "exp_avg_sq", 0.0)
        mean, square = first[rows], second[rows]
        mean = mean + (grad - mean) * (1 - beta1)
        square = square + (grad * grad - square) * (1 - beta2)
        first[rows], second[rows] = mean, square
        size = group["lr"] * math.sqrt(1 - beta2**step) / (1 - beta1**step)
        p[rows] = p[rows] - size * mean / (square.sqrt() + group["eps"])


def _by_kernel(p: Tensor, total: Tensor, rows: Rows, grad: Tensor, group: dict[str, Any]) -> bool:
    """Take an Adagrad step in one pass, where there is a kernel for it."""
    if p.device.type == "cpu" and grad.numel() >= 2**15 and p.dim() == 2:  # below, loading a compiler is not worth it
        from headtail.kernels import cpu_rows as kernels

        ids = torch.arange(len(p)) if rows is ... else rows
        if kernels.fits(p, total, grad):
            kernels.adagrad_rows(p, total, ids, grad, float(group["lr"]), group["eps"])
            return True
    if p.device.type == "cuda" and rows is ...:
        from headtail.kernels import cuda_rows

        if cuda_rows.fits(p, total, grad):
            cuda_rows.adagrad_(p, total, grad, group["lr"], group["eps"])
            return True
    return False


def _touched(grad: Tensor) -> tuple[Rows, Tensor]:
    """The rows a gradient touches, each once, and their values."""
    if not grad.is_sparse:
        return ..., grad
    rows, values = grad._indices()[0], grad._values()
    if rows.device.type == "cpu" and bool((rows.diff() > 0).all()):  # autograd forgets that a gradient was coalesced
        return rows, values
    plain = values.device.type == "cpu" and values.dtype == torch.float32 and values.dim() == 2 and grad.sparse_dim() == 1
    if plain and not grad.is_coalesced() and values.numel() >= 2**15:
        from headtail.bags import sum_rows

        return sum_rows(rows, values, len(grad))
    grad = grad.coalesce()
    return grad.indices()[0], grad.values()
