"""`torch.export` of encoder, head and top-k: any batch size, a fresh process, all folded in."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.export import Dim

from headtail import (
    HeadtailError,
    Importance,
    LabelHead,
    Labels,
    RowSGD,
    SampledSoftmaxLoss,
    SoftmaxLoss,
    Tail,
    Uniform,
    scheme,
)

LABELS = Labels.zipf(300)
BATCH = ({0: Dim("batch")},)


def head_of(score="dot", bias=True, temperature: float | nn.Parameter = 1.0, **options):
    loss = SampledSoftmaxLoss(
        Uniform(LABELS, 5), Importance(), score=score, temperature=temperature
    )
    head = LabelHead(LABELS, 8, loss, bias=bias, **options)
    if bias:
        nn.init.normal_(head.bias)
    return head


def same(found, best):
    values, indices = found
    assert torch.allclose(values, best.values, rtol=1e-4, atol=1e-4)
    apart = best.values.diff(dim=1).abs().amin(1) > 1e-4  # scores that rounding cannot swap
    assert apart.any()
    assert torch.equal(indices[apart], best.indices[apart])


@pytest.mark.parametrize("tau", [None, 0.7])
@pytest.mark.parametrize("temperature", [0.2, nn.Parameter(torch.tensor(0.3))])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("score", ["dot", "cosine"])
def test_bias_temperature_and_adjustment_are_folded_in(score, bias, temperature, tau):
    head = head_of(score, bias, temperature)
    hidden = torch.randn(6, 8)
    same(head.exported(5, post_hoc=tau)(hidden), head.topk(hidden, 5, post_hoc=tau))


@pytest.mark.parametrize("block", [70, 2**16])
@pytest.mark.parametrize(("score", "bias", "tau"), [("dot", False, None), ("cosine", True, 0.7)])
def test_an_encoder_with_an_exported_head_takes_any_batch(monkeypatch, block, score, bias, tau):
    monkeypatch.setattr("headtail.answers.topk.EXPORTED_BLOCK", block)
    head = head_of(score, bias, temperature=0.2)
    encoder = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
    serving = nn.Sequential(encoder, head.exported(5, post_hoc=tau))
    program = torch.export.export(serving, (torch.randn(3, 6),), dynamic_shapes=BATCH).module()
    for size in (1, 2, 9, 40):
        features = torch.randn(size, 6)
        same(program(features), head.topk(encoder(features), 5, post_hoc=tau))


@pytest.mark.parametrize("score", ["dot", "cosine"])
def test_topk_itself_is_exported_and_saved(tmp_path, score):
    class Serving(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Linear(6, 8)
            self.head = head_of(score)

        def forward(self, features):
            values, indices = self.head.topk(self.encoder(features), 5)
            return values, indices

    model = Serving().eval()
    program = torch.export.export(model, (torch.randn(3, 6),), dynamic_shapes=BATCH)
    torch.export.save(program, tmp_path / "model.pt2")
    features = torch.randn(11, 6)
    again = torch.export.load(tmp_path / "model.pt2").module()
    same(again(features), model.head.topk(model.encoder(features), 5))


def test_a_fresh_process_without_headtail_answers_as_topk(tmp_path):
    head = head_of("cosine", temperature=0.1)
    program = torch.export.export(
        head.exported(4, post_hoc=1.0), (torch.randn(3, 8),), dynamic_shapes=BATCH
    )
    torch.export.save(program, tmp_path / "model.pt2")
    hidden = torch.randn(17, 8)
    torch.save(hidden, tmp_path / "hidden.pt")
    script = (
        "import sys, torch\n"
        "model = torch.export.load('model.pt2').module()\n"
        "torch.save(model(torch.load('hidden.pt')), 'answers.pt')\n"
        "assert 'headtail' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    same(torch.load(tmp_path / "answers.pt"), head.topk(hidden, 4, post_hoc=1.0))


def test_no_more_blocks_than_an_exported_graph_should_list(monkeypatch):
    monkeypatch.setattr("headtail.answers.topk.EXPORTED_BLOCK", 1)
    monkeypatch.setattr("headtail.answers.topk.MOST_BLOCKS", 7)
    head = head_of()
    program = torch.export.export(head.exported(5), (torch.randn(3, 8),), dynamic_shapes=BATCH)
    products = [node for node in program.graph.nodes if "linear" in str(node.target)]
    assert len(products) == 7


def test_the_copy_has_its_weight_decay_and_outlives_training():
    head = head_of(bias=False, sparse=True)
    optimiser = RowSGD(head.parameters(), lr=0.1, weight_decay=0.5)

    def step():
        head(torch.zeros(1, 8), torch.tensor([0])).backward()
        optimiser.step()
        optimiser.zero_grad()

    start = head.weight.detach().clone()
    step()
    step()
    answers = head.exported(3)
    hidden = torch.randn(2, 8)
    expected = (hidden @ start.T * 0.95**2).topk(3)
    step()
    head.flush()
    values, indices = answers(hidden)
    assert torch.equal(indices, expected.indices)
    assert torch.allclose(values, expected.values, rtol=1e-5)
    assert not list(answers.parameters())


def test_hidden_states_of_half_precision_are_widened():
    head = head_of(dtype=torch.bfloat16)
    hidden = torch.randn(4, 8).bfloat16()
    same(head.exported(5)(hidden), head.topk(hidden, 5))


def test_the_adjustment_of_a_post_hoc_scheme_is_folded_in():
    head = LabelHead(LABELS, 8, scheme("softmax+post-hoc", LABELS))
    hidden = torch.randn(4, 8)
    same(head.exported(5)(hidden), head.topk(hidden, 5))
    adjusted = head.logits(hidden) - LABELS.prior.log().float()
    assert torch.equal(head.exported(5)(hidden)[1], adjusted.topk(5).indices)


class Adjusted(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = LabelHead(LABELS, 8, SoftmaxLoss())

    def forward(self, hidden):
        return self.head.topk(hidden, 3, post_hoc=0.5).indices


def test_bad_use_gets_a_sentence():
    head = head_of()
    with pytest.raises(HeadtailError, match="`k` is 301, but there are only 300 labels"):
        head.exported(301)
    with pytest.raises(HeadtailError, match=r"shape \[b, 8\], but got \[2, 3\]"):
        head.exported(3)(torch.randn(2, 3))
    leaning = LabelHead(LABELS, 8, SampledSoftmaxLoss(Uniform(LABELS, 5), Tail(LABELS)))
    with pytest.raises(HeadtailError, match="correct twice"):
        leaning.exported(3, post_hoc=1.0)
    leaning.exported(3, post_hoc=1.0, correct_twice=True)
    with pytest.raises(HeadtailError, match=r"Export `head\.exported"):
        torch.export.export(Adjusted().eval(), (torch.randn(2, 8),))
    trained = Adjusted()
    trained.head.topk(torch.randn(2, 8), 3, post_hoc=0.5)
    with pytest.raises(HeadtailError, match=r"Call `model\.eval\(\)`"):
        torch.export.export(trained, (torch.randn(2, 8),))


def test_an_adjusted_topk_is_exported_once_its_loss_is_known_not_to_lean():
    model = Adjusted().eval()
    hidden = torch.randn(7, 8)
    best = model(hidden)
    program = torch.export.export(model, (torch.randn(2, 8),), dynamic_shapes=BATCH)
    assert torch.equal(program.module()(hidden), best)


def test_a_program_that_returns_the_answer_as_it_is_can_be_saved(tmp_path):
    class Served(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = head_of()

        def forward(self, hidden):
            return self.head.topk(hidden, 4)

    served = Served().eval()
    program = torch.export.export(served, (torch.randn(3, 8),), dynamic_shapes=BATCH)
    torch.export.save(program, tmp_path / "model.pt2")
    hidden = torch.randn(7, 8)
    best = torch.export.load(tmp_path / "model.pt2").module()(hidden)
    assert torch.equal(best.indices, served(hidden).indices)
