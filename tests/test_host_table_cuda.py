"""Tables in host memory that a GPU trains: equal to tables on the GPU, in none of its memory."""

from __future__ import annotations

import copy
import gc
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import headtail as ht
from headtail.device.graphs import graph_of
from headtail.device.host_memory import HostTensor
from headtail.rows.row_optimizer import RowOptimizer
from tests.test_captured_head import OPTIMISERS

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
]

L = 5000
D = 64
B = 128
SCHEMES = (
    "uniform:importance@64",
    "within-batch:tail",
    "frequency:relative@64",
    "cosface/frequency:tail@64",
    "logistic/uniform:importance@64",
)
GIGABYTE = 10**9


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    gc.collect()


def make(
    placement: Any,
    scheme: str = SCHEMES[0],
    optimiser: str = "per row",
    labels: int = L,
    dim: int = D,
    bias: bool = True,
    **options: Any,
) -> tuple[ht.LabelHead, RowOptimizer]:
    torch.manual_seed(0)
    every = ht.Labels.zipf(labels)
    loss = ht.scheme(scheme, every, ignore_index=None)
    head = ht.LabelHead(
        every, dim, loss, bias=bias, sparse=True, placement=placement, device="cuda"
    )
    head.to("cuda")
    return head, OPTIMISERS[optimiser](head.parameters(), **options)


def train(head: ht.LabelHead, optimizer: RowOptimizer, steps: range = range(10)) -> None:
    for seed in steps:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(B, head.weight.shape[1], generator=generator).cuda()
        y = torch.randint(len(head.weight), (B,), generator=generator).cuda()
        torch.manual_seed(seed)
        optimizer.zero_grad()
        head(x, y).backward()
        optimizer.step()


def same(one: ht.LabelHead, other: ht.LabelHead) -> None:
    one.flush()
    other.flush()
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a.detach().cpu(), b.detach().cpu())


def test_a_cuda_tensor_and_a_cpu_tensor_share_memory():
    table = HostTensor.empty((3, 5), torch.float32, "cuda")
    assert table.is_cuda
    assert table.data_ptr() == table.host.data_ptr()
    with torch.no_grad():
        table[1] = 7.0
        table[2:].add_(3.0)
    assert table.settle()[1].tolist() == [7.0] * 5
    assert table.host[2].tolist() == [3.0] * 5
    table.host[0] = 5.0
    assert float(table[0].sum()) == 25.0
    assert float(table.cpu()[0, 0]) == 5.0
    assert torch.equal(table.clone().cpu(), table.host)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_every_optimiser_gives_the_bits_of_a_table_on_the_gpu(optimiser, captured, weight_decay):
    heads = []
    for placement in ("host", "device"):
        head, optimizer = make(placement, optimiser=optimiser, weight_decay=weight_decay)
        head.capture(captured)
        train(head, optimizer)
        assert bool(head.captured.shapes) == captured
        heads.append(head)
    same(*heads)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("mode", ["auto", "off"])
def test_every_scheme_gives_the_bits_of_a_table_on_the_gpu(scheme, mode):
    heads = []
    with ht.use_kernels(mode):
        for placement in ("host", "device"):
            head, optimizer = make(placement, scheme)
            train(head, optimizer)
            heads.append(head)
    same(*heads)


@pytest.mark.parametrize("at_once", [False, True])
def test_updates_inside_backward_give_the_same_bits(at_once):
    heads = []
    for placement in ("host", "device"):
        head, optimizer = make(placement)
        train(head, optimizer.inside_backward(at_once=at_once))
        heads.append(head)
    same(*heads)


def test_the_table_takes_no_gpu_memory():
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    head, optimizer = make("host", optimiser="adam", labels=200_000, dim=256, bias=False)
    torch.cuda.reset_peak_memory_stats()
    train(head, optimizer)
    head.topk(torch.randn(8, 256, device="cuda"), 10)
    assert head.weight.nbytes > 200e6
    assert torch.cuda.memory_allocated() - before < 100e6


def test_gradients_are_on_the_gpu_and_can_be_clipped_and_scaled():
    results = []
    for placement in ("host", "device"):
        head, optimizer = make(placement)
        for seed in range(6):
            torch.manual_seed(seed)
            x = torch.randn(B, D, device="cuda")
            (8 * head(x, torch.arange(B, device="cuda"))).backward()
            assert head.weight.grad.is_cuda
            norm = ht.clip_grad_norm_(head.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
        results += [head, norm]
    same(results[0], results[2])
    assert torch.equal(results[1], results[3])


@pytest.mark.parametrize("options", [
    {}, {"exclude": "the best"}, {"post_hoc": 0.5, "correct_twice": True},
    {"candidates": [[1, 2], [300], [4]]},
])  # fmt: skip
@pytest.mark.parametrize("scheme", [SCHEMES[0], "cosface/frequency:tail@64"])
def test_the_best_labels_are_those_of_a_table_on_the_gpu(options, scheme, monkeypatch):
    monkeypatch.setattr("headtail.device.parts.PART", 2**24)
    heads = [make(placement, scheme, labels=100_000)[0] for placement in ("host", "device")]
    hidden = torch.randn(3, D, device="cuda")
    if "exclude" in options:
        options = {"exclude": heads[1].topk(hidden, 12).indices}
    mine, theirs = (head.topk(hidden, 9, **options) for head in heads)
    assert torch.equal(mine.indices, theirs.indices)
    torch.testing.assert_close(mine.values, theirs.values, rtol=1e-5, atol=1e-5)


def test_a_head_goes_to_the_cpu_and_back_and_its_table_stays():
    head, optimizer = make("host", weight_decay=0.1)
    other, further = make("host", weight_decay=0.1)
    train(head, optimizer)
    train(other, further)
    place = head.weight.data_ptr()
    head.cpu()
    assert head.weight.device.type == "cpu"
    assert head.weight.data_ptr() == place
    head.topk(torch.randn(2, D), 3)
    head.cuda()
    assert head.weight.data_ptr() == place
    other.flush()  # as `topk` has done
    train(head, optimizer, range(10, 20))
    train(other, further, range(10, 20))
    same(head, other)


def test_copies_and_growth_stay_in_host_memory():
    head, optimizer = make("host", optimiser="adagrad")
    train(head, optimizer)
    other, further = copy.deepcopy((head, optimizer))
    for this, its in ((head, optimizer), (other, further)):
        torch.manual_seed(3)
        this.grow(this.labels.grow([2, 2]), its)
        train(this, its, range(10, 20))
        assert isinstance(this.weight, HostTensor)
        assert this.weight.is_cuda
        assert this.weight.data_ptr() == this.weight.host.data_ptr()
    same(head, other)


def _resident() -> int:
    """Bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_memory_is_given_back():
    make("host")
    gc.collect()
    before = _resident()
    for _ in range(6):
        head, _ = make("host", labels=200_000, dim=256, bias=False)
        nbytes = head.weight.nbytes
        del head
        gc.collect()
    assert _resident() - before < 2 * nbytes


def _of_size(gigabytes: float, dim: int = 512) -> tuple[ht.LabelHead, RowOptimizer]:
    labels = int(gigabytes * GIGABYTE) // (4 * dim + 4)
    return make("host", "uniform:importance@256", labels=labels, dim=dim, bias=False)


@pytest.mark.long
def test_training_of_two_gigabytes_resumes_bit_for_bit(tmp_path):
    head, optimizer = _of_size(2)
    assert head.weight.nbytes + len(head.weight) * 4 >= 1.99 * GIGABYTE
    train(head, optimizer)
    torch.save({"head": head.state_dict(), "rows": optimizer.state_dict()}, tmp_path / "saved")
    train(head, optimizer, range(10, 20))
    after = head.state_dict()["weight"].clone()
    del head, optimizer
    gc.collect()
    again, further = _of_size(2)
    train(again, further, range(30, 36))  # captured, and with state, before it loads another
    saved = torch.load(tmp_path / "saved", mmap=True)
    again.load_state_dict(saved["head"])
    further.load_state_dict(saved["rows"])
    train(again, further, range(10, 20))
    assert torch.equal(again.state_dict()["weight"], after)


def _milliseconds(run: Callable[[], object], steps: int) -> float:
    times = []
    for _ in range(15):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - begun) / steps)
    return statistics.median(times)


@pytest.mark.long
def test_a_step_takes_as_long_at_twenty_gigabytes_as_at_two():
    """benchmarks/host_table.py measures it up to 60 GB and writes the numbers down."""
    torch.use_deterministic_algorithms(False)
    times = []
    for gigabytes in (2, 20):
        head, optimizer = _of_size(gigabytes)
        head.capture(False)
        optimizer.inside_backward(at_once=True)

        def step(head: ht.LabelHead = head, optimizer: RowOptimizer = optimizer) -> None:
            x = torch.randn(1024, 512, device="cuda", requires_grad=True)
            y = torch.randint(len(head.weight), (1024,), device="cuda")
            optimizer.zero_grad()
            head(x, y).backward()
            optimizer.step()

        times.append(_milliseconds(graph_of(step, 16).replay, 16))
        del head, optimizer, step
        gc.collect()
    assert times[1] < 1.1 * times[0], times
    assert max(times) < 0.30, times
