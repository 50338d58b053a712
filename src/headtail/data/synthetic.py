"""Generated data with a planted structure: a Zipf law over labels, and words that frequent and rare
labels share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from math import ceil, exp, nan

import numpy as np
from jaxtyping import Float64, Int32, Int64
from numpy import ndarray

from headtail.core.targets import Ragged
from headtail.data.cache import Entry, Store, cached
from headtail.data.catalogue import CATALOGUE
from headtail.data.points import Bag, DataSet, Points, Progress
from headtail.errors import HeadtailError, nearest

CHUNK = 16_384
"""Points made at a time. Part of the data: each chunk has its own stream of random numbers."""
TOPIC = 20
"""Labels a topic."""
LOYALTY = 0.8
"""Share of a label's occurrences that fall into points of its topic."""
MOST = 0.9
"""No label is in more than this share of the points, nor of the points of its topic."""
NOISE = 0.75
"""Share of a point's words that come from the background and not from its labels."""
SIGNATURE = 1.6
"""Words of a label, in words a point: a point shows but a few of them. Half of them are its own,
half its topic's.
"""


@dataclass(frozen=True)
class Shape:
    """What generated data look like.

    Attributes:
        points: training points.
        test: test points.
        features: D, the number of words.
        labels: L.
        zipf: exponent s; the label of rank r occurs in proportion to $r^{-s}$, but at least once.
        labels_a_point: on average.
        features_a_point: different words a point, on average.
        seed: of everything random.
        like: the catalogue's data set that lends its numbers, or "".
        scale: factor on its points, features and labels.

    >>> shape = Shape.parse("synthetic:labels=500,points=2_000")
    >>> shape.labels, shape.zipf
    (500, 0.9)
    >>> shape.text
    'synthetic:points=2000,labels=500'
    """

    points: int = 12_000
    test: int = 3_000
    features: int = 3_000
    labels: int = 1_000
    zipf: float = 0.9
    labels_a_point: float = 3.0
    features_a_point: float = 20.0
    seed: int = 0
    like: str = ""
    scale: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Read `synthetic[:NAME][,KEY=VALUE…]`. A number that is written out is taken as written,
        whatever the scale.
        """
        kind, colon, rest = text.strip().partition(":")
        items = [item.strip() for item in rest.split(",")] if colon else []
        if kind != "synthetic" or "" in items:
            raise HeadtailError(
                f"`{text}` must read `synthetic`, or for example "
                f"`synthetic:{_NAMES[-1]},scale=0.01`."
            )
        like = items.pop(0) if items and "=" not in items[0] else ""
        given = dict(_read(item, text) for item in items)
        if len(given) < len(items):
            raise HeadtailError(f"`{text}` says the same thing twice. Write each name once.")
        shape = replace(_like(like, given.get("scale", 1.0), text), **given)
        _check(shape, text)
        return shape

    @property
    def text(self) -> str:
        """The shortest text that says the same."""
        plain = _like(self.like, self.scale, self.like)
        said = [self.like] * bool(self.like) + [f"scale={self.scale}"] * (self.scale != 1)
        said += [
            f"{key}={getattr(self, name)}"
            for key, name in _KEYS.items()
            if getattr(self, name) != getattr(plain, name)
        ]
        return "synthetic" + ":" * bool(said) + ",".join(said)


_KEYS = {
    field.name.replace("_", "-"): field.name for field in fields(Shape) if field.name != "like"
}


def generate(text: str = "synthetic", progress: Progress | None = None) -> DataSet:
    """Make the data that `text` describes, or take them from the cache: the same text gives the
    same data.

    Labels live in topics of about twenty, each with frequent and rare ones. A label has words of
    its own and words that it shares with its topic; a point shows a few words of each of its labels
    between background words. So a point's words tell the topic well and the label badly, and a
    model does best on average by answering with the frequent labels of the topic.

    Args:
        text: `synthetic`, `synthetic:NAME` for the counts of a known data set, with `,scale=0.01`
            to make it smaller, and any of points, test, features, labels, zipf, labels-a-point,
            features-a-point and seed, as in `synthetic:zipf=1.2`.
        progress: called with what is being made and how much of it is done, from 0 to 1.

    >>> data = generate("synthetic:points=500,test=100,labels=40,features=200")
    >>> len(data.train), data.train.num_labels, data.name
    (500, 40, 'synthetic:points=500,test=100,features=200,labels=40')
    """
    shape = Shape.parse(text)
    numbers = {
        name: value for name, value in asdict(shape).items() if name not in ("like", "scale")
    }
    made_of = [CHUNK, TOPIC, LOYALTY, MOST, NOISE, SIGNATURE]
    entry = cached(
        [],
        {"reader": "synthetic", "made of": made_of, **numbers},
        lambda store: _write(store, shape, progress),
    )
    note = (
        f"Generated data: labels follow a Zipf law with exponent {shape.zipf:g}, seed {shape.seed}."
    )
    return DataSet(
        shape.text,
        _points(entry, "train", shape),
        _points(entry, "test", shape),
        notes=(note,),
        digest=entry.key,
    )


def _points(entry: Entry, split: str, shape: Shape) -> Points:
    offsets, columns, values = (
        entry.arrays[f"{split}.features.{part}"] for part in ("offsets", "columns", "values")
    )
    labels = Ragged(entry.arrays[f"{split}.labels.values"], entry.arrays[f"{split}.labels.offsets"])
    return Points(Bag(offsets, columns, values, shape.features), labels, shape.labels)


def _write(store: Store, shape: Shape, progress: Progress | None) -> None:
    world = World.of(shape)
    for split, size, before in (("train", shape.points, 0), ("test", shape.test, shape.points)):
        law = Law.of(world, size if split == "train" else 0)
        ends = {"features": 0, "labels": 0}
        for part in ends:
            store.append(f"{split}.{part}.offsets", np.zeros(1, np.int64))
        for start in range(0, size, CHUNK):
            rows = min(CHUNK, size - start)
            rng = _rng(shape.seed, 1 if split == "train" else 2, start // CHUNK)
            label_ends, labels = law.draw(rng, start, rows)
            word_ends, columns, values = world.words(rng, label_ends, labels)
            for part, part_ends in (("labels", label_ends), ("features", word_ends)):
                store.append(f"{split}.{part}.offsets", part_ends[1:] + ends[part])
                ends[part] += int(part_ends[-1])
            store.append(f"{split}.labels.values", labels.astype(np.int32))
            store.append(f"{split}.features.columns", columns.astype(np.int32))
            store.append(f"{split}.features.values", values.astype(np.float32))
            if progress:
                progress("generating points", (before + start + rows) / (shape.points + shape.test))


@dataclass(frozen=True, eq=False)
class World:
    """What all points have in common.

    Attributes:
        counts: `[L]` planned training examples of each label.
        members: `[T, K]` the labels of each topic, -1 where there is none.
        topic: `[L]` the topic of each label.
        signature: `[L, S]` the words of each label.
        common: `[D]` the words, from the most frequent background word on.
        background: `[D]` their cumulative probabilities; in this order because most searches then
            end near its start.
        idf: `[D]` -log of a word's share of all words.
        shape: what was asked for.
        slots: words drawn for a point, so that as many different ones are left as the shape says.
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

    @classmethod
    def of(cls, shape: Shape) -> World:
        """The world of a shape."""
        rng = _rng(shape.seed, 0)
        label_of_rank = rng.permutation(shape.labels)
        counts = np.empty(shape.labels)
        counts[label_of_rank] = zipf_counts(shape)
        members, topic = _topics(rng, label_of_rank)
        signature = _signatures(rng, topic, shape)
        common = rng.permutation(shape.features)
        law = 1 / np.arange(1, shape.features + 1)
        law /= law.sum()
        share = np.bincount(
            signature.ravel(), np.repeat(counts, signature.shape[1]), shape.features
        )
        share *= (1 - NOISE) / share.sum()
        share[common] += NOISE * law
        world = cls(
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
        return world._with_enough_slots()

    def _with_enough_slots(self) -> World:
        """Words drawn twice for a point count once, so more are drawn: how many more, a few points
        tell.
        """
        world = self
        law = Law.of(self, 0)
        for trial in range(4):
            rng = _rng(self.shape.seed, 3, trial)
            ends, labels = law.draw(rng, 0, 2_000)
            found = world.words(rng, ends, labels)[0][-1] / 2_000
            world = replace(
                world, slots=max(1.0, world.slots * self.shape.features_a_point / found)
            )
        return world

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
        word[noise] = self.common[_invert(self.background, rng.random(len(noise)))]
        cell, times = np.unique(point * num_words + word, return_counts=True)
        point, column = np.divmod(cell, num_words)
        offsets = _offsets(point, num_points)
        weight = times * self.idf[column]
        length = np.sqrt(np.add.reduceat(weight**2, offsets[:-1]))
        return offsets, column, weight / length[point]


@dataclass(frozen=True, eq=False)
class Law:
    r"""How labels fall on points, so that label y is in the share $f_y$ of the points, exactly as
    planned.

    A point has one of T topics, all equally likely. Every label of the topic is in the point with
    probability $h_y$, and every label at all with probability $g_y$, independently; solved for the
    planned share,

    $$g_y = \frac{f_y - h_y / T}{1 - h_y / T}, \qquad h_y = \min(0.8 \, T f_y, 0.9).$$

    A point left empty gets one label. In training data each label first gets one home point, so
    that none is missing, and the law speaks of its other occurrences.

    Attributes:
        world: the topics.
        homes: `[L]` labels in the order in which they find their home points; empty for test data.
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
    def of(cls, world: World, size: int) -> Law:
        """The law of `size` training points, or of any number of test points if it is 0."""
        num_labels = len(world.counts)
        num_topics = len(world.members)
        homes = _rng(world.shape.seed, 4).permutation(num_labels if size else 0)
        home_points = np.arange(len(homes)) * size // num_labels
        rest = world.counts - 1 if size else world.counts
        law = rest / max(rest.sum(), 1.0)
        at_home = len(homes) / max(size, 1)
        wanted = world.shape.labels_a_point
        # Labels a point: those at home, a Poisson number of others, and one for a point without a
        # home that got none.
        mean = _solve(
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
        label = _invert(self.outside, rng.random(len(elsewhere)) * self.outside[-1])
        drawn = point * num_labels + members[topic[point], slot], elsewhere * num_labels + label
        cell = np.unique(np.concatenate([home_point * num_labels + home_label, *drawn]))
        empty = np.setdiff1d(np.arange(rows), cell // num_labels)
        filled = empty * num_labels + _invert(self.filler, rng.random(len(empty)))
        point, label = np.divmod(np.sort(np.concatenate([cell, filled])), num_labels)
        return _offsets(point, rows), label


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
    return counts(_solve(lambda factor: counts(factor).sum(), pairs, high=shape.points / law[-1]))


def _topics(rng: np.random.Generator, label_of_rank: ndarray) -> tuple[ndarray, ndarray]:
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


def _signatures(rng: np.random.Generator, topic: ndarray, shape: Shape) -> ndarray:
    """Half of a label's words are its own, the other half are a part of its topic's vocabulary,
    which is twice as large.
    """
    half = max(1, round(SIGNATURE * shape.features_a_point / 2))
    own = rng.integers(shape.features, size=(shape.labels, half), dtype=np.int32)
    vocabulary = rng.integers(shape.features, size=(topic.max() + 1, 2 * half), dtype=np.int32)
    shared = vocabulary[topic[:, None], rng.integers(2 * half, size=(shape.labels, half))]
    return np.concatenate([own, shared], axis=1)


def _rng(seed: int, *purpose: int) -> np.random.Generator:
    """A stream of random numbers for one purpose."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *purpose])))


def _invert(cumulative: ndarray, points: ndarray) -> ndarray:
    """Where these points lie on a line cut into pieces that end at `cumulative`."""
    return np.minimum(np.searchsorted(cumulative, points, side="right"), len(cumulative) - 1)


def _offsets(row: ndarray, num_rows: int) -> ndarray:
    """Offsets of sorted rows."""
    return np.concatenate([[0], np.cumsum(np.bincount(row, minlength=num_rows))])


def _solve(rising: Callable[[float], float], wanted: float, high: float) -> float:
    """Where a rising function reaches `wanted` between 0 and `high`, by halving."""
    low = 0.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return high


_NAMES = [known.name.lower() for known in CATALOGUE]


def _like(name: str, scale: float, text: str) -> Shape:
    """The shape of a known data set, or of none, at this scale."""
    known = next((known for known in CATALOGUE if known.name.lower() == name.lower()), None)
    if name and known is None:
        names = ", ".join(f"`{known}`" for known in _NAMES)
        raise HeadtailError(
            f"`{name}` in `{text}` is no known data set; those are "
            f"{names}.{nearest(name.lower(), _NAMES)}"
        )
    plain = Shape()
    if known is not None:
        sizes = known.num_train, known.num_test, known.num_features, known.num_labels
        plain = Shape(
            *sizes, known.zipf, known.labels_per_point, known.features_per_point, like=name.lower()
        )
    least = {
        "points": 200,
        "test": 50,
        "features": ceil(4 * plain.features_a_point),
        "labels": ceil(4 * plain.labels_a_point),
    }
    scaled = {
        key: max(min(low, getattr(plain, key)), round(scale * getattr(plain, key)))
        for key, low in least.items()
    }
    return replace(plain, scale=scale, **scaled)


def _read(item: str, text: str) -> tuple[str, int | float]:
    """A field of `Shape` and its value from `KEY=VALUE`."""
    key, _, value = (part.strip() for part in item.partition("="))
    if key not in _KEYS:
        keys = ", ".join(_KEYS)
        raise HeadtailError(
            f"`{key}` in `{text}` is no setting of generated data; those are "
            f"{keys}.{nearest(key, _KEYS)}"
        )
    low, high, example = _BOUNDS[key]
    try:
        number = type(example)(value)
    except ValueError:
        number = nan
    if not low <= number <= high:
        noun = "a whole number" if isinstance(example, int) else "a number"
        raise HeadtailError(
            f"`{item}` in `{text}` must be {noun} from {low:,} to {high:,}. Write for example "
            f"`{key}={example}`."
        )
    return _KEYS[key], number


_BOUNDS: dict[str, tuple[float, float, int | float]] = {
    "points": (1, 10**9, 20_000),
    "test": (1, 10**9, 4_000),
    "features": (4, 2**31 - 1, 2_000),
    "labels": (4, 10**9, 1_000),
    "zipf": (0, 3, 1.2),
    "labels-a-point": (1, 1_000, 3.0),
    "features-a-point": (1, 10_000, 20.0),
    "seed": (0, 2**63 - 1, 0),
    "scale": (1e-9, 1_000, 0.01),
}


def _check(shape: Shape, text: str) -> None:
    """Refuse numbers that cannot go together."""
    for what in ("labels", "features"):
        wanted = getattr(shape, f"{what}_a_point")
        held = getattr(shape, what)
        if 4 * wanted > held:
            more = f"Write `{what}={ceil(4 * wanted)}` or more"
            raise HeadtailError(
                f"`{text}` asks for {wanted:g} {what} a point out of {held:,}. {more}."
            )
    places = shape.points * shape.labels_a_point
    if 2 * shape.labels > places:
        more = (
            f"Write `points={ceil(2 * shape.labels / shape.labels_a_point)}` or more, or fewer "
            "labels"
        )
        raise HeadtailError(
            f"`{text}` has {places:,.0f} places for {shape.labels:,} labels, which must fit in "
            f"twice. {more}."
        )
