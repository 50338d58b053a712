"""Dense features and every form of labels, from safetensors and npz."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from headtail import HeadtailError, Ragged
from headtail.data.readers.dense import read_dense

LISTS = [[2, 0], [1], [], [4, 1, 3]]
FEATURES = torch.arange(12.0).reshape(4, 3) / 7


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "cache"))


def write(path, **arrays):
    arrays = {name: torch.as_tensor(array) for name, array in arrays.items()}
    if path.suffix == ".npz":
        np.savez(path, **{name: array.numpy() for name, array in arrays.items()})
    else:
        save_file({name: array.clone() for name, array in arrays.items()}, path)
    return path


def padded(lists, fill):
    return torch.tensor([row + [fill] * (3 - len(row)) for row in lists])


def multi_hot(lists, width):
    return torch.tensor([[label in row for label in range(width)] for row in lists])


def ragged(lists):
    values, offsets = Ragged.from_lists(lists)
    return {"label_values": values, "label_offsets": offsets}


FORMS = {
    "padded with -100": {"labels": padded(LISTS, -100)},
    "padded with -1": {"labels": padded(LISTS, -1).int()},
    "ragged": ragged(LISTS),
    "repeated": ragged([[2, 0, 2], [1, 1], [], [4, 1, 3, 4]]),
    "multi-hot": {"labels": multi_hot(LISTS, 5)},
}


def lists_of(points):
    values, offsets = points.labels
    return [values[a:b].tolist() for a, b in pairwise(offsets.tolist())]


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_labels_reads_alike(tmp_path, form, ending):
    path = write(tmp_path / f"train.{ending}", features=FEATURES, **FORMS[form])
    data = read_dense(path, path, at_once=4)  # a row at a time
    for points in (data.train, data.test):
        assert torch.equal(points.features, FEATURES)
        assert lists_of(points) == [sorted(row) for row in LISTS]
        assert points.num_labels == 5


def test_both_parts_in_one_file_and_the_larger_label_decides(tmp_path):
    arrays = {
        "train_features": FEATURES,
        "train_labels": [0, 1, 0, 1],
        "test_features": FEATURES[:2],
        "test_labels": [3, 0],
    }
    for ending in ("npz", "safetensors"):
        data = read_dense(write(tmp_path / f"all.{ending}", **arrays))
        assert (len(data.train), len(data.test), data.train.num_labels, data.test.num_labels) == (
            4,
            2,
            4,
            4,
        )
        assert lists_of(data.test) == [[3], [0]]


def test_the_width_of_a_boolean_matrix_is_the_number_of_labels(tmp_path):
    train = write(tmp_path / "train.npz", features=FEATURES, labels=multi_hot(LISTS, 9))
    assert read_dense(train, train).train.num_labels == 9
    narrow = write(tmp_path / "test.npz", features=FEATURES, labels=multi_hot(LISTS, 8))
    with pytest.raises(HeadtailError, match="`labels` has 8 columns, but training has 9"):
        read_dense(train, narrow)


def test_without_test_points_some_are_held_out(tmp_path):
    features = torch.arange(40.0)[:, None]
    data = read_dense(
        write(tmp_path / "some.npz", features=features, labels=torch.arange(40) % 7), holdout=0.25
    )
    assert (len(data.train), len(data.test)) == (30, 10)
    both = torch.cat([data.train.features, data.test.features])
    assert torch.equal(both.sort(dim=0).values, features)
    assert [row % 7 for row in data.test.features[:, 0].tolist()] == [
        label for (label,) in lists_of(data.test)
    ]
    assert "25% of the points are held out" in " ".join(data.notes)
    assert read_dense(tmp_path / "some.npz", holdout=0.5).digest != data.digest


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats_become_float32(tmp_path, dtype):
    path = write(tmp_path / "train.safetensors", features=FEATURES.to(dtype), labels=[0, 1, 2, 0])
    assert torch.equal(read_dense(path, path).train.features, FEATURES.to(dtype).float())


def test_float32_features_of_safetensors_are_not_copied_into_the_cache(tmp_path):
    for ending, copies in (("safetensors", 0), ("npz", 2)):
        path = write(tmp_path / f"train.{ending}", features=FEATURES, labels=[0, 1, 2, 0])
        data = read_dense(path, path)
        folder = tmp_path / "cache" / data.digest
        assert len(list(folder.glob("*_features"))) == copies


def test_changing_what_was_read_changes_no_file(tmp_path):
    for ending in ("safetensors", "npz"):
        path = write(tmp_path / f"train.{ending}", features=FEATURES, labels=[0, 1, 2, 0])
        read_dense(path, path).train.features.zero_()
        assert torch.equal(read_dense(path, path).train.features, FEATURES)


@pytest.mark.parametrize("arrays", [{}, {"labels": [-1, -100]}, {"labels": [[-1], [-1]]}])
def test_test_points_need_no_label(tmp_path, arrays):
    np.savez(tmp_path / "train.npz", features=FEATURES, labels=[0, 1, 2, 0])
    np.savez(tmp_path / "test.npz", features=FEATURES[:2], **arrays)
    data = read_dense(tmp_path / "train.npz", tmp_path / "test.npz")
    assert (len(data.test), data.test.num_pairs, data.test.num_labels) == (2, 0, 3)


NAN = FEATURES.clone()
NAN[2, 1] = float("nan")


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        (
            {"features": NAN, "labels": [0, 1, 2, 0]},
            r"`features`: row 2 \(from 0\) has a value that is NaN",
        ),
        (
            {"features": FEATURES.double() * 1e300, "labels": [0, 1, 2, 0]},
            r"`features`: row 0 \(from 0\) .* infinite in float32",
        ),
        (
            {"features": FEATURES.long(), "labels": [0, 1, 2, 0]},
            r"`features` must be floats of shape \[N, D\], but is int64",
        ),
        (
            {"features": FEATURES[0], "labels": [0, 1, 2]},
            r"`features` must be floats of shape \[N, D\]",
        ),
        (
            {"features": FEATURES, "labels": [0, -1, 2, 0]},
            r"`labels`: row 1 \(from 0\) has the label -1",
        ),
        (
            {"features": FEATURES, "labels": [[0, 1], [2, 3], [1, -7], [0, 1]]},
            r"`labels`: row 2 \(from 0\) has the label -7",
        ),
        (
            {"features": FEATURES, "labels": [0, 1, 2, 2**40]},
            r"`labels`: row 3 \(from 0\) has the label 1099511627776",
        ),
        ({"features": FEATURES, "labels": [0, 1, 2]}, r"`labels` has shape \[3\] for 4 points"),
        (
            {"features": FEATURES, "labels": [0.0, 1, 2, 0]},
            r"`labels` must hold whole numbers, but holds float32",
        ),
        (
            {"features": FEATURES, "labels": multi_hot(LISTS, 5).long()},
            r"`labels` looks like a 0/1 matrix",
        ),
        ({"features": FEATURES, "labels": padded([[]] * 4, -1)}, r"`labels` holds no label at all"),
        (
            {"features": FEATURES, "label_values": [1, 2], "label_offsets": [0, 1, 2]},
            r"`label_offsets` must be 5 numbers",
        ),
        (
            {"features": FEATURES, "label_values": [1, 2], "label_offsets": [0, 2, 1, 2, 2]},
            r"`label_offsets` must be 5 numbers",
        ),
        (
            {"features": FEATURES, "label_values": [1, 2], "label_offsets": [0, 1, 1, 1, 1]},
            r"that rise from 0 to 2",
        ),
        ({"features": FEATURES}, r"holds `features`, but `features` and `labels` are needed"),
        (
            {"train_features": FEATURES, "labels": [0, 1, 2, 0]},
            r"but `train_features` and `train_labels` are needed",
        ),
    ],
)
@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_bad_arrays_are_reported_with_file_and_row(tmp_path, arrays, sentence, ending):
    with pytest.raises(HeadtailError, match=rf"`\S*bad.{ending}`.*{sentence}"):
        read_dense(write(tmp_path / f"bad.{ending}", **arrays), at_once=4)


def test_test_features_of_another_width_are_reported(tmp_path):
    train = write(tmp_path / "train.npz", features=FEATURES, labels=[0, 1, 2, 0])
    test = write(tmp_path / "test.npz", features=FEATURES[:, :2], labels=[0, 1, 2, 0])
    with pytest.raises(
        HeadtailError, match=r"test.npz`, `features` has 2 columns, but training has 3"
    ):
        read_dense(train, test)


def test_damaged_files_and_pickles_are_refused(tmp_path):
    for ending in ("npz", "safetensors"):
        path = write(
            tmp_path / f"train.{ending}", features=torch.randn(300, 30), labels=torch.arange(300)
        )
        path.write_bytes(path.read_bytes()[:-9000])
        with pytest.raises(
            HeadtailError, match=rf"train.{ending}` is not a readable .{ending} file"
        ):
            read_dense(path)
        with pytest.raises(HeadtailError, match="is not a file"):
            read_dense(tmp_path / f"gone.{ending}")
    np.savez(tmp_path / "pickle.npz", features=np.array([{}], dtype=object), labels=np.array([0]))
    with pytest.raises(
        HeadtailError, match=r"pickle.npz` is not a readable .npz file of plain arrays"
    ):
        read_dense(tmp_path / "pickle.npz")
    np.savez(
        tmp_path / "words.npz", features=FEATURES.numpy(), labels=np.array(["a", "b", "c", "d"])
    )
    with pytest.raises(
        HeadtailError, match=r"words.npz`, `labels` holds strings, but arrays must hold numbers"
    ):
        read_dense(tmp_path / "words.npz")
