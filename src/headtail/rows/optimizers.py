"""Row-wise optimisers: a step costs what the touched rows cost, however many labels there are."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from headtail.device.side_streams import beside, wait_for
from headtail.errors import HeadtailError, check_kind, check_number
from headtail.kernels.compiled import HAS_TRITON
from headtail.kernels.gradient import RowGradient
from headtail.rows.decay import Rows, catch_up, owe
from headtail.rows.gradients import as_rows, as_table, every_row, summed, values_of
from headtail.rows.rounding import widened, write_rows

WORTH_KERNELS = 2**15
"""Numbers in a table from which kernels pay."""

# Who changes a table during backward: (a weak reference to its optimiser, the parameter group).
_TAKERS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def clip_grad_norm_(parameters: Iterable[Tensor] | Tensor, max_norm: float) -> Tensor:
    """`torch.nn.utils.clip_grad_norm_` that understands row-sparse gradients: rows drawn twice are
    summed before the norm is taken.

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
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    if any(_taker_of(p) is not None for p in parameters):
        raise HeadtailError(
            "What is updated `inside_backward` has no gradient left to clip. Leave out one of the "
            "two."
        )
    owners = [p for p in parameters if p.grad is not None]
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

    Momentum and moments of untouched rows stand still, as in torch's SparseAdam. Weight decay is
    decoupled, and lazy but exact: a row that was not touched for a while is multiplied by all the
    factors (1 − lr·decay) it missed, with the learning rates of those steps, before it is read or
    touched again. `LabelHead` sees to that; if you read such a table yourself, call `flush()`
    first. Saving the head or the optimiser does it by itself.

    Dense gradients are taken too: then every row is touched.
    """

    def __init__(self, params: Any, lr: float, weight_decay: float, **defaults: Any) -> None:
        check_number("lr", lr, low=0)
        check_number("weight_decay", weight_decay, low=0)
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, **defaults})
        self._changed: list[Tensor] = []
        self._held: list[tuple[RowGradient, str]] = []
        self._worth_kernels: bool | None = None

    @abstractmethod
    def update(self, p: Tensor, rows: Rows, grad: Tensor, group: dict[str, Any]) -> None:
        """Change `p[rows]`, different rows, given the gradient of just these."""

    @abstractmethod
    def update_by(
        self, kernels: Any, p: Tensor, gradient: RowGradient, group: dict[str, Any]
    ) -> None:
        """The same by a kernel, which sums entries of the same row first."""

    @torch.no_grad()
    def step(
        self, closure: Callable[[], float] | None = None, *, grad_scaler: Any = None
    ) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take one step."""
        if grad_scaler is not None:
            raise HeadtailError(
                "`GradScaler` cannot unscale what was updated `inside_backward`. Leave out one of "
                "the two."
            )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.advance()
        return loss

    @torch.no_grad()
    def advance(self) -> None:
        """`step` without closure, hooks and profiler."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._change(p, p.grad, group)
        for device, name in {(gradient.values.device, name) for gradient, name in self._held}:
            wait_for(device, name)
        self._held.clear()
        self._changed.clear()

    def inside_backward(self, on: bool = True) -> RowOptimizer:
        """From now on, or with False no longer, change the tables of `LabelHead` and `Bottleneck`
        while `backward` runs.

        The gradient of a table is then never held, and its `.grad` stays None; `step` updates what
        is left. So it is not for gradient clipping, `GradScaler`, or several `backward` calls a
        step.
        """
        for group in self.param_groups:
            for p in group["params"]:
                if on:
                    _TAKERS[p] = ref(self), group
                elif _taker_of(p) is self:
                    del _TAKERS[p]
        # then GradScaler introduces itself to `step`, which refuses it
        self._step_supports_amp_scaling = on
        return self

    @torch.no_grad()
    def take(self, p: Tensor, gradient: RowGradient, group: dict[str, Any]) -> None:
        """Change a table at once, during `backward`."""
        if any(p is table for table in self._changed):
            raise HeadtailError(
                "A table got a second gradient before `step()`: an optimiser that updates "
                "`inside_backward` takes one a step. "
                "Leave out `inside_backward()` to accumulate gradients."
            )
        self._changed.append(p)
        if p.device.type != "cuda":
            self._change(p, gradient, group)
            return
        # Beside what backward has still to do; `step` waits for it. What it reads is held until
        # then.
        # all grouping, which has one workspace
        name = f"update {len(self._held)}" if gradient.grouped else "entries"
        self._held.append((gradient, name))
        with beside(p.device, name):
            self._change(p, gradient, group)

    def _change(self, p: Tensor, grad: Tensor | RowGradient, group: dict[str, Any]) -> None:
        gradient = as_rows(grad)
        one_row = isinstance(grad, RowGradient) and p.dim() == 1
        self._decay(p, ... if gradient is None or one_row else gradient.rows, group)
        fits = p.device.type == "cpu" if gradient is None else p.dim() == 2 or one_row
        kernels = self._kernels_for(p) if fits else None
        if kernels is None and one_row:
            self.update(p, ..., widened(values_of(grad).sum(0)), group)  # pyright: ignore[reportArgumentType]
        elif kernels is None:
            rows, total = (..., grad) if gradient is None else summed(p, gradient)
            self.update(p, rows, widened(total), group)  # pyright: ignore[reportArgumentType]
        else:
            self.update_by(kernels, p, every_row(grad) if gradient is None else gradient, group)  # pyright: ignore[reportArgumentType]

    def _kernels_for(self, p: Tensor) -> Any:
        """The module whose kernels take this table, or None."""
        if self._worth_kernels is None:  # for small models loading a compiler is not worth it
            self._worth_kernels = any(
                p.numel() >= WORTH_KERNELS for group in self.param_groups for p in group["params"]
            )
        if not p.is_contiguous() or p.dim() not in (1, 2):
            return None
        kernels = None
        if p.device.type == "cpu" and p.dtype == torch.float32 and self._worth_kernels:
            from headtail.kernels.cpu import rows as kernels
        elif p.device.type == "cuda" and p.dtype in (torch.float32, torch.bfloat16) and HAS_TRITON:
            from headtail.kernels.triton import rows as kernels
        return kernels

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's; by itself, because torch's loads its compiler first, which takes a second and
        a half.
        """
        for group in self.param_groups:
            for p in group["params"]:
                if set_to_none:
                    p.grad = None
                elif p.grad is not None:
                    p.grad = p.grad.detach().zero_()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, without loading its compiler."""
        plain = getattr(
            torch.optim.Optimizer.add_param_group,
            "__wrapped__",
            torch.optim.Optimizer.add_param_group,
        )
        plain(self, param_group)

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
        if (
            group["weight_decay"]
            and p.device.type == "cuda"
            and torch.cuda.is_current_stream_capturing()
        ):
            raise HeadtailError(
                "`weight_decay` is counted on the host, which a CUDA graph leaves out. Write "
                "`weight_decay=0` there."
            )
        # A learning rate may be a tensor on a GPU, where reading it makes the host wait: only decay
        # needs its value.
        amount = float(group["lr"]) * group["weight_decay"] if group["weight_decay"] else 0.0
        if amount >= 1:
            raise HeadtailError(
                f"`lr · weight_decay` must stay below 1, but is {amount:g}: such a step would flip "
                "every weight."
            )
        if amount == 0 or rows is ...:
            catch_up(p, rows)  # what an earlier, sparse step with decay may have left
            if amount:
                write_rows(p, ..., widened(p) * (1 - amount))
            return
        owe(p, math.log1p(-amount))
        catch_up(p, rows)

    def _row_state(self, p: Tensor, name: str, fill: float, *, one_a_row: bool = False) -> Tensor:
        """A state tensor shaped like p, or `[T, 1]`; rows that p has gained since the last step
        start with `fill`.
        """
        state = self.state[p]
        like = p[:, :1] if one_a_row else p
        if name not in state:
            dtype = widened(p[:0] if p.dim() else p).dtype  # bfloat16 would lose small steps
            state[name] = torch.full_like(
                like, fill, dtype=dtype, memory_format=torch.contiguous_format
            )
        elif p.dim() and len(state[name]) < len(p):
            new = like[len(state[name]) :]
            state[name] = torch.cat(
                [state[name], torch.full_like(new, fill, dtype=state[name].dtype)]
            )
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

    def __init__(
        self, params: Any, lr: float, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        check_number("momentum", momentum, low=0, high=1)
        super().__init__(params, lr, weight_decay, momentum=momentum)

    def update(self, p: Tensor, rows: Rows, grad: Tensor, group: dict[str, Any]) -> None:
        """One step of SGD."""
        if group["momentum"]:
            velocity = self._row_state(p, "momentum_buffer", 0.0)
            grad = velocity[rows] * group["momentum"] + grad
            velocity[rows] = grad
        write_rows(p, rows, widened(p[rows]) - group["lr"] * grad)

    def update_by(
        self, kernels: Any, p: Tensor, gradient: RowGradient, group: dict[str, Any]
    ) -> None:
        """One step of SGD by a kernel."""
        if group["momentum"]:
            velocity = as_table(self._row_state(p, "momentum_buffer", 0.0))
            kernels.momentum_rows(
                as_table(p), velocity, gradient, group["lr"], group["momentum"], **_rounding(p)
            )
        else:
            kernels.sgd_rows(as_table(p), gradient, group["lr"], **_rounding(p))


class RowAdagrad(RowOptimizer):
    r"""Adagrad on touched rows: $G \leftarrow G + g^2,\; θ \leftarrow (1 - \eta\lambda)\,θ - \eta\,
    g / (\sqrt{G} + \epsilon)$.

    With `per_row` (row-wise Adagrad, usual for embedding tables) a table keeps one G a row, the sum
    of its *mean* squares: the state of 100M rows of 512 is then 0.4 GB instead of 205 GB, and a
    step moves half as many bytes.

    Args:
        params: parameters, dense or with row-sparse gradients.
        lr: η.
        eps: ε.
        initial_accumulator_value: where G starts.
        weight_decay: λ.
        per_row: keep one G for each row of a table instead of one for each weight.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        eps: float = 1e-10,
        initial_accumulator_value: float = 0.0,
        weight_decay: float = 0.0,
        *,
        per_row: bool = False,
    ) -> None:
        check_number("initial_accumulator_value", initial_accumulator_value, low=0)
        check_kind("per_row", per_row, bool, "True")
        start = initial_accumulator_value
        super().__init__(
            params, lr, weight_decay, eps=eps, initial_accumulator_value=start, per_row=per_row
        )

    def update(self, p: Tensor, rows: Rows, grad: Tensor, group: dict[str, Any]) -> None:
        """One step of Adagrad."""
        total = self._total(p, group)
        square = grad * grad
        if rows is ... and p.device.type == "cuda" and HAS_TRITON:
            from headtail.kernels.triton import rows as cuda_rows

            if cuda_rows.fits(p, total, grad):
                cuda_rows.adagrad_(p, total, grad, group["lr"], group["eps"])
                return
        now = total[rows] + (square if total.shape == p.shape else square.mean(-1, keepdim=True))
        total[rows] = now
        step = group["lr"] * grad / (now.sqrt() + group["eps"])
        write_rows(p, rows, widened(p[rows]) - step)

    def update_by(
        self, kernels: Any, p: Tensor, gradient: RowGradient, group: dict[str, Any]
    ) -> None:
        """One step of Adagrad by a kernel."""
        total = as_table(self._total(p, group))
        kernels.adagrad_rows(
            as_table(p), total, gradient, group["lr"], group["eps"], **_rounding(p)
        )

    def _total(self, p: Tensor, group: dict[str, Any]) -> Tensor:
        return self._row_state(
            p,
            "sum",
            group["initial_accumulator_value"],
            one_a_row=group["per_row"] and p.dim() == 2,
        )


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
        if (
            not isinstance(betas, tuple | list)
            or len(betas) != 2
            or not all(0 <= check_number("betas", b) < 1 for b in betas)
        ):
            raise HeadtailError(
                f"`betas` must be two numbers from 0 up to but not including 1, but got {betas!r}."
            )
        super().__init__(params, lr, weight_decay, betas=betas, eps=eps)

    def update(self, p: Tensor, rows: Rows, grad: Tensor, group: dict[str, Any]) -> None:
        """One step of Adam."""
        beta1, beta2 = group["betas"]
        size = self._size(p, group)
        first = self._row_state(p, "exp_avg", 0.0)
        second = self._row_state(p, "exp_avg_sq", 0.0)
        mean = first[rows]
        square = second[rows]
        mean = mean + (grad - mean) * (1 - beta1)
        square = square + (grad * grad - square) * (1 - beta2)
        first[rows] = mean
        second[rows] = square
        write_rows(p, rows, widened(p[rows]) - size * mean / (square.sqrt() + group["eps"]))

    def update_by(
        self, kernels: Any, p: Tensor, gradient: RowGradient, group: dict[str, Any]
    ) -> None:
        """One step of Adam by a kernel."""
        size = self._size(p, group)
        names = ("exp_avg", "exp_avg_sq")
        first, second = (as_table(self._row_state(p, name, 0.0)) for name in names)
        kernels.adam_rows(
            as_table(p),
            first,
            second,
            gradient,
            size,
            *group["betas"],
            group["eps"],
            **_rounding(p),
        )

    def _size(self, p: Tensor, group: dict[str, Any]) -> float | Tensor:
        """The learning rate corrected for moments that began at 0, of the step that is being taken."""
        beta1, beta2 = group["betas"]
        state = self.state[p]
        if p.device.type == "cuda":  # counted there, so that a captured step counts too
            if not isinstance(state.get("step"), Tensor):
                state["step"] = torch.full(
                    (), state.get("step", 0), dtype=torch.float64, device=p.device
                )
            step = state["step"].add_(1)
            return group["lr"] * (1 - beta2**step).sqrt() / (1 - beta1**step)
        state["step"] = step = int(state.get("step", 0)) + 1
        return group["lr"] * math.sqrt(1 - beta2**step) / (1 - beta1**step)


def is_taken(table: Tensor) -> bool:
    """Whether an optimiser updates this table during `backward`."""
    return _taker_of(table) is not None


def hand_over(table: Tensor, gradient: RowGradient) -> bool:
    """Give a gradient to the optimiser that updates this table during `backward`; False where there
    is none.
    """
    if (optimiser := _taker_of(table)) is None:
        return False
    optimiser.take(table, gradient, _TAKERS[table][1])
    return True


def _taker_of(table: Tensor) -> RowOptimizer | None:
    return _TAKERS[table][0]() if table in _TAKERS else None


def _rounding(p: Tensor) -> dict[str, Tensor]:
    """The randomness by which a kernel rounds to bfloat16."""
    return {"seed": torch.randint(2**62, (), device=p.device)} if p.dtype == torch.bfloat16 else {}
