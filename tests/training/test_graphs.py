"""Resident data, on any device; steps as CUDA graphs, on a GPU."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from headtail.core.targets import Ragged
from headtail.data.batches import Batches
from headtail.data.load import load
from headtail.data.points import Points
from headtail.encoders import Bottleneck
from headtail.kernels.dispatch import use_kernels
from headtail.samplers import Queue
from headtail.training.captured import CapturedStep
from headtail.training.config import Run
from headtail.training.engine import Engine
from headtail.training.interrupts import Stopped
from headtail.training.resident import (
    Resident,
    ResidentOrder,
    ResidentStep,
    pad_labels,
    resident_size,
)
from headtail.training.trainer import Trainer
from tests.training.test_train import DATA, RUNS, SMALL, Stop, small_data

CPU = torch.device("cpu")
cuda = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")]


def on_gpu(test):
    for mark in cuda:
        test = mark(test)
    return test


def test_labels_are_padded_with_the_ignored_index():
    assert pad_labels(Ragged.from_lists([[3, 1], [], [2]])).tolist() == [
        [3, 1],
        [-100, -100],
        [2, -100],
    ]


@pytest.mark.parametrize("dense_below", [0, 10**6], ids=["gathered", "dense"])
@pytest.mark.parametrize("whole_points", [True, False], ids=["points", "pairs"])
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse features", "dense features"])
def test_a_resident_batch_has_the_loss_of_the_batch_that_is_gathered(
    dense_below, whole_points, sparse
):
    data = small_data(sparse=sparse)
    batching = "points" if whole_points else "pairs"
    for scheme in ("softmax", "uniform(without-replacement):tail@12"):
        trainer = Trainer(replace(SMALL, scheme=scheme, batching=batching, dropout=0.0), data)
        batches = trainer.batches
        assert batches.whole_points == whole_points
        resident = Resident(batches, CPU, dense_below=dense_below)
        ids = next(batches.order(0))
        losses = [
            trainer.model(batch).item()
            for batch in (batches.take(ids), resident.take(*resident.look_up(ids)))
        ]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("whole_points", [True, False], ids=["points", "pairs"])
@pytest.mark.parametrize("dense_below", [0, 10**6], ids=["gathered", "dense"])
def test_the_predicted_size_is_the_size_taken(dense_below, whole_points):
    points = DATA.train
    batches = Batches(points, 8, 0, whole_points=whole_points)
    resident = Resident(batches, CPU, dense_below=dense_below)
    bag = resident.bag
    features = [resident.dense] if bag is None else [bag.offsets[1:], bag.columns, bag.values]
    held = [features, [resident.target, resident.point_of]]
    assert resident_size(points, whole_points, dense_below) == tuple(
        sum(tensor.numel() * tensor.element_size() for tensor in tensors) for tensors in held
    )


@pytest.mark.parametrize("whole_points", [True, False], ids=["points", "pairs"])
def test_the_longest_possible_batch_has_as_many_entries_as_predicted(whole_points):
    batches = Batches(DATA.train, 8, 0, whole_points=whole_points)
    resident = Resident(batches, CPU, dense_below=0)
    lengths = DATA.train.features.offsets.diff()
    lengths = lengths if whole_points else lengths[batches.point_of]
    ids = lengths.argsort(descending=True)[: batches.size]
    features = resident.take(*resident.look_up(ids)).features
    assert len(features.gathered().columns) == features.most


def test_an_epoch_shuffled_ahead_is_the_epoch_in_its_order_and_none_follows_the_last():
    batches = Batches(DATA.train, 8, 0)
    resident = Resident(batches, CPU, dense_below=0)
    order = ResidentOrder(resident, batches, epochs=2)
    for epoch in range(2):
        for start in (0, batches.steps - 1):
            looked_up = list(order(epoch, start))
            expected = [resident.look_up(ids) for ids in batches.order(epoch, start)]
            assert len(looked_up) == len(expected) == batches.steps - start
            for (points, target), (same_points, same_target) in zip(
                looked_up, expected, strict=True
            ):
                assert torch.equal(points, same_points)
                assert torch.equal(target, same_target)
        assert set(order.ahead) == ({1} if epoch == 0 else set())


def test_an_epoch_is_shuffled_before_its_turn_and_only_once():
    class Recorded(Batches):
        def shuffled(self, epoch):
            shuffled_epochs.append(epoch)
            return super().shuffled(epoch)

    shuffled_epochs = []
    batches = Recorded(DATA.train, 8, 0)
    order = ResidentOrder(Resident(batches, CPU, dense_below=0), batches, epochs=3)
    next(iter(order(0)))
    order.ahead[1].result()
    assert shuffled_epochs == [0, 1], "while the first epoch is trained"
    list(order(1))
    list(order(2))
    assert shuffled_epochs == [0, 1, 2]


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse features", "dense features"])
def test_resident_steps_learn_what_eager_steps_learn(sparse):
    run = replace(SMALL, scheme="uniform(without-replacement):tail@12", dropout=0.0)
    weights = []
    for resident in (True, False):
        trainer = Trainer(run, small_data(sparse=sparse))
        step = trainer.step
        if resident:
            step = ResidentStep(trainer.learner, Resident(trainer.batches, CPU, dense_below=0))
        for batch in step.order(epoch=0, start=2):
            assert step(batch).isfinite()
        weights.append([p.detach() for p in trainer.model.parameters()])
    for by_resident, by_eager in zip(*weights, strict=True):
        assert torch.allclose(by_resident, by_eager, atol=1e-5)


def test_points_of_one_label_each_can_be_masked_when_resident():
    points = Points(torch.eye(4), Ragged.from_lists([[0], [1], [2], [0]]), 3)
    run = replace(SMALL, scheme="uniform:tail@2", batching="points", validation=0.0)
    trainer = Trainer(run, replace(DATA, train=points, test=points))
    resident = Resident(trainer.batches, CPU, dense_below=4096)
    assert trainer.model(resident.take(*resident.look_up(torch.arange(4)))).isfinite()


@on_gpu
@pytest.mark.parametrize(
    "name", ["softmax", "logit-adjusted", "uniform(without-replacement):tail@12"]
)
@pytest.mark.parametrize("optimiser", ["adagrad", "sgd", "adam"])
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("clip", [0.0, 1.0], ids=["inside backward", "clipped"])
def test_replayed_steps_are_the_steps_of_a_cpu(name, optimiser, sparse, clip):
    """No scheme here has randomness that matters, so that both devices see the same."""
    with use_kernels("always"):
        _replayed_steps_are_those_of_a_cpu(name, optimiser, sparse, clip)


def _replayed_steps_are_those_of_a_cpu(name, optimiser, sparse, clip):
    engine = Engine(dense_below=0)
    run = replace(SMALL, scheme=name, optimiser=optimiser, dropout=0.0, clip=clip)
    data = small_data(sparse=sparse)
    found = [Trainer(run, data, device=device, engine=engine) for device in ("cpu", "cuda")]
    sampled_and_summed = (
        clip
        and optimiser == "adam"
        and (found[1].model.head.sparse or found[1].model.encoder.sparse)
    )
    assert isinstance(found[1].step, CapturedStep) != bool(sampled_and_summed)
    one, other = (trainer.fit() for trainer in found)
    assert [value for *_, value in one.state.curve] == pytest.approx(
        [value for *_, value in other.state.curve], rel=1e-3
    )
    for weight, too in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.allclose(weight, too.cpu(), atol=2e-3)


@on_gpu
def test_capturing_leaves_weights_optimiser_and_randomness_as_they_were():
    trainer = Trainer(RUNS["adagrad"], DATA, device="cuda")
    on_cpu = Trainer(RUNS["adagrad"], DATA)
    assert isinstance(trainer.step, CapturedStep)
    for weight, too in zip(trainer.model.parameters(), on_cpu.model.parameters(), strict=True):
        assert torch.equal(weight.cpu(), too)
        assert not trainer.optimiser.state[weight]["sum"].any()
    torch.manual_seed(RUNS["adagrad"].seed)
    assert torch.equal(trainer._random["random.cuda"], torch.cuda.get_rng_state())


@on_gpu
@pytest.mark.parametrize("name", ["adam with lazy decay", "all labels", "whole points"])
def test_steps_that_need_the_host_are_not_captured(name):
    assert not isinstance(Trainer(RUNS[name], DATA, device="cuda").step, CapturedStep)


@on_gpu
@pytest.mark.parametrize(
    "scheme", ["queue(64):tail@64", "mixture(queue(16),within-batch):importance@32"]
)
def test_replayed_steps_draw_from_a_queue_as_those_of_a_cpu_do(scheme):
    """All of the queue is taken, so that nothing is random."""
    run = replace(SMALL, scheme=scheme, dropout=0.0)
    found = [Trainer(run, DATA, device=device) for device in ("cpu", "cuda")]
    assert isinstance(found[1].step, CapturedStep)
    one, other = (trainer.fit() for trainer in found)
    assert [value for *_, value in one.state.curve] == pytest.approx(
        [value for *_, value in other.state.curve], rel=1e-3
    )
    queues = [
        next(m for m in trained.model.modules() if isinstance(m, Queue)) for trained in (one, other)
    ]
    assert queues[0].settled
    assert torch.equal(queues[0].past, queues[1].past.cpu())
    assert torch.equal(queues[0].get_extra_state(), queues[1].get_extra_state())


@on_gpu
def test_a_replayed_step_draws_another_part_of_the_queue_each_time():
    run = replace(SMALL, scheme="queue(64):importance@8", dropout=0.0, lr=0.01)
    found = [Trainer(run, DATA, device=device) for device in ("cpu", "cuda")]
    step = found[1].step
    assert isinstance(step, CapturedStep)
    one, other = (trainer.fit().state.curve[-1][-1] for trainer in found)
    assert one == pytest.approx(other, rel=0.1)
    batch = next(iter(step.order(0)))
    losses = {float(step(batch)) for _ in range(3)}
    assert len(losses) == 3


@on_gpu
@pytest.mark.parametrize("name", RUNS)
def test_a_run_on_a_gpu_stopped_and_resumed_continues_as_before(name, tmp_path):
    engine = Engine(check_every=1)
    whole = Trainer(RUNS[name], DATA, tmp_path / "whole", device="cuda", engine=engine).fit()
    stop = Stop(whole.steps_per_epoch + 3)
    with pytest.raises(Stopped):
        Trainer(
            RUNS[name],
            DATA,
            tmp_path / "parts",
            device="cuda",
            engine=engine,
            callbacks=stop,
            stop=stop.event,
        ).fit()
    parts = Trainer(RUNS[name], DATA, tmp_path / "parts", device="cuda", engine=engine).fit()
    assert [value for *_, value in whole.state.curve] == pytest.approx(
        [value for *_, value in parts.state.curve], rel=1e-3
    )


@on_gpu
def test_data_that_do_not_fit_are_copied_step_by_step():
    run = replace(SMALL, dropout=0.0)
    with pytest.warns(UserWarning, match="each step copies its own features"):
        trainer = Trainer(run, DATA, device="cuda", engine=Engine(share_of_memory=0.0))
    assert not isinstance(trainer.step, CapturedStep)
    curve = [value for *_, value in trainer.fit().state.curve]
    assert curve == pytest.approx(
        [value for *_, value in Trainer(run, DATA).fit().state.curve], rel=1e-3
    )


@on_gpu
def test_features_in_pinned_memory_are_as_good_as_on_the_gpu():
    trainer = Trainer(
        replace(SMALL, scheme="uniform(without-replacement):tail@12", dropout=0.0),
        DATA,
        device="cuda",
        engine=Engine(dense_below=0),
    )
    batches = trainer.batches
    ids = next(trainer.batches.order(0)).cuda()
    found = []
    for pinned in (True, False):
        resident = Resident(batches, trainer.device, dense_below=0, pinned=pinned)
        assert resident.bag.columns.is_cuda != pinned
        found.append(trainer.model(resident.take(*resident.look_up(ids))).item())
    assert found[0] == found[1]


@on_gpu
@pytest.mark.parametrize(
    "scheme",
    ["within-batch:tail", "contrastive/uniform:importance", "uniform(excluded):relative@16"],
)
def test_a_deterministic_run_repeats_itself_and_resumes_bit_for_bit_on_a_gpu(scheme, tmp_path):
    engine = Engine(check_every=1)
    data = load("synthetic:points=4000,test=200,features=6000,labels=400,features-a-point=30")
    run = Run(
        scheme=scheme, dim=64, batch=512, negatives=32, epochs=2, validation=0.0, deterministic=True
    )
    one, other = (Trainer(run, data, device="cuda", engine=engine).fit() for _ in range(2))
    stop = Stop(after=7)
    with pytest.raises(Stopped):
        Trainer(
            run, data, tmp_path, device="cuda", engine=engine, callbacks=stop, stop=stop.event
        ).fit()
    resumed = Trainer(run, data, tmp_path, device="cuda", engine=engine).fit()
    for weight, again, later in zip(
        *(t.model.parameters() for t in (one, other, resumed)), strict=True
    ):
        assert torch.equal(weight, again)
        assert torch.equal(weight, later)


class Asking(torch.nn.Module):
    """An encoder that makes the host wait, which cannot be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Bottleneck(DATA.train.num_features, SMALL.dim)

    def forward(self, features):
        hidden = self.inner(features)
        return hidden * (1.0 if float(hidden.detach().sum()) < 1e9 else 0.0)


@on_gpu
def test_a_step_that_cannot_be_captured_runs_eagerly_and_says_so():
    run = replace(SMALL, scheme="within-batch:tail", dropout=0.5)
    with pytest.warns(UserWarning, match="cannot be captured"):
        trainer = Trainer(run, DATA, device="cuda", encoder=Asking())
    assert not isinstance(trainer.step, CapturedStep)
    curve = [value for _, name, value in trainer.fit().state.curve if name == "loss"]
    assert curve[-1] < curve[0]


@on_gpu
@pytest.mark.parametrize("share", [0.4, 0.0], ids=["resident", "copied"])
def test_where_gradients_go_may_be_found_late_even_for_two_tables_of_one_size(share):
    from triton.knobs import runtime

    launched = []

    def wait(metadata):
        """Delay each launch of the second of the kernels that group rows, on its own stream."""
        if metadata.get()["name"] == "_start":
            launched.append(1)
            torch.cuda._sleep(10**7)

    data = load("synthetic:points=3400,test=8,features=5000,labels=5000,features-a-point=80")
    run = Run(
        scheme="model:importance@64",
        batch=2048,
        epochs=1,
        dim=16,
        lr=0.1,
        optimiser="sgd",
        dropout=0.0,
    )
    changes = []
    for late in (False, True):
        if late:
            runtime.launch_enter_hook.add(wait)
        with nullcontext() if share else pytest.warns(UserWarning, match="each step copies"):
            trainer = Trainer(run, data, device="cuda", engine=Engine(share_of_memory=share))
        before = [p.detach().clone() for p in trainer.model.parameters()]
        trainer.step(next(iter(trainer.step.order(0))))
        torch.cuda.synchronize()
        changes.append(
            [p.detach() - old for p, old in zip(trainer.model.parameters(), before, strict=True)]
        )
    runtime.launch_enter_hook.remove(wait)
    assert launched
    for one, other in zip(*changes, strict=True):
        assert (one - other).norm() <= 1e-4 * one.norm(), "but for the order of sums"
