"""Optimisers of rows: a step costs what the touched rows cost, however many labels there are."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from headtail.errors import HeadtailError, check_kind, check_number, check_rate
from headtail.kernels.dispatch import dense_adagrad_kernel
from headtail.kernels.gradient import RowGradient
from headtail.rows.gradients import as_table
from headtail.rows.link import Rows
from headtail.rows.rounding import widened, write_rows
from headtail.rows.row_optimizer import RowOptimizer


class RowSGD(RowOptimizer):
    r"""SGD on touched rows: $v \leftarrow \mu v + g,\; θ \leftarrow (1 - \eta\lambda)\,θ - \eta v$.

    Args:
        params: parameters, dense or with row-sparse gradients.
        lr: η, a number or a tensor without dimensions.
        momentum: μ; the velocity of untouched rows does not change.
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
        self, params: Any, lr: float | Tensor, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        check_number("momentum", momentum, low=0, high=1)
        super().__init__(params, lr, weight_decay, momentum=momentum)

    def update(self, p: Tensor, rows: Rows, grad: Tensor, group: dict[str, Any]) -> None:
        """One step of SGD."""
        if group["momentum"]:
            velocity = self._row_state(p, "momentum_buffer", 0.0)
            grad = velocity[rows] * group["momentum"] + grad
            velocity[rows] = grad
        write_rows(p, rows, widened(p[rows]) - self._rate(p, group) * grad)

    def update_by(
        self, kernels: Any, p: Tensor, gradient: RowGradient, group: dict[str, Any]
    ) -> None:
        """One step of SGD by a kernel."""
        if group["momentum"]:
            velocity = as_table(self._row_state(p, "momentum_buffer", 0.0))
            kernels.momentum_rows(
                as_table(p),
                velocity,
                gradient,
                self._rate(p, group),
                group["momentum"],
                **_rounding(p),
            )
        else:
            kernels.sgd_rows(as_table(p), gradient, self._rate(p, group), **_rounding(p))


class RowAdagrad(RowOptimizer):
    r"""Adagrad on touched rows: $G \leftarrow G + g^2,\; θ \leftarrow (1 - \eta\lambda)\,θ - \eta\,
    g / (\sqrt{G} + \epsilon)$.

    With `per_row` (row-wise Adagrad, usual for embedding tables) a table keeps one G per row, the
    sum of its *mean* squares: the state of 100M rows of 512 is then 0.4 GB instead of 205 GB, and a
    step moves half as many bytes.

    Args:
        params: parameters, dense or with row-sparse gradients.
        lr: η, a number or a tensor without dimensions.
        eps: ε.
        initial_accumulator_value: where G starts.
        weight_decay: λ.
        per_row: keep one G for each row of a table instead of one for each weight.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
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
        now = total[rows] + (square if total.shape == p.shape else square.mean(-1, keepdim=True))
        total[rows] = now
        step = self._rate(p, group) * grad / (now.sqrt() + group["eps"])
        write_rows(p, rows, widened(p[rows]) - step)

    def update_by(
        self, kernels: Any, p: Tensor, gradient: RowGradient, group: dict[str, Any]
    ) -> None:
        """One step of Adagrad by a kernel."""
        total = as_table(self._total(p, group))
        kernels.adagrad_rows(
            as_table(p), total, gradient, self._rate(p, group), group["eps"], **_rounding(p)
        )

    def update_all_by_kernel(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> bool:
        """One step of Adagrad for all weights by one kernel, on a GPU."""
        total = self._total(p, group)
        adagrad = dense_adagrad_kernel(p, total, grad)
        if adagrad is not None:
            adagrad(p, total, grad, self._rate(p, group), group["eps"])
        return adagrad is not None

    def _total(self, p: Tensor, group: dict[str, Any]) -> Tensor:
        return self._row_state(
            p,
            "sum",
            group["initial_accumulator_value"],
            one_per_row=group["per_row"] and p.dim() == 2,
        )


class RowAdam(RowOptimizer):
    r"""Adam on touched rows, step for step torch's SparseAdam, with decoupled weight decay added.

    Args:
        params: parameters, dense or with row-sparse gradients.
        lr: η, a number or a tensor without dimensions.
        betas: decay rates of the two moments.
        eps: ε.
        weight_decay: λ.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
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

    def updates_together(self, p: Tensor, gradient: Tensor | RowGradient) -> bool:
        """Weights with dense gradients on a GPU, where one step of each would be many kernels."""
        dense = isinstance(gradient, Tensor) and not gradient.is_sparse
        return dense and p.device.type == "cuda" and p.dtype == torch.float32

    def update_together(self, dense: list[tuple[Tensor, Any]], group: dict[str, Any]) -> None:
        """One step of Adam for all of them by torch's fused kernel."""
        tables = [p for p, _ in dense]
        for p in tables:
            self._decay(p, ..., group)
            step = torch.as_tensor(self.state[p].get("step", 0), dtype=torch.float32)
            self.state[p]["step"] = step.to(p.device)
        steps = [self.state[p]["step"] for p in tables]
        torch._foreach_add_(steps, 1)  # pyright: ignore[reportPrivateImportUsage]
        torch._fused_adam_(  # pyright: ignore[reportPrivateImportUsage]
            tables,
            [grad for _, grad in dense],
            [self._row_state(p, "exp_avg", 0.0) for p in tables],
            [self._row_state(p, "exp_avg_sq", 0.0) for p in tables],
            [],
            steps,
            lr=self._rate(tables[0], group),
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )

    def _size(self, p: Tensor, group: dict[str, Any]) -> float | Tensor:
        """The learning rate of this step, corrected for moments that began at 0."""
        beta1, beta2 = group["betas"]
        state = self.state[p]
        lr = self._rate(p, group)
        if p.device.type == "cuda":  # counted there, so that a captured step counts too
            step = state.get("step", 0)
            if not isinstance(step, Tensor):
                step = torch.full((), step, dtype=torch.float64, device=p.device)
            state["step"] = step = step.to(p.device).add_(1)
            return lr * (1 - beta2**step).sqrt() / (1 - beta1**step)
        state["step"] = step = int(state.get("step", 0)) + 1
        return lr * math.sqrt(1 - beta2**step) / (1 - beta1**step)


class DenseSGD(torch.optim.SGD):
    r"""$g \leftarrow g + \lambda θ,\; v \leftarrow \mu v + g,\; θ \leftarrow θ - \eta v$ for every
    weight.

    It trains networks in which every weight has a gradient in every step: weight decay is
    coupled, as recipes mean it, nothing is ever pending, and on a GPU a few kernels update
    everything.

    Args:
        params: parameters with dense gradients.
        lr: η, a number or a tensor without dimensions, which a CUDA graph sees change.
        momentum: μ.
        weight_decay: λ.
    """

    def __init__(
        self, params: Any, lr: float | Tensor, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        check_rate(lr)
        params = list(params)
        fused = bool(params) and params[0].device.type == "cuda"
        super().__init__(
            params, lr=0.0, momentum=momentum, weight_decay=weight_decay, fused=fused or None
        )
        for settings in (self.defaults, *self.param_groups):
            settings["lr"] = lr  # only now: torch would look at its value, and wait for a GPU

    def advance(self) -> None:
        """`step`, by the name that row optimisers have for it."""
        self.step()

    def inside_backward(self, on: bool = True, *, at_once: bool = False) -> DenseSGD:
        """Nothing to do: a dense gradient is all there when `backward` is over."""
        return self

    def flush(self) -> None:
        """Nothing to do: no weight waits for its decay."""


def _rounding(p: Tensor) -> dict[str, Tensor]:
    """The randomness that a kernel needs to round to bfloat16."""
    return {"seed": torch.randint(2**62, (), device=p.device)} if p.dtype == torch.bfloat16 else {}
