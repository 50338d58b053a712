"""Steps that training loops skip or that hold nothing: what a sampler remembers of them must
not spoil later steps.
"""

from __future__ import annotations

import warnings

import pytest
import torch

import headtail as ht

SAMPLERS = (
    "block",
    "block(1)",
    "block(32,uniform)",
    "quadratic-kernel",
    "fourier-kernel",
    "adversarial",
)
OTHERS = ("tilted", "model", "hard", "resampled")
LABELS = ht.Labels.zipf(200)
STEPS = 70
"""The third refresh is after 64."""


def losses(name, width, spoil):
    """Of training that skips steps whose loss is not finite, as loops with a gradient scaler do."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        head = ht.LabelHead(LABELS, width, ht.scheme(f"{name}:tail@8", LABELS)).train()
    optimiser = torch.optim.SGD(head.parameters(), lr=0.1)
    values = []
    for number in range(STEPS):
        hidden, label = spoil(number, torch.randn(16, width), torch.randint(200, (16,)))
        loss = head(hidden, label)
        values.append(float(loss.detach()))
        if loss.isfinite():
            loss.backward()
            optimiser.step()
        optimiser.zero_grad()
    return torch.tensor(values)


@pytest.mark.parametrize("name", SAMPLERS + OTHERS)
@pytest.mark.parametrize("width", [8, 160])
@pytest.mark.parametrize("rows", [slice(2, 3), slice(None)])
@pytest.mark.parametrize("bad", [0, 5, 32])
def test_a_step_that_is_not_finite_spoils_no_other(name, width, rows, bad):
    def spoil(number, hidden, label):
        if number == bad:
            hidden[rows] = torch.nan
        return hidden, label

    finite = losses(name, width, spoil).isfinite()
    assert not finite[bad]
    assert finite.sum() == STEPS - 1


@pytest.mark.parametrize("name", SAMPLERS + OTHERS)
@pytest.mark.parametrize("empty", [0, 3, 32])
def test_an_empty_batch_costs_nothing_and_spoils_nothing(name, empty):
    values = losses(
        name,
        160,
        lambda number, hidden, label: (
            (hidden[:0], label[:0]) if number == empty else (hidden, label)
        ),
    )
    assert values[empty] == 0
    assert values.isfinite().all()


@pytest.mark.parametrize("name", SAMPLERS + OTHERS)
def test_autocast_works(name):
    with torch.autocast("cpu", torch.bfloat16):
        assert losses(name, 160, lambda number, *batch: batch).isfinite().all()


@pytest.mark.parametrize("name", SAMPLERS + OTHERS)
@pytest.mark.parametrize(
    ("rows", "width", "labels"), [(3, 8, 200), (4, 7, 200), (4, 8, 199), (4, 8, 201)]
)
def test_a_model_that_does_not_fit_is_reported_in_a_sentence(name, rows, width, labels):
    loss = ht.scheme(f"{name}:tail@8", LABELS)
    sentence = (
        r"`(input|weight)` must have shape"
        if labels == 200
        else f"`sampler` has 200 labels, but `weight` {labels}"
    )
    with pytest.raises(ht.HeadtailError, match=sentence):
        loss(torch.randn(rows, width), torch.randn(labels, 8), torch.tensor([1, 2, 3, 4]))
