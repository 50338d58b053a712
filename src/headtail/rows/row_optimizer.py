"""What row-wise optimisers share: gradients, weight decay, state, saving."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
import torch.optim.optimizer as hooks
from torch import Tensor

from headtail.device.host_memory import HostTensor
from headtail.device.side_streams import side_stream, wait_for
from headtail.errors import HeadtailError, check_inside, check_number, check_rate
from headtail.kernels.dispatch import grouping_kernel, row_kernels
from headtail.kernels.gradient import RowGradient
from headtail.rows.captured_update import CapturedUpdates, Update
from headtail.rows.decay import catch_up, owe
from headtail.rows.gradients import as_rows, every_row, summed, values_of, whole_gradient
from headtail.rows.link import Rows, Taker, forget_entries, linked
from headtail.rows.rounding import widened, write_rows
from headtail.rows.row_state import put_on_host, row_state, state_on_host, without_host_state
from headtail.rows.scaling import may_step, meets_scaler


class RowOptimizer(torch.optim.Optimizer, Taker):
    """An ordinary optimiser that touches only the rows which have a gradient.

    Momentum and moments of untouched rows do not change, as in torch's SparseAdam. Weight decay is
    decoupled, and lazy but exact: a row that was not touched for a while is multiplied by all the
    factors (1 − lr·decay) it missed, with the learning rates of those steps, before it is read or
    touched again. `LabelHead` does that for the rows it reads; call `flush()` before you read such
    a table in another way. Saving the head or the optimiser calls it.

    Dense gradients are accepted too: then every row is touched.
    """

    def __init__(
        self, params: Any, lr: float | Tensor, weight_decay: float, **defaults: Any
    ) -> None:
        check_rate(lr)
        check_number("weight_decay", weight_decay, low=0)
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, **defaults})
        self._begin()

    def _begin(self) -> None:
        self._changed: list[Tensor] = []
        self._held: list[tuple[RowGradient, str]] = []
        self._largest: int | None = None
        self.graphs = CapturedUpdates()

    @abstractmethod
    def update(self, p: Tensor, rows: Rows, grad: Tensor, group: dict[str, Any]) -> None:
        """Change `p[rows]`, different rows, given the gradient of just these."""

    @abstractmethod
    def update_by(
        self, kernels: Any, p: Tensor, gradient: RowGradient, group: dict[str, Any]
    ) -> None:
        """The same by a kernel, which sums entries of the same row first."""

    def update_all_by_kernel(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> bool:
        """Change all of `p` by one kernel for dense gradients; False where there is none."""
        return False

    def updates_together(self, p: Tensor, gradient: Tensor | RowGradient) -> bool:
        """Whether `update_together` changes this parameter."""
        return False

    def update_together(self, dense: list[tuple[Tensor, Any]], group: dict[str, Any]) -> None:
        """Change all of many parameters by a few kernels, given their dense gradients."""
        raise NotImplementedError  # for optimisers whose `updates_together` is sometimes true

    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, closure: Callable[[], float] | None = None, *, grad_scaler: Any = None
    ) -> float | None:
        """Take one step."""
        if _is_watched(self):
            return _watched_step(self, closure, grad_scaler=grad_scaler)
        return self._step(closure, grad_scaler=grad_scaler)

    # Or torch would replace it by one that is always watched.
    step.hooked = True  # pyright: ignore[reportFunctionMemberAccess]

    def _step(
        self, closure: Callable[[], float] | None = None, *, grad_scaler: Any = None
    ) -> float | None:
        if not may_step(self, grad_scaler):
            return None
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.advance()
        return loss

    def advance(self) -> None:
        """`step` without closure, hooks and profiler."""
        with torch.no_grad():
            for group in self.param_groups:
                self._advance(group)
        if self._held:
            for device, name in {(gradient.values.device, name) for gradient, name in self._held}:
                wait_for(device, name)
            self._held.clear()
        self._changed.clear()

    def _advance(self, group: dict[str, Any]) -> None:
        dense = []
        for p in group["params"]:
            gradient = whole_gradient(p)
            if gradient is None:
                continue
            self._refuse_second(p)
            if self.updates_together(p, gradient):
                dense.append((p, gradient))
            else:
                self._change(p, gradient, group)
        if dense:
            self.update_together(dense, group)

    def inside_backward(self, on: bool = True, *, at_once: bool = False) -> RowOptimizer:
        """Take gradients of `LabelHead` and `Bottleneck` as entries of rows; with False, no longer.

        Entries wait for `step` and need less memory than a sparse `.grad`, which has no rows then.
        All that a table gets before a step is summed by row: entries of several losses and of
        several `backward` calls, and `.grad`. Clip with `headtail.clip_grad_norm_`; `GradScaler` is
        refused.

        Args:
            on: take entries, or no longer.
            at_once: change a table while `backward` runs. This is for tables that get one gradient
                per step: a second one, and clipping, are refused.
        """
        for p in self._parameters():
            link = linked(p)
            if on:
                link.taker = self
            elif link.taker is self:
                link.taker = None
        self.at_once = on and at_once
        return self

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether `GradScaler` passes itself to `step`, and leaves it to that what it does."""
        return meets_scaler(self)

    @torch.no_grad()
    def take(self, table: Tensor, gradient: RowGradient) -> None:
        """Change a table at once, during `backward`."""
        self._refuse_second(table)
        self._changed.append(table)
        group = next(
            group for group in self.param_groups if any(p is table for p in group["params"])
        )
        if table.device.type != "cuda":
            self._change(table, gradient, group)
            return
        # On a side stream, while backward goes on. `step` waits for it, and keeps what it reads
        # alive. All grouping is on one stream: a table has one set of counters.
        name = f"update {len(self._held)}" if gradient.grouped else "entries"
        self._held.append((gradient, name))
        with side_stream(table.device, name):
            self._change(table, gradient, group)

    def _refuse_second(self, p: Tensor) -> None:
        if self._changed and any(p is table for table in self._changed):
            raise HeadtailError(
                "A table got a second gradient before `step()`, but its optimiser has applied the "
                "first one already. Write `inside_backward()` without `at_once=True` to add "
                "gradients up."
            )

    def _change(self, p: Tensor, grad: Tensor | RowGradient, group: dict[str, Any]) -> None:
        if group["weight_decay"]:
            _check_decay(self._rate(p, group), group)  # a graph cannot
        if isinstance(grad, Tensor) and self.graphs.serves(p) and self._sums_without_host(p):
            update = Update(self._change_rows, p, grad, group, self.state[p])
            if self.graphs.replay(update):
                return
        gradient = as_rows(grad)
        if gradient is None:
            assert isinstance(grad, Tensor), "only a dense gradient has no entries"
            self._change_all(p, grad, group)
            return
        # Entries of a vector, such as a bias, all belong to its one row.
        is_vector = isinstance(grad, RowGradient) and p.dim() == 1
        self._change_rows(p, gradient, group, is_vector)

    def _change_rows(
        self, p: Tensor, gradient: RowGradient, group: dict[str, Any], is_vector: bool = False
    ) -> None:
        kernels = self._kernels_for(p) if is_vector or p.dim() == 2 else None
        if kernels is None or group["weight_decay"]:  # kernels look at rows themselves, but later
            check_inside("grad", gradient.rows, 1 if is_vector else len(p), "rows of its table")
        self._decay(p, ... if is_vector else gradient.rows, group)
        if kernels is not None:
            group_rows = grouping_kernel(p.device) if p.is_cuda else None
            if group_rows is not None:
                num_rows = 1 if is_vector else len(p)
                gradient = group_rows(gradient, num_rows, linked(p).counters)
            self.update_by(kernels, p, gradient, group)
        elif is_vector:
            self.update(p, ..., widened(values_of(gradient).sum(0)), group)
        else:
            rows, total = summed(p, gradient)
            self.update(p, rows, widened(total), group)

    def _change_all(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        """Change every row, given a dense gradient."""
        self._decay(p, ..., group)
        if self.update_all_by_kernel(p, widened(grad), group):
            return
        kernels = self._kernels_for(p) if p.device.type == "cpu" else None
        if kernels is None:
            self.update(p, ..., widened(grad), group)
        else:
            self.update_by(kernels, p, every_row(grad), group)

    def _sums_without_host(self, p: Tensor) -> bool:
        """Whether the host need not wait for a GPU to sum entries of equal rows, as it does in
        torch's `coalesce`, which no graph can hold.
        """
        return not p.is_cuda or self._kernels_for(p) is not None

    def _kernels_for(self, p: Tensor) -> Any:
        """The module with kernels for this table, or None."""
        largest = self._largest
        if largest is None:
            largest = self._largest = max(p.numel() for p in self._parameters())
        return row_kernels(p, largest)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's, without loading its compiler, which takes a second and a half."""
        for p in self._parameters():
            forget_entries(p)
            if set_to_none:
                p.grad = None
            elif p.grad is not None:
                p.grad = p.grad.detach().zero_()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, without loading its compiler."""
        wrapped = torch.optim.Optimizer.add_param_group
        plain = getattr(wrapped, "__wrapped__", wrapped)
        plain(self, param_group)
        self._link()

    def flush(self) -> None:
        """Apply all pending weight decay to all rows. Costs O(L) if there is any."""
        for p in self._parameters():
            catch_up(p)

    def state_dict(self) -> dict[str, Any]:
        """As torch's; weight decay is flushed first, so that it needs no bookkeeping on disk."""
        self.flush()
        return state_on_host(super().state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, but the state of a bfloat16 or float16 table stays float32.

        torch casts state to the dtype of its parameter.
        """
        given: dict[str, Any] = {}
        present = {p: self.state.get(p, {}) for p in self._parameters()}

        def look(_: Any, state: dict[str, Any]) -> dict[str, Any]:
            self._check_kind(state)
            given.update(state)
            return without_host_state(state, self._parameters())

        hooks = (
            # as other hooks leave it
            self.register_load_state_dict_pre_hook(look),
            self.register_load_state_dict_post_hook(
                lambda _: self._widen_state(given, present), prepend=True
            ),
        )
        try:
            super().load_state_dict(state_dict)
        finally:
            for hook in hooks:
                hook.remove()

    def _check_kind(self, state_dict: dict[str, Any]) -> None:
        """Refuse the state of another optimiser, whose options would be missed in the next step."""
        groups = state_dict["param_groups"]
        own = self.defaults.keys() - {"differentiable"}  # which torch adds when it copies or loads
        missing = sorted(name for name in own if any(name not in group for group in groups))
        if missing:
            raise HeadtailError(
                f"The saved state has no `{missing[0]}`, which `{type(self).__name__}` needs: it "
                "is that of another optimiser. Load it into the one that it was saved from."
            )

    def _widen_state(self, given: dict[str, Any], present: dict[Tensor, Any]) -> None:
        keys = chain.from_iterable(group["params"] for group in given["param_groups"])
        for key, p in zip(keys, self._parameters(), strict=True):
            if isinstance(p, HostTensor):
                put_on_host(given["state"].get(key, {}), present[p], p, self.state[p])
                continue
            wide = torch.promote_types(p.dtype, torch.float32)
            for name, value in given["state"].get(key, {}).items():
                # A count of steps has no dimension.
                if wide != p.dtype and isinstance(value, Tensor) and value.dim():
                    self.state[p][name] = value.to(p.device, wide, copy=True)

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and deepcopy: nothing may be left pending."""
        self.flush()
        return super().__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """For pickle and deepcopy, which keep only what torch knows of, and `load_state_dict`."""
        super().__setstate__(state)
        if "_changed" not in vars(self):
            self._begin()
            self._link()

    def _link(self) -> None:
        # Before a head is compiled: torch 2.11 does not notice that a parameter has gained an
        # attribute.
        for p in self._parameters():
            linked(p)

    def _parameters(self) -> Iterator[Tensor]:
        return chain.from_iterable(group["params"] for group in self.param_groups)

    def _rate(self, p: Tensor, group: dict[str, Any]) -> float | Tensor:
        """The learning rate: a tensor if it and the table are on a GPU, so that the host need not
        wait.
        """
        lr = group["lr"]
        on_gpu = isinstance(lr, Tensor) and lr.device.type == p.device.type == "cuda"
        return lr.to(p.device) if on_gpu else float(lr)

    def _decay(self, p: Tensor, rows: Rows, group: dict[str, Any]) -> None:
        if not group["weight_decay"]:
            catch_up(p, rows)  # what an earlier, sparse step with decay may have left
            return
        rate = self._rate(p, group)
        _check_decay(rate, group)
        amount = (rate.double() if isinstance(rate, Tensor) else rate) * group["weight_decay"]
        if not isinstance(amount, Tensor) and amount == 0:
            catch_up(p, rows)
        elif rows is ...:
            catch_up(p)
            write_rows(p, ..., widened(p) * (1 - amount))
        else:
            if not isinstance(rate, Tensor) and p.device.type == "cuda":
                # As a graph computes it, which sees the rate as a tensor: to the last digit.
                amount = torch.full((), rate, dtype=torch.float64, device=p.device)
                amount = amount * group["weight_decay"]
            owe(p, torch.log1p(-amount) if isinstance(amount, Tensor) else math.log1p(-amount))
            catch_up(p, rows)

    def _row_state(self, p: Tensor, name: str, fill: float, *, one_per_row: bool = False) -> Tensor:
        """A state tensor shaped like p, or `[T, 1]`. Rows that p has gained since the last step
        start with `fill`.
        """
        return row_state(self.state[p], p, name, fill, one_per_row=one_per_row)


def _check_decay(rate: float | Tensor, group: dict[str, Any]) -> None:
    """Refuse a step that would turn weights around; a rate on a GPU is not looked at."""
    if not isinstance(rate, Tensor) and rate * group["weight_decay"] >= 1:
        raise HeadtailError(
            f"`lr · weight_decay` must stay below 1, but is {rate * group['weight_decay']:g}: such "
            "a step would flip every weight."
        )


def _is_watched(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a profiler runs or someone has asked to be called before or after a step."""
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or hooks._global_optimizer_pre_hooks
        or hooks._global_optimizer_post_hooks
        or torch.autograd.profiler._is_profiler_enabled
    )


# With hooks and profiler, which cost as much as the rest of a small step.
_watched_step = torch.optim.Optimizer.profile_hook_step(RowOptimizer._step)
