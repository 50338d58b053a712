"""Captured heads notice what changes between two steps: results are those without graphs."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import headtail as ht
from headtail.device import graphs
from headtail.rows import fixed_gradient
from headtail.rows.captured_update import Update
from headtail.rows.link import link_of
from tests.test_captured_head import (
    DEVICES,
    L,
    Loop,
    deterministic,  # noqa: F401 - a fixture of all tests here
    same,
    stands_in,
)


@pytest.mark.parametrize("device", DEVICES)
def test_a_parameter_replaced_in_the_same_memory(device: str) -> None:
    def do(loop: Loop) -> None:
        if loop.seed == 6:
            devices = loop.optimiser.graphs.devices
            loop.head.weight = nn.Parameter(loop.head.weight.data)
            loop.optimiser = ht.RowSGD(loop.head.parameters(), lr=0.3)
            stands_in(loop.head, loop.optimiser, bool(devices))
        if loop.seed == 12:  # without another optimiser, and its graphs stay
            before = loop.head.weight
            loop.head.weight = nn.Parameter(before.data)
            loop.optimiser.param_groups[0]["params"] = [loop.head.weight]
        loop.step(loop.seed)

    same(do, device, steps=18)


def _with_temperature(
    device: str, captured: bool, frozen: bool = False
) -> tuple[Loop, nn.Parameter]:
    temperature = nn.Parameter(torch.tensor(2.0, device=device), requires_grad=not frozen)
    loop = Loop(device, captured, loss={"temperature": temperature})
    loop.optimiser = ht.RowSGD([loop.head.weight], lr=0.3)
    loop.set(captured)
    return loop, temperature


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("frozen", [True, False])
def test_a_temperature_is_frozen_for_a_while(device: str, frozen: bool) -> None:
    def run(captured: bool) -> list[Tensor]:
        loop, temperature = _with_temperature(device, captured, frozen)
        rest = torch.optim.SGD([temperature], lr=0.1)
        for seed in range(18):
            if seed in (6, 12):
                temperature.requires_grad_(not temperature.requires_grad)
            loop.step(seed)
            rest.step()
            rest.zero_grad()
        return [*loop.weights, temperature.detach()]

    assert all(map(torch.equal, run(True), run(False)))


@pytest.mark.parametrize("device", DEVICES)
def test_a_temperature_is_replaced(device: str) -> None:
    def run(captured: bool) -> list[Tensor]:
        loop, temperature = _with_temperature(device, captured)
        for seed in range(12):
            if seed == 6:
                temperature = nn.Parameter(torch.tensor(0.5, device=device))
                loop.head.loss.temperature = temperature
            loop.step(seed)
        assert temperature.grad is not None
        return [*loop.weights, temperature.grad]

    assert all(map(torch.equal, run(True), run(False)))


@pytest.mark.parametrize("device", DEVICES)
def test_a_sampler_gets_other_labels(device: str) -> None:
    def do(loop: Loop) -> None:
        if loop.seed == 6:
            loop.head.loss.sampler.labels = ht.Labels.zipf(L, 0.5)
        loop.step(loop.seed)

    loop = same(do, device, scheme="within-batch:importance")
    assert len(loop.head._graphs._watched) == 2


@pytest.mark.parametrize("device", DEVICES)
def test_a_gradient_that_is_kept_is_not_overwritten(device: str) -> None:
    def do(loop: Loop) -> None:
        loop.loss(2 * loop.seed).backward()
        first = loop.head.weight.grad
        loop.head.weight.grad = None
        loop.loss(2 * loop.seed + 1).backward()
        loop.head.weight.grad = first + 0.5 * loop.head.weight.grad
        loop.update()

    same(do, device, exact=False)


@pytest.mark.parametrize("device", DEVICES)
def test_a_loss_may_be_changed_in_place(device: str) -> None:
    def do(loop: Loop) -> None:
        loss = loop.loss(loop.seed)
        loss /= 4
        loss += 1
        loss.backward()
        loop.update()

    same(do, device)


@pytest.mark.parametrize("device", DEVICES)
def test_hooks_that_come_after_the_loss(device: str) -> None:
    def do(loop: Loop) -> None:
        loss = loop.loss(loop.seed)
        hook = loop.head.weight.register_hook(lambda grad: grad * 2)
        loss.backward()
        hook.remove()
        loop.update()

    same(do, device)


@pytest.mark.parametrize("device", DEVICES)
def test_options_of_a_group_may_be_lists(device: str) -> None:
    def do(loop: Loop) -> None:
        if loop.seed == 0:
            loop.optimiser.param_groups[0].update(betas=[0.9, 0.99], names=["weight"])
        loop.step(loop.seed)

    assert same(do, device, optimiser="adam").optimiser.graphs._graphs


def test_gradients_at_one_address_are_told_apart_by_their_number() -> None:
    table = nn.Parameter(torch.zeros(9, 2))
    places = []
    for entries in (4, 3):
        room = fixed_gradient.fixed_gradient(table, entries, stream=0)
        room.add(table, torch.arange(entries), torch.ones(entries, 2), torch.tensor(1.0))
        assert table.grad is not None
        update = Update(print, table, table.grad, {}, {})
        place = update.place()
        assert place is not None
        places.append([number for number in place if number not in room.address[:2]])
        table.grad = None
    assert places[0] != places[1]


@pytest.mark.parametrize("device", DEVICES)
def test_tables_at_one_address_are_told_apart_by_their_shape(device: str) -> None:
    loop = Loop(device, True)
    loop.step(0)
    rate = torch.tensor(0.3)

    def key() -> Any:
        return Update(print, loop.head.weight, rate, {}, {}).key((1,), rate)

    before = key()
    loop.head.weight.data = loop.head.weight.data[:-1]
    assert link_of(loop.head.weight) is not None
    assert key() != before


@pytest.mark.parametrize("device", DEVICES)
def test_a_rate_that_flips_weights_is_refused(device: str) -> None:
    loop = Loop(device, True, weight_decay=0.1)
    for seed in range(8):
        loop.step(seed)
    loop.optimiser.param_groups[0]["lr"] = 10.0
    with pytest.raises(ht.HeadtailError, match="must stay below 1"):
        loop.step(8)


def test_graphs_from_before_a_failed_capture_are_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop("cpu", True)
    for seed in range(6):
        loop.step(seed)
    monkeypatch.setattr(graphs._Failed, "captures", graphs._Failed.captures + 1)
    for seed in range(6):
        loop.step(seed)
    assert len(loop.head._graphs._graphs) == len(loop.optimiser.graphs._graphs) == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_failed_capture_leaves_stream_and_randomness() -> None:
    device = torch.device("cuda")
    before = torch.cuda.current_stream()
    torch.manual_seed(0)
    drawn = torch.rand(3, device=device)
    torch.manual_seed(0)
    with pytest.raises(RuntimeError):
        graphs.record(lambda: torch.ones((), device=device).item(), device, graphs.Pool())
    assert torch.cuda.current_stream() == before
    assert torch.equal(torch.rand(3, device=device), drawn)


@pytest.mark.parametrize("device", DEVICES)
def test_state_is_not_made_inside_a_graph(device: str) -> None:
    def recorded(work: Any, device: Any, pool: Any) -> graphs.Replay:
        weight = loop.head.weight
        changed = [weight.data, *loop.optimiser.state[weight].values()]
        before = [tensor.clone() for tensor in changed]
        work()  # what a capture leaves behind on the host, but nothing on the device
        for tensor, old in zip(changed, before, strict=True):
            tensor.copy_(old)
        return graphs.Replay(work)

    weights = []
    for captured in (True, False):
        loop = Loop(device, captured, optimiser="adagrad")
        if device == "cpu":
            loop.optimiser.graphs.record = recorded
        for seed in range(12):
            if seed % 2 == 0:
                loop.optimiser.state.clear()  # as between two tasks
            loop.step(seed)
        weights.append(loop.weights)
    assert all(map(torch.equal, *weights))


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_to_train(device: str) -> None:
    def do(loop: Loop) -> None:
        if loop.seed < 6:
            loop.head.weight.requires_grad_(False)
            loop.head(*loop.batch(loop.seed))
            loop.head.weight.requires_grad_(True)
        else:
            loop.step(loop.seed)

    same(do, device, steps=14)


@pytest.mark.parametrize("device", DEVICES)
def test_a_gradient_set_to_zero_in_place_is_used_again(device: str) -> None:
    def do(loop: Loop) -> None:
        loop.loss(loop.seed).backward()
        loop.optimiser.step()
        loop.dense.step()
        torch.optim.Optimizer.zero_grad(loop.optimiser, set_to_none=False)
        loop.dense.zero_grad()

    loop = same(do, device)
    loop.loss(0).backward()
    room = next(iter(link_of(loop.head.weight).fixed.values()))
    assert room.parts_in(loop.head.weight.grad) == 1


def test_settings_of_float32_products_are_told_apart() -> None:
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    try:
        loop = Loop("cpu", True)
        for settings.fp32_precision in ("ieee", "tf32"):
            for seed in range(6):
                loop.step(seed)
        assert len(loop.head._graphs._graphs) == 2
    finally:
        settings.fp32_precision = before


class _OwnLoss(ht.SampledSoftmaxLoss):
    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        return super().forward(*inputs, **options)


def _losses() -> dict[str, Any]:
    labels = ht.Labels.zipf(L)
    stream = ht.StreamingLabels.starting_from(labels)
    uniform = ht.Uniform(L, 8)
    by_pair = ht.Pairwise(lambda y, other: 0.0 * (y + other).double())
    own = ht.Equalised(labels, lambda prior: prior**2)
    softmax = ht.SampledSoftmaxLoss
    return {
        "a stream": (softmax(uniform, ht.Tail(stream)), "the weights are your own, or follow"),
        "pairs": (softmax(uniform, ht.FromMargin(by_pair)), "the weights are your own, or follow"),
        "own": (softmax(uniform, ht.FromMargin(own)), "the weights are your own, or follow"),
        "own loss": (_OwnLoss(uniform, ht.Importance()), "the loss is your own"),
    }


@pytest.mark.parametrize("name", list(_losses()))
def test_what_the_host_may_change_is_not_captured(name: str) -> None:
    loop = Loop("cpu", True)
    loop.head.loss, why = _losses()[name]
    with pytest.warns(UserWarning, match=f"not captured as CUDA graphs: {why}"):
        loop.loss(0)
    for seed in range(6):
        loop.step(seed)
    assert not loop.head.captured.shapes


def test_hooks_of_the_loss_run() -> None:
    loop = Loop("cpu", True)
    calls: list[int] = []
    for seed in range(6):
        loop.step(seed)
    loop.head.loss.register_forward_hook(lambda *_: calls.append(1))
    with pytest.warns(UserWarning, match="its loss has hooks"):
        loop.step(6)
    assert calls == [1]


def test_a_table_that_is_computed() -> None:
    loop = Loop("cpu", True)
    base = nn.Parameter(loop.head.weight.detach().clone())
    x, y = loop.batch(0)
    for _ in range(6):
        with pytest.warns(UserWarning, match="computed from other") if _ == 0 else _silent():
            loss = torch.func.functional_call(loop.head, {"weight": base * 2}, (x, y))
    assert loss.requires_grad
    assert not loop.head.captured.shapes


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(reentrant: bool) -> None:
    def run(captured: bool) -> list[Tensor]:
        loop = Loop("cpu", captured)
        torch.manual_seed(2)
        for seed in range(10):
            x, y = loop.batch(seed)
            with _silent():
                loss = checkpoint(loop.head, loop.encoder(x), y, use_reentrant=reentrant)
                loss.backward()
            loop.update()
        return loop.weights

    assert all(map(torch.equal, run(True), run(False)))


def test_another_default_dtype() -> None:
    def do(loop: Loop) -> None:
        x, y = loop.batch(loop.seed)
        torch.set_default_dtype(torch.float64 if loop.seed % 4 == 3 else torch.float32)
        try:
            loop.head(loop.encoder(x), y).backward()
            loop.update()
        finally:
            torch.set_default_dtype(torch.float32)

    same(do, "cpu", steps=20)


def _silent() -> Any:
    return warnings.catch_warnings(action="ignore")


def test_options_that_change_in_every_step_are_told_once() -> None:
    loop = Loop("cpu", True, optimiser="adam")
    schedule = torch.optim.lr_scheduler.OneCycleLR(loop.optimiser, 0.1, total_steps=100)

    def steps() -> None:
        for seed in range(30):
            loop.step(seed)
            schedule.step()

    with pytest.warns(UserWarning, match="options change from step to step"):
        steps()
    assert not loop.optimiser.graphs._graphs
    loop.step(30)  # warnings are errors here: it is said only once


def test_memory_is_counted_and_freed() -> None:
    loop = Loop("cpu", True)
    for seed in range(6):
        loop.step(seed)
    rooms = link_of(loop.head.weight).fixed
    held = sum(room.nbytes for room in rooms.values())
    assert 0 < held < loop.head.captured.nbytes
    loop.head.capture(False)
    assert not rooms
    assert loop.head.captured.nbytes == 0
