"""No label id or row out of range reaches a compiled kernel, whatever door it comes in by."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from headtail import (
    Given,
    HeadtailError,
    Importance,
    LabelHead,
    Labels,
    Queue,
    Ragged,
    RowAdagrad,
    RowAdam,
    RowSGD,
    SampledSoftmaxLoss,
    Uniform,
    use_kernels,
)
from headtail.core.targets import Pairs
from headtail.core.weightings import Weighting
from headtail.functional import sampled_decoupled_loss, sampled_softmax_loss
from headtail.samplers import Draw
from headtail.samplers.interfaces import FixedSampler
from headtail.samplers.sampler import Claims
from tests.kernels.in_python import OUT, run_in_python, wrong

L = 7
DIM = 4


@pytest.fixture(autouse=True)
def called(monkeypatch):
    called = run_in_python(monkeypatch)
    with use_kernels("always"):
        yield called


def table() -> nn.Parameter:
    return nn.Parameter(torch.randn(L, DIM))


TARGET = torch.tensor([0, 3, 6])


def draw(ids: Tensor) -> Draw:
    return Draw(ids, torch.zeros(ids.shape, dtype=torch.float64), torch.zeros(3).double(), 2.0)


class Drawn(FixedSampler):
    """A sampler of one's own that draws anything."""

    claims = Claims()

    def __init__(self, ids: Tensor) -> None:
        super().__init__()
        self.num_labels = L
        self.ids = ids

    def pick(self, step):
        return Draw(self.ids, torch.zeros(self.ids.shape).double(), torch.zeros(3).double(), 2.0)

    def log_q(self, ids, batch_size=None):
        return torch.zeros(ids.shape).double()

    def expected_m(self, batch_size=None):
        return 2.0

    def variance_of_sum(self, term, label, batch_size=None):
        return None

    def for_labels(self, labels):
        return self


def loss_of(sampler) -> Tensor:
    loss = SampledSoftmaxLoss(sampler, Importance())
    return loss(torch.randn(3, DIM), table(), TARGET, sparse=True)


def changed_given(ids: Tensor) -> Given:
    sampler = Given(L, torch.zeros_like(ids), torch.zeros(ids.shape) - 1)
    sampler.ids.copy_(ids)
    return sampler


def restored_queue(ids: Tensor) -> Queue:
    queue = Queue(Labels.zipf(L), ids.numel())
    state = {"past": ids.flatten(), "_extra_state": torch.tensor([ids.numel(), 0])}
    queue.load_state_dict(state)
    return queue


def head() -> LabelHead:
    loss = SampledSoftmaxLoss(Uniform(L, 2), Importance())
    return LabelHead(Labels.zipf(L), DIM, loss, bias=True, sparse=True)


ID_DOORS: dict[str, Callable[[Tensor], object]] = {
    "a softmax": lambda ids: sampled_softmax_loss(
        torch.randn(3, DIM), table(), TARGET, draw(ids), Importance(), sparse=True
    ),
    "a decoupled loss": lambda ids: sampled_decoupled_loss(
        torch.randn(3, DIM), table(), TARGET, draw(ids), Importance(), sparse=True
    ),
    "a head": lambda ids: head()(torch.randn(3, DIM), TARGET, draw=draw(ids)),
    "a sampler of one's own": lambda ids: loss_of(Drawn(ids)),
    "given ids that were changed": lambda ids: loss_of(changed_given(ids)),
    "a restored queue": lambda ids: loss_of(restored_queue(ids)),
}


@pytest.mark.parametrize("shape", [(4,), (3, 4)], ids=["shared", "per example"])
@pytest.mark.parametrize("door", ID_DOORS)
def test_right_negatives_reach_a_kernel_by_every_door(door, shape, called):
    ID_DOORS[door](torch.randint(L, shape))
    assert called


@pytest.mark.parametrize("number", OUT)
@pytest.mark.parametrize("shape", [(4,), (3, 4)], ids=["shared", "per example"])
@pytest.mark.parametrize("door", ID_DOORS)
def test_a_negative_that_is_no_label_is_refused_by_every_door(door, shape, number, called):
    ids = torch.zeros(shape, dtype=torch.int64)
    ids.view(-1)[-1] = wrong(number, L)
    with pytest.raises(HeadtailError, match="ids` must hold label ids from 0 to 6, but got"):
        ID_DOORS[door](ids)
    assert called[-1:] in ([], ["refuse_outside"])  # nothing was read after it


TARGET_DOORS: dict[str, Callable[[object], object]] = {
    "a head": lambda target: head()(torch.randn(3, DIM), target),
    "a loss": lambda target: sampled_softmax_loss(
        torch.randn(3, DIM), table(), target, draw(torch.tensor([1, 2])), Importance(), sparse=True
    ),
}


@pytest.mark.parametrize("by_hand", [False, True], ids=["ids", "pairs"])
@pytest.mark.parametrize("number", OUT)
@pytest.mark.parametrize("door", TARGET_DOORS)
def test_a_target_that_is_no_label_is_refused(door, number, by_hand, called):
    target = torch.tensor([0, 1, wrong(number, L)])
    with pytest.raises(HeadtailError, match="`target` must hold label ids from 0 to 6, but got"):
        TARGET_DOORS[door](Pairs(target, None, None, 3) if by_hand else target)
    assert not called


@pytest.mark.parametrize(
    "pairs",
    [
        Pairs(torch.zeros(9).long(), None, None, 3),
        Pairs(torch.zeros(3).long(), torch.zeros(9).long(), None, 3),
        Pairs(torch.zeros(3).long(), None, torch.zeros(2).bool(), 3),
        Pairs(torch.zeros(3).long(), None, None, 3, group=torch.zeros(4).long()),
    ],
    ids=["labels", "examples", "skipped", "groups"],
)
@pytest.mark.parametrize("door", TARGET_DOORS)
def test_pairs_made_by_hand_must_fit_each_other(door, pairs, called):
    with pytest.raises(HeadtailError, match="Give one for each label"):
        TARGET_DOORS[door](pairs)
    assert not called


class Weighed(Weighting):
    """A weighting of one's own with offsets of any shape."""

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.ab = a, b

    def offsets(self, draw, target):
        return self.ab


@pytest.mark.parametrize("sizes", [(3, 2), (3, 9), (2, 4), (9, 4)], ids=str)
def test_weights_of_another_shape_never_reach_a_kernel(sizes, called):
    weighting = Weighed(*(torch.zeros(size).double() for size in sizes))
    with pytest.raises(RuntimeError):  # torch's own: they cannot be broadcast
        sampled_softmax_loss(
            torch.randn(3, DIM),
            table(),
            TARGET,
            draw(torch.zeros(4).long()),
            weighting,
            sparse=True,
        )
    assert not called


def test_negatives_for_another_number_of_targets_never_reach_a_kernel(called):
    with pytest.raises(RuntimeError):  # torch's own: they cannot be broadcast
        loss_of(Drawn(torch.zeros(9, 4).long()))
    assert not called


@pytest.mark.parametrize("number", OUT)
@pytest.mark.parametrize("argument", ["candidates", "exclude"])
def test_best_labels_are_not_sought_among_labels_that_do_not_exist(argument, number, called):
    ids = torch.tensor([0, wrong(number, L)])
    forms = [Ragged(ids, torch.tensor([0, 1, 2])), [[0], [int(ids[1])]], ids[:, None]]
    if argument == "candidates":
        forms.append(ids)
    for form in forms:
        if number == "negative":
            continue  # padding
        with pytest.raises(HeadtailError, match="must hold label ids from 0 to 6"):
            head().topk(torch.randn(2, DIM), 2, **{argument: form})
    assert not called


def test_the_best_labels_are_found_by_a_kernel_unless_their_number_is_out_of_range(called):
    head().topk(torch.randn(2, DIM), L)
    assert called
    called.clear()
    for k in (0, -1, L + 1):
        with pytest.raises(HeadtailError, match="`k`"):
            head().topk(torch.randn(2, DIM), k)
    assert not called


def test_biases_of_another_number_are_refused(called):
    changed = head()
    changed.bias = nn.Parameter(torch.zeros(1, 1))
    with pytest.raises(HeadtailError, match="1 biases for 7 labels"):
        changed.topk(torch.randn(2, DIM), 2)
    assert not called


RULES = {
    "SGD": lambda p: RowSGD([p], lr=0.1),
    "momentum": lambda p: RowSGD([p], lr=0.1, momentum=0.9),
    "Adagrad": lambda p: RowAdagrad([p]),
    "Adagrad per row": lambda p: RowAdagrad([p], per_row=True),
    "Adam": lambda p: RowAdam([p]),
}


def gradient(row: int) -> Tensor:
    rows = torch.tensor([[0, row]])
    return torch.sparse_coo_tensor(rows, torch.ones(2, DIM), (L, DIM), check_invariants=False)


@pytest.mark.parametrize("rule", RULES)
def test_a_right_gradient_reaches_a_kernel(rule, called):
    p = table()
    p.grad = gradient(L - 1)
    RULES[rule](p).step()
    assert called


@pytest.mark.parametrize("number", OUT)
@pytest.mark.parametrize("kernels", ["always", "off"])
@pytest.mark.parametrize("rule", RULES)
def test_a_gradient_of_a_row_that_does_not_exist_is_refused(rule, kernels, number, called):
    p = table()
    before = p.detach().clone()
    p.grad = gradient(wrong(number, L))
    with (
        use_kernels(kernels),
        pytest.raises(HeadtailError, match="`grad` must hold rows of its table from 0 to 6, but"),
    ):
        RULES[rule](p).step()
    assert torch.equal(p, before)
    assert called[-1:] in ([], ["by_row"])  # nothing was read after it


@pytest.mark.parametrize("rule", RULES)
def test_entries_that_wait_for_a_table_which_has_shrunk_are_refused(rule):
    p = table()
    optimizer = RULES[rule](p).inside_backward()
    loss = SampledSoftmaxLoss(Given(L, torch.tensor([6]), torch.zeros(1) - 1), Importance())
    loss(torch.randn(1, DIM), p, torch.tensor([5]), sparse=True).backward()
    p.data = p.data[:4].contiguous()
    with pytest.raises(
        HeadtailError, match="`grad` must hold rows of its table from 0 to 3, but got 6"
    ):
        optimizer.step()


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "SGD"])
def test_the_state_of_a_narrower_table_is_refused(rule, called):
    p = table()
    p.grad = gradient(1)
    optimizer = RULES[rule](p)
    optimizer.step()
    state = optimizer.state_dict()
    for name, value in state["state"][0].items():
        if isinstance(value, Tensor):
            state["state"][0][name] = value[:, :0]
    called.clear()
    optimizer.load_state_dict(state)
    with pytest.raises(HeadtailError, match="Load the state of an optimiser of this table"):
        optimizer.step()
    assert not called
