"""Several optimisers as one: what each would do by itself, in the form that other loops expect."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

from headtail import HeadtailError, RowAdagrad, RowAdam, SplitOptimizer, clip_grad_norm_
from headtail.rows.look_up import look_up

LABELS = 7


class Net(torch.nn.Module):
    """A sparse table and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.table = torch.nn.Parameter(torch.randn(LABELS, 3, generator=generator))
        self.layer = torch.nn.Parameter(torch.randn(3, 2, generator=generator))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return (look_up(self.table, ids, sparse=True) @ self.layer).square().sum()


def parts(net: Net) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    return (
        RowAdagrad([net.table], lr=0.1, weight_decay=0.2),
        torch.optim.AdamW([net.layer], lr=0.01, weight_decay=0.3),
    )


def train(net: Net, *optimizers: torch.optim.Optimizer, steps: int = 4, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        net(torch.randint(LABELS, (4,), generator=generator)).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def assert_equal(one: Net, other: Net) -> None:
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


def test_steps_are_those_of_its_parts():
    net = Net()
    reference = Net()
    split = SplitOptimizer(*parts(net))
    own = parts(reference)
    train(net, split)
    train(reference, *own)
    split.flush()
    own[0].flush()  # pyright: ignore[reportAttributeAccessIssue]
    assert_equal(net, reference)


def test_schedulers_reach_every_part():
    net = Net()
    table, layer = parts(net)
    split = SplitOptimizer(table, layer)
    scheduler = torch.optim.lr_scheduler.LambdaLR(split, lambda step: 0.5**step)
    train(net, split, steps=1)
    scheduler.step()
    assert table.param_groups[0]["lr"] == 0.05
    assert layer.param_groups[0]["lr"] == 0.005
    split.load_state_dict(split.state_dict())  # which makes new groups, as Accelerate does
    scheduler.step()
    assert (table.param_groups[0]["lr"], layer.param_groups[0]["lr"]) == (0.025, 0.0025)


def test_one_state_dict_resumes_bit_for_bit():
    net = Net()
    split = SplitOptimizer(*parts(net))
    train(net, split)
    file = io.BytesIO()
    torch.save((net.state_dict(), split.state_dict()), file)
    file.seek(0)
    resumed = Net()
    again = SplitOptimizer(*parts(resumed))
    weights, state = torch.load(file, weights_only=True)
    resumed.load_state_dict(weights)
    again.load_state_dict(state)
    for one, optimizer in ((net, split), (resumed, again)):
        train(one, optimizer, seed=5)
        optimizer.flush()
    assert_equal(net, resumed)


def test_state_dict_has_the_form_of_torch():
    net = Net()
    split = SplitOptimizer(*parts(net))
    train(net, split)
    saved = split.state_dict()
    assert [group["params"] for group in saved["param_groups"]] == [[0], [1]]
    assert set(saved["state"]) == {0, 1}
    assert saved["state"][1]["exp_avg"].shape == (3, 2)


def test_state_is_that_of_the_part_with_the_parameter():
    net = Net()
    table, layer = parts(net)
    split = SplitOptimizer(table, layer)
    assert len(split.state) == 0
    assert net.layer not in split.state
    train(net, split)
    assert set(split.state) == {net.table, net.layer}
    assert split.state[net.layer] is layer.state[net.layer]
    with pytest.raises(KeyError):
        split.state[torch.zeros(1)]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_go_on_by_themselves(copied):
    net = Net()
    split = SplitOptimizer(*parts(net))
    train(net, split)
    optimizer, other = copied((split, net))  # in this order: it applies pending decay
    train(net, split, seed=2)
    train(other, optimizer, seed=2)
    split.flush()
    optimizer.flush()
    assert_equal(net, other)
    assert other.table is optimizer.param_groups[0]["params"][0]


def test_hooks_run():
    net = Net()
    table, layer = parts(net)
    split = SplitOptimizer(table, layer)
    calls: list[str] = []
    for name, optimizer in (("split", split), ("table", table), ("layer", layer)):
        optimizer.register_step_post_hook(lambda *_, name=name: calls.append(name))
    split.register_state_dict_pre_hook(lambda _: calls.append("save"))
    split.register_state_dict_post_hook(lambda _, state: state | {"more": 1})
    split.register_load_state_dict_pre_hook(lambda _, state: calls.append(f"load {state['more']}"))
    split.register_load_state_dict_post_hook(lambda _: calls.append("loaded"))
    train(net, split, steps=1)
    split.load_state_dict(split.state_dict())
    assert calls == ["table", "layer", "split", "save", "load 1", "loaded"]


def test_the_closure_is_called_once():
    net = Net()
    split = SplitOptimizer(*parts(net))
    calls = []

    def closure():
        split.zero_grad()
        loss = net(torch.tensor([1, 2]))
        loss.backward()
        calls.append(loss.detach())
        return loss

    assert split.step(closure) == calls[0]
    assert len(calls) == 1


def scaled_step(net: Net, split: SplitOptimizer, scaler: torch.amp.GradScaler) -> None:
    scaler.scale(net(torch.tensor([1, 1, 4]))).backward()
    scaler.step(split)
    scaler.update()
    split.zero_grad()


def test_a_grad_scaler_unscales_every_part():
    net = Net()
    reference = Net()
    scaled_step(net, SplitOptimizer(*parts(net)), torch.amp.GradScaler("cpu", init_scale=64.0))
    own = SplitOptimizer(*parts(reference))
    reference(torch.tensor([1, 1, 4])).backward()
    own.step()
    assert_equal(net, reference)


def test_a_grad_scaler_skips_every_part_of_an_infinite_step():
    net = Net()
    before = copy.deepcopy(net)
    net.layer.register_hook(lambda grad: grad * torch.inf)
    scaled_step(net, SplitOptimizer(*parts(net)), torch.amp.GradScaler("cpu", init_scale=64.0))
    assert_equal(net, before)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_grad_scaler_is_refused_with_gradients_taken_inside_backward(replaced):
    net = Net()
    table, layer = parts(net)
    split = SplitOptimizer(table.inside_backward(), layer)  # pyright: ignore[reportAttributeAccessIssue]
    if replaced:  # as Accelerate does: the new one has no `grad_scaler`
        step = split.step
        split.step = lambda *args: step(*args)  # noqa: PLW0108 # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(HeadtailError, match="`GradScaler` cannot unscale"):
        scaled_step(net, split, torch.amp.GradScaler("cpu"))


def test_clipping_covers_all_groups():
    net = Net()
    split = SplitOptimizer(*parts(net))
    net(torch.tensor([1, 1, 4])).backward()
    grads = [net.table.grad.to_dense(), net.layer.grad]  # pyright: ignore[reportOptionalMemberAccess]
    norm = torch.cat([grad.flatten() for grad in grads]).norm()
    everything = [p for group in split.param_groups for p in group["params"]]
    assert torch.isclose(clip_grad_norm_(everything, 1.0), norm)


def test_an_optimiser_that_does_not_know_sparse_rows_is_refused():
    net = Net()
    split = SplitOptimizer(torch.optim.AdamW([net.table]), RowAdam([net.layer], lr=0.1))
    before = copy.deepcopy(net)
    net(torch.tensor([1])).backward()
    with pytest.raises(HeadtailError, match=r"`AdamW` does not know row-sparse .* shape \[7, 3\]"):
        split.step()
    assert_equal(net, before)


def test_bad_combinations_are_refused():
    net = Net()
    table, layer = parts(net)
    with pytest.raises(HeadtailError, match="There is no optimiser to combine"):
        SplitOptimizer()
    with pytest.raises(HeadtailError, match="must be a Optimizer, but got list"):
        SplitOptimizer([table, layer])  # pyright: ignore[reportArgumentType]
    with pytest.raises(HeadtailError, match="have the same parameter"):
        SplitOptimizer(table, layer, RowAdagrad([net.table], lr=0.1))
    split = SplitOptimizer(table, layer)
    with pytest.raises(HeadtailError, match="no groups of its own"):
        split.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    with pytest.raises(HeadtailError, match=r"saved optimiser has \[1\] .* but this one \[1, 1\]"):
        split.load_state_dict(layer.state_dict())
