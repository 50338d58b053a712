"""LabelLaw: how labels are drawn for generated points."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray

from headtail.data.synthetic.sampling import offsets_of, place_on_line, random_stream, solve
from headtail.data.synthetic.world import MOST, World

LOYALTY = 0.8
"""Share of a label's occurrences that are in points of its topic."""


@dataclass(frozen=True, eq=False)
class LabelLaw:
    r"""How labels are drawn for points, so that label y is in the planned share $f_y$ of them.

    A point has one of T topics, all equally likely. Every label of the topic is in the point with
    probability $h_y$, and every label at all with probability $g_y$, independently; solved for the
    planned share,

    $$g_y = \frac{f_y - h_y / T}{1 - h_y / T}, \qquad h_y = \min(0.8 \, T f_y, 0.9).$$

    A point left empty gets one label. In training data each label first gets one home point, so
    that none is missing, and the law is about its other occurrences.

    Attributes:
        world: the topics.
        homes: `[L]` labels in the order of their home points; empty for test data.
        home_points: `[L]` those points, ascending.
        inside: `[T, K]` h.
        outside: `[L]` cumulative rates $-\log(1 - g)$ of a Poisson process.
        filler: `[L]` cumulative probabilities of the one label of a point that would have none.
    """

    world: World
    homes: Int64[ndarray, " homes"]
    home_points: Int64[ndarray, " homes"]
    inside: Float64[ndarray, "T K"]
    outside: Float64[ndarray, " L"]
    filler: Float64[ndarray, " L"]

    @classmethod
    def of(cls, world: World, size: int) -> LabelLaw:
        """The law of `size` training points, or of any number of test points if it is 0."""
        num_labels = len(world.counts)
        num_topics = len(world.members)
        homes = random_stream(world.shape.seed, 4).permutation(num_labels if size else 0)
        home_points = np.arange(len(homes)) * size // num_labels
        rest = world.counts - 1 if size else world.counts
        law = rest / max(rest.sum(), 1.0)
        at_home = len(homes) / max(size, 1)
        wanted = world.shape.labels_a_point
        # A point has the labels at home there, a Poisson number of others, and one if it would
        # have none.
        mean = solve(
            lambda mean: mean + at_home + max(0, 1 - at_home) * exp(-mean), wanted, high=wanted
        )
        planned = mean * law
        inside = np.minimum(LOYALTY * num_topics * planned, MOST)
        outside = (planned - inside / num_topics) / (1 - inside / num_topics)
        chances = np.where(world.members < 0, 0.0, inside[world.members])
        return cls(
            world, homes, home_points, chances, np.cumsum(-np.log1p(-outside)), np.cumsum(law)
        )

    def draw(self, rng: np.random.Generator, start: int, rows: int) -> tuple[ndarray, ndarray]:
        """Labels of `rows` points from point `start` on: offsets and label ids, ascending in a
        point.
        """
        num_labels = len(self.world.counts)
        members = self.world.members
        first, last = np.searchsorted(self.home_points, [start, start + rows])
        home_point = self.home_points[first:last] - start
        home_label = self.homes[first:last]
        topic = rng.integers(len(members), size=rows)
        topic[home_point] = self.world.topic[home_label]
        point, slot = np.nonzero(rng.random((rows, members.shape[1])) < self.inside[topic])
        elsewhere = np.repeat(np.arange(rows), rng.poisson(self.outside[-1], rows))
        label = place_on_line(self.outside, rng.random(len(elsewhere)) * self.outside[-1])
        drawn = point * num_labels + members[topic[point], slot], elsewhere * num_labels + label
        cell = np.unique(np.concatenate([home_point * num_labels + home_label, *drawn]))
        empty = np.setdiff1d(np.arange(rows), cell // num_labels)
        filled = empty * num_labels + place_on_line(self.filler, rng.random(len(empty)))
        point, label = np.divmod(np.sort(np.concatenate([cell, filled])), num_labels)
        return offsets_of(point, rows), label
