"""Heads that replay their step as CUDA graphs do what they would do without."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headtail as ht
from headtail.device.graphs import record, rerun
from headtail.rows.row_optimizer import RowOptimizer

L = 500
D = 16
B = 12
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU"))]  # fmt: skip
OPTIMISERS: dict[str, Callable[..., RowOptimizer]] = {
    "sgd": lambda p, **o: ht.RowSGD(p, lr=0.3, **o),
    "momentum": lambda p, **o: ht.RowSGD(p, lr=0.3, momentum=0.9, **o),
    "adagrad": lambda p, **o: ht.RowAdagrad(p, lr=0.3, **o),
    "per row": lambda p, **o: ht.RowAdagrad(p, lr=0.3, per_row=True, **o),
    "adam": lambda p, **o: ht.RowAdam(p, lr=0.03, **o),
}
SCHEMES = (
    "uniform:importance@8",
    "within-batch:tail",
    "within-batch:importance",
    "within-batch:infonce",
    "frequency:relative@8",
    "mixture(uniform,frequency):importance@8",
    "arcface/uniform:importance@8",
    "cosface/frequency:tail@8",
)


class Loop:
    """An encoder and a head in an ordinary training loop, captured or not."""

    def __init__(
        self,
        device: str,
        captured: bool,
        scheme: str = "uniform:importance@8",
        optimiser: str = "sgd",
        bias: bool = False,
        **options: Any,
    ) -> None:
        torch.manual_seed(0)
        labels = ht.Labels.zipf(L)
        # Longer sums than a test's: last digits would differ by the order of atomic additions.
        loss = ht.scheme(scheme, labels, **options.pop("loss", {}))
        self.head = ht.LabelHead(labels, D, loss, sparse=True, bias=bias).to(device)
        self.encoder = nn.Linear(D, D).to(device)
        self.optimiser = OPTIMISERS[optimiser](self.head.parameters(), **options)
        self.dense = torch.optim.SGD(self.encoder.parameters(), lr=0.1)
        self.device = device
        self.set(captured)
        torch.manual_seed(1)

    def set(self, captured: bool) -> None:
        stands_in(self.head, self.optimiser, captured)

    def batch(self, seed: int, size: int = B) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(size, D, generator=generator)
        y = torch.randint(40, (size,), generator=generator)
        return x.to(self.device), y.to(self.device)

    def loss(self, seed: int, size: int = B) -> Tensor:
        x, y = self.batch(seed, size)
        return self.head(self.encoder(x), y)

    def update(self) -> None:
        self.optimiser.step()
        self.dense.step()
        self.optimiser.zero_grad()
        self.dense.zero_grad()

    def step(self, seed: int, size: int = B) -> None:
        self.loss(seed, size).backward()
        self.update()

    @property
    def weights(self) -> list[Tensor]:
        self.head.flush()
        return [p.detach().clone() for p in (*self.head.parameters(), *self.encoder.parameters())]


def stands_in(head: ht.LabelHead, optimiser: RowOptimizer, captured: bool) -> None:
    """On a CPU, work that is done again stands in for a graph."""
    head.capture(captured)
    on_gpu = head.weight.device.type == "cuda"
    for graphs in (head._graphs, optimiser.graphs):
        graphs.record = record if on_gpu else rerun
        graphs.devices = ("cuda", "cpu") if captured else ()


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    torch.use_deterministic_algorithms(False)


def same(
    do: Callable[[Loop], object], device: str, steps: int = 12, exact: bool = True, **settings: Any
) -> Loop:
    """Both ways give the same weights, to the last bit unless torch adds sparse gradients in
    another order; returns the captured loop.
    """
    plain = Loop(device, False, **settings)
    captured = Loop(device, True, **settings)
    for loop in (plain, captured):
        torch.manual_seed(2)
        for seed in range(steps):
            loop.seed = seed
            do(loop)
    for ours, theirs in zip(captured.weights, plain.weights, strict=True):
        if exact:
            assert torch.equal(ours, theirs)
        else:
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert captured.head.captured.shapes
    return captured


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_optimisers(device: str, optimiser: str, bias: bool) -> None:
    loop = same(lambda loop: loop.step(loop.seed), device, optimiser=optimiser, bias=bias)
    assert len(loop.optimiser.graphs._graphs) == 1 + bias


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_schemes(device: str, scheme: str) -> None:
    same(lambda loop: loop.step(loop.seed), device, scheme=scheme)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_weight_decay(device: str, optimiser: str) -> None:
    same(lambda loop: loop.step(loop.seed), device, optimiser=optimiser, weight_decay=0.1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("times", [2, 4])
def test_accumulation(device: str, times: int) -> None:
    def do(loop: Loop) -> None:
        for part in range(times):
            (loop.loss(loop.seed * times + part) / times).backward()
        loop.update()

    loop = same(do, device, exact=False, optimiser="adagrad")
    assert loop.optimiser.graphs._graphs


@pytest.mark.parametrize("device", DEVICES)
def test_several_losses_at_once(device: str) -> None:
    def do(loop: Loop) -> None:
        losses = [loop.loss(3 * loop.seed + part) for part in range(3)]
        (losses[0] + 2 * losses[1] - 0.5 * losses[2]).backward()
        loop.update()

    same(do, device, exact=False, optimiser="adam")


@pytest.mark.parametrize("device", DEVICES)
def test_more_losses_than_graphs(device: str) -> None:
    def do(loop: Loop) -> None:
        sum(loop.loss(7 * loop.seed + part) for part in range(7)).backward()
        loop.update()

    same(do, device, exact=False)


@pytest.mark.parametrize("device", DEVICES)
def test_a_kept_graph_is_differentiated_twice(device: str) -> None:
    def do(loop: Loop) -> None:
        first = loop.loss(2 * loop.seed)
        first.backward(retain_graph=True)
        second = loop.loss(2 * loop.seed + 1)
        second.backward()
        first.backward()
        loop.update()

    same(do, device, exact=False)


@pytest.mark.parametrize("device", DEVICES)
def test_a_second_backward_pass_is_refused(device: str) -> None:
    loop = Loop(device, True)
    for seed in range(6):
        loop.step(seed)
    loss = loop.loss(6)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@pytest.mark.parametrize("device", DEVICES)
def test_scaled_losses(device: str) -> None:
    def do(loop: Loop) -> None:
        (loop.loss(loop.seed) * 1024).backward()
        for p in (*loop.head.parameters(), *loop.encoder.parameters()):
            values = p.grad._values() if p.grad.is_sparse else p.grad
            values /= 1024
        loop.update()

    same(do, device)


@pytest.mark.parametrize("device", DEVICES)
def test_grad_scaler(device: str) -> None:
    def run(captured: bool) -> list[Tensor]:
        loop = Loop(device, captured, optimiser="adagrad")
        scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
        for seed in range(10):
            loss = loop.loss(seed)
            if seed == 7:
                loss = loss * torch.inf  # this step must be left out
            scaler.scale(loss).backward()
            scaler.step(loop.optimiser)
            scaler.step(loop.dense)
            scaler.update()
            loop.optimiser.zero_grad()
            loop.dense.zero_grad()
        assert scaler.get_scale() == 2.0**9
        return loop.weights

    for ours, theirs in zip(run(True), run(False), strict=True):
        assert torch.isfinite(ours).all()
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("device", DEVICES)
def test_clipping(device: str) -> None:
    norms: list[float] = []

    def do(loop: Loop) -> None:
        loop.loss(loop.seed).backward()
        parameters = [*loop.head.parameters(), *loop.encoder.parameters()]
        norms.append(float(ht.clip_grad_norm_(parameters, 0.1)))
        loop.update()

    plain = Loop(device, False)
    captured = Loop(device, True)
    for loop in (plain, captured):
        torch.manual_seed(2)
        for loop.seed in range(10):
            do(loop)
    assert norms[:10] == pytest.approx(norms[10:], rel=1e-5)
    for ours, theirs in zip(captured.weights, plain.weights, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("device", DEVICES)
def test_torchs_clipping_never_skips_the_table(device: str) -> None:
    loop = Loop(device, True)
    for seed in range(6):
        loop.step(seed)
    loop.loss(6).backward()
    with pytest.raises((RuntimeError, NotImplementedError)):
        nn.utils.clip_grad_norm_(loop.head.parameters(), 0.1)


@pytest.mark.parametrize("device", DEVICES)
def test_gradient_is_what_it_says(device: str) -> None:
    plain = Loop(device, False)
    captured = Loop(device, True)
    for seed in range(8):
        dense = []
        for loop in (plain, captured):
            torch.manual_seed(seed)
            loop.loss(seed).backward()
            loop.loss(seed + 100).backward()
            dense.append(loop.head.weight.grad.to_dense())
            loop.optimiser.zero_grad()
        torch.testing.assert_close(*dense)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_of_others(device: str, set_to_none: bool) -> None:
    def do(loop: Loop) -> None:
        loop.loss(loop.seed).backward()
        loop.optimiser.step()
        loop.dense.step()
        torch.optim.Optimizer.zero_grad(loop.optimiser, set_to_none=set_to_none)
        loop.dense.zero_grad()

    same(do, device)


@pytest.mark.parametrize("device", DEVICES)
def test_schedules(device: str) -> None:
    def do(loop: Loop) -> None:
        loop.optimiser.param_groups[0]["lr"] = 0.5 / (1 + loop.seed)
        loop.step(loop.seed)

    loop = same(do, device, optimiser="adagrad", weight_decay=0.1)
    assert len(loop.optimiser.graphs._graphs) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_a_rate_as_a_tensor(device: str) -> None:
    def do(loop: Loop) -> None:
        rate = loop.optimiser.param_groups[0]["lr"]
        if not isinstance(rate, Tensor):
            rate = torch.tensor(0.5, device=loop.device)
            loop.optimiser.param_groups[0]["lr"] = rate
        rate.mul_(0.9)
        loop.step(loop.seed)

    same(do, device)


@pytest.mark.parametrize("device", DEVICES)
def test_a_smaller_last_batch(device: str) -> None:
    def do(loop: Loop) -> None:
        loop.step(loop.seed, 5 if loop.seed % 4 == 3 else B)

    loop = same(do, device, steps=30)
    assert sorted(loop.head.captured.shapes) == [(5, D), (B, D)]


@pytest.mark.parametrize("device", DEVICES)
def test_few_shapes_are_kept(device: str) -> None:
    loop = same(lambda loop: loop.step(loop.seed, 3 + loop.seed % 6), device, steps=40)
    assert len(loop.head.captured.shapes) <= 4


@pytest.mark.parametrize("device", DEVICES)
def test_two_heads_share_a_table(device: str) -> None:
    def do(loop: Loop) -> None:
        if not hasattr(loop, "other"):
            loop.other = copy.deepcopy(loop.head)
            loop.other.weight = loop.head.weight
        x, y = loop.batch(loop.seed)
        hidden = loop.encoder(x)
        (loop.head(hidden, y) + loop.other(2 * hidden, y)).backward()
        loop.update()

    same(do, device, exact=False)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("inside", [False, True])
def test_inputs_share_the_table(device: str, inside: bool) -> None:
    def do(loop: Loop) -> None:
        loop.optimiser.inside_backward(inside)
        _, y = loop.batch(loop.seed)
        hidden = loop.encoder(loop.head.rows((y + 1) % L))
        loop.head(hidden, y).backward()
        loop.update()

    same(do, device, exact=False, optimiser="adagrad")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scheme", SCHEMES[:4])
def test_ignored_targets(device: str, scheme: str) -> None:
    if device == "cpu" and scheme.startswith("within-batch"):
        pytest.skip("on a CPU the draw is as large as the number of targets that count")

    def do(loop: Loop) -> None:
        x, y = loop.batch(loop.seed)
        y[: loop.seed % 4] = -100
        loop.head(loop.encoder(x), y).backward()
        loop.update()

    same(do, device, scheme=scheme)


@pytest.mark.parametrize("device", DEVICES)
def test_positions_of_sequences(device: str) -> None:
    def do(loop: Loop) -> None:
        x, y = loop.batch(loop.seed)
        hidden = loop.encoder(x).reshape(3, 4, D)
        loop.head(hidden, y.reshape(3, 4)).backward()
        loop.update()

    same(do, device)


@pytest.mark.parametrize("device", DEVICES)
def test_a_learned_temperature(device: str) -> None:
    def run(captured: bool) -> tuple[list[Tensor], float]:
        temperature = nn.Parameter(torch.tensor(2.0, device=device))
        loop = Loop(device, captured, loss={"temperature": temperature})
        rest = torch.optim.SGD([temperature], lr=0.1)
        loop.optimiser = ht.RowSGD([loop.head.weight], lr=0.3)
        loop.set(captured)
        for seed in range(8):
            loop.step(seed)
            rest.step()
            rest.zero_grad()
        assert bool(loop.head.captured.shapes) == captured
        return loop.weights, float(temperature.detach())

    ours, theirs = run(True), run(False)
    assert ours[1] == theirs[1] != 2.0
    assert all(map(torch.equal, ours[0], theirs[0]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "loss", [{"score": "cosine", "temperature": 0.5}, {"label_smoothing": 0.1}]
)
def test_other_scores(device: str, loss: dict[str, Any]) -> None:
    same(lambda loop: loop.step(loop.seed), device, loss=loss)


@pytest.mark.parametrize("device", DEVICES)
def test_hooks_of_the_table_run(device: str) -> None:
    def do(loop: Loop) -> None:
        if not hasattr(loop, "hook"):
            # Called after each addition to `.grad`.
            loop.calls = 0
            loop.hook = loop.head.weight.register_post_accumulate_grad_hook(
                lambda _: setattr(loop, "calls", loop.calls + 1)
            )
        loop.step(loop.seed)

    assert same(do, device).calls == 12


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_that_are_only_asked_for(device: str) -> None:
    loop = Loop(device, True)
    for seed in range(6):
        loop.step(seed)
    (gradient,) = torch.autograd.grad(loop.loss(6), loop.head.weight)
    assert gradient.is_sparse
    assert loop.head.weight.grad is None
    (of_bias,) = torch.autograd.grad(loop.loss(7), loop.encoder.bias)
    assert of_bias.abs().sum() > 0
    assert loop.head.weight.grad is None


@pytest.mark.parametrize("device", DEVICES)
def test_evaluation_in_between(device: str) -> None:
    def do(loop: Loop) -> None:
        loop.step(loop.seed)
        loop.head.eval()
        with torch.no_grad():
            loop.loss(loop.seed)
        loop.head.topk(loop.batch(loop.seed)[0], 3)
        loop.head.train()

    same(do, device, optimiser="adagrad", weight_decay=0.1)


@pytest.mark.parametrize("device", DEVICES)
def test_checkpoints(device: str) -> None:
    def do(loop: Loop) -> None:
        loop.step(loop.seed)
        if loop.seed == 8:  # the state of step 4 again
            loop.head.load_state_dict(loop.saved[0])
            loop.optimiser.load_state_dict(loop.saved[1])
        if loop.seed == 4:
            loop.saved = copy.deepcopy((loop.head.state_dict(), loop.optimiser.state_dict()))

    same(do, device, steps=16, optimiser="adam", weight_decay=0.1)


@pytest.mark.parametrize("device", DEVICES)
def test_copies_and_averages(device: str) -> None:
    loop = Loop(device, True, optimiser="adagrad", weight_decay=0.1)
    average = torch.optim.swa_utils.AveragedModel(loop.head)
    for seed in range(8):
        loop.step(seed)
        loop.head.flush()
        average.update_parameters(loop.head)
    twin = copy.deepcopy(loop.head)
    assert not twin.captured.shapes
    before = twin.weight.detach().clone()
    loop.step(9)
    assert torch.equal(twin.weight, before)
    assert not torch.equal(loop.head.weight, before)


@pytest.mark.parametrize("device", DEVICES)
def test_growing(device: str) -> None:
    def do(loop: Loop) -> None:
        if loop.seed == 6:
            loop.head.grow(loop.head.labels.grow([3, 2]), loop.optimiser)
        loop.step(loop.seed)

    same(do, device, steps=14, optimiser="adagrad")


@pytest.mark.parametrize("device", DEVICES)
def test_a_frozen_encoder_and_a_frozen_table(device: str) -> None:
    def do(loop: Loop) -> None:
        x, y = loop.batch(loop.seed)
        if loop.seed % 2:
            loop.head(x, y).backward()  # nothing before the head has a gradient
        else:
            loop.head.weight.requires_grad_(False)
            loop.head(loop.encoder(x), y).backward()
            loop.head.weight.requires_grad_(True)
        loop.update()

    same(do, device, steps=20)


@pytest.mark.parametrize("device", DEVICES)
def test_autocast(device: str) -> None:
    def do(loop: Loop) -> None:
        with torch.autocast(device, torch.bfloat16):
            loss = loop.loss(loop.seed)
        loss.backward()
        loop.update()

    same(do, device)


@pytest.mark.parametrize("device", DEVICES)
def test_it_can_be_switched_off(device: str) -> None:
    loop = Loop(device, True)
    for seed in range(6):
        loop.step(seed)
    assert loop.head.captured.nbytes > 0
    loop.head.capture(False)
    loop.step(6)
    assert loop.head.captured == ([], 0)


@pytest.mark.parametrize(
    ("options", "call", "why"),
    [
        ({"reduction": "none"}, {}, "a loss per example"),
        ({}, {"generator": torch.Generator()}, "options change from call to call"),
        ({}, {"sample_weight": torch.ones(B)}, "options change from call to call"),
    ],
)
def test_it_says_once_why_not(options: Any, call: Any, why: str) -> None:
    loop = Loop("cpu", True, loss=options)
    x, y = loop.batch(0)
    with pytest.warns(UserWarning, match=f"not captured as CUDA graphs: {why}"):
        loop.head(x, y, **call)
    loop.head(x, y, **call)  # a second warning would be an error


@pytest.mark.parametrize(
    "scheme", ["mixture(within-batch,uniform):importance@8", "within-batch:importance@4"]
)
def test_it_says_what_to_write_where_the_number_of_targets_matters(scheme: str) -> None:
    loop = Loop("cpu", True, scheme=scheme)
    with pytest.warns(UserWarning, match="write `ignore_index=None` if all do"):
        loop.loss(0)
    same(lambda loop: loop.step(loop.seed), "cpu", scheme=scheme, loss={"ignore_index": None})


@pytest.mark.parametrize("device", DEVICES)
def test_losses_may_take_turns(device: str) -> None:
    def do(loop: Loop) -> None:
        if not hasattr(loop, "losses"):
            names = ("uniform:importance@8", "uniform:constant@8")
            loop.losses = [ht.scheme(name, loop.head.labels).to(device) for name in names]
        loop.head.loss = loop.losses[loop.seed % 2]
        loop.step(loop.seed)

    assert len(same(do, device, steps=20).head._graphs._graphs) == 2


def test_it_says_why_not_for_hooks_of_gradients() -> None:
    loop = Loop("cpu", True)
    loop.head.weight.register_hook(lambda grad: grad * 2)
    with pytest.warns(UserWarning, match="its parameters have hooks"):
        loop.loss(0)


def test_it_says_why_not_for_a_sampler_that_remembers() -> None:
    loop = Loop("cpu", True, scheme="queue:importance@8")
    with pytest.warns(UserWarning, match="`Queue` looks at the model, remembers batches"):
        loop.loss(0)


def test_work_that_cannot_be_captured_runs_eagerly() -> None:
    def refuses(*_: Any) -> Any:
        raise RuntimeError("operation not permitted")

    loop = Loop("cpu", True)
    loop.head._graphs.record = refuses
    for seed in range(3):
        loop.step(seed)
    with pytest.warns(UserWarning, match="not captured as CUDA graphs: operation not permitted"):
        loop.step(3)
    loop.step(4)
    assert not loop.head.captured.shapes


def test_partial_fc_is_captured_where_all_targets_count() -> None:
    eager, captured = (
        Loop("cpu", on, "arcface/partial-fc:importance@8", loss={"ignore_index": None})
        for on in (False, True)
    )
    for loop in (eager, captured):
        # As on a GPU: the shape of a draw follows from that of the targets.
        draw = loop.head.loss.sampler.draw
        loop.head.loss.sampler.draw = lambda y, draw=draw, **o: draw(y, **o | {"fixed_size": True})
        torch.manual_seed(1)
        for seed in range(8):
            loop.step(seed)
    assert captured.head.captured.shapes
    for ours, theirs in zip(captured.weights, eager.weights, strict=True):
        assert torch.equal(ours, theirs)


def test_partial_fc_says_why_it_is_not_captured_otherwise() -> None:
    loop = Loop("cpu", True, "arcface/partial-fc:importance@8")
    with pytest.warns(UserWarning, match="write `ignore_index=None` if all do"):
        loop.step(0)
