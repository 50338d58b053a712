"""What samplers promise in one value, and that their draws keep it."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import torch

import headtail.samplers as rooms
from headtail import (
    Adversarial,
    Block,
    Given,
    Hard,
    HeadtailError,
    Importance,
    Labels,
    Mixture,
    ModelSoftmax,
    Queue,
    Resampled,
    SampledSoftmaxLoss,
    Uniform,
    WithinBatch,
)
from headtail.samplers import Claims, FixedSampler, ModelSampler, Sampler
from headtail.samplers.fixed.mixture import FixedMixture, ModelMixture
from tests.laws.block_worlds import BLOCK_WORLDS
from tests.laws.nested_worlds import NESTED, NESTED_POOLS
from tests.laws.worlds import POOLS, WORLDS, L

LABELS = Labels.zipf(20)
OWN = Given(20, torch.tensor([1, 2]), log_q=torch.tensor([0.1, 0.1]).log())
"""Negatives without a q for other labels."""
each_world = pytest.mark.parametrize(
    "world", WORLDS + BLOCK_WORLDS + POOLS + NESTED + NESTED_POOLS, ids=repr
)


def kinds(base: type = Sampler) -> list[type]:
    """All classes of samplers in the package."""
    below = [kind for kind in base.__subclasses__() if kind.__module__.startswith("headtail.")]
    return [base, *(deeper for kind in below for deeper in kinds(kind))]


def test_every_class_of_samplers_is_abstract_or_final():
    classes = set(kinds())
    assert len(classes) > 20
    for kind in classes - {Mixture}:
        is_final = "__final__" in vars(kind)
        assert inspect.isabstract(kind) != is_final, kind
        assert not (is_final and kind.__subclasses__() and kind.__subclasses__()[0] in classes)


def test_every_sampler_is_fixed_or_follows_the_model_or_is_a_pool():
    public = [
        kind for kind in vars(rooms).values() if inspect.isclass(kind) and issubclass(kind, Sampler)
    ]
    concrete = [kind for kind in public if not inspect.isabstract(kind)]
    for kind in {*concrete, FixedMixture, ModelMixture} - {Mixture, Resampled}:
        assert issubclass(kind, FixedSampler) != issubclass(kind, ModelSampler), kind
    assert not any(hasattr(kind, "log_q") for kind in kinds(ModelSampler))
    assert not hasattr(Resampled, "log_q_given")


@each_world
def test_draws_keep_what_their_sampler_claims(world):
    sampler = world.sampler
    claims = world.sampler.claims
    every = torch.arange(L)
    assert claims.looks_at_model != isinstance(sampler, FixedSampler)
    assert claims.may_miss or bool((sampler.log_support(every) > -torch.inf).all())
    for _, draw in world.outcomes(2)[:20]:
        if not isinstance(sampler, Given):  # each of its worlds has many
            assert draw.shared == claims.shared
        assert draw.marginal == claims.marginal
        assert claims.may_miss or bool(draw.log_q.isfinite().all())
        excluded = isinstance(draw.log_keep, torch.Tensor)
        assert excluded == claims.excludes_target
        if excluded and claims.marginal:
            assert not bool((draw.ids == 2).any())


@each_world
def test_only_samplers_that_look_at_the_model_need_one(world):
    sampler = copy.deepcopy(world.sampler)
    if sampler.claims.looks_at_model:
        with pytest.raises(HeadtailError, match="looks at the model"):
            sampler.draw(torch.tensor([1, 2]))
    elif not isinstance(sampler, Given):
        sampler.draw(torch.tensor([1, 2]))


@pytest.mark.parametrize(
    "sampler", [Block(20, 4, share=3), Adversarial(20, 4, share=3)], ids=["block", "adversarial"]
)
def test_a_group_of_neighbours_gets_one_draw_and_says_so_however_deep_it_is_nested(sampler):
    model = {"input": torch.randn(7, 4), "weight": torch.randn(20, 4)}
    ids = sampler.draw(torch.arange(7), **model).ids
    assert all((rows == rows[0]).all() for rows in ids.split(sampler.claims.group))
    assert not torch.equal(ids[2], ids[3])
    other = Block(20, 4, share=2)
    assert Mixture([Hard(sampler, 2), other, Uniform(20, 1)]).claims.group == 6
    assert Hard(Mixture([sampler, Uniform(20, 1)]), 2).claims.group == 3


def test_what_parts_promise_is_what_their_mixture_promises():
    parts = [WithinBatch(LABELS), Queue(LABELS, 7), Queue(LABELS, 5)]
    assert Mixture(parts).claims == Claims(memory=7, source="batch")
    assert Mixture([Uniform(20, 1), OWN]).claims == Claims(knows_every_q=False)
    hard = Mixture([Uniform(20, 1), Hard(Queue(LABELS, 7), 2)])
    assert hard.claims == Claims(looks_at_model=True, shared=False, memory=7, source="past")
    pool = Resampled(Uniform(20, 4, exclude_target=True), 2)
    assert not pool.claims.marginal
    assert pool.claims.excludes_target


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ([Uniform(20, 2), Queue(LABELS, 3)], FixedMixture),
        ([Uniform(20, 2), Hard(Queue(LABELS, 3), 1)], ModelMixture),
    ],
)
def test_a_mixture_follows_the_model_if_a_part_does_and_stays_so_in_copies(parts, kind):
    mixture = Mixture(parts)
    for again in (
        mixture,
        copy.deepcopy(mixture),
        pickle.loads(pickle.dumps(mixture)),
        mixture.for_labels(LABELS),
    ):
        assert type(again) is kind
        assert isinstance(again, Mixture)
        assert [type(part) for part in again.samplers] == [type(part) for part in parts]
        assert repr(again).startswith("Mixture(")


def test_a_q_that_is_unknown_is_refused_where_it_is_needed_and_only_there():
    assert SampledSoftmaxLoss(OWN, Importance()).sampler is OWN
    masked = ModelSoftmax(20, 2, exclude_target=False)
    for cheap in (OWN, Mixture([OWN, Uniform(20, 1)]), Mixture([OWN, masked])):
        with pytest.raises(HeadtailError, match="must know the q of any label"):
            Hard(cheap, 2)
    draw = Resampled(OWN, 1).draw(
        torch.tensor([0]), input=torch.ones(1, 1), weight=torch.ones(20, 1)
    )
    assert draw.ids.shape == (1, 1)
