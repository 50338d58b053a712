"""Optimisers that take gradients as entries of rows: in their step, or at once, while backward
runs.
"""

from __future__ import annotations

import copy

import pytest
import torch

import headtail as ht
from headtail.data.bag import Bag, Picked
from headtail.data.batches import TrainingBatch
from headtail.encoders import Bottleneck, Model

LABELS = ht.Labels.zipf(3000)
FEATURES = 700
RULES = {
    "sgd": lambda p: ht.RowSGD(p, lr=0.1, momentum=0.9),
    "adagrad": lambda p: ht.RowAdagrad(p, lr=0.1),
    "decayed adam": lambda p: ht.RowAdam(p, lr=0.1, weight_decay=0.01),
}
either = pytest.mark.parametrize("at_once", [False, True], ids=["in the step", "at once"])
SCHEMES = [
    "uniform:importance@20",
    "uniform(excluded):tail@20",
    "contrastive/within-batch:tail",
    "hinge/frequency:importance@20",
]


def model_of(scheme: str, dim: int = 24) -> Model:
    torch.manual_seed(0)
    loss = ht.scheme(scheme, LABELS)
    head = ht.LabelHead(LABELS, dim, loss, bias=loss.settings.score == "dot", sparse=True)
    return Model(Bottleneck(FEATURES, dim, sparse=True), head)


def batch_of(seed: int) -> TrainingBatch:
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.arange(0, 101, 5)
    columns = torch.randint(FEATURES, (100,), generator=generator).int()
    values = torch.rand(100, generator=generator)
    ids = torch.randint(20, (33,), generator=generator)
    return TrainingBatch(
        Picked(Bag(offsets, columns, values, FEATURES), ids),
        None,
        torch.randint(3000, (33,), generator=generator),
    )


def trained(model: Model, optimiser, steps: int = 4) -> list[torch.Tensor]:
    torch.manual_seed(1)
    for step in range(steps):
        optimiser.zero_grad()
        model(batch_of(step)).backward()
        optimiser.step()
    optimiser.flush()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("scheme", SCHEMES)
@either
def test_an_update_inside_backward_is_the_update_after_it(at_once, scheme, rule):
    after = model_of(scheme)
    inside = model_of(scheme)
    wanted = trained(after, rule(after.parameters()))
    entries = trained(inside, rule(inside.parameters()).inside_backward(at_once=at_once))
    start = model_of(scheme)
    for (name, before), one, other in zip(start.named_parameters(), entries, wanted, strict=True):
        assert torch.allclose(one, other, atol=2e-5), name
        assert not torch.equal(one, before), name


def test_a_table_updated_inside_backward_holds_no_gradient():
    model = model_of("uniform:importance@20")
    optimiser = ht.RowAdagrad(model.parameters(), lr=0.1).inside_backward(at_once=True)
    before = model.head.weight.detach().clone()
    model(batch_of(0)).backward()
    assert model.head.weight.grad is model.head.bias.grad is model.encoder.weight.grad is None
    assert model.encoder.bias.grad is not None, "a small dense parameter waits for `step`"
    assert not torch.equal(model.head.weight, before)
    optimiser.step()


def test_entries_wait_for_the_step_and_the_gradient_has_no_rows():
    model = model_of("uniform:importance@20")
    tables = [model.head.weight, model.head.bias, model.encoder.weight]
    optimiser = ht.RowAdagrad(model.parameters(), lr=0.1).inside_backward()
    before = [table.detach().clone() for table in tables]
    model(batch_of(0)).backward()
    for table, old in zip(tables, before, strict=True):
        assert table.grad.is_sparse
        assert table.grad._nnz() == 0
        assert torch.equal(table, old)
    optimiser.step()
    assert not any(torch.equal(table, old) for table, old in zip(tables, before, strict=True))


def test_a_second_backward_is_refused_where_the_first_was_applied_at_once():
    model = model_of("uniform:importance@20")
    optimiser = ht.RowAdagrad(model.parameters()).inside_backward(at_once=True)
    model(batch_of(0)).backward()
    with pytest.raises(ht.HeadtailError, match="second gradient before `step"):
        model(batch_of(1)).backward()
    optimiser.step()
    model(batch_of(2)).backward()


def test_a_gradient_after_another_was_applied_at_once_is_refused():
    model = model_of("uniform:importance@20")
    optimiser = ht.RowAdagrad(model.parameters()).inside_backward(at_once=True)
    with pytest.raises(ht.HeadtailError, match="second gradient before `step"):
        (model(batch_of(0)) + model.head.rows(torch.tensor([1])).sum()).backward()
    model = model_of("uniform:importance@20")
    optimiser = ht.RowAdagrad(model.parameters()).inside_backward(at_once=True)
    (model(batch_of(0)) + model.head.weight[1].sum()).backward()
    with pytest.raises(ht.HeadtailError, match="second gradient before `step"):
        optimiser.step()


def test_clipping_what_was_applied_at_once_is_refused():
    model = model_of("uniform:importance@20")
    optimiser = ht.RowAdagrad(model.parameters()).inside_backward(at_once=True)
    model(batch_of(0)).backward()
    with pytest.raises(ht.HeadtailError, match="no gradient left to clip"):
        ht.clip_grad_norm_(model.parameters(), 1.0)
    del optimiser
    ht.clip_grad_norm_(model.parameters(), 1.0)


@either
def test_a_gradient_scaler_is_refused(at_once):
    model = model_of("uniform:importance@20")
    optimiser = ht.RowAdagrad(model.parameters()).inside_backward(at_once=at_once)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(batch_of(0))).backward()
    with pytest.raises(ht.HeadtailError, match="GradScaler"):
        scaler.step(optimiser)


@either
def test_a_copied_model_is_not_updated_by_the_old_optimiser(at_once):
    model = model_of("uniform:importance@20")
    optimiser = ht.RowAdagrad(model.parameters()).inside_backward(at_once=at_once)
    other = copy.deepcopy(model)
    other(batch_of(0)).backward()
    assert other.head.weight.grad.is_sparse
    optimiser.step()
    assert torch.equal(other.head.weight, model.head.weight)


@either
def test_it_can_be_left_again(at_once):
    model = model_of("uniform:importance@20")
    optimiser = ht.RowAdagrad(model.parameters()).inside_backward(at_once=at_once)
    optimiser.inside_backward(False)
    for seed in range(2):
        model(batch_of(seed)).backward()
    assert model.head.weight.grad.is_sparse
    ht.clip_grad_norm_(model.parameters(), 1.0)
    before = model.head.weight.detach().clone()
    optimiser.step()
    assert not torch.equal(model.head.weight, before)


LOSSES = {"shared": "uniform:importance@20", "per example": "uniform(excluded):importance@20"}
each_loss = pytest.mark.parametrize("scheme", LOSSES.values(), ids=LOSSES)
each_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


def head_of(scheme: str) -> ht.LabelHead:
    torch.manual_seed(0)
    return ht.LabelHead(LABELS, 24, ht.scheme(scheme, LABELS), bias=True, sparse=True)


def both_ways(scheme: str, rule, step, steps: int = 3) -> None:
    """Train with ordinary gradients and with entries that wait, and compare."""
    ends = []
    for inside in (False, True):
        head = head_of(scheme)
        optimiser = rule(head.parameters())
        optimiser = optimiser.inside_backward() if inside else optimiser
        generator = torch.Generator().manual_seed(2)
        for _ in range(steps):
            optimiser.zero_grad()
            step(head, generator)
            optimiser.step()
        optimiser.flush()
        ends.append([parameter.detach() for parameter in head.parameters()])
    start = head_of(scheme)
    for ordinary, entries, before in zip(*ends, start.parameters(), strict=True):
        assert torch.allclose(entries, ordinary, atol=2e-5)
        assert not torch.equal(entries, before)


def ids_of(generator: torch.Generator) -> torch.Tensor:
    return torch.randint(50, (16,), generator=generator)  # few, so that rows meet


@each_loss
@each_rule
def test_a_table_that_inputs_and_answers_share_takes_one_step_of_both_gradients(scheme, rule):
    def step(head, generator):
        hidden = torch.tanh(head.rows(ids_of(generator)))
        head(hidden, ids_of(generator), generator=generator).backward()

    both_ways(scheme, rule, step)


@each_loss
def test_a_dense_look_up_in_a_shared_table_is_added_too(scheme):
    def step(head, generator):
        hidden = torch.nn.functional.embedding(ids_of(generator), head.weight)
        head(hidden, ids_of(generator), generator=generator).backward()

    both_ways(scheme, lambda p: ht.RowAdagrad(p, lr=0.1), step)


def test_a_shared_table_is_trained_as_torch_trains_it_in_float64():
    head = head_of("uniform:importance@20")
    truth = torch.nn.Parameter(head.weight.detach().double())
    bias = torch.nn.Parameter(head.bias.detach().double())
    optimiser = ht.RowAdagrad(head.parameters(), lr=0.1).inside_backward()
    exact = torch.optim.Adagrad([truth, bias], lr=0.1)
    generator = torch.Generator().manual_seed(2)
    for _ in range(3):
        ids = ids_of(generator)
        target = ids_of(generator)
        draw = head.loss.draw_ahead(target)
        optimiser.zero_grad()
        head(head.rows(ids), target, draw=draw).backward()
        optimiser.step()
        exact.zero_grad()
        hidden = torch.nn.functional.embedding(ids, truth)
        ht.functional.sampled_softmax_loss(
            hidden, truth, target, draw, ht.Importance(), bias=bias
        ).backward()
        exact.step()
    assert torch.allclose(head.weight.double(), truth, atol=1e-5)
    assert torch.allclose(head.bias.double(), bias, atol=1e-5)


@each_loss
@each_rule
def test_gradients_of_several_losses_and_backward_calls_add_up(scheme, rule):
    def step(head, generator):
        hidden = torch.randn(16, 24, generator=generator)
        first = head(hidden, ids_of(generator), generator=generator)
        second = head(hidden, ids_of(generator), generator=generator)
        (first + 0.3 * second).backward()
        (0.5 * head(hidden, ids_of(generator), generator=generator)).backward()

    both_ways(scheme, rule, step)


@each_loss
@pytest.mark.parametrize("shared", [False, True], ids=["entries alone", "with a gradient"])
def test_entries_that_wait_are_clipped(scheme, shared):
    norms = []

    def step(head, generator):
        hidden = (
            head.rows(ids_of(generator)) if shared else torch.randn(16, 24, generator=generator)
        )
        for _ in range(2):
            head(3 * hidden, ids_of(generator), generator=generator).backward(retain_graph=True)
        norms.append(ht.clip_grad_norm_(head.parameters(), 0.1))

    both_ways(scheme, lambda p: ht.RowSGD(p, lr=1.0, momentum=0.9), step)
    ordinary, entries = torch.stack(norms).chunk(2)
    assert torch.allclose(ordinary, entries, rtol=1e-5)
    assert (ordinary > 0.1).all()


def test_torch_s_own_clipping_refuses_entries_that_wait():
    head = head_of("uniform:importance@20")
    optimiser = ht.RowSGD(head.parameters(), lr=0.1).inside_backward()
    head(torch.randn(4, 24), torch.tensor([1, 2, 3, 4])).backward()
    with pytest.raises(NotImplementedError):
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
    optimiser.step()


@pytest.mark.parametrize("which", ["optimiser", "module"])
def test_entries_of_a_step_that_is_skipped_are_dropped_with_its_gradient(which):
    def step(head, generator):
        hidden = torch.randn(16, 24, generator=generator)
        head(hidden, ids_of(generator), generator=generator).backward()

    skipping = head_of("uniform:importance@20")
    plain = head_of("uniform:importance@20")
    optimiser = ht.RowAdagrad(skipping.parameters()).inside_backward()
    step(skipping, torch.Generator().manual_seed(5))
    (optimiser if which == "optimiser" else torch.nn.ModuleList([skipping])).zero_grad()
    other = ht.RowAdagrad(plain.parameters()).inside_backward()
    for head, its in ((skipping, optimiser), (plain, other)):
        step(head, torch.Generator().manual_seed(6))
        its.step()
    assert torch.equal(skipping.weight, plain.weight)


def test_a_step_after_its_gradient_was_set_to_none_changes_nothing():
    head = head_of("uniform:importance@20")
    optimiser = ht.RowAdagrad(head.parameters()).inside_backward()
    before = head.weight.detach().clone()
    head(torch.randn(4, 24), torch.tensor([1, 2, 3, 4])).backward()
    head.zero_grad()
    optimiser.step()
    assert torch.equal(head.weight, before)


def test_hidden_states_may_be_overwritten_before_the_step():
    def step(head, generator, overwrite):
        hidden = torch.randn(16, 24, generator=generator)
        head(hidden, ids_of(generator), generator=generator).backward()
        if overwrite:
            hidden.fill_(torch.nan)

    ends = []
    for overwrite in (False, True):
        head = head_of("uniform(excluded):importance@20")
        optimiser = ht.RowAdagrad(head.parameters()).inside_backward()
        step(head, torch.Generator().manual_seed(5), overwrite)
        optimiser.step()
        ends.append(head.weight.detach())
    assert torch.equal(*ends)


@either
def test_a_learning_rate_that_was_loaded_is_the_one_that_counts(at_once):
    head = head_of("uniform:importance@20")
    plain = head_of("uniform:importance@20")
    saved = ht.RowSGD(plain.parameters(), lr=0.7)
    optimiser = ht.RowSGD(head.parameters(), lr=0.1).inside_backward(at_once=at_once)
    optimiser.load_state_dict(saved.state_dict())
    for trained_head, its in ((head, optimiser), (plain, saved)):
        trained_head(
            torch.ones(4, 24),
            torch.tensor([1, 2, 3, 4]),
            generator=torch.Generator().manual_seed(0),
        ).backward()
        its.step()
    assert torch.allclose(head.weight, plain.weight, atol=1e-6)


def test_entries_wait_for_whichever_optimiser_takes_the_next_step():
    ends = []
    for replaced in (False, True):
        head = head_of("uniform:importance@20")
        optimiser = ht.RowAdagrad(head.parameters(), lr=0.1).inside_backward()
        head(
            torch.ones(4, 24),
            torch.tensor([1, 2, 3, 4]),
            generator=torch.Generator().manual_seed(0),
        ).backward()
        if replaced:
            optimiser = ht.RowAdagrad(head.parameters(), lr=0.1)
        optimiser.step()
        ends.append(head.weight.detach())
    assert torch.equal(*ends)


def test_a_loss_with_the_note_that_it_is_not_scaled_has_the_same_gradients():
    grads = []
    for noted in (False, True):
        head = head_of("uniform:importance@20")
        hidden = torch.ones(4, 24, requires_grad=True)
        loss = head(hidden, torch.tensor([1, 2, 3, 4]), generator=torch.Generator().manual_seed(0))
        ht.functional.backward(loss) if noted else loss.backward()
        grads.append((hidden.grad, head.weight.grad.to_dense()))
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


def test_a_loss_that_is_scaled_is_seen_to_be_so_whatever_backward_is_called():
    head = head_of("uniform:importance@20")
    grads = []
    for factor in (1.0, 3.0):
        hidden = torch.ones(4, 24, requires_grad=True)
        loss = head(hidden, torch.tensor([1, 2, 3, 4]), generator=torch.Generator().manual_seed(0))
        ht.functional.backward(factor * loss)
        grads.append(hidden.grad)
    assert torch.allclose(grads[1], 3 * grads[0])
    hidden = torch.ones(4, 24, requires_grad=True)
    loss = head(hidden, torch.tensor([1, 2, 3, 4]), generator=torch.Generator().manual_seed(0))
    loss.backward(torch.tensor(3.0))
    assert torch.equal(hidden.grad, grads[1])
