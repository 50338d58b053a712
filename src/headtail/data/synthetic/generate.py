"""Generating points, chunk by chunk, into the cache."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from headtail.core.targets import Ragged
from headtail.data.bag import Bag
from headtail.data.cache import Entry, Store, cached
from headtail.data.points import DataSet, Points, Progress
from headtail.data.synthetic.build_world import world_of
from headtail.data.synthetic.label_law import LOYALTY, LabelLaw
from headtail.data.synthetic.sampling import random_stream
from headtail.data.synthetic.shape import Shape
from headtail.data.synthetic.world import MOST, NOISE, SIGNATURE, TOPIC

CHUNK = 16_384
"""Points made at a time, which is part of the data."""


def generate(
    text: str = "synthetic", progress: Progress | None = None, *, chunk: int = CHUNK
) -> DataSet:
    """Make the data that `text` describes, or take them from the cache.

    Labels live in topics of about twenty, each with frequent and rare ones. A label has words of
    its own and words that it shares with its topic; a point shows a few words of each of its labels
    between background words. So a point's words identify its topic well and its labels badly, and a
    model does best on average by answering with the frequent labels of the topic. The same text
    gives the same data.

    Args:
        text: `synthetic`, `synthetic:NAME` for the counts of a known data set, with `,scale=0.01`
            to make it smaller, and any of points, test, features, labels, zipf, labels-a-point,
            features-a-point and seed, as in `synthetic:zipf=1.2`.
        progress: called with what is being made and the share of it that is done.
        chunk: points made at a time. It is part of the data: each chunk has its own stream of
            random numbers.

    >>> data = generate("synthetic:points=500,test=100,labels=40,features=200")
    >>> len(data.train), data.train.num_labels, data.name
    (500, 40, 'synthetic:points=500,test=100,features=200,labels=40')
    """
    shape = Shape.parse(text)
    numbers = {
        name: value for name, value in asdict(shape).items() if name not in ("like", "scale")
    }
    made_of = [chunk, TOPIC, LOYALTY, MOST, NOISE, SIGNATURE]
    entry = cached(
        [],
        {"reader": "synthetic", "made of": made_of, **numbers},
        lambda store: _write(store, shape, chunk, progress),
    )
    zipf = f"{shape.zipf:g}"
    note = f"Generated data: labels follow a Zipf law with exponent {zipf}, seed {shape.seed}."
    train, test = (_points(entry, part, shape) for part in ("train", "test"))
    return DataSet(shape.text, train, test, notes=(note,), digest=entry.key)


def _points(entry: Entry, split: str, shape: Shape) -> Points:
    offsets, columns, values = (
        entry.arrays[f"{split}.features.{part}"] for part in ("offsets", "columns", "values")
    )
    labels = Ragged(entry.arrays[f"{split}.labels.values"], entry.arrays[f"{split}.labels.offsets"])
    return Points(Bag(offsets, columns, values, shape.features), labels, shape.labels)


def _write(store: Store, shape: Shape, chunk: int, progress: Progress | None) -> None:
    world = world_of(shape)
    for split, size, before in (("train", shape.points, 0), ("test", shape.test, shape.points)):
        law = LabelLaw.of(world, size if split == "train" else 0)
        ends = {"features": 0, "labels": 0}
        for part in ends:
            store.append(f"{split}.{part}.offsets", np.zeros(1, np.int64))
        for start in range(0, size, chunk):
            rows = min(chunk, size - start)
            rng = random_stream(shape.seed, 1 if split == "train" else 2, start // chunk)
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
