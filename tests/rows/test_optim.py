"""Row optimisers: step for step torch's own where torch has one, exact where it is lazy."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F

from headtail import HeadtailError, RowAdagrad, RowAdam, RowSGD, clip_grad_norm_
from headtail.device import parts
from headtail.rows.decay import catch_up, catch_up_embeddings, owed, owes
from headtail.rows.optimizers import DenseSGD
from tests.device.largest import LargestTensor

f64 = torch.float64
SIZE = 12
DIM = 3
OPTIMISERS = {
    "sgd": lambda p, **k: RowSGD(p, lr=0.1, **k),
    "momentum": lambda p, **k: RowSGD(p, lr=0.1, momentum=0.9, **k),
    "adagrad": lambda p, **k: RowAdagrad(p, lr=0.1, initial_accumulator_value=0.1, **k),
    "rowwise adagrad": lambda p, **k: RowAdagrad(
        p, lr=0.1, initial_accumulator_value=0.1, per_row=True, **k
    ),
    "adam": lambda p, **k: RowAdam(p, lr=0.1, **k),
}
each_optimiser = pytest.mark.parametrize("make", OPTIMISERS.values(), ids=OPTIMISERS)


def table() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.linspace(-1, 1, SIZE * DIM, dtype=f64).reshape(SIZE, DIM))


def batches(steps: int = 8, seed: int = 3):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        yield (
            torch.randint(SIZE, (5,), generator=generator),
            torch.randn(5, DIM, dtype=f64, generator=generator),
        )


def run(weight, optimiser, *, sparse: bool, steps=None, schedule=None):
    for step, (ids, goal) in enumerate(steps or batches()):
        optimiser.zero_grad()
        if schedule:
            optimiser.param_groups[0]["lr"] = schedule(step)
        catch_up(weight, ids)
        ((F.embedding(ids, weight, sparse=sparse) - goal) ** 2).sum().backward()
        optimiser.step()
    return weight


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda p: RowSGD(p, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
        (lambda p: RowAdam(p, lr=0.1), lambda p: torch.optim.SparseAdam(p, lr=0.1)),
        (lambda p: RowAdagrad(p, lr=0.1), lambda p: torch.optim.Adagrad(p, lr=0.1)),
        (
            lambda p: RowAdagrad(p, lr=0.1, initial_accumulator_value=0.5),
            lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5),
        ),
    ],
    ids=["SGD", "SparseAdam", "Adagrad", "Adagrad with a start"],
)
def test_row_optimisers_are_torch_s_own_on_sparse_gradients(ours, theirs):
    mine = table()
    other = table()
    run(mine, ours([mine]), sparse=True)
    run(other, theirs([other]), sparse=True)
    assert torch.allclose(mine, other, rtol=1e-13, atol=0)


@each_optimiser
def test_dense_gradients_that_touch_every_row_give_the_same_steps(make):
    everything = [(torch.arange(SIZE), torch.randn(SIZE, DIM, dtype=f64)) for _ in range(5)]
    one = table()
    other = table()
    run(one, make([one], weight_decay=0.1), sparse=True, steps=everything)
    run(other, make([other], weight_decay=0.1), sparse=False, steps=everything)
    assert torch.allclose(one, other, rtol=1e-12)


def test_one_number_a_row_is_the_sum_of_the_rows_mean_squares():
    weight = table()
    rows = torch.tensor([2, 7])
    optimiser = RowAdagrad([weight], lr=0.1, per_row=True)
    before = table().detach()
    grad = torch.randn(2, DIM, dtype=f64)
    for _ in range(2):
        weight.grad = torch.sparse_coo_tensor(rows[None], grad, weight.shape)
        optimiser.step()
    square = (grad**2).sum(1, keepdim=True) / DIM
    expected = before[rows] - 0.1 * grad / square.sqrt() - 0.1 * grad / (2 * square).sqrt()
    assert torch.allclose(weight[rows], expected, rtol=1e-9)
    assert optimiser.state[weight]["sum"].shape == (SIZE, 1)
    assert torch.allclose(optimiser.state[weight]["sum"][rows], 2 * square)


def test_momentum_touching_every_row_is_torch_s_sgd():
    everything = [(torch.arange(SIZE), torch.randn(SIZE, DIM, dtype=f64)) for _ in range(5)]
    one = table()
    other = table()
    run(one, RowSGD([one], lr=0.1, momentum=0.9), sparse=True, steps=everything)
    run(other, torch.optim.SGD([other], lr=0.1, momentum=0.9), sparse=False, steps=everything)
    assert torch.allclose(one, other, rtol=1e-12)


@each_optimiser
def test_untouched_rows_and_their_moments_stand_still(make):
    weight = table()
    before = weight.detach().clone()
    optimiser = make([weight])
    run(
        weight,
        optimiser,
        sparse=True,
        steps=[(torch.tensor([1, 4, 1]), torch.zeros(3, DIM, dtype=f64))],
    )
    untouched = [i for i in range(SIZE) if i not in (1, 4)]
    assert torch.equal(weight[untouched], before[untouched])
    assert not torch.equal(weight[[1, 4]], before[[1, 4]])
    for name, value in optimiser.state[weight].items():
        if isinstance(value, torch.Tensor) and value.shape == weight.shape:
            start = 0.1 if name == "sum" else 0.0
            assert (value[untouched] == start).all()


@each_optimiser
def test_lazy_weight_decay_is_exact_across_a_changing_learning_rate(make):
    """Against the same optimiser with all rows decayed in every step by hand."""
    decay = 0.3

    def schedule(step):
        return 0.1 / (1 + step)

    lazy = table()
    optimiser = make([lazy], weight_decay=decay)
    run(lazy, optimiser, sparse=True, schedule=schedule)
    optimiser.flush()
    eager = table()
    plain = make([eager])
    for step, (ids, goal) in enumerate(batches()):
        plain.zero_grad()
        plain.param_groups[0]["lr"] = schedule(step)
        ((F.embedding(ids, eager, sparse=True) - goal) ** 2).sum().backward()
        with torch.no_grad():
            eager.mul_(1 - schedule(step) * decay)
        plain.step()
    assert torch.allclose(lazy, eager, rtol=1e-12)


def test_weight_decay_with_dense_gradients_is_adamw_s_decay():
    one = table()
    other = table()
    everything = [(torch.arange(SIZE), torch.zeros(SIZE, DIM, dtype=f64)) for _ in range(4)]
    run(one, RowSGD([one], lr=0.0, weight_decay=0.5), sparse=False, steps=everything)
    assert torch.equal(one, other), "no learning rate, no decay"
    run(one, RowAdam([one], lr=0.01, weight_decay=0.5, eps=1e-12), sparse=False, steps=everything)
    run(
        other,
        torch.optim.AdamW([other], lr=0.01, weight_decay=0.5, eps=1e-12),
        sparse=False,
        steps=everything,
    )
    assert torch.allclose(one, other, rtol=1e-9)


@each_optimiser
def test_a_restored_optimiser_goes_on_as_if_never_interrupted(make):
    all_steps = list(batches(8))
    whole = table()
    optimiser = make([whole], weight_decay=0.2)
    run(whole, optimiser, sparse=True, steps=all_steps)
    optimiser.flush()
    first = table()
    before = make([first], weight_decay=0.2)
    run(first, before, sparse=True, steps=all_steps[:4])
    saved = copy.deepcopy(before.state_dict())
    resumed = torch.nn.Parameter(first.detach().clone())
    after = make([resumed], weight_decay=0.2)
    after.load_state_dict(saved)
    run(resumed, after, sparse=True, steps=all_steps[4:])
    after.flush()
    assert torch.allclose(resumed, whole, rtol=1e-12)
    assert set(saved["state"].get(0, {})) <= {
        "momentum_buffer",
        "sum",
        "exp_avg",
        "exp_avg_sq",
        "step",
    }, "nothing lazy on disk"


def test_learning_rate_schedulers_drive_row_optimisers():
    weight = torch.nn.Parameter(torch.zeros(2, 1))
    optimiser = RowSGD([weight], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimiser, 1, gamma=0.5)
    for _ in range(3):
        weight.grad = torch.ones(2, 1)
        optimiser.step()
        scheduler.step()
    assert weight.tolist() == [[-1.75], [-1.75]]


def test_a_decay_that_would_flip_the_weights_is_refused():
    weight = table()
    with pytest.raises(HeadtailError, match="flip"):
        run(weight, RowSGD([weight], lr=1.0, weight_decay=1.0), sparse=True)


def test_clipping_sums_repeated_rows_before_taking_the_norm():
    sparse = table()
    dense = table()
    other = torch.nn.Parameter(torch.ones(2, dtype=f64))
    ids = torch.tensor([1, 1, 1, 7])
    for weight, kind in ((sparse, True), (dense, False)):
        (F.embedding(ids, weight, sparse=kind) ** 3).sum().backward()
    other.grad = torch.tensor([3.0, 4.0], dtype=f64)
    twin = torch.nn.Parameter(torch.ones(2, dtype=f64))
    twin.grad = other.grad.clone()
    norm = clip_grad_norm_([sparse, other], max_norm=0.5)
    expected = torch.nn.utils.clip_grad_norm_([dense, twin], max_norm=0.5)
    assert norm.item() == pytest.approx(expected.item(), rel=1e-6)
    assert sparse.grad is not None
    assert torch.allclose(sparse.grad.to_dense(), dense.grad, rtol=1e-6)
    assert torch.allclose(other.grad, twin.grad, rtol=1e-6)


def test_clipping_leaves_small_gradients_alone():
    weight = table()
    weight.grad = torch.full_like(weight, 1e-3)
    clip_grad_norm_([weight], max_norm=1.0)
    assert torch.equal(weight.grad, torch.full_like(weight, 1e-3))


def test_clipping_takes_a_single_tensor_and_an_infinite_limit():
    weight = table()
    weight.grad = torch.ones_like(weight)
    assert clip_grad_norm_(weight, float("inf")).item() == pytest.approx(6.0)
    clip_grad_norm_(weight, 3.0)
    assert weight.grad.norm().item() == pytest.approx(3.0, rel=1e-5)


@each_optimiser
def test_a_scalar_parameter_is_optimised_too(make):
    scalar = torch.nn.Parameter(torch.tensor(2.0, dtype=f64))
    optimiser = make([scalar], weight_decay=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        (scalar**2).backward()
        optimiser.step()
    assert 0 < scalar.item() < 2


def test_rows_catch_up_even_in_a_step_without_decay():
    weight = torch.nn.Parameter(torch.ones(3, 1, dtype=f64))
    optimiser = RowSGD([weight], lr=0.1, weight_decay=1.0)
    for row, decay in ((0, 1.0), (0, 1.0), (1, 0.0)):
        optimiser.param_groups[0]["weight_decay"] = decay
        optimiser.zero_grad()
        F.embedding(torch.tensor([row]), weight, sparse=True).sum().backward()
        optimiser.step()
    optimiser.flush()
    assert weight[1].item() == pytest.approx(0.9**2 - 0.1, rel=1e-12)


def test_copying_the_optimiser_first_loses_no_decay():
    weight = torch.nn.Parameter(torch.ones(3, 1, dtype=f64))
    optimiser = RowSGD([weight], lr=0.1, weight_decay=1.0)
    run(
        weight, optimiser, sparse=True, steps=[(torch.tensor([0]), torch.ones(1, 1, dtype=f64))] * 3
    )
    copied, twin = copy.deepcopy((optimiser, weight))
    assert twin[2].item() == pytest.approx(0.9**3)
    copied.flush()
    assert twin[2].item() == pytest.approx(0.9**3)


@each_optimiser
def test_a_run_resumes_bit_for_bit_in_float64_with_weight_decay(make):
    steps = list(batches(40))
    weight = table()
    optimiser = make([weight], weight_decay=0.3)
    run(weight, optimiser, sparse=True, steps=steps[:20])
    saved = copy.deepcopy(optimiser.state_dict())  # all rows have their decay now
    again = torch.nn.Parameter(weight.detach().clone())
    resumed = make([again], weight_decay=0.3)
    resumed.load_state_dict(saved)
    for one, its in ((weight, optimiser), (again, resumed)):
        run(one, its, sparse=True, steps=steps[20:])
        its.flush()
    assert torch.equal(again, weight)


@pytest.mark.parametrize("kind", [torch.nn.Embedding, torch.nn.EmbeddingBag])
def test_embeddings_of_torch_are_read_and_saved_with_their_weight_decay(kind):
    layer = kind(3, 1, sparse=True, dtype=f64)
    torch.nn.init.ones_(layer.weight)
    model = torch.nn.Sequential(layer)
    for _ in range(2):
        catch_up_embeddings(model)
    assert len(layer._forward_pre_hooks) == len(layer._state_dict_pre_hooks) == 1
    optimiser = RowSGD(layer.parameters(), lr=0.1, weight_decay=1.0)
    for _ in range(3):
        optimiser.zero_grad()
        model(torch.tensor([[0]])).sum().backward()
        optimiser.step()
    assert model(torch.tensor([[1, 1]])).mean().item() == pytest.approx(0.9**3, rel=1e-12)
    assert layer(input=torch.tensor([[1]])).item() == pytest.approx(0.9**3, rel=1e-12)
    assert model.state_dict()["0.weight"][2].item() == pytest.approx(0.9**3, rel=1e-12)


def test_the_state_of_another_optimiser_is_refused():
    saved = RowAdagrad([table()], lr=0.1).state_dict()
    with pytest.raises(HeadtailError, match="no `betas`, which `RowAdam` needs: it is that of ano"):
        RowAdam([table()], lr=0.1).load_state_dict(saved)


@pytest.mark.parametrize("dtype", [f64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wide", [True, False])
def test_pending_decay_reaches_a_table_in_parts_with_the_same_bits(dtype, wide, monkeypatch):
    shape = (500, 16) if wide else (500,)
    first = torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape).to(dtype)
    tables = []
    sizes = []
    for part in (parts.PART, 50 * first[:1].nbytes):
        monkeypatch.setattr(parts, "PART", part)
        weight = torch.nn.Parameter(first.clone())
        owes(weight, -torch.arange(500, dtype=f64) / 100, -5.5)
        torch.manual_seed(0)
        with LargestTensor() as largest:
            catch_up(weight)
        tables.append(weight.detach())
        sizes.append(largest.bytes)
    assert torch.equal(*tables)
    assert not tables[0].equal(first)
    assert sizes[1] <= sizes[0] / 9


def test_a_bfloat16_table_is_decayed_by_the_whole_factor():
    weight = torch.nn.Parameter(torch.ones(2, 8, dtype=torch.bfloat16))
    optimiser = RowSGD([weight], lr=0.1, weight_decay=0.03)
    for _ in range(100):
        weight.grad = torch.sparse_coo_tensor(
            torch.tensor([[0]]), torch.zeros(1, 8, dtype=torch.bfloat16), (2, 8)
        )
        optimiser.step()
    optimiser.flush()
    assert weight[1, 0].item() == pytest.approx(0.997**100, rel=2**-8)


@each_optimiser
def test_decay_of_one_table_that_another_takes_over_is_due_there(make):
    """Neither settles anything: both tables go on as one would."""
    all_steps = list(batches(8))
    whole = table()
    optimiser = make([whole], weight_decay=0.2)
    run(whole, optimiser, sparse=True, steps=all_steps[:4])
    received, log_decay = owed(whole)
    assert (received < 0).any()
    taken = torch.nn.Parameter(whole.detach().clone())
    after = make([taken], weight_decay=0.2)
    after.state[taken].update(
        {name: copy.deepcopy(value) for name, value in optimiser.state[whole].items()}
    )
    owes(taken, received.clone(), log_decay)
    for weight, its in ((whole, optimiser), (taken, after)):
        run(weight, its, sparse=True, steps=all_steps[4:])
        its.flush()
    assert torch.equal(taken, whole)


def test_a_table_that_never_decayed_owes_nothing():
    weight = table()
    run(weight, RowSGD([weight], lr=0.1), sparse=True)
    assert owed(weight) is None


@pytest.mark.parametrize(
    "ids",
    [[1, 4, 9], [1, 4, 4], [4, 1, 4]],
    ids=["ascending", "repeated at once", "repeated later"],
)
@pytest.mark.parametrize("size", [(SIZE, 1), (SIZE, 2**14)], ids=["small", "large"])
@pytest.mark.parametrize("dtype", [torch.float32, f64])
def test_rows_are_summed_before_a_step_however_the_gradient_comes(ids, size, dtype):
    """Ascending rows are taken as they are, large float32 ones are summed by the kernel, others by
    torch.
    """
    weight = torch.nn.Parameter(torch.zeros(size, dtype=dtype))
    (
        F.embedding(torch.tensor(ids), weight, sparse=True)
        * torch.arange(1.0, 4.0, dtype=dtype)[:, None]
    ).sum().backward()
    RowSGD([weight], lr=1.0).step()
    wanted = torch.zeros(size, dtype=dtype)
    for row, value in zip(ids, (1.0, 2.0, 3.0), strict=True):
        wanted[row] -= value
    assert torch.equal(weight, wanted)


def test_a_large_sparse_vector_is_optimised_too():
    weight = torch.nn.Parameter(torch.zeros(2**16))
    weight.grad = torch.sparse_coo_tensor(
        torch.arange(2**16).flip(0)[None], torch.ones(2**16), (2**16,)
    )
    RowSGD([weight], lr=1.0).step()
    assert (weight == -1).all()


NARROW = {"bfloat16": torch.bfloat16, "float16": torch.float16}
STATE = {name: make for name, make in OPTIMISERS.items() if name != "sgd"}


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("dtype", NARROW.values(), ids=NARROW)
@pytest.mark.parametrize("make", STATE.values(), ids=STATE)
def test_a_narrow_table_goes_on_bit_for_bit_from_a_saved_state(make, dtype, sparse):
    all_steps = [(ids, goal.to(dtype)) for ids, goal in batches(8)]
    ends = []
    for stops in (False, True):
        weight = torch.nn.Parameter(table().detach().to(dtype))
        optimiser = make([weight], weight_decay=0.2)
        torch.manual_seed(0)
        run(weight, optimiser, sparse=sparse, steps=all_steps[:4])
        file = io.BytesIO()
        # which settles weight decay
        torch.save({"table": weight.detach(), "optimiser": optimiser.state_dict()}, file)
        if stops:
            saved = torch.load(io.BytesIO(file.getvalue()))
            weight = torch.nn.Parameter(torch.empty(SIZE, DIM, dtype=dtype))
            weight.data.copy_(saved["table"])
            optimiser = make([weight], weight_decay=0.2)
            optimiser.load_state_dict(saved["optimiser"])
        run(weight, optimiser, sparse=sparse, steps=all_steps[4:])
        optimiser.flush()
        ends.append((weight.detach(), optimiser.state[weight]))
    (whole, state), (resumed, resumed_state) = ends
    assert torch.equal(resumed, whole)
    assert state.keys() == resumed_state.keys()
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == resumed_state[name].dtype == torch.float32
            assert torch.equal(value, resumed_state[name])
        else:
            assert value == resumed_state[name]


def test_hooks_that_change_a_loaded_state_have_the_last_word():
    weight = torch.nn.Parameter(torch.ones(2, 3, dtype=torch.bfloat16))
    optimiser = RowAdagrad([weight])
    weight.grad = torch.ones_like(weight)
    optimiser.step()
    seen = []

    def double(_, state):
        return {**state, "state": {0: {"sum": 2 * state["state"][0]["sum"]}}}

    optimiser.register_load_state_dict_pre_hook(double)
    optimiser.register_load_state_dict_post_hook(
        lambda its: seen.append(its.state[weight]["sum"].dtype)
    )
    optimiser.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    assert (optimiser.state[weight]["sum"] == 2).all()
    assert seen == [torch.float32]


@each_optimiser
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("decay", [0.0, 0.2], ids=["no decay", "weight decay"])
def test_a_learning_rate_may_be_a_tensor_that_a_scheduler_writes_into(make, sparse, decay):
    number = table()
    tensor = table()
    rate = torch.tensor(0.1, dtype=f64)
    for weight, lr in ((number, 0.1), (tensor, rate)):
        optimiser = type(make([weight]))([weight], lr=lr, weight_decay=decay)
        scheduler = torch.optim.lr_scheduler.StepLR(optimiser, 1, gamma=0.5)
        for batch in batches(4):
            run(weight, optimiser, sparse=sparse, steps=[batch])
            scheduler.step()
        optimiser.flush()
        assert (optimiser.param_groups[0]["lr"] is rate) == (lr is rate)
    assert torch.equal(number, tensor)
    assert rate == 0.1 / 16


@pytest.mark.parametrize("make", [RowSGD, RowAdagrad, RowAdam, DenseSGD])
def test_a_learning_rate_of_a_kernel_s_table_may_be_a_tensor(make):
    ends = []
    for lr in (0.5, torch.tensor(0.5)):
        weight = torch.nn.Parameter(torch.ones(2**10, 2**6))
        optimiser = make([weight], lr=lr)
        for _ in range(2):
            weight.grad = torch.full_like(weight, 0.25)
            optimiser.step()
        ends.append(weight.detach())
    assert torch.equal(*ends)
    assert not (ends[0] == 1).any()


@pytest.mark.parametrize("make", [RowSGD, RowAdagrad, RowAdam, DenseSGD])
@pytest.mark.parametrize(
    ("lr", "words"),
    [
        (torch.tensor(-0.1), "at least 0"),
        (torch.tensor(torch.nan), "finite"),
        (torch.tensor([0.1, 0.2]), r"without dimensions, but got torch.float32 of shape \[2\]"),
        (torch.tensor(1), "torch.int64"),
        (-0.1, "at least 0"),
    ],
    ids=["negative", "nan", "two", "integer", "negative number"],
)
def test_what_is_not_a_learning_rate_is_refused(make, lr, words):
    with pytest.raises(HeadtailError, match=words):
        make([table()], lr=lr)


@each_optimiser
@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))],
    ids=["deepcopy", "pickle"],
)
def test_a_copied_optimiser_takes_the_same_steps(make, copied):
    weight = table()
    optimiser = make([weight], weight_decay=0.1)
    run(weight, optimiser, sparse=True, steps=list(batches(2)))
    other, twin = copied((optimiser, weight))  # the optimiser first: it settles weight decay
    for one, its in ((weight, optimiser), (twin, other)):
        run(one, its, sparse=True, steps=list(batches(3, seed=4)))
        its.flush()
    assert torch.equal(twin, weight)


@pytest.mark.parametrize("settled", [True, False], ids=["settled", "pending"])
def test_a_table_saved_by_itself_takes_its_pending_decay_along(settled):
    weight = torch.nn.Parameter(torch.ones(3, 1, dtype=f64))
    optimiser = RowSGD([weight], lr=0.1, weight_decay=1.0).inside_backward()
    run(
        weight, optimiser, sparse=True, steps=[(torch.tensor([0]), torch.ones(1, 1, dtype=f64))] * 3
    )
    if settled:
        optimiser.flush()
    file = io.BytesIO()
    torch.save(weight, file)
    file.seek(0)
    for loaded in (torch.load(file), pickle.loads(pickle.dumps(weight))):
        catch_up(loaded)
        assert loaded[2].item() == pytest.approx(0.9**3, rel=1e-12)
        assert (owed(loaded) is None) == settled


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_many_weights_are_updated_together_as_one_by_one(decay):
    """What a GPU does for the weights of a network, by torch's fused kernel."""
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(shape)) for shape in ((4, 3), (5,), (2, 2, 2))]
    others = copy.deepcopy(weights)
    one_by_one, together = (RowAdam(p, lr=0.1, weight_decay=decay) for p in (weights, others))
    together.updates_together = lambda p, gradient: True
    for _ in range(4):
        for weight, other in zip(weights, others, strict=True):
            weight.grad = torch.randn_like(weight)
            other.grad = weight.grad.clone()
        one_by_one.step()
        together.step()
    for weight, other in zip(weights, others, strict=True):
        torch.testing.assert_close(weight, other)


def test_state_is_loaded_into_an_optimiser_that_has_loaded_before():
    table = torch.nn.Parameter(torch.zeros(3, 2))
    optimiser = RowAdam([table], lr=0.1)
    state = optimiser.state_dict()
    optimiser.load_state_dict(state)  # torch adds an option of its own here
    optimiser.load_state_dict(state)
    copy.deepcopy(optimiser).load_state_dict(state)
