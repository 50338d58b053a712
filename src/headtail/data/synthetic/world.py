"""World: the topics and words behind generated points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int32, Int64
from numpy import ndarray

from headtail.data.synthetic.sampling import offsets_of, place_on_line, solve
from headtail.data.synthetic.shape import Shape

TOPIC = 20
"""Labels per topic."""
MOST = 0.9
"""No label is in more than this share of the points, nor of the points of its topic."""
NOISE = 0.75
"""Share of a point's words that come from the background and not from its labels."""
SIGNATURE = 1.6
"""Words of a label, in words per point: a point shows only a few of them. Half of them are its own,
half its topic's.
"""


@dataclass(frozen=True, eq=False)
class World:
    """The labels, topics and words that all points have in common.

    Attributes:
        counts: `[L]` planned training examples of each label.
        members: `[T, K]` the labels of each topic, -1 where there is none.
        topic: `[L]` the topic of each label.
        signature: `[L, S]` the words of each label.
        common: `[D]` the words, from the most frequent background word on.
        background: `[D]` their cumulative probabilities; in this order, most searches end near
            the start.
        idf: `[D]` -log of a word's share of all words.
        shape: what was requested.
        slots: words drawn for a point, so that as many different ones remain as the shape says.
    """

    counts: Float64[ndarray, " L"]
    members: Int64[ndarray, "T K"]
    topic: Int64[ndarray, " L"]
    signature: Int32[ndarray, "L S"]
    common: Int64[ndarray, " D"]
    background: Float64[ndarray, " D"]
    idf: Float64[ndarray, " D"]
    shape: Shape
    slots: float

    def words(
        self, rng: np.random.Generator, ends: ndarray, labels: ndarray
    ) -> tuple[ndarray, ndarray, ndarray]:
        """Words of points with these labels: offsets, columns (ascending in a point) and tf-idf
        weights of length 1.
        """
        num_points = len(ends) - 1
        num_words = self.shape.features
        point = np.repeat(np.arange(num_points), 1 + rng.poisson(self.slots - 1, num_points))
        shown = labels[
            ends[point] + (rng.random(len(point)) * np.diff(ends)[point]).astype(np.int64)
        ]
        word = self.signature[shown, rng.integers(self.signature.shape[1], size=len(point))]
        noise = np.flatnonzero(rng.random(len(point)) < NOISE)
        word[noise] = self.common[place_on_line(self.background, rng.random(len(noise)))]
        cell, times = np.unique(point * num_words + word, return_counts=True)
        point, column = np.divmod(cell, num_words)
        offsets = offsets_of(point, num_points)
        weight = times * self.idf[column]
        length = np.sqrt(np.add.reduceat(weight**2, offsets[:-1]))
        return offsets, column, weight / length[point]


def zipf_counts(shape: Shape) -> Float64[ndarray, " L"]:
    """Planned training examples by rank: k·r^(-s), at least 1 and at most 90% of the points, with k
    such that the sum is right.

    >>> zipf_counts(Shape(points=100, labels=4, zipf=1.0, labels_a_point=1.0)).round()
    array([48., 24., 16., 12.])
    """
    law = np.arange(1, shape.labels + 1) ** -float(shape.zipf)

    def counts(factor: float) -> ndarray:
        return np.clip(factor * law, 1, MOST * shape.points)

    pairs = shape.points * shape.labels_a_point
    return counts(solve(lambda factor: counts(factor).sum(), pairs, high=shape.points / law[-1]))


def deal_topics(rng: np.random.Generator, label_of_rank: ndarray) -> tuple[ndarray, ndarray]:
    """Deal labels to topics like cards, from the most frequent on: each topic gets frequent and
    rare ones.
    """
    num_topics = max(1, len(label_of_rank) // TOPIC)
    rounds = -(-len(label_of_rank) // num_topics)
    cards = np.full(rounds * num_topics, -1)
    cards[: len(label_of_rank)] = label_of_rank
    members = rng.permuted(cards.reshape(rounds, num_topics), axis=1).T
    topic = np.empty(len(label_of_rank), np.int64)
    of_topic, slot = np.nonzero(members >= 0)
    topic[members[of_topic, slot]] = of_topic
    return members, topic


def draw_signatures(rng: np.random.Generator, topic: ndarray, shape: Shape) -> ndarray:
    """Half of a label's words are its own, the other half are a part of its topic's vocabulary,
    which is twice as large.
    """
    half = max(1, round(SIGNATURE * shape.features_a_point / 2))
    own = rng.integers(shape.features, size=(shape.labels, half), dtype=np.int32)
    vocabulary = rng.integers(shape.features, size=(topic.max() + 1, 2 * half), dtype=np.int32)
    shared = vocabulary[topic[:, None], rng.integers(2 * half, size=(shape.labels, half))]
    return np.concatenate([own, shared], axis=1)
