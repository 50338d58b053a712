"""Loss scaling where the rows of a table are spread over ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.amp import GradScaler
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from headtail import HeadtailError, RowAdagrad, SplitOptimizer, clip_grad_norm_
from headtail.distributed.replicate import average_encoder
from tests.distributed.clipping_checks import NORM, check_equal
from tests.distributed.encoder_checks import Model, Pair, batches, optimizer_of, own_part


def _train_scaled(
    pair: Pair,
    optimizers: Callable[[Model], list[Any]],
    spoil: int,
    scaler: type[GradScaler] = GradScaler,
) -> list[float]:
    """The scales of the shared model, after it has learnt what the other one has.

    Args:
        pair: both models.
        optimizers: of a model, each with a step of the scaler.
        spoil: the step in which a row's gradient is infinite, on the first rank only.
        scaler: scales the loss of the shared model.
    """
    average_encoder(pair.shared.encoder, pair.shared.head)
    scalers = [kind("cpu", init_scale=2.0**10) for kind in (GradScaler, scaler)]
    steps = [optimizers(model) for model in pair]
    scales = []
    for step, ((words, target, draw),) in enumerate(batches()):
        scalers[0].scale(pair.alone(words, target, draw=draw)).backward()
        scalers[1].scale(pair.shared(own_part(words), own_part(target), draw=draw)).backward()
        if step == spoil:
            pair.alone.head.weight.grad.fill_(torch.inf)
            if dist.get_rank() == 0:
                gradient = pair.shared.head.weight.grad
                (gradient._values() if gradient.is_sparse else gradient).fill_(torch.inf)
        for own, scale in zip(steps, scalers, strict=True):
            for optimizer in own:
                scale.step(optimizer)
            scale.update()
            for optimizer in own:
                optimizer.zero_grad()
        scales.append(scalers[1].get_scale())
        assert scales[-1] == scalers[0].get_scale()
    assert pair.distance() < 1e-12
    check_equal(pair.shared.encoder.parameters())
    return scales


def a_scaler_skips_a_step_of_all_ranks_or_of_none() -> None:
    scales = _train_scaled(Pair.of(), lambda model: [optimizer_of(model)], spoil=2)
    assert scales[1:3] == [1024.0, 512.0]


def a_scaler_of_several_optimisers_skips_the_same_ones_on_all_ranks() -> None:
    def each(model: Model) -> list[Any]:
        tables = RowAdagrad(model.head.parameters(), lr=0.3)
        return [tables, RowAdagrad(model.encoder.parameters(), lr=0.3)]

    assert _train_scaled(Pair.of(), each, spoil=2)[1:3] == [1024.0, 512.0]


def a_sharded_scaler_skips_steps_of_any_optimiser_on_all_ranks() -> None:
    def torchs(model: Model) -> list[Any]:
        return [torch.optim.Adagrad(model.parameters(), lr=0.3, foreach=False)]

    assert _train_scaled(Pair.of(), torchs, 2, ShardedGradScaler)[1:3] == [1024.0, 512.0]
    own = _train_scaled(Pair.of(), lambda model: [optimizer_of(model)], 2, ShardedGradScaler)
    assert own[1:3] == [1024.0, 512.0]


def gradients_that_are_unscaled_before_they_are_clipped_are_unscaled_once() -> None:
    pair = Pair.of()
    scaler = GradScaler("cpu", init_scale=2.0**10)
    optimizers = [optimizer_of(model) for model in pair]
    average_encoder(pair.shared.encoder, pair.shared.head)
    for ((words, target, draw),) in batches():
        pair.alone(words, target, draw=draw).backward()
        clip_grad_norm_(pair.alone.parameters(), NORM)
        optimizers[0].step()
        scaler.scale(pair.shared(own_part(words), own_part(target), draw=draw)).backward()
        scaler.unscale_(optimizers[1])
        clip_grad_norm_(pair.shared.parameters(), NORM)
        scaler.step(optimizers[1])
        scaler.update()
        for optimizer in optimizers:
            optimizer.zero_grad()
    assert pair.distance() < 1e-12


def a_scaler_that_cannot_ask_other_ranks_is_refused() -> None:
    model = Pair.of().shared
    split = SplitOptimizer(RowAdagrad(model.head.parameters(), lr=0.1))
    step = split.step
    split.step = lambda *args: step(*args)  # as Accelerate does # noqa: PLW0108
    scaler = GradScaler("cpu")
    ((words, target, draw),) = next(batches())
    scaler.scale(model(own_part(words), own_part(target), draw=draw)).backward()
    with pytest.raises(HeadtailError, match="Train in bfloat16, which needs no `GradScaler`"):
        scaler.step(split)
