"""Samplers over blocks, beyond the laws: groups, noise, extremes, stale summaries, state."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace

import pytest
import torch

from headtail import (
    Adversarial,
    Block,
    Equalised,
    FourierKernel,
    HeadtailError,
    Importance,
    LabelHead,
    Labels,
    LogitAdjusted,
    QuadraticKernel,
    Relative,
    SampledSoftmaxLoss,
    Unit,
    audit,
    scheme,
)
from headtail.samplers import Scorer, TableSummary
from headtail.samplers.model.blocks import UNIFORM_SHARE
from headtail.samplers.model.clusters import lay_out, nearest, projection
from headtail.training.engine import Engine
from headtail.training.interrupts import Stopped
from headtail.training.trainer import Trainer
from tests.laws.block_worlds import BLOCK_WORLDS, mixed, visiting
from tests.laws.worlds import MODEL, L
from tests.samplers.steps import step_of
from tests.training.test_train import DATA, SMALL, Stop, assert_same_model

KINDS = {"block": Block, "quadratic kernel": QuadraticKernel, "fourier kernel": FourierKernel}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
LABELS = Labels.zipf(300)


def model(p: int = 12, labels: int = 300, d: int = 6, scale: float = 1.0, **options) -> Scorer:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "input": torch.randn(p, d, generator=generator),
        "weight": scale * torch.randn(labels, d, generator=generator),
    }
    return Scorer(**{**tensors, **options})


def drawn(sampler, scorer: Scorer, target=None, seed: int = 0):
    target = torch.arange(len(scorer.input)) % sampler.num_labels if target is None else target
    return sampler.draw(target, model=scorer, generator=torch.Generator().manual_seed(seed))


def made(kind, labels=LABELS, m: int = 4, *, share: int, dim: int, refresh: int | None = None):
    """A sampler of any kind that keeps a summary."""
    options = {"dim": dim, "refresh": refresh}
    options = options if kind is Adversarial else {"summary": TableSummary(**options)}
    return kind(labels, m, share=share, **options)


@pytest.mark.parametrize(
    "hidden", [[1.0, -0.5], [0.0, 2.0], [1.0, math.nan], [math.inf, 2.0]], ids=str
)
@each_kind
def test_a_group_draws_each_label_as_often_as_the_mean_of_its_examples_q(kind, hidden):
    sampler = kind(L, 2, share=2, visits=1, summary=TableSummary(dim=1))
    outcomes = list(visiting(sampler, hidden)(1))
    assert sum(p for p, _ in outcomes) == pytest.approx(1, rel=1e-12)
    scorer = Scorer(torch.tensor(hidden, dtype=torch.float64)[:, None], MODEL["weight"])
    step = step_of(scorer, torch.ones(2, dtype=torch.int64))
    claimed = sampler.log_q_given(step, torch.arange(L)).exp()
    for label in range(L):
        count = sum(p * int((draw.ids[0] == label).sum()) for p, draw in outcomes)
        assert count == pytest.approx(2 * float(claimed[0, label]), rel=1e-12)
    if hidden == [1.0, -0.5] and kind is not QuadraticKernel:
        alone = [mixed(sampler, [x]) for x in hidden]
        apart = max(abs(a - b) for a, b in zip(alone[0].blocks, alone[1].blocks, strict=True))
        assert apart > 0.05, "a mean of equal values would prove nothing"


@pytest.mark.parametrize("kind", [Block, FourierKernel])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_with_a_margin_labels_are_drawn_for_the_loss_of_that_margin(kind, temperature):
    """Inside a block by ρ·e^f exactly, so the sum of that loss varies less."""
    scorer = model(scale=0.3, bias=torch.linspace(-1, 1, 300), temperature=temperature)
    margin = LogitAdjusted(LABELS)
    every = torch.arange(300)
    label = torch.zeros(12, dtype=torch.int64)
    plain, meant = (kind(LABELS, 8, share=1, margin=rho).eval() for rho in (None, margin))
    mass = (scorer.logits(every).double() + margin.log_negative(every)).exp()
    q = [sampler.log_q_given(step_of(scorer, label), every).exp() for sampler in (plain, meant)]
    assert torch.allclose(q[1].sum(1), torch.ones(12).double())
    block = meant._block_of(meant.place)
    for number in block.unique() if kind is Block else ():
        shares = [
            t / t.sum(1, keepdim=True)
            for t in (q[1][:, block == number] - UNIFORM_SHARE / 300, mass[:, block == number])
        ]
        assert torch.allclose(*shares, rtol=0, atol=0.01)
    noise = [
        sampler.variance_given(step_of(scorer, label), mass / p)
        for sampler, p in zip((plain, meant), q, strict=True)
    ]
    assert float(noise[1].log().mean()) < float(noise[0].log().mean()) - 0.7, "half at most"


def test_schemes_pass_their_margin_to_blocks():
    kinds = {
        "block:tail": LogitAdjusted,
        "block(1):importance": Unit,
        "fourier-kernel:tail": LogitAdjusted,
        "block:constant": None,
    }
    for name, kind in kinds.items():
        margin = scheme(name, LABELS).sampler.margin
        assert margin is None if kind is None else isinstance(margin, kind)
    grown = LABELS.grow([3, 1])
    assert scheme("block:tail", LABELS).sampler.for_labels(grown).margin.labels is grown
    assert scheme("contrastive/block:tail", LABELS).sampler.margin is None


def test_labels_that_the_margin_leaves_out_have_a_finite_q():
    labels = Labels.from_counts([5, 0, 0, 0, 3, 0, 0, 0], 0.0)
    sampler = Block(labels, 4, share=1, summary=TableSummary(blocks=4), margin=Equalised(labels))
    draw = sampler.draw(torch.tensor([0, 4]), input=torch.randn(2, 3), weight=torch.randn(8, 3))
    assert draw.log_q.isfinite().all()


@pytest.mark.parametrize("world", BLOCK_WORLDS, ids=repr)
def test_the_variance_given_a_model_is_that_of_all_outcomes(world):
    term = torch.tensor([[0.5, -1.0, 3.0, 0.25]], dtype=torch.float64)
    outcomes = [(p, float(term[0, draw.ids[0]].sum())) for p, draw in world.outcomes(2)]
    mean = sum(p * x for p, x in outcomes)
    variance = sum(p * (x - mean) ** 2 for p, x in outcomes)
    claimed = world.sampler.variance_given(step_of(Scorer(**MODEL), torch.tensor([2])), term)
    assert float(claimed) == pytest.approx(variance, rel=1e-11)


@each_kind
def test_real_draws_follow_the_claimed_q(kind):
    scorer = model(16)
    sampler = kind(LABELS, 8, share=5, visits=3)
    report = audit(
        sampler, LABELS, draws=1_000, batch_size=16, input=scorer.input, weight=scorer.weight,
        generator=torch.Generator().manual_seed(1),
    )  # fmt: skip
    assert report.passed, report


@each_kind
def test_a_table_that_changed_under_a_stale_summary_changes_no_q(kind):
    scorer = model(16)
    sampler = kind(LABELS, 8, share=4).eval()
    before = drawn(sampler, scorer)
    moved = model(16, weight=torch.randn(300, 6))
    after = drawn(sampler, moved)
    assert torch.equal(before.ids, after.ids)
    assert torch.equal(before.log_q, after.log_q)
    report = audit(
        sampler,
        LABELS,
        draws=1_000,
        batch_size=16,
        input=moved.input,
        weight=moved.weight,
        generator=torch.Generator().manual_seed(1),
    )
    assert report.passed, report


@each_kind
@pytest.mark.parametrize(
    "case",
    [
        {"labels": 2},
        {"labels": 1},
        {"labels": 5, "m": 20},
        {"weight": torch.ones(300, 6)},
        {"weight": torch.zeros(300, 6)},
        {"weight": torch.cat([torch.full((1, 6), 1e4), torch.randn(299, 6)])},
        {"weight": torch.cat([torch.full((1, 6), -1e4), torch.randn(299, 6)])},
        {"input": torch.zeros(7, 6)},
        {"p": 7},
        {"p": 1},
        {"temperature": 0.05},
        {"temperature": torch.tensor(2.0)},
        {"score": "cosine"},
        {"bias": torch.linspace(-3, 3, 300)[:, None]},
        {"d": 100, "dim": 8},
        {
            "input": torch.randn(7, 6, dtype=torch.bfloat16),
            "weight": torch.randn(300, 6, dtype=torch.bfloat16),
        },
    ],
    ids=", ".join,
)
def test_q_sums_to_one_and_is_finite_and_carried_by_draws(kind, case):
    case = dict(case)
    m = case.pop("m", 6)
    dim = case.pop("dim", 16)
    scorer = model(**case)
    number = len(scorer.weight)
    sampler = made(kind, number, m, share=3, dim=dim)
    target = torch.arange(len(scorer.input)) % number
    draw = drawn(sampler, scorer, target)
    log_q = sampler.log_q_given(step_of(scorer, target), torch.arange(number))
    assert torch.allclose(
        log_q.exp().sum(1), torch.ones(len(target), dtype=torch.float64), rtol=0, atol=1e-12
    )
    assert bool(log_q.isfinite().all()), "every label can be drawn"
    assert draw.ids.shape == (len(target), m)
    assert torch.allclose(draw.log_q, log_q.gather(1, draw.ids), rtol=0, atol=1e-5)
    assert torch.allclose(
        draw.log_q_target, log_q.gather(1, target[:, None]).squeeze(1), rtol=0, atol=1e-5
    )


@each_kind
def test_products_with_all_blocks_at_once_or_block_by_block_are_the_same(kind):
    scorer = model(12)
    sampler = made(kind, m=8, share=4, dim=8)
    drawn(sampler, scorer)
    x, _ = sampler._examples(scorer)
    block = torch.tensor([[0, 3], [7, 7], [int(sampler._last_block()), 1]])
    place = torch.arange(sampler.capacity)
    at = (sampler.start[block][..., None] + place).clamp(max=299)
    held = (place < sampler.size[block][..., None])[:, :, None].expand(-1, -1, 4, -1)
    at_once = sampler.at_once(x, at)
    by_block = sampler.by_block(x, block)
    assert torch.allclose(at_once[held], by_block[held], rtol=1e-5, atol=1e-6)
    assert float(at_once[held].std()) > 0.1


def test_labels_with_high_scores_are_drawn_more_often_than_by_a_uniform_sampler():
    scorer = model(32, scale=2.0)
    target = torch.zeros(32, dtype=torch.int64)
    best = scorer.logits(slice(0, 300)).argmax(1, keepdim=True)
    for kind, times in ((Block, 10), (FourierKernel, 5), (QuadraticKernel, 3)):
        q = kind(LABELS, 8, share=1).log_q_given(step_of(scorer, target), best).exp()
        assert float(q.median()) > times / 300, kind


def test_block_has_far_less_variance_than_uniform_draws_have():
    scorer = model(32, scale=2.0)
    p = scorer.logits(slice(0, 300)).double().softmax(1)
    target = torch.zeros(32, dtype=torch.int64)
    uniform = (p**2 * 300).sum(1) - 1
    sampler = Block(LABELS, 8, share=1)
    q = sampler.log_q_given(step_of(scorer, target), torch.arange(300)).exp()
    block = 8 * sampler.variance_given(step_of(scorer, target), p / (8 * q))
    assert float((uniform / block).median()) > 10


def test_summaries_are_taken_often_at_first_and_in_the_long_run_at_a_fixed_interval(monkeypatch):
    sampler = Block(LABELS, 4, share=4, summary=TableSummary(refresh=100))
    scorer = model(4)
    taken = []
    take = sampler.take_summary
    monkeypatch.setattr(
        sampler, "take_summary", lambda model: (taken.append(sampler._steps_done), take(model))
    )
    for _ in range(330):
        drawn(sampler, scorer)
    assert taken == [0, 32, 64, 128, 228, 328]
    sampler.eval()
    for _ in range(200):
        drawn(sampler, scorer)
    assert len(taken) == 6, "no new summary where nothing is trained"
    assert sampler._steps_done == 330, "and such steps do not count"


@pytest.mark.parametrize("kind", [*KINDS.values(), Adversarial], ids=[*KINDS, "adversarial"])
def test_a_slow_first_summary_warns_once_and_names_the_next(kind, recwarn):
    sampler = kind(LABELS, 4, share=4)
    sampler.slow_seconds = -1.0
    sampler.slow_labels = 300
    with pytest.warns(
        UserWarning, match=r"300 labels took 0 s\. .* again after 32 steps, .* every 100 steps"
    ):
        drawn(sampler, model(4))
    recwarn.clear()
    for _ in range(40):
        drawn(sampler, model(4))
    assert sampler._next_refresh == 64, "there was a second refresh"
    assert len(recwarn) == 0


@pytest.mark.parametrize("kind", [*KINDS.values(), Adversarial], ids=[*KINDS, "adversarial"])
def test_draws_can_be_replayed_unless_a_refresh_is_due_since_tensors_stay_in_place(
    kind, monkeypatch
):
    sampler = made(kind, share=4, dim=4, refresh=40)
    refreshes = []
    refresh = "refit" if kind is Adversarial else "take_summary"
    real = getattr(sampler, refresh)
    monkeypatch.setattr(
        sampler, refresh, lambda model: (refreshes.append(sampler._steps_done), real(model))
    )
    drawn(sampler, model(4, d=9))
    hold = {
        name: value
        for name, value in {**dict(sampler.named_buffers()), **vars(sampler)}.items()
        if torch.is_tensor(value)
    }
    before = {name: value.clone() for name, value in hold.items()}
    places = {name: v.data_ptr() for name, v in hold.items()}
    fresh = made(kind, share=4, dim=4, refresh=40).get_extra_state()
    sampler.set_extra_state(sampler.get_extra_state())
    for number in range(1, 130):
        due = sampler.refresh_due
        seen = len(refreshes)
        if number % 10 == 0 and not due:
            sampler.count_step()  # as if replayed
        else:
            drawn(sampler, model(4, d=9, weight=torch.randn(300, 9)))
        assert len(refreshes) - seen == due
    assert refreshes == [0, 32, 64, 104]
    sampler.set_extra_state(fresh)
    assert sampler.refresh_due, "as new"
    drawn(sampler, model(4, d=9))
    now = {**dict(sampler.named_buffers()), **vars(sampler)}
    assert {name: now[name].data_ptr() for name in places} == places
    assert not all(torch.equal(before[name], now[name]) for name in before), (
        "but something was written"
    )


@pytest.mark.parametrize("kind", [*KINDS.values(), Adversarial], ids=[*KINDS, "adversarial"])
def test_a_sampler_that_was_first_used_without_gradients_can_be_trained_with(kind):
    sampler = made(kind, share=4, dim=4)
    scorer = model(4, d=9)
    with torch.inference_mode():
        drawn(sampler, scorer)
    for _ in range(40):
        drawn(sampler, scorer)
    assert sampler._next_refresh == 64, "there was a second refresh"


@each_kind
def test_a_saved_sampler_goes_on_with_the_same_draws(kind):
    sampler = made(kind, share=2, dim=4)
    scorer = model(6, d=9)
    for _ in range(40):
        drawn(sampler, scorer)
    again = made(kind, share=2, dim=4)
    again.load_state_dict(copy.deepcopy(sampler.state_dict()))
    other = model(6, d=9, weight=torch.randn(300, 9))
    for seed in range(40):
        before = drawn(sampler, other, seed=seed)
        after = drawn(again, other, seed=seed)
        assert torch.equal(before.ids, after.ids)
        assert torch.equal(before.log_q, after.log_q)


@each_kind
def test_a_grown_label_set_is_drawn_from_whole(kind):
    sampler = kind(LABELS, 50, share=4, visits=25)
    drawn(sampler, model(8))
    grown = sampler.for_labels(LABELS.grow([5] * 40))
    scorer = model(8, 340)
    assert grown.share == 4
    assert grown.visits == 25
    log_q = grown.log_q_given(step_of(scorer, torch.arange(8)), torch.arange(340))
    assert torch.allclose(log_q.exp().sum(1), torch.ones(8, dtype=torch.float64))
    assert max(int(drawn(grown, scorer, seed=seed).ids.max()) for seed in range(5)) >= 300


def test_q_of_the_positive_is_computed_only_for_weights_that_need_it():
    scorer = model(6)
    target = torch.arange(6)
    for weighting, needs_it in ((Importance(), False), (Relative(), True)):
        loss = SampledSoftmaxLoss(Block(LABELS, 4), weighting)
        assert (loss.draw(scorer.input, scorer.weight, target).log_q_target is not None) == needs_it
        assert bool(loss(scorer.input, scorer.weight, target).isfinite())


@pytest.mark.parametrize(
    "name",
    ["block(4)", "block(1,uniform)", "quadratic-kernel(2)", "fourier-kernel", "adversarial(4)"],
)
def test_a_head_trains_under_its_name(name):
    torch.manual_seed(0)
    labels = Labels.from_counts([3] * 60)
    head = LabelHead(labels, 8, scheme(f"{name}:importance@16", labels))
    hidden = torch.randn(60, 8)
    target = torch.arange(60)
    optimiser = torch.optim.Adam(head.parameters(), lr=0.1)
    for _ in range(60):
        optimiser.zero_grad()
        head(hidden, target).backward()
        optimiser.step()
    assert float((head.topk(hidden, 1).indices[:, 0] == target).double().mean()) > 0.9


@pytest.mark.parametrize("name", ["block(4)", "fourier-kernel(4)", "adversarial(4)"])
def test_a_stopped_run_goes_on_bit_for_bit(name, tmp_path):
    run = replace(SMALL, scheme=f"{name}:tail@6", seed=1)
    whole = Trainer(run, DATA, tmp_path / "whole").fit()
    engine = Engine(check_every=1)
    stops = 0
    for after in (3, 20, whole.steps_per_epoch + 5):
        stop = Stop(after)
        try:
            Trainer(
                run, DATA, tmp_path / "parts", engine=engine, callbacks=stop, stop=stop.event
            ).fit()
        except Stopped:
            stops += 1
    assert stops == 3
    assert_same_model(whole, Trainer(run, DATA, tmp_path / "parts", engine=engine).fit())


def test_mistakes_are_reported_in_a_sentence():
    with pytest.raises(HeadtailError, match="`dim` is 65"):
        QuadraticKernel(10, 2, summary=TableSummary(dim=65))
    with pytest.raises(HeadtailError, match="`inside`"):
        Block(10, 2, inside="exactly")
    with pytest.raises(HeadtailError, match="number of examples that share a draw"):
        scheme("block(0.5):importance", LABELS)
    with pytest.raises(HeadtailError, match="pass `input` and `weight`"):
        Block(10, 2).draw(torch.tensor([1]))


def test_blocks_are_never_larger_than_allowed_and_hold_each_label_once():
    rows = torch.cat([torch.zeros(50, 2), torch.randn(30, 2) + 10])
    layout = lay_out(rows, rows[::10], steps=3, capacity=10, number=16)
    assert int(layout.size.max()) == 10
    assert sorted(layout.order.tolist()) == list(range(80))
    for start, size in zip(layout.start.tolist(), layout.size.tolist(), strict=True):
        here = rows[layout.order[start : start + size]]
        assert len({bool(far) for far in (here > 5).all(1)}) <= 1, "the two clouds do not mix"


def test_the_nearest_centroid_is_the_same_in_parts_as_at_once():
    rows = torch.randn(50, 3)
    centroids = torch.randn(7, 3)
    truth = torch.cdist(rows, centroids).argmin(1)
    assert torch.equal(nearest(rows, centroids), truth)
    assert torch.equal(nearest(rows, centroids, at_once=40), truth)


def test_the_projection_keeps_the_directions_of_hidden_states():
    basis = torch.linalg.qr(torch.randn(20, 20)).Q
    hidden = torch.randn(100, 3) @ basis[:3]
    left = projection(hidden, torch.randn(50, 20), 3)
    lost = (hidden - hidden @ left @ left.T).square().sum() / hidden.square().sum()
    assert float(lost) < 0.02, "of 20 directions, the 3 that matter"
    assert torch.equal(projection(hidden[:, :2], torch.randn(5, 2), 4), torch.eye(2, 4))


def test_worlds_of_blocks_have_a_cut_cluster_and_an_empty_block():
    """Else the laws would run over less than they could."""
    sizes = BLOCK_WORLDS[0].sampler.size.tolist()
    assert 0 in sizes
    assert len(set(itertools.accumulate(sizes))) > 2


def test_another_model_or_the_state_of_another_sampler_is_refused():
    sampler = Block(50, 4)
    label = torch.tensor([3])
    sampler.draw(label, input=torch.randn(1, 8), weight=torch.randn(50, 8))
    with pytest.raises(HeadtailError, match="rows of size 8, but hidden states have size 5"):
        sampler.draw(label, input=torch.randn(1, 5), weight=torch.randn(50, 5))
    with pytest.raises(HeadtailError, match="a sampler with another `dim` than 4"):
        Block(50, 4, summary=TableSummary(dim=4)).load_state_dict(
            sampler.state_dict(), strict=False
        )
