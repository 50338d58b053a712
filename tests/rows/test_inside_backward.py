"""Tables updated while backward computes their gradients."""

from __future__ import annotations

import copy

import pytest
import torch

import headtail as ht
from headtail.data.points import Bag, Picked
from headtail.encoders import Batch, Bottleneck, Model

LABELS = ht.Labels.zipf(3000)
FEATURES = 700
RULES = {
    "sgd": lambda p: ht.RowSGD(p, lr=0.1, momentum=0.9),
    "adagrad": lambda p: ht.RowAdagrad(p, lr=0.1),
    "decayed adam": lambda p: ht.RowAdam(p, lr=0.1, weight_decay=0.01),
}
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


def batch_of(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.arange(0, 101, 5)
    columns = torch.randint(FEATURES, (100,), generator=generator).int()
    values = torch.rand(100, generator=generator)
    ids = torch.randint(20, (33,), generator=generator)
    return Batch(
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
def test_an_update_inside_backward_is_the_update_after_it(scheme, rule):
    after = model_of(scheme)
    inside = model_of(scheme)
    wanted = trained(after, rule(after.parameters()))
    found = trained(inside, rule(inside.parameters()).inside_backward())
    start = model_of(scheme)
    for (name, before), one, other in zip(start.named_parameters(), found, wanted, strict=True):
        assert torch.allclose(one, other, atol=2e-5), name
        assert not torch.equal(one, before), name


def test_a_table_updated_inside_backward_holds_no_gradient():
    model = model_of("uniform:importance@20")
    optimiser = ht.RowAdagrad(model.parameters(), lr=0.1).inside_backward()
    before = model.head.weight.detach().clone()
    model(batch_of(0)).backward()
    assert model.head.weight.grad is model.head.bias.grad is model.encoder.weight.grad is None
    assert model.encoder.bias.grad is not None, "a small dense parameter waits for `step`"
    assert not torch.equal(model.head.weight, before)
    optimiser.step()


def test_two_backward_calls_a_step_are_refused():
    model = model_of("uniform:importance@20")
    optimiser = ht.RowAdagrad(model.parameters()).inside_backward()
    model(batch_of(0)).backward()
    with pytest.raises(ht.HeadtailError, match="second gradient before `step"):
        model(batch_of(1)).backward()
    optimiser.step()
    model(batch_of(2)).backward()


def test_clipping_is_refused():
    model = model_of("uniform:importance@20")
    optimiser = ht.RowAdagrad(model.parameters()).inside_backward()
    model(batch_of(0)).backward()
    with pytest.raises(ht.HeadtailError, match="no gradient left to clip"):
        ht.clip_grad_norm_(model.parameters(), 1.0)
    del optimiser
    ht.clip_grad_norm_(model.parameters(), 1.0)


def test_a_gradient_scaler_is_refused():
    model = model_of("uniform:importance@20")
    optimiser = ht.RowAdagrad(model.parameters()).inside_backward()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(batch_of(0))).backward()
    with pytest.raises(ht.HeadtailError, match="GradScaler"):
        scaler.step(optimiser)


def test_a_copied_model_is_not_updated_by_the_old_optimiser():
    model = model_of("uniform:importance@20")
    optimiser = ht.RowAdagrad(model.parameters()).inside_backward()
    other = copy.deepcopy(model)
    other(batch_of(0)).backward()
    assert other.head.weight.grad.is_sparse
    optimiser.step()
    assert torch.equal(other.head.weight, model.head.weight)


def test_it_can_be_left_again():
    model = model_of("uniform:importance@20")
    optimiser = ht.RowAdagrad(model.parameters()).inside_backward()
    optimiser.inside_backward(False)
    for seed in range(2):
        model(batch_of(seed)).backward()
    assert model.head.weight.grad.is_sparse
    ht.clip_grad_norm_(model.parameters(), 1.0)
    before = model.head.weight.detach().clone()
    optimiser.step()
    assert not torch.equal(model.head.weight, before)
