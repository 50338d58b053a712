"""Given a Draw, losses compile into one graph."""

from __future__ import annotations

import pytest
import torch

from headtail import (
    Constant,
    Given,
    Importance,
    LabelHead,
    Labels,
    LogitAdjusted,
    Ragged,
    Relative,
    RowSGD,
    SampledSoftmaxLoss,
    Tail,
    Uniform,
    WithinBatch,
)
from headtail.functional import (
    hinge,
    sampled_decoupled_loss,
    sampled_softmax_loss,
    softmax_loss,
    two_tower_softmax_loss,
)

LABELS = Labels.zipf(30)


@pytest.fixture(autouse=True)
def _fresh(request):
    if request.config.getoption("--shapes"):
        pytest.skip("shape checks are Python that no compiler sees through")
    torch.compiler.reset()


def check(function, *args):
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    hidden = args[0].requires_grad_()
    expected = function(*args)
    (wanted,) = torch.autograd.grad(expected, hidden)
    compiled_loss = compiled(*args)
    (got,) = torch.autograd.grad(compiled_loss, hidden)
    assert torch.allclose(compiled_loss, expected, rtol=1e-6)
    assert torch.allclose(got, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "weighting",
    [Constant(), Importance(), Relative(), Tail(LABELS)],
    ids=lambda w: type(w).__name__,
)
@pytest.mark.parametrize("rows", [False, True], ids=["shared", "per example"])
def test_the_sampled_softmax_compiles_whole(weighting, rows):
    target = torch.tensor([1, 2, 3, 29])
    draw = Uniform(LABELS, 7, exclude_target=rows).draw(target)

    def loss(hidden, table, target, draw):
        return sampled_softmax_loss(
            hidden, table, target, draw, weighting, temperature=0.5, label_smoothing=0.1
        )

    check(loss, torch.randn(4, 8), torch.randn(30, 8), target, draw)


def test_other_losses_and_targets_compile_whole():
    hidden = torch.randn(4, 8)
    table = torch.randn(30, 8)
    target = torch.tensor([1, 2, 3, 29])
    draw = WithinBatch(LABELS).draw(target)
    padded = torch.tensor([[1, 2], [3, -100], [-100, -100], [4, 5]])
    ragged = Ragged.from_lists([[1, 2], [3], [], [4, 5]])
    check(
        lambda h, w: sampled_decoupled_loss(h, w, target, draw, Tail(LABELS), hinge), hidden, table
    )
    check(lambda h, w: softmax_loss(h, w, target, LogitAdjusted(LABELS)), hidden, table)
    check(
        lambda h, w: two_tower_softmax_loss(h, w[:4], w[4:8], target, draw, Importance()),
        hidden,
        table,
    )
    for many in (padded, ragged):
        several = Uniform(LABELS, 7).draw(many)
        check(
            lambda h, w, t=many, d=several: sampled_softmax_loss(
                h, w, t, d, Tail(LABELS), collisions="known"
            ),
            hidden,
            table,
        )


def test_a_new_draw_needs_no_new_graph():
    target = torch.tensor([1, 2, 3, 29])
    compiles = 0

    def count(graph, inputs):
        nonlocal compiles
        compiles += 1
        return graph.forward

    loss = torch.compile(
        lambda h, w, t, d: sampled_softmax_loss(h, w, t, d, Tail(LABELS)),
        fullgraph=True,
        backend=count,
    )
    # a queue that fills, batches with ignored targets: m changes from step to step
    for m in range(1, 15):
        ids = torch.randint(30, (7,))
        draw = Given(30, ids, torch.full((7,), 1 / 30).log(), m=m / 2).draw(target)
        loss(torch.randn(4, 8), torch.randn(30, 8), target, draw)
    assert compiles == 1


def test_sparse_gradients_compile():
    target = torch.tensor([1, 2, 3, 29])
    draw = Uniform(LABELS, 7).draw(target)
    table = torch.randn(30, 8, requires_grad=True)
    compiled = torch.compile(sampled_softmax_loss, backend="aot_eager")
    compiled(torch.randn(4, 8), table, target, draw, Tail(LABELS), sparse=True).backward()
    assert table.grad is not None
    assert table.grad.is_sparse


def test_a_weighting_may_be_made_inside_the_graph():
    fresh = Labels.zipf(30)
    target = torch.tensor([1, 2, 3, 29])
    draw = Uniform(fresh, 7).draw(target)
    check(
        lambda h, w: sampled_softmax_loss(h, w, target, draw, Tail(fresh, 0.5)),
        torch.randn(4, 8),
        torch.randn(30, 8),
    )


def test_the_default_compiler_agrees():
    target = torch.tensor([1, 2, 3, 29])
    draw = Uniform(LABELS, 7).draw(target)
    hidden = torch.randn(4, 8)
    table = torch.randn(30, 8)
    try:
        compiled = torch.compile(sampled_softmax_loss, fullgraph=True)
        compiled_loss = compiled(hidden, table, target, draw, Tail(LABELS))
    # pragma: no cover - depends on the machine
    except torch._dynamo.exc.BackendCompilerFailed as error:
        pytest.skip(f"no C++ compiler here: {error}")
    assert torch.allclose(
        compiled_loss, sampled_softmax_loss(hidden, table, target, draw, Tail(LABELS)), rtol=1e-5
    )


@pytest.mark.parametrize("sparse", [False, True])
def test_a_compiled_head_trains(sparse):
    head = LabelHead(LABELS, 8, SampledSoftmaxLoss(Uniform(LABELS, 7), Tail(LABELS)), sparse=sparse)
    optimiser = RowSGD(head.parameters(), lr=0.1, weight_decay=0.1)
    compiled = torch.compile(head, backend="aot_eager")
    for _ in range(3):
        optimiser.zero_grad()
        loss = compiled(torch.randn(4, 8), torch.tensor([1, 2, 3, 29]))
        loss.backward()
        optimiser.step()
    assert loss.isfinite()
