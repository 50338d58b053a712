"""Sparse heads in Lightning: one callback for clipping, averages, resuming and several processes.

def configure_optimizers(self):
    rows = RowAdagrad(self.head.parameters(), lr=0.1)
    return SplitOptimizer(rows, torch.optim.AdamW(self.encoder.parameters(), lr=1e-3))

Trainer(callbacks=[SparseHeads()], gradient_clip_val=1.0, strategy="ddp").fit(module)

The module makes its `LabelHead` in `__init__`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headtail.errors import HeadtailError, need
from headtail.head import LabelHead
from headtail.rows.clipping import clip_grad_norm_, clip_grad_value_
from headtail.rows.decay import catch_up_embeddings, flush
from headtail.rows.split import check_knows_rows

_lightning = need(
    "lightning", extra="lightning", to="This callback", module="lightning.pytorch.callbacks"
)
_STATE = "headtail.random_state"


class SparseHeads(_lightning.Callback):
    """Let a `LabelHead(sparse=True)` train in Lightning as a dense layer would.

    * `gradient_clip_val` clips by the norm of all gradients, entries of a row summed first, or by
      value, each number of the summed rows by itself: what a dense table would get.
    * `WeightAveraging` and others that read weights at the end of an epoch see every row with its
      weight decay.
    * Checkpoints hold torch's random state of every rank, so that training resumes from the end of
      an epoch bit for bit, negatives included.
    * With the strategy "ddp", row gradients are averaged over all ranks, a mean is one over the
      targets of all ranks, and every rank draws its own negatives (`headtail.distributed`).

    Make the head in the `__init__` of the module. Give its table to a row optimiser, and combine it
    with that of the other parameters: `SplitOptimizer`.
    """

    def __init__(self) -> None:
        self._random_states: Tensor | None = None
        self._last_step = 0

    def setup(self, trainer: Any, pl_module: nn.Module, stage: str) -> None:
        """Prepare clipping and ranks, and come first: others read weights after this callback."""
        if stage != "fit":
            return
        trainer.callbacks = [self, *(other for other in trainer.callbacks if other is not self)]
        if not _heads(pl_module):
            raise HeadtailError(
                "The module has no `LabelHead` when training begins. Make it in `__init__`."
            )
        self._refuse_averaged_tables(trainer, pl_module)
        catch_up_embeddings(pl_module)
        _clip_rows(trainer.precision_plugin)
        if trainer.world_size > 1:
            _replicate(trainer.strategy, pl_module)

    def on_fit_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Refuse optimisers that do not know sparse rows; go on with the saved random state."""
        sparse = [head for head in _heads(pl_module) if head.sparse]
        tables = tuple(table for head in sparse for table in head.parameters(recurse=False))
        for optimizer in trainer.optimizers:
            check_knows_rows(optimizer, tables)
        self._last_step = trainer.global_step
        if self._random_states is not None:
            _set_random_state(self._random_states[trainer.global_rank % len(self._random_states)])
            self._random_states = None

    def on_train_batch_end(self, trainer: Any, pl_module: nn.Module, *_: Any) -> None:
        """Give all rows their weight decay before an average of weights is updated."""
        step = trainer.global_step
        if step != self._last_step and any(
            averaging.should_update(step_idx=step - 1) for averaging in _averaging(trainer)
        ):
            _flush(pl_module)
        self._last_step = step

    def on_train_epoch_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Give all rows their weight decay."""
        _flush(pl_module)

    def on_train_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Give all rows their weight decay, before an average replaces them."""
        _flush(pl_module)

    def on_save_checkpoint(
        self, trainer: Any, pl_module: nn.Module, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the random state of every rank."""
        state = _random_state()
        if trainer.world_size > 1:
            from headtail.distributed import gather

            state = gather(state.to(trainer.strategy.root_device)[None]).cpu()
        checkpoint[_STATE] = state.reshape(trainer.world_size, -1)

    def on_load_checkpoint(
        self, trainer: Any, pl_module: nn.Module, checkpoint: dict[str, Any]
    ) -> None:
        """Read it again; it is used when training begins."""
        self._random_states = checkpoint.get(_STATE)

    @staticmethod
    def _refuse_averaged_tables(trainer: Any, pl_module: nn.Module) -> None:
        """Refuse an average over whole numbers, such as those of an alias table."""
        buffers = [buffer for head in _heads(pl_module) for buffer in head.buffers()]
        if any(getattr(averaging, "_use_buffers", False) for averaging in _averaging(trainer)) and (
            any(not buffer.is_floating_point() for buffer in buffers)
        ):
            raise HeadtailError(
                "The sampler has tables of whole numbers, which an average would change. Write for "
                "example `EMAWeightAveraging(use_buffers=False)`."
            )


def _heads(module: nn.Module) -> list[LabelHead]:
    return [part for part in module.modules() if isinstance(part, LabelHead)]


def _averaging(trainer: Any) -> list[Any]:
    """Callbacks that average weights, of `lightning` or of `pytorch_lightning`."""
    return [callback for callback in trainer.callbacks if hasattr(callback, "should_update")]


def _flush(module: nn.Module) -> None:
    for part in module.modules():
        flush(part)


def _clip_rows(precision: Any) -> None:
    """Replace both ways of clipping by those that know sparse rows."""
    precision.clip_grad_by_norm = lambda optimizer, clip_val: clip_grad_norm_(
        precision.main_params(optimizer), clip_val
    )
    precision.clip_grad_by_value = lambda optimizer, clip_val: clip_grad_value_(
        precision.main_params(optimizer), clip_val
    )


def _replicate(strategy: Any, module: nn.Module) -> None:
    from headtail.distributed import replicate

    if not hasattr(strategy, "configure_ddp"):
        raise HeadtailError(
            f'`SparseHeads` trains on several processes with the strategy "ddp", but got '
            f'{type(strategy).__name__}. Write `Trainer(strategy="ddp")`.'
        )
    replicate(module)


def _random_state() -> Tensor:
    """torch's random state on the CPU, and behind it that of the current GPU, if one is in use."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return torch.cat(states)


def _set_random_state(state: Tensor) -> None:
    # Copies: torch reads a part of a larger tensor from the beginning of that.
    size = len(torch.get_rng_state())
    torch.set_rng_state(state[:size].clone())
    if len(state) > size and torch.cuda.is_available():
        torch.cuda.set_rng_state(state[size:].clone())
