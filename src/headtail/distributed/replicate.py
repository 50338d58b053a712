"""Models that every rank has a copy of, under `DistributedDataParallel` or by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from headtail.collectives.ranks import Ranks
from headtail.core.labels import Labels
from headtail.distributed.replica import AveragedAfter, Replica
from headtail.distributed.sharded_head import ShardedLabelHead
from headtail.encoders.bottleneck import Bottleneck
from headtail.encoders.sequence import SequenceEncoder
from headtail.errors import HeadtailError, check_kind
from headtail.head import LabelHead
from headtail.rows.decay import catch_up, catch_up_embeddings
from headtail.rows.replicas import Replicas

M = TypeVar("M", bound=nn.Module)
WITH_TABLES = (LabelHead, Bottleneck, SequenceEncoder, nn.Embedding, nn.EmbeddingBag)
"""Modules that may give their tables row-sparse gradients."""
COUNTS_AT_A_TIME = 2**22
"""Labels that are read at a time for a digest of their counts."""


def replicate(model: M, group: Any = None) -> M:
    """Prepare a model for several processes, each with a copy of it and a part of every batch. Call
    it before `DistributedDataParallel(model)` or `accelerator.prepare(model)`.

    * Row-sparse gradients, those of `nn.Embedding(sparse=True)` too, are averaged over all ranks
      when `backward` is over. Only rows in use travel. `no_sync()` puts it off.
    * The mean of a loss is the mean over the targets of all ranks, however many each rank ignores.
      A rank returns its part of it: the mean of what all ranks return is the mean over all targets.
      Losses with `reduction="sum"` or `"none"`, and those of `eval()`, stay as they are.
    * Every rank draws its own negatives, even if all have the same seed: in each call, rank r draws
      with the seed s + r, where s is the next 62-bit number of torch's CPU generator. A loop that
      restores torch's random state resumes with the same negatives. A `generator` that you pass
      is used as it is.
    * Tables start with the values of rank 0. They and the samplers' own tables stay out of what
      `DistributedDataParallel` reduces and broadcasts.
    * A `ShardedLabelHead` stays as it is, and so does its loss, which is that of all ranks already:
      its rows stay out of what is reduced and broadcast, and other tables are averaged as above.

    Args:
        model: the module to be wrapped, with a `LabelHead` or a `ShardedLabelHead` in it.
        group: the process group, or a mesh with one dimension; by default all processes.

    Returns:
        The same model.
    """
    check_kind("model", model, nn.Module, "nn.Sequential(encoder, head)")
    heads = [module for module in model.modules() if isinstance(module, LabelHead)]
    sharded = [module for module in model.modules() if isinstance(module, ShardedLabelHead)]
    if isinstance(model, DistributedDataParallel) or not (heads or sharded):
        got = "is wrapped already" if heads or sharded else "has none in it"
        raise HeadtailError(
            f"`model` must be a module with a `LabelHead` or a `ShardedLabelHead`, as it is before "
            f"it is wrapped, but it {got}."
        )
    ranks = Ranks.of(group)
    catch_up_embeddings(model)
    tables = list(_tables(model))
    _check_equal(ranks, heads, tables)
    for table in tables:
        catch_up(table)
        ranks.copy_first(table)
    _keep_from_reducer(model, tables)
    replicas = Replicas(ranks, tables)
    for head in heads:
        Replica.detach_from(head)
        Replica(head, replicas)
    for head in sharded:
        AveragedAfter.attach(head, replicas)
    return model


def average_encoder(encoder: nn.Module, head: ShardedLabelHead) -> None:
    """Give copies of an encoder the values of rank 0, and from then on the mean of all ranks'
    gradients, dense ones too, when the backward pass of the head's loss is over.

    It does for a loop of its own what `DistributedDataParallel` does, with sums that do not depend
    on the steps before: a resumed run has the same last digits.

    Args:
        encoder: the same module on every rank.
        head: takes its hidden states.
    """
    catch_up_embeddings(encoder)
    parameters = list(encoder.parameters())
    for tensor in [*parameters, *encoder.buffers()]:
        head.ranks.copy_first(tensor)
    AveragedAfter.attach(head, Replicas(head.ranks, parameters))


def _tables(model: nn.Module) -> Iterator[nn.Parameter]:
    """Parameters that may have row-sparse gradients, each once."""
    seen = set()
    for module in model.modules():
        if isinstance(module, WITH_TABLES) and module.sparse:
            for table in module.parameters(recurse=False):
                if table.dim() == 2 and table not in seen:
                    seen.add(table)
                    yield table


def _keep_from_reducer(model: nn.Module, tables: list[nn.Parameter]) -> None:
    """Name what `DistributedDataParallel` should not touch: tables, which are averaged otherwise,
    and tensors of heads and samplers, which would be broadcast before every step.
    """
    averaged = set(tables)
    names = set(vars(model).get("_ddp_params_and_buffers_to_ignore", ()))
    for name, module in model.named_modules():
        for of_table, table in module.named_parameters(recurse=False):
            if table in averaged:
                names.add(f"{name}.{of_table}")
        if isinstance(module, LabelHead | ShardedLabelHead):
            names.update(f"{name}.{of_buffer}" for of_buffer, _ in module.named_buffers())
        if isinstance(module, ShardedLabelHead):
            own = module.named_parameters(recurse=False)
            names.update(f"{name}.{of_row}" for of_row, _ in own)
    names |= {name.removeprefix(".") for name in names}  # of the model itself, by both its names
    names |= {f"_orig_mod.{name}" for name in names}  # inside `torch.compile(model)`
    # torch's own way, until it has a public one.
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)


def _check_equal(ranks: Ranks, heads: list[LabelHead], tables: list[nn.Parameter]) -> None:
    """Refuse ranks with other labels or tables than the first one."""
    num_labels = sum(head.labels.num_labels for head in heads)
    counts = sum(map(_digest, heads)) % 2**62
    shapes = hash(tuple(tuple(table.shape) for table in tables)) % 2**62
    device = torch.device("cpu")
    first, *others = ranks.numbers([num_labels, counts, shapes], device)
    for rank, other in enumerate(others, 1):
        if other[0] != first[0]:
            different = f"labels: rank {rank} has {other[0]:,} of them and rank 0 {first[0]:,}"
        elif other[1] != first[1]:
            different = f"labels: rank {rank} has other counts than rank 0"
        elif other[2] != first[2]:
            different = f"tables: those of rank {rank} have other shapes than those of rank 0"
        else:
            continue
        raise HeadtailError(
            f"Ranks have different {different}. Build the model from the same `Labels` and "
            "settings on all ranks."
        )


def _digest(head: LabelHead) -> int:
    """A number that changes with the counts of labels; 0 where they are counted while used."""
    if not isinstance(head.labels, Labels):
        return 0
    digest = 0
    for start, part in enumerate(head.labels.counts.split(COUNTS_AT_A_TIME)):
        bits = part.cpu().double().view(torch.int64)
        places = torch.arange(1, 2 * len(bits), 2) + start
        digest = (digest * 31 + int((bits * places).sum())) % 2**62
    return digest
