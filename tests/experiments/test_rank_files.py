"""One byte per test pair is enough for every metric, by point and by session."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from rank_files import Frame, groups_of, read_ranks, save_ranks

from headtail.data.load import load
from headtail.data.slices import data_slices
from headtail.evaluation.measures import measures_of


@pytest.fixture(scope="module")
def data():
    return load("synthetic:points=300,test=60,features=80,labels=70,labels-a-point=3")


@pytest.fixture(scope="module")
def top(data):
    rng = np.random.default_rng(0)
    rows = [rng.permutation(70)[:50] for _ in range(60)]
    return torch.from_numpy(np.stack(rows))


def test_every_metric_by_slice_is_that_of_evaluation(data, top, tmp_path):
    slices = data_slices(data)
    Frame.of(data, slices).save(tmp_path / "frame.npz")
    frame = Frame.read(tmp_path / "frame.npz")
    save_ranks(tmp_path / "ranks.npz", frame.ranks_of(top))
    ranks = read_ranks(tmp_path / "ranks.npz")
    assert ranks.dtype == np.uint8
    compared = 0
    for measure in measures_of(top, data, slices, resamples=0):
        if measure.metric.split("@")[0] in ("recall", "precision", "psp", "ndcg", "balanced-error"):
            value = frame.value(ranks, measure.metric, measure.slice)
            assert value == pytest.approx(measure.value, abs=1e-12), measure
            compared += 1
    assert compared == 4 * (4 + 5 + 1) + 6


def test_a_label_beyond_the_first_fifty_has_rank_0(data, top):
    frame = Frame.of(data, data_slices(data))
    ranks = frame.ranks_of(top)
    for i, rank in enumerate(ranks.tolist()):
        row = top[frame.point[i]].tolist()
        label = int(frame.label[i])
        assert rank == (row.index(label) + 1 if label in row else 0)


def test_prefixes_of_a_test_session_are_one_group(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "shop"
    folder.mkdir()
    train = [[1, 2, 3, 4], [4, 3, 2], [1, 4], [2, 3, 1]]
    pq.write_table(pa.table({"session_id": [0, 1, 2, 3], "items": train}), folder / "train.parquet")
    items = [[1, 2, 3], [1, 2], [1], [4], [2, 3], [2]]
    target = [4, 3, 2, 1, 1, 3]
    pq.write_table(pa.table({"items": items, "target": target}), folder / "test.parquet")
    assert groups_of(load(folder).test).tolist() == [0, 0, 0, 1, 2, 2]


def test_points_without_sessions_or_users_are_groups_of_their_own(data):
    assert groups_of(data.test).tolist() == list(range(60))


def test_points_with_the_same_features_are_one_group(data):
    twice = data.test.select(torch.tensor([3, 1, 3, 0]))
    assert groups_of(twice).tolist() == [0, 1, 0, 2]
