"""Building the world of a shape."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headtail.data.synthetic.label_law import LabelLaw
from headtail.data.synthetic.sampling import random_stream
from headtail.data.synthetic.shape import Shape
from headtail.data.synthetic.world import (
    NOISE,
    World,
    deal_topics,
    draw_signatures,
    zipf_counts,
)


def world_of(shape: Shape) -> World:
    """The world of a shape."""
    rng = random_stream(shape.seed, 0)
    label_of_rank = rng.permutation(shape.labels)
    counts = np.empty(shape.labels)
    counts[label_of_rank] = zipf_counts(shape)
    members, topic = deal_topics(rng, label_of_rank)
    signature = draw_signatures(rng, topic, shape)
    common = rng.permutation(shape.features)
    law = 1 / np.arange(1, shape.features + 1)
    law /= law.sum()
    share = np.bincount(signature.ravel(), np.repeat(counts, signature.shape[1]), shape.features)
    share *= (1 - NOISE) / share.sum()
    share[common] += NOISE * law
    world = World(
        counts,
        members,
        topic,
        signature,
        common,
        np.cumsum(law),
        -np.log(share),
        shape,
        shape.features_a_point,
    )
    return _with_enough_slots(world)


def _with_enough_slots(world: World) -> World:
    """Words drawn twice for a point count once, so more are drawn: as many as 2,000 points need."""
    shape = world.shape
    law = LabelLaw.of(world, 0)
    for trial in range(4):
        rng = random_stream(shape.seed, 3, trial)
        ends, labels = law.draw(rng, 0, 2_000)
        different = world.words(rng, ends, labels)[0][-1] / 2_000
        slots = max(1.0, world.slots * shape.features_a_point / different)
        world = replace(world, slots=slots)
    return world
