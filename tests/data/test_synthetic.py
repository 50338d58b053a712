"""Generated data: the law it promises, the structure it plants, and the texts that describe it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headtail import HeadtailError, LabelHead, Labels, Ragged, scheme
from headtail.data.bag import Bag
from headtail.data.points import DataSet, Points
from headtail.data.synthetic import Shape, generate
from headtail.data.synthetic.build_world import world_of
from headtail.data.synthetic.label_law import LOYALTY, LabelLaw

SMALL = "synthetic:points=4000,test=1000,labels=300,features=1000,zipf=1.1"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> DataSet:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADTAIL_CACHE", str(tmp_path_factory.mktemp("cache")))
        return generate(SMALL)


def counts_of(points: Points) -> np.ndarray:
    return np.bincount(points.labels.values.numpy(), minlength=points.num_labels)


def words_of(points: Points) -> Bag:
    assert isinstance(points.features, Bag)
    return points.features


def rows_of(offsets: torch.Tensor) -> np.ndarray:
    return np.repeat(np.arange(len(offsets) - 1), offsets.diff().numpy())


def same(one: Points, other: Points) -> bool:
    pairs = zip(
        (*vars(one.features).values(), *one.labels),
        (*vars(other.features).values(), *other.labels),
        strict=True,
    )
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


@pytest.mark.parametrize("zipf", [0.0, 0.8, 1.2])
def test_training_counts_follow_the_zipf_law_of_the_exponent_asked_for(zipf):
    """Each count is within five standard deviations of its Poisson law, so no part of the curve is
    bent.
    """
    data = generate(f"synthetic:points=6000,labels=200,zipf={zipf}")
    found = np.sort(counts_of(data.train))[::-1]
    rank = np.arange(1, 201)
    law = rank**-zipf / (rank**-zipf).sum() * 6000 * 3
    assert (np.abs(found - law) <= 5 * np.sqrt(law) + 2).all()


def test_test_points_follow_the_same_law_as_training_points(small):
    train = counts_of(small.train) / len(small.train)
    test = counts_of(small.test) / len(small.test)
    error = np.sqrt(train / len(small.train) + train / len(small.test))
    assert (np.abs(train - test) <= 5 * error).all()


def test_every_label_occurs_in_training_even_where_the_law_gives_it_less_than_one_example():
    data = generate("synthetic:points=2000,labels=1000,zipf=1.5,labels-a-point=1,test=50")
    assert counts_of(data.train).min() >= 1


def test_label_ids_do_not_tell_frequency(small):
    counts = counts_of(small.train)
    assert abs(np.corrcoef(np.arange(len(counts)), np.argsort(np.argsort(counts)))[0, 1]) < 0.2


@pytest.mark.parametrize("labels_a_point", [1, 1.3, 3, 8])
def test_points_have_as_many_labels_and_features_as_asked_for_on_average(labels_a_point):
    data = generate(
        f"synthetic:points=6000,labels=200,labels-a-point={labels_a_point},features-a-point=30"
    )
    for points in (data.train, data.test):
        assert points.num_pairs / len(points) == pytest.approx(labels_a_point, rel=0.05)
        assert len(words_of(points).columns) / len(points) == pytest.approx(30, rel=0.05)
        assert points.labels.offsets.diff().min() >= 1


@pytest.mark.parametrize(("features", "features_a_point"), [(100, 1), (80, 20), (500, 18.3)])
def test_few_features_are_enough_for_as_many_a_point_as_asked_for(features, features_a_point):
    data = generate(
        f"synthetic:points=2000,labels=100,test=500,features={features},features-a-point={features_a_point}"
    )
    assert len(words_of(data.train).columns) / len(data.train) == pytest.approx(
        features_a_point, rel=0.05
    )


def test_labels_and_columns_of_a_point_are_distinct_and_weights_positive_of_length_one(small):
    for points in (small.train, small.test):
        labels = np.stack([rows_of(points.labels.offsets), points.labels.values.numpy()])
        columns = np.stack([rows_of(words_of(points).offsets), words_of(points).columns.numpy()])
        assert np.unique(labels, axis=1).shape == labels.shape
        assert np.unique(columns, axis=1).shape == columns.shape
        assert words_of(points).columns.max() < points.num_features
        assert points.labels.values.max() < points.num_labels
        assert (words_of(points).values > 0).all()
        squares = np.bincount(columns[0], words_of(points).values.double().numpy() ** 2)
        assert np.allclose(squares, 1, atol=1e-5)


def test_each_topic_holds_frequent_and_rare_labels():
    world = world_of(Shape.parse(SMALL))
    rank = np.argsort(np.argsort(-world.counts))
    for members in world.members:
        ranks = np.sort(rank[members[members >= 0]])
        assert ranks[0] < len(world.members)
        assert ranks[-1] >= len(rank) - 2 * len(world.members)


def test_rare_labels_of_a_point_come_with_labels_of_their_topic(small):
    """Labels too rare for the cap meet a label of their own topic far more often than a random
    label would.
    """
    world = world_of(Shape.parse(SMALL))
    row = rows_of(small.test.labels.offsets)
    label = small.test.labels.values.numpy()
    topic = world.topic[label]
    near = np.zeros((len(small.test), len(world.members)), int)
    np.add.at(near, (row, topic), 1)
    rare = world.counts[label] < np.median(world.counts)
    met = near[row, topic][rare] > 1
    shuffled = near[np.random.default_rng(0).permutation(row), topic][rare] > 0
    assert met.mean() > 3 * shuffled.mean()


def test_the_law_of_labels_adds_up_to_the_planned_share():
    """Enumerated over topics: P(y) = Σ_t (1 − (1 − h)(1 − g)) / T must be proportional to the
    planned counts.
    """
    world = world_of(Shape.parse(SMALL))
    law = LabelLaw.of(world, 0)
    outside = -np.expm1(-np.diff(law.outside, prepend=0.0))
    inside = np.zeros_like(outside)
    inside[world.members[world.members >= 0]] = law.inside[world.members >= 0]
    others = len(world.members) - 1
    share = (1 - (1 - inside) * (1 - outside) + others * outside) / len(world.members)
    assert np.allclose(share / share.sum(), world.counts / world.counts.sum())
    free = inside < inside.max()
    assert np.allclose(inside[free] / len(world.members), LOYALTY * share[free])


def test_the_same_text_gives_the_same_data_and_another_seed_gives_others(cache, monkeypatch):
    text = "synthetic:points=500,test=100,labels=50,features=200"
    first = generate(text)
    monkeypatch.setenv("HEADTAIL_CACHE", str(cache / "elsewhere"))
    again = generate(text)
    other = generate(text + ",seed=1")
    assert same(first.train, again.train)
    assert same(first.test, again.test)
    assert first.digest == again.digest
    assert not same(first.train, other.train)
    assert first.digest != other.digest


def test_chunks_are_different_from_each_other_and_join_without_a_seam():
    data = generate("synthetic:points=1250,test=1000,labels=60,features=300", chunk=500)
    for points, size in ((data.train, 1250), (data.test, 1000)):
        assert len(points) == size
        assert points.labels.offsets[-1] == points.num_pairs
        assert words_of(points).offsets[-1] == len(words_of(points).columns)
    assert not same(data.test.select(torch.arange(500)), data.test.select(torch.arange(500, 1000)))
    assert counts_of(data.train).min() >= 1


def test_progress_rises_to_one_and_a_second_call_reads_the_cache():
    calls: list[float] = []
    text = "synthetic:points=500,test=100,labels=50,features=200"
    generate(text, lambda what, share: calls.append(share))
    assert calls == sorted(calls)
    assert calls[-1] == 1
    generate(text, lambda what, share: pytest.fail("it was made again"))


def test_a_failure_leaves_nothing_in_the_cache(cache):
    def stop(what: str, share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate("synthetic:points=500,test=100,labels=50,features=200", stop)
    assert not list(cache.iterdir())


def test_scale_shrinks_points_features_and_labels_but_not_what_a_point_holds():
    full = Shape.parse("synthetic:wikilshtc-325k")
    part = Shape.parse("synthetic:WikiLSHTC-325K,scale=0.01")
    assert (part.points, part.test, part.features, part.labels) == (17_784, 5_871, 16_179, 3_251)
    assert (part.labels_a_point, part.features_a_point, part.zipf) == (
        full.labels_a_point,
        full.features_a_point,
        full.zipf,
    )


def test_a_tiny_scale_still_gives_data_that_can_be_made():
    data = generate("synthetic:wikilshtc-325k,scale=0.000001")
    assert len(data.train) >= 200
    assert data.train.num_labels >= 4


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("synthetic", "synthetic"),
        (" synthetic:seed=0,labels=1000", "synthetic"),
        ("synthetic:AmazonCat-13K", "synthetic:amazoncat-13k"),
        ("synthetic:wikilshtc-325k, scale=0.01", "synthetic:wikilshtc-325k,scale=0.01"),
        ("synthetic:seed=3,points=2_000_000", "synthetic:points=2000000,seed=3"),
        ("synthetic:delicious,scale=0.5,labels=400", "synthetic:delicious,scale=0.5,labels=400"),
        ("synthetic:scale=2,zipf=1.25", "synthetic:scale=2.0,zipf=1.25"),
    ],
)
def test_a_text_is_shortened_and_means_the_same(text, short):
    shape = Shape.parse(text)
    assert shape.text == short
    assert Shape.parse(short) == shape


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("synthetik", "must read `synthetic`"),
        ("synthetic:", "must read `synthetic`"),
        ("synthetic:zipf=1,,seed=2", "must read `synthetic`"),
        ("synthetic:wikilshtc-325", "Did you mean `wikilshtc-325k`"),
        ("synthetic:imagenet", "known data set. Known are `delicious`"),
        ("synthetic:zipff=1", "Did you mean `zipf`"),
        (
            "synthetic:zipf=1,delicious",
            "`delicious` in `synthetic:zipf=1,delicious` is not a setting",
        ),
        (
            "synthetic:zipf=steep",
            "`zipf=steep` in `synthetic:zipf=steep` must be a number from 0 to 3",
        ),
        ("synthetic:zipf=nan", "must be a number"),
        ("synthetic:points=1e4", "must be a whole number"),
        ("synthetic:points=-5", "must be a whole number"),
        ("synthetic:points", "`points` in `synthetic:points` is not a known data set"),
        ("synthetic:points=", "must be a whole number"),
        ("synthetic:scale=0", "must be a number from"),
        ("synthetic:seed=1,seed=2", "twice"),
        ("synthetic:labels=8", "Write `labels=12` or more"),
        ("synthetic:features=60", "Write `features=80` or more"),
        ("synthetic:points=500", "Write `points=667` or more"),
    ],
)
def test_a_wrong_text_is_answered_with_what_to_write_instead(text, sentence, cache):
    with pytest.raises(HeadtailError, match="`synth") as error:
        generate(text)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(cache.iterdir())


def recall(data: DataSet, top: torch.Tensor, k: int, of: torch.Tensor) -> float:
    row = torch.from_numpy(rows_of(data.test.labels.offsets))
    label = data.test.labels.values.long()
    hit = (top[row, :k] == label[:, None]).any(1).double()
    return float(hit[of[label]].mean())


def test_words_teach_labels_and_logit_adjustment_trades_head_for_tail():
    """A linear bottleneck on a tiny world: softmax beats most-popular, and the adjusted loss wins
    the tail and loses the head.
    """
    data = generate("synthetic:points=4000,test=1000,labels=200,features=800,features-a-point=30")
    labels = Labels.from_targets(data.train.labels, 200)
    slices = labels.slices_by_mass()
    every = torch.ones(200, dtype=torch.bool)
    top = {"most-popular": labels.counts.argsort(descending=True)[:10].expand(1000, 10)}
    for name in ("softmax", "logit-adjusted"):
        torch.manual_seed(0)
        words = torch.nn.EmbeddingBag(800, 64, mode="sum", include_last_offset=True)
        head = LabelHead(labels, 64, scheme(name, labels))
        optimiser = torch.optim.Adam([*words.parameters(), *head.parameters()], lr=0.005)
        for ids in [ids for _ in range(5) for ids in torch.randperm(4000).split(100)]:
            batch = data.train.select(ids)
            optimiser.zero_grad()
            hidden = words(
                words_of(batch).columns.long(), words_of(batch).offsets, words_of(batch).values
            )
            head(hidden, Ragged(batch.labels.values.long(), batch.labels.offsets)).backward()
            optimiser.step()
        test = words_of(data.test)
        top[name] = head.topk(words(test.columns.long(), test.offsets, test.values), 10).indices
    assert recall(data, top["softmax"], 10, every) > 1.2 * recall(
        data, top["most-popular"], 10, every
    )
    assert recall(data, top["softmax"], 1, every) > 1.5 * recall(
        data, top["most-popular"], 1, every
    )
    softmax = [
        recall(data, top["softmax"], 10, of) for of in (slices.head, slices.torso, slices.tail)
    ]
    assert softmax[0] > softmax[1] > softmax[2]
    assert recall(data, top["logit-adjusted"], 10, slices.tail) > 1.3 * softmax[2]
    assert recall(data, top["logit-adjusted"], 1, slices.head) < 0.7 * recall(
        data, top["softmax"], 1, slices.head
    )
