"""A sparse head under Accelerate, on two processes."""

from __future__ import annotations

import pytest
import torch

import headtail
from headtail import RowAdagrad
from headtail.distributed import replicate
from tests.collectives.processes import failures
from tests.collectives.replicas import (
    Batch,
    adagrad,
    distance,
    given_draw,
    models,
    uniform,
)

STEPS = 2
"""Micro-batches per step."""


def accelerate_learns_what_one_process_learns():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=STEPS)
    alone, together = models(uniform, torch.float64)
    replicate(together)
    wrapped, optimizer = accelerator.prepare(together, adagrad(together.parameters()))
    other = adagrad(alone.parameters())
    batches = [Batch.of(seed, torch.float64).ignoring(seed) for seed in range(2 * STEPS)]
    norms = []
    for step, batch in enumerate(batches):
        (alone(*batch, **given_draw(alone, step, batch.target)) / STEPS).backward()
        part = batch.part()
        with accelerator.accumulate(wrapped):
            accelerator.backward(wrapped(*part, **given_draw(alone, step, part.target)))
            if accelerator.sync_gradients:
                norms += [headtail.clip_grad_norm_(m.parameters(), 0.1) for m in (alone, wrapped)]
                other.step()
                other.zero_grad()
            optimizer.step()
            optimizer.zero_grad()
    assert distance(alone, together) < 1e-12
    torch.testing.assert_close(norms[::2], norms[1::2], rtol=1e-12, atol=0)
    assert isinstance(optimizer.optimizer, RowAdagrad)


def accelerate_resumes_bit_for_bit(folder: str):
    from accelerate import Accelerator

    def trained(stops: bool) -> torch.Tensor:
        accelerator = Accelerator(cpu=True)
        torch.manual_seed(3)
        _, model = models(uniform, torch.float32)
        wrapped, optimizer = accelerator.prepare(replicate(model), adagrad(model.parameters()))
        for step in range(4):
            if stops and step == 2:
                accelerator.save_state(folder)
                accelerator.wait_for_everyone()  # the first rank writes the model for all
                torch.manual_seed(99)
                for parameter in model.parameters():
                    parameter.data.zero_()
                accelerator.load_state(folder)
            optimizer.zero_grad()
            accelerator.backward(wrapped(*Batch.of(step, torch.float32).part()))
            optimizer.step()
        return model.head.weight.detach().clone()

    assert torch.equal(trained(False), trained(True))


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    from functools import partial

    state = str(tmp_path_factory.mktemp("state"))
    checks = {
        "learns": accelerate_learns_what_one_process_learns,
        "resumes": partial(accelerate_resumes_bit_for_bit, state),
    }
    return failures(checks, 2, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", ["learns", "resumes"])
def test_accelerate(name: str, on_two_ranks: dict[str, str]):
    assert name not in on_two_ranks, on_two_ranks[name]
