"""Tables in host memory do what tables elsewhere do, and stay where they are.

Where there is no GPU, `far` lets a head take every path that a GPU over a bus takes, on the CPU.
tests/test_host_table_cuda.py has the same on a GPU, tests/kernels/test_cuda_gather.py with Triton's
interpreter.
"""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headtail as ht
from headtail.device import parts
from headtail.device.host_memory import HostTensor
from headtail.files.tensors import load_tensors, save_tensors
from headtail.rows.link import link_of
from headtail.rows.row_optimizer import RowOptimizer
from headtail.training.checkpoint import restore_training_state, training_state
from tests.test_captured_head import OPTIMISERS, stands_in

L = 500
D = 16
B = 12
SCHEMES = (
    "uniform:importance@8",
    "within-batch:tail",
    "frequency:relative@8",
    "cosface/frequency:tail@8",
    "logistic/uniform:importance@8",
)
MODES = ("off", "always")


@pytest.fixture(params=[False, True], ids=["near", "far"])
def far(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether tables are read as if a bus were in between."""
    monkeypatch.setattr(HostTensor, "is_far", property(lambda _: request.param))
    monkeypatch.setattr(parts, "PART", 70 * D * 4)
    return request.param


def make(
    placement: str,
    scheme: str = "uniform:importance@8",
    optimiser: str = "per row",
    captured: bool = False,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> tuple[ht.LabelHead, RowOptimizer]:
    torch.manual_seed(0)
    labels = ht.Labels.zipf(L)
    kind: Any = placement
    loss = ht.scheme(scheme, labels)
    head = ht.LabelHead(labels, D, loss, bias=True, sparse=True, dtype=dtype, placement=kind)
    optimizer = OPTIMISERS[optimiser](head.parameters(), **options)
    stands_in(head, optimizer, captured)
    return head, optimizer


def train(head: ht.LabelHead, optimizer: RowOptimizer, steps: range = range(8)) -> list[Tensor]:
    """Hidden states have gradients too, which are returned."""
    grads = []
    for seed in steps:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(B, D, generator=generator).to(head.weight.dtype).requires_grad_()
        y = torch.randint(40, (B,), generator=generator)
        torch.manual_seed(seed)
        optimizer.zero_grad()
        head(x, y).backward()
        optimizer.step()
        assert x.grad is not None
        grads.append(x.grad)
    return grads


def same(one: ht.LabelHead, other: ht.LabelHead) -> None:
    for head in (one, other):
        torch.manual_seed(0)  # bfloat16 is rounded at random
        head.flush()
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def state_of(head: ht.LabelHead, optimizer: RowOptimizer) -> dict[str, Any]:
    return optimizer.state[head.weight]


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_every_optimiser_gives_the_same_bits(optimiser, mode, weight_decay, far):
    with ht.use_kernels(mode):
        here = make("host", optimiser=optimiser, weight_decay=weight_decay)
        there = make("device", optimiser=optimiser, weight_decay=weight_decay)
        for mine, theirs in zip(train(*here), train(*there), strict=True):
            assert torch.equal(mine, theirs)
    same(here[0], there[0])
    rows = [v for v in state_of(*here).values() if isinstance(v, Tensor) and v.dim()]
    assert all(isinstance(v, HostTensor) for v in rows)
    assert bool(rows) == (optimiser != "sgd")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("captured", [False, True])
def test_every_scheme_gives_the_same_bits(scheme, mode, captured, far):
    with ht.use_kernels(mode):
        here = make("host", scheme, captured=captured)
        there = make("device", scheme)
        train(*here)
        train(*there)
    assert bool(here[0].captured.shapes) == captured
    same(here[0], there[0])


@pytest.mark.parametrize("at_once", [False, True])
def test_updates_inside_backward_give_the_same_bits(at_once, far):
    here, there = make("host"), make("device")
    for head, optimizer in (here, there):
        optimizer.inside_backward(at_once=at_once)
        train(head, optimizer)
    same(here[0], there[0])


@pytest.mark.parametrize("captured", [False, True])
def test_only_rows_in_use_are_gathered_and_gradients_reach_the_table(captured, far, monkeypatch):
    from headtail.losses import fused

    seen = []
    plain = fused.near_rows
    monkeypatch.setattr(fused, "near_rows", lambda *a: seen.append(plain(*a)) or seen[-1])
    with ht.use_kernels("always"):
        head, _ = make("host", captured=captured)
        for _ in range(6):
            head.zero_grad()
            head(torch.randn(B, D), torch.arange(B)).backward()
    assert bool(head.captured.shapes) == captured
    assert {len(rows.weight) for rows in seen} == {B + 8 if far else L}
    assert head.weight.grad.coalesce().indices()[0, :B].tolist()[:3] == [0, 1, 2]


def test_negatives_per_example_are_not_gathered(far):
    labels = ht.Labels.zipf(L)
    heads = []
    for placement in ("host", "device"):
        torch.manual_seed(0)
        loss = ht.SampledSoftmaxLoss(ht.Uniform(labels, 4, exclude_target=True), ht.Importance())
        head = ht.LabelHead(labels, D, loss, sparse=True, placement=placement)
        train(head, ht.RowSGD(head.parameters(), lr=0.1))
        heads.append(head)
    same(*heads)


def test_a_bfloat16_table_keeps_its_type_and_a_float32_state(far):
    here = make("host", dtype=torch.bfloat16, weight_decay=0.1)
    there = make("device", dtype=torch.bfloat16, weight_decay=0.1)
    train(*here)
    train(*there)
    same(here[0], there[0])
    assert state_of(*here)["sum"].dtype == torch.float32


def test_a_state_dict_is_the_table_itself_and_loading_writes_into_it(far):
    head, optimizer = make("host")
    train(head, optimizer)
    saved = head.state_dict()
    assert saved["weight"].data_ptr() == head.weight.data_ptr() == head.weight.host.data_ptr()
    assert type(saved["weight"]) is Tensor
    assert saved["weight"].device.type == "cpu"
    other, _ = make("host")
    place = other.weight.data_ptr()
    other.load_state_dict(saved, assign=True)
    assert other.weight.data_ptr() == place
    assert isinstance(other.weight, HostTensor)
    same(head, other)
    elsewhere, _ = make("device")
    elsewhere.load_state_dict(saved)
    same(head, elsewhere)


@pytest.mark.parametrize("optimiser", ["per row", "adam", "momentum"])
@pytest.mark.parametrize("captured", [False, True])
def test_training_resumes_bit_for_bit(optimiser, captured, far):
    settings: dict[str, Any] = {"optimiser": optimiser, "captured": captured}
    head, optimizer = make("host", weight_decay=0.1, **settings)
    train(head, optimizer)
    file = io.BytesIO()
    torch.save({"head": head.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)
    again, further = make("host", weight_decay=0.1, **settings)
    train(again, further, range(20, 25))  # it has state already, at addresses that graphs know
    places = {k: v.data_ptr() for k, v in state_of(again, further).items() if _has_rows(v)}
    again.load_state_dict(saved["head"])
    further.load_state_dict(saved["optimizer"])
    assert places == {k: v.data_ptr() for k, v in state_of(again, further).items() if _has_rows(v)}
    train(head, optimizer, range(8, 16))
    train(again, further, range(8, 16))
    same(head, again)


def _has_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


def test_the_state_of_an_optimiser_goes_to_a_head_elsewhere_and_back(far):
    here, there = make("host", optimiser="adam"), make("device", optimiser="adam")
    train(*here)
    saved = here[1].state_dict()
    there[0].load_state_dict(here[0].state_dict())
    there[1].load_state_dict(copy.deepcopy(saved))
    train(*here, range(8, 12))
    train(*there, range(8, 12))
    same(here[0], there[0])
    fresh = make("host", optimiser="adam")
    fresh[0].load_state_dict(there[0].state_dict())
    fresh[1].load_state_dict(there[1].state_dict())
    kept = state_of(*fresh)["exp_avg"]
    assert isinstance(kept, HostTensor)
    assert kept.data_ptr() != state_of(*there)["exp_avg"].data_ptr()
    train(*fresh, range(12, 16))
    train(*there, range(12, 16))
    same(fresh[0], there[0])


def test_a_checkpoint_of_a_run_restores_in_place(far, tmp_path):
    head, optimizer = make("host", weight_decay=0.1)
    train(head, optimizer)
    tensors, facts = training_state(head, optimizer)
    assert tensors["model.weight"].data_ptr() == head.weight.data_ptr()
    save_tensors(tmp_path / "state", tensors, facts)
    loaded = load_tensors(tmp_path / "state", "a checkpoint", "")
    again, further = make("host", weight_decay=0.1)
    place = again.weight.data_ptr()
    restore_training_state(*loaded, again, further)
    assert again.weight.data_ptr() == place
    assert isinstance(state_of(again, further)["sum"], HostTensor)
    train(head, optimizer, range(8, 16))
    train(again, further, range(8, 16))
    same(head, again)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
def test_a_copy_has_its_own_table_in_host_memory(copied, far):
    head, optimizer = make("host", weight_decay=0.1)
    train(head, optimizer)
    other, further = copied((head, optimizer))
    assert isinstance(other.weight, HostTensor)
    assert other.weight.data_ptr() != head.weight.data_ptr()
    assert further.param_groups[0]["params"][0] is other.weight
    assert isinstance(state_of(other, further)["sum"], HostTensor)
    train(head, optimizer, range(8, 16))
    train(other, further, range(8, 16))
    same(head, other)


def test_a_parameter_is_saved_by_itself():
    head, _ = make("host")
    file = io.BytesIO()
    torch.save(head.weight, file)
    file.seek(0)
    loaded = torch.load(file)
    assert isinstance(loaded, HostTensor)
    assert torch.equal(loaded, head.weight)
    assert loaded.requires_grad


@pytest.mark.parametrize("given", [False, True])
def test_new_labels_get_rows_in_host_memory(given, far):
    results = []
    for placement in ("host", "device"):
        head, optimizer = make(placement, optimiser="adagrad", weight_decay=0.1)
        train(head, optimizer)
        torch.manual_seed(5)
        head.grow(head.labels.grow([3, 1]), optimizer if given else None)
        train(head, optimizer, range(8, 16))
        results.append(head)
    same(*results)
    assert len(results[0].weight) == len(results[0].weight.host) == L + 2
    assert isinstance(results[0].weight, HostTensor)


def test_moving_a_head_leaves_its_table_and_moves_the_rest():
    class Watched:
        """A device to go to: everything that is moved passes here."""

        def __init__(self) -> None:
            self.seen: list[Tensor] = []

        def __call__(self, tensor: Tensor) -> Tensor:
            self.seen.append(tensor)
            return tensor.clone()

    head = make("host", "frequency:importance@8")[0]
    model = nn.Sequential(nn.Linear(D, D), head)
    place = head.weight.data_ptr()
    before = model[0].weight.data_ptr()
    watched = Watched()
    model._apply(watched)
    assert model[0].weight.data_ptr() != before
    assert head.weight.data_ptr() == place
    assert max(t.numel() for t in watched.seen) < L * D
    assert any(t.numel() >= L for t in watched.seen), "the sampler's tables move"
    assert head.weight is head._parameters["weight"]


def test_another_type_is_refused():
    head = make("host")[0]
    with pytest.raises(ht.HeadtailError, match=r"stays torch.float32.*`dtype=torch.bfloat16`"):
        head.bfloat16()
    assert head.weight.dtype == torch.float32
    with pytest.raises(ht.HeadtailError, match=r"a CPU or a CUDA device, but got meta"):
        head.to("meta")


def test_memory_is_unmapped_with_the_last_tensor():
    head, optimizer = make("host", optimiser="adam")
    train(head, optimizer)
    maps = [weakref.ref(t._memory) for t in (head.weight, state_of(head, optimizer)["exp_avg"])]
    rows = head.weight.host[3:4]
    del head, optimizer
    gc.collect()
    assert maps[0]() is not None
    assert maps[1]() is None
    assert rows.isfinite().all()
    del rows
    gc.collect()
    assert maps[0]() is None


@pytest.mark.parametrize("options", [
    {}, {"exclude": "the best"}, {"post_hoc": 0.5, "correct_twice": True},
    {"candidates": torch.arange(30, 200)}, {"candidates": [[1, 2], [300], [4]]},
])  # fmt: skip
@pytest.mark.parametrize("scheme", ["uniform:importance@8", "cosface/frequency:tail@8"])
@pytest.mark.parametrize("mode", MODES)
def test_the_best_labels_are_exact(options, scheme, mode, far, monkeypatch):
    monkeypatch.setattr("headtail.kernels.dispatch.LARGE_TABLE", 16)
    heads = [make(placement, scheme)[0] for placement in ("host", "device")]
    hidden = torch.randn(3, D)
    with ht.use_kernels(mode):
        if "exclude" in options:
            options = {"exclude": heads[1].topk(hidden, 12).indices}
        mine, theirs = (head.topk(hidden, 9, **options) for head in heads)
    assert torch.equal(mine.indices, theirs.indices)
    torch.testing.assert_close(mine.values, theirs.values, rtol=1e-6, atol=1e-6)


def test_the_table_is_streamed_in_parts(monkeypatch):
    monkeypatch.setattr(HostTensor, "is_far", property(lambda _: True))
    monkeypatch.setattr(parts, "PART", 70 * D * 4)
    head, _ = make("host")
    sizes = []
    from headtail.answers import topk

    plain = topk._best
    monkeypatch.setattr(
        topk, "_best", lambda table, *a: sizes.append(len(table)) or plain(table, *a)
    )
    head.topk(torch.randn(3, D), L)
    assert sizes == [70] * 7 + [10]


def test_pending_decay_reaches_all_rows_in_parts(far):
    head, optimizer = make("host", weight_decay=0.5)
    train(head, optimizer)
    link = link_of(head.weight)
    assert link is not None
    assert link.decay is not None
    assert not link.decay.settled
    head.flush()
    assert link.decay.settled
    assert [part.stop for part in parts.parts(head.weight)] == [
        70,
        140,
        210,
        280,
        350,
        420,
        490,
        500,
    ]


def test_clipping_sees_the_gradient(far):
    results = []
    for placement in ("host", "device"):
        head, optimizer = make(placement)
        (7 * head(torch.ones(B, D), torch.arange(B))).backward()
        results.append(ht.clip_grad_norm_(head.parameters(), 0.1))
        optimizer.step()
        results.append(head)
    assert torch.equal(results[0], results[2])
    same(results[1], results[3])


def test_rows_can_be_looked_up(far):
    head, optimizer = make("host")
    ids = torch.tensor([3, 3, 7])
    head.rows(ids).sum().backward()
    optimizer.step()
    assert head.weight.grad.coalesce().indices().tolist() == [[3, 7]]


def labels_and_loss(scheme: str) -> tuple[ht.Labels, Any]:
    labels = ht.Labels.zipf(L)
    return labels, ht.scheme(scheme, labels)


@pytest.mark.parametrize(("scheme", "options", "sentence"), [
    ("uniform:importance@8", {"placement": "cpu"}, "one of 'device', 'host', but got 'cpu'"),
    ("uniform:importance@8", {"placement": "host", "sparse": False}, "Write `sparse=True`"),
    ("softmax", {"placement": "host"}, "needs a sampled loss"),
    ("model:importance@8", {"placement": "host"}, "does not look at the model, but `.*` does"),
])  # fmt: skip
def test_what_cannot_be_is_refused_in_one_sentence(scheme, options, sentence):
    labels, loss = labels_and_loss(scheme)
    with pytest.raises(ht.HeadtailError, match=sentence):
        ht.LabelHead(labels, D, loss, **{"sparse": True, **options})


def test_a_table_larger_than_all_memory_is_refused():
    with pytest.raises(ht.HeadtailError, match=r"A table of 1048576.0 GiB does not fit"):
        HostTensor.empty((2**40, 256), torch.float32)


GPUS = (torch.device("cuda", 0), torch.device("cuda", 1))


class Driver:
    """CUDA's functions for host memory, without CUDA."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.registered: list[tuple[int, int, int]] = []
        self.unregistered: list[int] = []

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        self.registered.append((address, nbytes, flags))
        return self.error

    def cudaHostUnregister(self, address: int) -> int:
        self.unregistered.append(address)
        return 0


def test_memory_is_registered_once_and_unregistered_before_it_is_unmapped(monkeypatch):
    driver = Driver()
    cuda = SimpleNamespace(cudart=lambda: driver, synchronize=lambda *_: None)
    table = HostTensor.empty((3, 5), torch.float32)
    address = table.data_ptr()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "cuda", cuda)
        table._memory.register(address, GPUS[0])
        table._memory.register(address, GPUS[0])
        assert driver.registered == [(address, 60, 3)]
        assert driver.unregistered == []
        del table
        gc.collect()
        assert driver.unregistered == [address]


def test_all_gpus_that_use_memory_are_waited_for_before_it_is_unregistered(monkeypatch):
    driver = Driver()
    waited = []

    def synchronize(device: torch.device | None = None) -> None:
        assert not driver.unregistered
        waited.append(device)

    cuda = SimpleNamespace(cudart=lambda: driver, synchronize=synchronize)
    table = HostTensor.empty((3, 5), torch.float32)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "cuda", cuda)
        for gpu in GPUS:
            table._memory.register(table.data_ptr(), gpu)
        del table
        gc.collect()
    assert set(waited) == set(GPUS)
    assert len(driver.unregistered) == 1


def test_memory_that_cannot_be_pinned_is_refused(monkeypatch):
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(cudart=lambda: Driver(error=2)))
    table = HostTensor.empty((3, 5), torch.float32)
    with pytest.raises(ht.HeadtailError, match=r"cannot pin 0.0 GiB of host memory \(error 2\)"):
        table._memory.register(table.data_ptr(), GPUS[0])
