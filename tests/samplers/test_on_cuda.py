"""Every sampler by name on a GPU: it trains, its q is that of float64 on a CPU, and it draws what
it claims.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import Tensor

from headtail import Labels, Resampled, audit
from headtail.core.targets import Ragged
from headtail.data.points import DataSet, Points
from headtail.samplers import Sampler, Scorer
from headtail.samplers.model.schedule import Scheduled
from headtail.schemes import SAMPLERS, parse
from headtail.training.captured import CapturedStep
from headtail.training.config import Run
from headtail.training.engine import Engine
from headtail.training.interrupts import Stopped
from headtail.training.trainer import Trainer
from tests.samplers.steps import step_of
from tests.training.test_train import Stop

DEVICE = "cuda"
cuda = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")]

CAPTURED = (
    *("uniform", "frequency(0.5)", "log-uniform", "within-batch", "mixture(uniform,within-batch)"),
    *(
        "model",
        "model(masked)",
        "tilted",
        "tilted(logit-adjusted)",
        "hard(4)",
        "hard(4,frequency)",
        "mixture(uniform,hard)",
    ),
    *("resampled(32)", "resampled(32,frequency(0.5))", "partial-fc"),
)
"""Their steps are one CUDA graph."""
REFRESHED = (
    *(
        "block(4)",
        "block(1)",
        "block(4,uniform)",
        "quadratic-kernel(4)",
        "fourier-kernel(4)",
        "adversarial(4)",
    ),
    *("mixture(uniform,block(4))", "hard(4,block(4))", "resampled(32,block(4))"),
)
"""So are theirs, but for those in which they look at the whole table."""
REMEMBERING = ("queue(64)",)
"""What it keeps is the host's business in every step, so that its steps run eagerly.
"""
EVERY = (*CAPTURED, *REFRESHED, *REMEMBERING)
BY_SCORE = (
    "model",
    "hard(4)",
    "resampled(32)",
    "block(4)",
    "quadratic-kernel(4)",
    "fourier-kernel(4)",
    "adversarial(4)",
)
RUN = Run(dim=16, batch=32, epochs=2, lr=0.2, validation=0.0, dropout=0.0)
NUM_LABELS = 80
WIDER = 160
"""Dimensions that every sampler projects to fewer."""


def each(*names: str):
    return pytest.mark.parametrize("name", names)


def on_gpu(test):
    for mark in cuda:
        test = mark(test)
    return test


@cache
def data() -> DataSet:
    """Each label has a direction of its own, and the first have more points."""
    generator = torch.Generator().manual_seed(3)
    label = (NUM_LABELS * torch.rand(1280, generator=generator) ** 2).long()
    label[:NUM_LABELS] = torch.arange(NUM_LABELS)
    direction = torch.randn(NUM_LABELS, 24, generator=generator)
    features = direction[label] + 0.3 * torch.randn(len(label), 24, generator=generator)
    points = Points(features, Ragged(label, torch.arange(len(label) + 1)), NUM_LABELS)
    return DataSet("one label per point", points, points, digest="one label per point")


def run_of(name: str, **changes) -> Run:
    return replace(RUN, scheme=f"{name}:tail@12", **changes)


@dataclass
class Case:
    """A sampler after some training, with a batch as it saw them."""

    trainer: Trainer
    losses: list[float]
    labels: Labels
    sampler: Sampler
    target: Tensor
    model: dict[str, Tensor]


@cache
def case(name: str) -> Case:
    torch.manual_seed(0)
    trainer = Trainer(run_of(name), data(), device=DEVICE)
    trained = trainer.fit()
    target = data().train.labels.values[:16].to(DEVICE)
    with torch.no_grad():
        hidden = trained.model.encoder(data().train.features[:16].to(DEVICE))
    losses = [value for _, metric, value in trained.state.curve if metric == "loss"]
    head = trained.model.head
    return Case(
        trainer,
        losses,
        trained.labels,
        head.loss.sampler,
        target,
        {"input": hidden, "weight": head.weight.detach()},
    )


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator(DEVICE).manual_seed(seed)


def test_every_name_of_a_sampler_is_tested_here():
    assert {parse(f"{name}:tail").sampler.name for name in EVERY} == set(SAMPLERS)


@on_gpu
@each(*EVERY)
def test_a_run_learns_and_is_captured_unless_a_queue_is_filled(name):
    trained = case(name)
    assert trained.losses[-1] < trained.losses[0]
    assert isinstance(trained.trainer.step, CapturedStep) == (name not in REMEMBERING)


@on_gpu
@each(*REFRESHED)
def test_replayed_steps_and_refreshes_between_them_equal_eager_steps(name):
    run = run_of(name, deterministic=True, dim=WIDER)
    replayed = Trainer(run, data(), device=DEVICE)
    taken = Trainer(run, data(), device=DEVICE, engine=Engine(capture=False))
    assert isinstance(replayed.step, CapturedStep)
    assert not isinstance(taken.step, CapturedStep)
    captured, eager = (trainer.fit() for trainer in (replayed, taken))
    for weight, too in zip(captured.model.parameters(), eager.model.parameters(), strict=True):
        assert torch.allclose(weight, too, rtol=1e-3, atol=1e-4)
    looked = [
        module._next_refresh
        for trainer in (replayed, taken)
        for module in trainer.model.modules()
        if isinstance(module, Scheduled)
    ]
    assert len(set(looked)) == 1
    assert looked[0] > 64, "there was a refresh after 0, 32 and 64 steps"


@on_gpu
@each(*EVERY)
def test_log_q_is_that_of_float64_on_a_cpu(name):
    trained = case(name)
    draw = trained.sampler.draw(trained.target, **trained.model, generator=seeded())
    ids = draw.ids.cpu()
    label = trained.target.cpu()
    there = copy.deepcopy(trained.sampler).cpu()
    model = Scorer(*(t.cpu().double() for t in trained.model.values()))
    assert draw.ids.device.type == DEVICE
    if isinstance(trained.sampler, Resampled):
        # Each slot's chance follows from the pool, which is drawn first.
        pool = trained.sampler.pool.draw(trained.target, **trained.model, generator=seeded())
        pooled, log_q0 = (tensor.cpu().expand(16, -1) for tensor in (pool.ids, pool.log_q))
        score = model.logits(pooled) - log_q0
        score = (
            score.masked_fill(pooled == label[:, None], -torch.inf).log_softmax(1)
            + log_q0
            + torch.tensor(pool.m).log()
        )
        slot = (pooled[:, None] == ids[:, :, None]).int().argmax(2)
        assert torch.equal(pooled.gather(1, slot), ids)
        assert torch.allclose(draw.log_q.cpu(), score.gather(1, slot), rtol=0, atol=1e-4)
        return
    truth = there.log_q_given(step_of(model, label), ids)
    assert torch.allclose(draw.log_q.cpu().expand_as(truth), truth, rtol=0, atol=1e-4)
    of_target = there.log_q_given(step_of(model, label), label[:, None]).squeeze(1)
    assert torch.allclose(draw.log_q_target.cpu(), of_target, rtol=0, atol=1e-4)
    keep = torch.as_tensor(draw.log_keep).cpu().expand(16)
    assert torch.allclose(
        keep.double(), there.log_keep_given(step_of(model, label)), rtol=0, atol=1e-4
    )


@on_gpu
@each(*EVERY)
def test_draws_follow_the_claimed_q(name):
    trained = case(name)
    judged = audit(
        trained.sampler,
        trained.labels,
        draws=300,
        batch_size=16,
        generator=seeded(1),
        **trained.model,
    )
    assert judged.passed, judged


@pytest.fixture
def waiting_is_an_error() -> Iterator[None]:
    yield
    torch.cuda.set_sync_debug_mode("default")


@on_gpu
@each(*CAPTURED, *REFRESHED)
def test_the_host_does_not_wait_for_a_draw(name, waiting_is_an_error):
    trained = case(name)
    given = {**trained.model, "generator": seeded(), "ignore_index": None}
    trained.sampler.draw(trained.target, **given)  # tables are copied once
    torch.cuda.set_sync_debug_mode("error")
    trained.sampler.draw(trained.target, **given)


@on_gpu
@each(*BY_SCORE)
def test_a_deterministic_run_repeats_itself_and_resumes_bit_for_bit(name, tmp_path):
    engine = Engine(check_every=1)
    run = run_of(name, deterministic=True, dim=WIDER)
    stop = Stop(after=45)  # behind the first refresh
    with pytest.raises(Stopped):
        Trainer(
            run, data(), tmp_path, device=DEVICE, engine=engine, callbacks=stop, stop=stop.event
        ).fit()
    again, resumed = (
        Trainer(run, data(), folder, device=DEVICE, engine=engine).fit()
        for folder in (None, tmp_path)
    )
    for weight, later in zip(again.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(weight, later)


@on_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@each(*BY_SCORE)
def test_tables_of_other_precision_can_be_drawn_from(name, dtype):
    trained = case(name)
    draw = trained.sampler.draw(
        trained.target,
        **{key: value.to(dtype) for key, value in trained.model.items()},
        generator=seeded(),
    )
    assert draw.log_q.dtype == torch.float64
    assert bool(draw.log_q.isfinite().all())
