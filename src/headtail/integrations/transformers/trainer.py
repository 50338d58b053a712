"""A trainer of transformers for models with label heads."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import DistributedType
from torch import Tensor, nn
from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.training_args import ParallelMode

from headtail.distributed import replicate
from headtail.errors import HeadtailError, Setting
from headtail.files.tensors import load_tensors, save_tensors
from headtail.head import LabelHead
from headtail.rows.clipping import clip_grad_norm_
from headtail.rows.decay import catch_up_embeddings, owed, owes
from headtail.rows.optimizers import RowAdagrad
from headtail.rows.split import SplitOptimizer, check_knows_rows

TableOptimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]

# A mixin, so that other trainers can have it, which for a type checker is a trainer.
_Base = Trainer if TYPE_CHECKING else object


class HeadtailTrainerMixin(_Base):
    """Makes a trainer of transformers train models with label heads: put it before the trainer's
    class.

    * Tables of label heads, and sparse embeddings, get a row optimiser; all other parameters get
      the optimiser of the training arguments. Both are one `SplitOptimizer`.
    * The norm of gradients is that of dense and sparse ones together, and both are clipped.
    * Losses of accumulated batches are weighed as one batch would.
    * Several processes, started by `torchrun`, train as one with a batch of all their examples.
    * A checkpoint also holds weight decay that rows are still due, so that training resumes bit for
      bit.

    Args:
        *args: those of the trainer.
        table_optimizer: makes the optimiser of the tables from their parameter groups, by default
            `functools.partial(RowAdagrad, lr=0.05)`.
        **kwargs: those of the trainer.
    """

    def __init__(
        self, *args: Any, table_optimizer: TableOptimizer | None = None, **kwargs: Any
    ) -> None:
        self.table_optimizer = table_optimizer or partial(RowAdagrad, lr=0.05)
        if not callable(self.table_optimizer):
            raise HeadtailError(
                Setting("table_optimizer"),
                f" must make an optimiser from parameter groups, but got an object of type "
                f"{type(table_optimizer).__name__}. Write for example `partial(RowAdagrad, "
                "lr=0.05)`.",
            )
        super().__init__(*args, **kwargs)
        if self.args.label_smoothing_factor:
            raise HeadtailError(
                Setting("label_smoothing_factor"),
                " needs the scores of all labels. Smooth in the loss of the head instead: "
                "`options={'label_smoothing': …}`.",
            )
        if table_optimizer is not None and self.optimizer is not None:
            raise HeadtailError(
                "Both ",
                Setting("table_optimizer"),
                " and ",
                Setting("optimizers"),
                " were given. Leave out one of them.",
            )
        model = _inner(self.model)
        says = hasattr(model, "accepts_loss_kwargs")
        if not says and _has_head(model) and "num_items_in_batch" not in _arguments(model):
            # With `**kwargs` it only seems to divide by the items of all accumulated batches.
            self.model_accepts_loss_kwargs = False

    def create_accelerator_and_postprocess(self) -> None:
        """As the trainer's, with clipping that knows sparse rows."""
        super().create_accelerator_and_postprocess()
        self.accelerator.clip_grad_norm_ = partial(
            _clip, self.accelerator, self.accelerator.clip_grad_norm_
        )

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """The row optimiser of tables and the trainer's optimiser of the rest, as one."""
        whole: Any = self.model if model is None else model
        groups = _table_groups(whole)
        tables = [p for group in groups for p in group["params"]]
        catch_up_embeddings(whole)
        if self.optimizer is None and tables:
            # The trainer leaves out what needs no gradient.
            _set_requires_grad(tables, False)
            try:
                rest = super().create_optimizer(model)
            finally:
                _set_requires_grad(tables, True)
            # The rest comes first: the trainer shows the learning rate of the first group.
            self.optimizer = SplitOptimizer(rest, self.table_optimizer(groups))
        optimizer = super().create_optimizer(model)
        check_knows_rows(getattr(optimizer, "optimizer", optimizer), _sparse_tables(whole))
        return optimizer

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> Any:
        inner = _inner(model)
        sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled or self.args.n_gpu > 1
        if training and sharded and _sparse_tables(inner):
            raise HeadtailError(
                "Several GPUs train a sparse label head with one process each, started by "
                "`torchrun`, without FSDP or DeepSpeed. Start it so, or write `sparse=False`."
            )
        replicated = self.args.parallel_mode == ParallelMode.DISTRIBUTED and not sharded
        if training and replicated and _has_head(inner) and inner is model:
            replicate(inner)
        return super()._wrap_model(model, training, dataloader)

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        encoder = getattr(_inner(self.model), "encoder", None)
        if isinstance(encoder, nn.Module):  # our models pass columns on to their encoder
            known = self._signature_columns or []
            columns = _arguments(encoder)
            self._signature_columns = [*known, *(name for name in columns if name not in known)]

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        # Saved weights have their decay, but training goes on as if nothing had been saved.
        tables = {} if self.args.save_only_model else _pending(_inner(self.model))
        tensors, due = _as_saved(tables)
        super()._save_checkpoint(model, trial)
        if tables:
            folder = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            path = self._decay_file(Path(self._get_output_dir(trial)) / folder)
            save_tensors(path, tensors, {"due": due})
            _restore({name: table for name, (table, _) in tables.items()}, tensors, due)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        path = None if checkpoint is None else self._decay_file(Path(checkpoint))
        if path is not None and path.exists():
            advice = "Delete it to resume with all decay applied."
            tensors, facts = load_tensors(path, "pending weight decay", advice)
            _restore(dict(_inner(self.model).named_parameters()), tensors, facts["due"])

    def _decay_file(self, checkpoint: Path) -> Path:
        """Where this process keeps the decay that rows are due: each rank reads other rows."""
        rank = f"_{self.args.process_index}" if self.args.world_size > 1 else ""
        return checkpoint / f"pending_decay{rank}.safetensors"


class HeadtailTrainer(HeadtailTrainerMixin, Trainer):
    """`transformers.Trainer` for models with label heads, sparse or not.

    >>> import tempfile
    >>> from headtail import Labels, RowAdam
    >>> from headtail.integrations.transformers import HeadtailForSequenceClassification
    >>> from transformers import BertConfig, BertModel, TrainingArguments
    >>> sizes = dict(vocab_size=99, hidden_size=8, intermediate_size=8)
    >>> encoder = BertModel(BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=2))
    >>> labels = Labels.zipf(50_000)
    >>> model = HeadtailForSequenceClassification.of(encoder, labels, "frequency:tail@64")
    >>> rows = [{"input_ids": [i, 2, 3], "labels": i} for i in range(16)]
    >>> folder = tempfile.mkdtemp()
    >>> args = TrainingArguments(folder, report_to="none", disable_tqdm=True, max_steps=2)
    >>> trainer = HeadtailTrainer(
    ...     model, args, train_dataset=rows, table_optimizer=partial(RowAdam, lr=1e-3)
    ... )
    >>> _ = trainer.train()
    {'train_runtime': ...
    """


def _clip(accelerator: Any, otherwise: Any, parameters: Any, max_norm: Any, norm_type: Any = 2):
    """Clip as Accelerate does, sparse rows too. Shards and other norms are Accelerate's matter."""
    sharded = (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.XLA)
    if accelerator.distributed_type in sharded or norm_type != 2:
        return otherwise(parameters, max_norm, norm_type)
    accelerator.unscale_gradients()
    return clip_grad_norm_(parameters, float(max_norm))


def _inner(model: Any) -> nn.Module:
    """The model inside wrappers for several processes."""
    while hasattr(model, "module") and isinstance(model.module, nn.Module):
        model = model.module
    return model


def _arguments(model: nn.Module) -> list[str]:
    """The names of what a model is called with."""
    return list(inspect.signature(model.forward).parameters)


def _has_head(model: nn.Module) -> bool:
    return any(isinstance(module, LabelHead) for module in model.modules())


def _table_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Parameter groups of label heads and sparse embeddings; biases are not decayed."""
    weights: list[Tensor] = []
    biases: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, LabelHead):
            weights.append(module.weight)
            biases += [] if module.bias is None else [module.bias]
        elif isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            weights.append(module.weight)
    groups = ({"params": weights}, {"params": biases, "weight_decay": 0.0})
    trained = ([p for p in dict.fromkeys(g["params"]) if p.requires_grad] for g in groups)
    return [{**g, "params": own} for g, own in zip(groups, trained, strict=True) if own]


def _sparse_tables(model: nn.Module) -> tuple[Tensor, ...]:
    """Tables that get row-sparse gradients."""
    heads = [m for m in model.modules() if getattr(m, "sparse", False)]
    return tuple(p for module in heads for p in module.parameters(recurse=False))


def _set_requires_grad(tables: list[Tensor], needed: bool) -> None:
    for table in tables:
        table.requires_grad_(needed)


def _pending(model: nn.Module) -> dict[str, tuple[Tensor, tuple[Tensor, float]]]:
    """Tables by name, with the weight decay that their rows have received and are due."""
    debts = ((name, p, owed(p)) for name, p in model.named_parameters())
    return {name: (p, debt) for name, p, debt in debts if debt is not None}


def _as_saved(
    tables: dict[str, tuple[Tensor, tuple[Tensor, float]]],
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Copies of tables and of what rows have received, and what they are due."""
    tensors: dict[str, Tensor] = {}
    for name, (table, (received, _)) in tables.items():
        tensors[f"table.{name}"] = table.detach().clone()
        tensors[f"received.{name}"] = received.clone()
    return tensors, {name: due for name, (_, (_, due)) in tables.items()}


@torch.no_grad()
def _restore(tables: dict[str, Any], tensors: dict[str, Tensor], due: dict[str, float]) -> None:
    for name, log_decay in due.items():
        tables[name].copy_(tensors[f"table.{name}"])
        owes(tables[name], tensors[f"received.{name}"], log_decay)
