"""The auxiliary tree, beyond the laws: what it learns, extremes, state."""

from __future__ import annotations

import copy

import pytest
import torch

from headtail import Adversarial, Labels, audit
from headtail.samplers import Scorer
from headtail.samplers.model.tree import depth_of, fit
from tests.samplers.steps import step_of


def clouds(number: int = 6, each: int = 40, d: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states in clouds, one per label, far apart."""
    generator = torch.Generator().manual_seed(0)
    centres = 6 * torch.randn(number, d, generator=generator)
    label = torch.arange(number).repeat_interleave(each)
    return centres[label] + torch.randn(len(label), d, generator=generator), label


def test_a_fitted_tree_finds_the_label_of_a_hidden_state():
    hidden, label = clouds()
    sampler = Adversarial(6, 4, share=1)
    log_q = sampler.log_q_given(step_of(Scorer(hidden, torch.randn(6, 5)), label), label[:, None])
    assert float(log_q.exp().median()) > 0.6, "uniform would have 1/6"


def test_if_hidden_states_say_nothing_the_tree_still_knows_how_popular_labels_are():
    label = torch.tensor([0] * 600 + [1] * 200 + [2] * 100 + [3] * 100)
    sampler = Adversarial(4, 4, share=1)
    scorer = Scorer(0.01 * torch.randn(1000, 3), torch.zeros(4, 3))
    q = sampler.log_q_given(step_of(scorer, label), torch.arange(4)).exp().mean(0)
    assert torch.allclose(q, torch.tensor([0.6, 0.2, 0.1, 0.1], dtype=torch.float64), atol=0.05)


@pytest.mark.parametrize("number", [1, 2, 3, 5, 37, 64, 65])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_q_sums_to_one_and_is_finite_and_carried_by_draws(number: int, scale: float):
    generator = torch.Generator().manual_seed(0)
    scorer = Scorer(
        scale * torch.randn(7, 4, generator=generator), torch.randn(number, 4, generator=generator)
    )
    target = torch.arange(7) % number
    sampler = Adversarial(number, 9, share=3)
    draw = sampler.draw(target, input=scorer.input, weight=scorer.weight)
    log_q = sampler.log_q_given(step_of(scorer, target), torch.arange(number))
    assert torch.allclose(
        log_q.exp().sum(1), torch.ones(7, dtype=torch.float64), rtol=0, atol=1e-12
    )
    assert bool(log_q.isfinite().all())
    assert draw.ids.shape == (7, 9)
    assert torch.allclose(draw.log_q, log_q.gather(1, draw.ids), rtol=0, atol=1e-5)
    assert torch.allclose(
        draw.log_q_target, log_q.gather(1, target[:, None]).squeeze(1), rtol=0, atol=1e-5
    )


def test_the_q_of_a_group_is_the_mean_of_its_examples_and_the_last_group_may_be_small():
    hidden, label = clouds()
    scorer = Scorer(hidden[::48][:5], torch.randn(6, 5))
    few = label[::48][:5]
    alone = Adversarial(6, 4, share=1)
    three = Adversarial(6, 4, share=3)
    three.load_state_dict(alone.state_dict())
    for sampler in (alone, three):
        sampler._start(Scorer(hidden, scorer.weight), label)
    step = step_of(scorer, few)
    own, group = (s.log_q_given(step, torch.arange(6)).exp() for s in (alone, three))
    assert torch.allclose(group[0], own[:3].mean(0), rtol=1e-6)
    assert torch.allclose(group[4], own[3:].mean(0), rtol=1e-6)
    assert float((own[0] - own[2]).abs().max()) > 0.3, "a mean of equals would prove nothing"


def test_real_draws_follow_the_claimed_q_also_when_the_table_has_moved_on():
    labels = Labels.zipf(50)
    generator = torch.Generator().manual_seed(0)
    model = {
        "input": torch.randn(8, 4, generator=generator),
        "weight": torch.randn(50, 4, generator=generator),
    }
    sampler = Adversarial(labels, 6, share=3).eval()
    sampler.draw(torch.arange(8), **model)
    moved = model | {"weight": torch.randn(50, 4, generator=generator)}
    report = audit(
        sampler,
        labels,
        draws=1_000,
        batch_size=8,
        **moved,
        generator=torch.Generator().manual_seed(1),
    )
    assert report.passed, report


def test_a_saved_sampler_goes_on_with_the_same_draws_and_the_same_trees():
    sampler = Adversarial(40, 4, share=2, dim=3)
    hidden = torch.randn(200, 6, 7)
    weight = torch.randn(40, 7)
    target = torch.randint(40, (200, 6))
    for step in range(40):
        sampler.draw(target[step], input=hidden[step], weight=weight)
    again = Adversarial(40, 4, share=2, dim=3)
    again.load_state_dict(copy.deepcopy(sampler.state_dict()))
    trees = set()
    for step in range(40, 120):
        both = [
            s.draw(
                target[step],
                input=hidden[step],
                weight=weight,
                generator=torch.Generator().manual_seed(step),
            )
            for s in (sampler, again)
        ]
        assert torch.equal(both[0].ids, both[1].ids)
        assert torch.equal(both[0].log_q, both[1].log_q)
        trees.add(float(sampler.slope.sum()))
    assert len(trees) > 1, "or nothing was fitted again"


def test_every_label_has_its_own_leaf_and_halves_differ_by_one_at_most():
    for number in (1, 2, 3, 7, 8, 100):
        tree = fit(torch.randn(number, 3), torch.ones(number))
        assert sorted(set(tree.leaf.tolist())) == sorted(tree.leaf.tolist())
        assert torch.equal(tree.label[tree.leaf], torch.arange(number))
        assert len(tree.shift) == 2 ** depth_of(number) - 1
        if number > 1:
            right = int((tree.leaf >= 2 ** (depth_of(number) - 1)).sum())
            assert right == number // 2


def test_a_grown_label_set_gets_a_new_tree():
    torch.manual_seed(0)
    labels = Labels.from_counts([3] * 60)
    hidden = torch.randn(60, 8)
    target = torch.arange(60)
    sampler = Adversarial(labels, 16, share=4)
    for _ in range(60):  # long enough for a tree to be there
        sampler.draw(target, input=hidden, weight=torch.randn(60, 8))
    grown = sampler.for_labels(labels.grow([1, 1, 1, 1]))
    assert grown.num_labels == 64
    assert grown.share == 4
    q = grown.log_q_given(
        step_of(Scorer(hidden[:2], torch.randn(64, 8)), target[:2]), torch.arange(64)
    ).exp()
    assert torch.allclose(q.sum(1), torch.ones(2, dtype=torch.float64))
