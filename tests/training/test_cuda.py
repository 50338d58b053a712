"""The same on a GPU."""

from __future__ import annotations

import pytest
import torch

from headtail import (
    Constant,
    Frequency,
    Given,
    Importance,
    LabelHead,
    Labels,
    LogUniform,
    Mixture,
    Queue,
    Relative,
    RowAdagrad,
    RowAdam,
    RowSGD,
    SampledSoftmaxLoss,
    Tail,
    Uniform,
    WithinBatch,
    audit,
    clip_grad_norm_,
    explain,
)
from headtail.functional import backward, hinge, sampled_decoupled_loss, sampled_softmax_loss
from headtail.kernels.dispatch import topk_kernel
from tests.samplers.test_samplers import SAMPLERS

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
]
LABELS = Labels.zipf(40)


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize(
    "weighting",
    [Constant(), Importance(), Relative(), Tail(LABELS)],
    ids=lambda w: type(w).__name__,
)
def test_a_gpu_gives_the_loss_and_gradient_that_a_cpu_gives(make, weighting):
    sampler = make().cuda()
    target = torch.randint(40, (16,), device="cuda")
    sampler.refresh(torch.randint(40, (30,), device="cuda"))
    draw = sampler.draw(target)
    assert draw.ids.is_cuda
    hidden = torch.randn(16, 8, device="cuda")
    table = torch.randn(40, 8, device="cuda")
    on_cpu = type(draw)(
        draw.ids.cpu(),
        draw.log_q.cpu(),
        None if draw.log_q_target is None else draw.log_q_target.cpu(),
        draw.m,
        draw.log_keep.cpu() if isinstance(draw.log_keep, torch.Tensor) else draw.log_keep,
    )
    for loss in (sampled_softmax_loss, sampled_decoupled_loss):
        here = hidden.clone().requires_grad_()
        there = hidden.cpu().requires_grad_()
        gpu = loss(here, table, target, draw, weighting)
        cpu = loss(there, table.cpu(), target.cpu(), on_cpu, weighting)
        gpu.backward()
        cpu.backward()
        assert torch.allclose(gpu.cpu(), cpu, rtol=1e-4)
        assert torch.allclose(here.grad.cpu(), there.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("make", [Uniform, Frequency, LogUniform])
def test_drawing_does_not_make_the_host_wait(make):
    sampler = make(LABELS, 8).cuda()
    target = torch.randint(40, (16,), device="cuda")
    sampler.draw(target)  # copies of tables are made once
    torch.cuda.set_sync_debug_mode("error")
    try:
        draw = sampler.draw(target)
        sampled_softmax_loss(
            torch.randn(16, 8, device="cuda"),
            torch.randn(40, 8, device="cuda"),
            target,
            draw,
            Importance(),
        )
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast_work_on_a_gpu(dtype):
    target = torch.randint(40, (16,), device="cuda")
    draw = WithinBatch(LABELS).draw(target)
    hidden = torch.randn(16, 64, device="cuda")
    table = torch.randn(40, 64, device="cuda", requires_grad=True)
    with torch.autocast("cuda", dtype=dtype):
        loss = sampled_softmax_loss(hidden, table, target, draw, Tail(LABELS))
    loss.backward()
    assert loss.dtype == torch.float32
    truth = sampled_softmax_loss(hidden.double(), table.double(), target, draw, Tail(LABELS))
    assert loss.item() == pytest.approx(truth.item(), rel=0.02)
    low = sampled_decoupled_loss(hidden.to(dtype), table.to(dtype), target, draw, Constant(), hinge)
    assert low.isfinite()


@pytest.mark.parametrize(
    "make",
    [lambda p: RowSGD(p, 0.1, 0.9, 0.01), lambda p: RowAdagrad(p, 0.1), lambda p: RowAdam(p, 0.1)],
)
def test_a_head_trains_grows_and_answers_on_a_gpu(make):
    sampler = Mixture([Queue(LABELS, 32), Frequency(LABELS, 8, 0.5, replacement=False)])
    head = LabelHead(
        LABELS, 8, SampledSoftmaxLoss(sampler, Tail(LABELS)), bias=True, sparse=True
    ).cuda()
    head.capture(False)  # a queue remembers batches
    optimiser = make(head.parameters())
    first = last = 0.0
    hidden = torch.randn(64, 8, device="cuda")
    target = torch.arange(64, device="cuda") % 40
    for step in range(60):
        optimiser.zero_grad()
        loss = head(hidden, target)
        loss.backward()
        optimiser.step()
        first = loss.item() if step == 1 else first
        last = loss.item()
    assert last < first
    head.grow(LABELS.grow([3, 2]))
    head(hidden, target + 2).backward()
    optimiser.step()
    assert head.topk(hidden, 5, post_hoc=1.0, correct_twice=True).indices.shape == (64, 5)


def test_a_queue_that_is_first_used_in_inference_mode_can_be_trained():
    queue = Queue(LABELS, 8).cuda()
    target = torch.arange(4, device="cuda")
    with torch.inference_mode():
        queue.eval().draw(target)
    queue.train().draw(target)
    assert queue.draw(target).ids.tolist() == [0, 1, 2, 3]


def test_losses_compile_whole_on_a_gpu():
    target = torch.randint(40, (16,), device="cuda")
    draw = Uniform(LABELS, 8).draw(target)
    hidden = torch.randn(16, 8, device="cuda")
    table = torch.randn(40, 8, device="cuda")
    LABELS.log_prior(target)
    compiled = torch.compile(sampled_softmax_loss, fullgraph=True)
    found = compiled(hidden, table, target, draw, Tail(LABELS))
    assert torch.allclose(
        found, sampled_softmax_loss(hidden, table, target, draw, Tail(LABELS)), rtol=1e-4
    )


def test_unsorted_counts_given_negatives_and_labels_on_the_gpu_work():
    counts = torch.tensor([3, 50, 7, 900, 1] * 8)
    for labels in (Labels(counts), Labels(counts.cuda())):
        for sampler in (
            LogUniform(labels, 8),
            Frequency(labels, 8, 0.5, replacement=False),
            Mixture([LogUniform(labels, 4), Queue(labels, 8)]),
        ):
            loss = SampledSoftmaxLoss(sampler, Importance()).cuda()
            head = LabelHead(labels, 8, loss).cuda()
            target = torch.randint(40, (16,), device="cuda")
            head(torch.randn(16, 8, device="cuda"), target).backward()
            assert head.topk(torch.randn(2, 8, device="cuda"), 3, post_hoc=1.0).indices.is_cuda
            assert explain(head, labels).leans == "neither"
            assert audit(
                sampler, labels, draws=500, generator=torch.Generator("cuda").manual_seed(0)
            ).passed
        given = Given(
            40, torch.tensor([1, 2]), torch.tensor([0.1, 0.2]).log(), torch.full((16,), 0.1).log()
        )
        for weighting in (Tail(labels), Relative()):
            head = LabelHead(labels, 8, SampledSoftmaxLoss(given, weighting)).cuda()
            head(torch.randn(16, 8, device="cuda"), target).backward()


def test_pending_weight_decay_follows_the_table_to_the_gpu():
    head = LabelHead(
        LABELS, 4, SampledSoftmaxLoss(Uniform(LABELS, 3), Importance()), sparse=True
    ).cuda()
    start = head.weight.detach().clone()
    optimiser = RowSGD(head.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(4):
        optimiser.zero_grad()
        head(torch.zeros(2, 4, device="cuda"), torch.tensor([0, 1], device="cuda")).backward()
        optimiser.step()
    head.flush()
    assert torch.allclose(head.weight, start * 0.95**4, rtol=1e-5)


@pytest.mark.parametrize("post_hoc", [None, 1.0])
@pytest.mark.parametrize("bias", [True, False])
def test_the_best_labels_of_a_large_table_are_those_of_all_scores(bias, post_hoc):
    labels = Labels.zipf(20_000)
    head = LabelHead(
        labels,
        48,
        SampledSoftmaxLoss(Uniform(labels, 8), Importance(), temperature=0.5),
        bias=bias,
        device="cuda",
    ).cuda()
    if bias:
        torch.nn.init.normal_(head.bias)
    hidden = torch.randn(100, 48, device="cuda")
    assert topk_kernel(hidden, head.weight, 20) is not None
    found = head.topk(hidden, 20, post_hoc=post_hoc)
    scores = head.logits(hidden).double()
    scores -= (post_hoc or 0.0) * labels.log_prior(torch.arange(20_000, device="cuda"))
    wanted = scores.topk(20).values
    assert torch.allclose(found.values.double(), wanted, rtol=1e-5, atol=1e-5)
    assert torch.allclose(scores.gather(1, found.indices), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rule", [RowSGD, RowAdagrad, RowAdam])
@pytest.mark.parametrize("at_once", [False, True], ids=["in the step", "at once"])
def test_updates_inside_backward_are_those_after_it_on_a_gpu(at_once, rule, dtype):
    labels = Labels.zipf(5000)
    found = []
    for inside in (True, False):
        torch.manual_seed(0)
        loss = SampledSoftmaxLoss(Uniform(labels, 64), Importance())
        head = LabelHead(
            labels, 32, loss, bias=True, sparse=True, device="cuda", dtype=dtype
        ).cuda()
        optimiser = rule(head.parameters(), lr=0.05)
        optimiser = optimiser.inside_backward(at_once=at_once) if inside else optimiser
        for _ in range(3):
            optimiser.zero_grad()
            head(
                torch.randn(40, 32, device="cuda", dtype=dtype),
                torch.randint(5000, (40,), device="cuda"),
            ).backward()
            rows = 0 if head.weight.grad is None else head.weight.grad._nnz()
            assert (rows == 0) == inside
            optimiser.step()
        found.append(head.weight.detach().float())
    rounding = 1e-5 if dtype == torch.float32 else 0.02
    assert torch.allclose(*found, atol=rounding, rtol=rounding)


def test_a_shared_table_and_several_backward_calls_add_up_on_a_gpu():
    labels = Labels.zipf(5000)
    ends = []
    for inside in (True, False):
        torch.manual_seed(0)
        loss = SampledSoftmaxLoss(Uniform(labels, 64), Importance())
        head = LabelHead(labels, 32, loss, bias=True, sparse=True, device="cuda").cuda()
        optimiser = RowAdagrad(
            head.parameters(), lr=torch.tensor(0.05, device="cuda"), weight_decay=0.1
        )
        optimiser = optimiser.inside_backward() if inside else optimiser
        for _ in range(3):
            optimiser.zero_grad()
            for factor in (1.0, 0.5):
                hidden = head.rows(torch.randint(99, (40,), device="cuda")).tanh()
                (factor * head(hidden, torch.randint(99, (40,), device="cuda"))).backward()
            clip_grad_norm_(head.parameters(), 0.3)
            optimiser.step()
        head.flush()
        ends.append([parameter.detach() for parameter in head.parameters()])
    for entries, ordinary in zip(*ends, strict=True):
        assert torch.allclose(entries, ordinary, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_a_loss_on_a_gpu_is_scaled_unless_backward_says_that_it_is_not(factor):
    labels = Labels.zipf(500)
    ends = []
    loss = SampledSoftmaxLoss(Uniform(labels, 64), Importance())
    head = LabelHead(labels, 32, loss, sparse=True, device="cuda").cuda()
    target = torch.randint(500, (40,), device="cuda")
    draw = loss.draw_ahead(target)
    for how in (lambda value: value.backward(), backward):
        hidden = torch.ones(40, 32, device="cuda", requires_grad=True)
        value = head(hidden, target, draw=draw)
        how(value if factor == 1 else factor * value)
        ends.append(hidden.grad)
    hidden = torch.ones(40, 32, device="cuda", requires_grad=True)
    head(hidden, target, draw=draw).backward(torch.tensor(factor, device="cuda"))
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], hidden.grad)
