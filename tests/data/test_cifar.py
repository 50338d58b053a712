"""CIFAR's files: read as they are, and believed in nothing."""

from __future__ import annotations

import errno
import os
import pickle
import pickletools
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from headtail import HeadtailError
from headtail.data.load import load
from headtail.data.readers.cifar import HUNDRED, TEN, find_cifar, read_cifar
from headtail.data.readers.safe_unpickle import unpickle
from headtail.data.reading import Reading

REAL = Path(os.environ.get("HEADTAIL_CIFAR10") or Path(__file__).parents[3] / "cifar10")


def pixels(number, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (number, 3072), dtype=np.uint8)


def text(word):
    return b"U" + bytes([len(word)]) + word


def as_python_2_wrote_it(labels, data, labels_name=b"labels"):
    """The opcodes of Python 2's cPickle, protocol 2, as in the official files: byte strings,
    numpy's old module names.
    """
    shape = b"M" + struct.pack("<H", len(data)) + b"M" + struct.pack("<H", data.shape[1]) + b"\x86"
    kind = (
        b"cnumpy\ndtype\n"
        + text(b"u1")
        + b"K\x00K\x01\x87R(K\x03"
        + text(b"|")
        + b"NNN"
        + b"J\xff\xff\xff\xff" * 2
        + b"K\x00tb"
    )
    raw = b"T" + struct.pack("<i", data.size) + data.tobytes()
    made = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    )
    array = made + b"(K\x01" + shape + kind + b"\x89" + raw + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    names = b"](" + b"".join(text(b"%d.png" % i) for i in range(len(labels))) + b"e"
    entries = (
        text(b"batch_label")
        + text(b"training batch 1 of 5")
        + text(labels_name)
        + numbers
        + text(b"data")
        + array
    )
    return b"\x80\x02}(" + entries + text(b"filenames") + names + b"u."


def write_ten(folder, number=4):
    folder = folder / TEN.folder
    folder.mkdir(parents=True)
    for part, name in enumerate((*TEN.train, TEN.test)):
        labels = [(part + i) % 10 for i in range(number)]
        (folder / name).write_bytes(as_python_2_wrote_it(labels, pixels(number, part)))
    (folder / TEN.about).write_bytes(
        pickle.dumps({b"label_names": [b"name %d" % i for i in range(10)]}, protocol=2)
    )
    return folder


def write_hundred(folder, protocol=4, keys=str):
    folder = folder / HUNDRED.folder
    folder.mkdir(parents=True)
    for name in ("train", "test"):
        held = {
            "fine_labels": list(range(100)),
            "coarse_labels": [0] * 100,
            "data": pixels(100, len(name)),
        }
        if keys is bytes:
            held = {key.encode(): value for key, value in held.items()}
        (folder / name).write_bytes(pickle.dumps(held, protocol=protocol))
    (folder / "meta").write_bytes(
        pickle.dumps({"fine_label_names": [str(i) for i in range(100)]}, protocol=protocol)
    )
    return folder


def test_files_as_python_2_wrote_them_come_out_pixel_by_pixel(tmp_path):
    folder = write_ten(tmp_path)
    official = as_python_2_wrote_it([1, 2], pixels(2))
    # so this is such a file
    assert pickle.loads(official, encoding="bytes")[b"data"].tolist() == pixels(2).tolist()
    data = load(tmp_path)
    assert (data.name, len(data.train), len(data.test), data.train.num_labels) == (
        "cifar-10",
        20,
        4,
        10,
    )
    wanted = np.concatenate([pixels(4, part) for part in range(5)]).reshape(20, 3, 32, 32)
    assert data.train.features.dtype == torch.uint8
    assert np.array_equal(data.train.features.numpy(), wanted)
    assert data.train.labels.values.tolist() == [
        (part + i) % 10 for part in range(5) for i in range(4)
    ]
    assert data.label_names == [f"name {i}" for i in range(10)]
    assert (data.train.image_size, data.train.num_features) == ((32, 32), 3072)
    assert "not its published counts: 20 training images instead of 50,000" in data.notes[-1]
    assert load(folder).digest == data.digest


@pytest.mark.parametrize(("protocol", "keys"), [(2, bytes), (2, str), (3, bytes), (4, str)])
def test_files_of_newer_pythons_are_read_too(tmp_path, protocol, keys):
    data = load(write_hundred(tmp_path, protocol, keys))
    assert (data.name, data.train.num_labels, data.label_names[7]) == ("cifar-100", 100, "7")
    assert np.array_equal(data.test.features.flatten(1).numpy(), pixels(100, 4))
    assert data.train.labels.values.tolist() == list(range(100))


def test_arrays_that_lie_column_by_column_are_turned(tmp_path):
    folder = write_hundred(tmp_path)
    held = {"fine_labels": list(range(100)), "data": np.asfortranarray(pixels(100))}
    (folder / "train").write_bytes(pickle.dumps(held, protocol=2))
    assert np.array_equal(load(folder).train.features.flatten(1).numpy(), pixels(100))


def test_the_archive_is_read_without_unpacking(tmp_path):
    unpacked = load(write_ten(tmp_path / "a"))
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "a" / TEN.folder, TEN.folder)
    assert find_cifar(tmp_path) == (TEN, tmp_path / "cifar-10-python.tar.gz")
    data = load(tmp_path / "cifar-10-python.tar.gz")
    (tmp_path / "a" / "cifar-10-python.tar.gz").write_bytes(b"not looked at")
    assert find_cifar(tmp_path / "a") == (TEN, tmp_path / "a" / TEN.folder)
    assert torch.equal(data.train.features, unpacked.train.features)
    assert data.label_names == unpacked.label_names
    whole = (tmp_path / "cifar-10-python.tar.gz").read_bytes()
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(HeadtailError, match=r"cifar-10-python.tar.gz` is cut off"):
        load(tmp_path / "cifar-10-python.tar.gz")
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "a" / TEN.folder / "data_batch_1", "data_batch_1")
    with pytest.raises(
        HeadtailError,
        match=r"lacks data_batch_2, data_batch_3, data_batch_4, data_batch_5, test_batch",
    ):
        load(tmp_path / "cifar-10-python.tar.gz")


def test_the_two_sets_are_distinguished_and_not_mixed(tmp_path):
    assert find_cifar(tmp_path) is None
    write_ten(tmp_path)
    assert find_cifar(tmp_path) == (TEN, tmp_path / TEN.folder)
    write_hundred(tmp_path)
    with pytest.raises(
        HeadtailError, match=r"holds cifar-10-batches-py and cifar-100-python. Name one of them"
    ):
        load(tmp_path)
    assert load(tmp_path / HUNDRED.folder).train.num_labels == 100
    (tmp_path / HUNDRED.folder).rename(tmp_path / "mine")
    assert find_cifar(tmp_path / "mine") == (HUNDRED, tmp_path / "mine")


class Runs:
    """Pickles as a call of anything."""

    def __init__(self, function, *given):
        self.call = function, given

    def __reduce__(self):
        return self.call


def evil(tmp_path):
    mark = tmp_path / "was-run"
    run = f"open({str(mark)!r}, 'w').close()"
    by_name = b"c%b\n%b\n"
    touch = f"V{run}\n".encode()
    return [
        pickle.dumps({"data": Runs(os.system, f"touch {mark}"), "labels": [0]}),
        pickle.dumps({"labels": Runs(eval, run)}, protocol=0),
        pickle.dumps(Runs(exec, run), protocol=2),
        b"\x80\x02" + by_name % (b"builtins", b"exec") + b"(" + touch + b"tR.",
        # an attribute of what is admitted
        b"\x80\x04\x8c\x05numpy\x8c\x0cndarray.dump\x93(" + touch + b"tR.",
        b"\x80\x02" + by_name % (b"numpy", b"load") + b"(" + touch + b"tR.",
        b"(i__builtin__\nexec\n.",
        b"\x80\x02cnumpy\nndarray\n}V__call__\ncbuiltins\nexec\nsb.",
        b"\x80\x02" + touch + b"Q.",  # a persistent id
        b"\x80\x02\x82\x01.",  # an extension code
    ]


def test_a_crafted_pickle_gets_a_sentence_and_runs_nothing(tmp_path):
    folder = write_ten(tmp_path)
    for content in evil(tmp_path):
        (folder / "data_batch_3").write_bytes(content)
        with pytest.raises(
            HeadtailError, match=r"data_batch_3`( asks for `|.* is not a CIFAR file|: `)"
        ) as message:
            load(folder)
        assert "\n" not in str(message.value)
        assert not (tmp_path / "was-run").exists()
    (folder / "data_batch_3").write_bytes(evil(tmp_path)[0])
    with pytest.raises(
        HeadtailError,
        match=r"asks for `posix.system`, which no CIFAR file needs.*nothing in it was run",
    ):
        load(folder)


def test_the_pickles_of_the_test_above_would_run_if_they_were_trusted(tmp_path):
    ran = 0
    for content in evil(tmp_path)[:4]:
        pickle.loads(content)
        ran += (tmp_path / "was-run").exists()
        (tmp_path / "was-run").unlink()
    assert ran == 4


def test_nothing_outlives_a_refused_pickle(tmp_path):
    with pytest.raises(HeadtailError):
        unpickle(b"\x80\x02cnumpy\ndtype\n}V__call__\nK\x01sb.", Path("x"))
    data = load(write_ten(tmp_path))
    assert len(data.train) == 20


def test_a_few_bytes_cannot_ask_for_gigabytes():
    large = struct.pack("<I", 2**32 - 1)
    assert unpickle(b"\x80\x02}r" + large + b".", Path("x")) == {}  # a memo of four billion places
    with pytest.raises(HeadtailError, match="is cut off"):
        unpickle(b"\x80\x02B" + struct.pack("<I", 2**31 - 1) + b"abc", Path("x"))


def test_a_file_cut_anywhere_gets_a_sentence():
    whole = as_python_2_wrote_it([1, 2], pixels(2))
    ends = [end for _, _, end in pickletools.genops(whole) if end]
    for end in {*range(0, len(whole), 97), *ends, *(end - 1 for end in ends)}:
        with pytest.raises(
            HeadtailError, match=r"`x` (is cut off|is not a CIFAR file|asks for)"
        ) as message:
            unpickle(whole[:end], Path("x"))
        assert "\n" not in str(message.value)


@pytest.mark.parametrize(
    ("held", "sentence"),
    [
        (
            {"data": pixels(2), "labels": [1, 10]},
            r"image 1 \(from 0\) has the label 10, but cifar-10 has labels 0 … 9",
        ),
        ({"data": pixels(2), "labels": [1, -1]}, r"has the label -1"),
        ({"data": pixels(2), "labels": [1, True]}, r"must be a list of whole numbers"),
        ({"data": pixels(2), "labels": "12"}, r"must be a list of whole numbers"),
        ({"data": pixels(2), "labels": []}, r"must be a list of whole numbers"),
        (
            {"data": pixels(2), "labels": [1]},
            r"must be bytes \(u1\) of shape \(1, 3072\), but is u1 of shape \(2, 3072\)",
        ),
        ({"data": pixels(2)[:, :9], "labels": [1, 2]}, r"of shape \(2, 9\)"),
        ({"data": pixels(2).astype(np.float32), "labels": [1, 2]}, r"but is f4 of shape"),
        ({"data": [[1, 2], [3, 4]], "labels": [1, 2]}, r"`data` is not an array"),
        (
            {"data": pixels(2), "fine_labels": [1, 2]},
            r"holds `data`, `fine_labels`, but `data` and `labels` are needed",
        ),
        ([1, 2], r"it holds a list, not a dict"),
    ],
)
def test_wrong_content_is_reported(tmp_path, held, sentence):
    folder = write_ten(tmp_path)
    (folder / "data_batch_2").write_bytes(pickle.dumps(held, protocol=2))
    with pytest.raises(HeadtailError, match=rf"data_batch_2`.*{sentence}"):
        load(folder)


def test_missing_files_and_names_are_reported(tmp_path):
    folder = write_ten(tmp_path)
    (folder / TEN.about).write_bytes(pickle.dumps({b"label_names": [b"one"]}))
    with pytest.raises(HeadtailError, match=r"batches.meta`: `label_names` must be 10 names"):
        load(folder)
    (folder / TEN.about).unlink()
    assert load(folder).label_names is None
    (folder / "test_batch").unlink()
    with pytest.raises(
        HeadtailError, match=r"test_batch` is missing. CIFAR-10 has the files data_batch_1"
    ):
        load(folder)


def test_bytes_that_lie_about_their_length_are_reported():
    content = as_python_2_wrote_it([1, 2], pixels(2))
    at = content.index(b"T" + struct.pack("<i", 6144))
    # one byte less of pixels
    short = content[:at] + b"T" + struct.pack("<i", 6143) + content[at + 6 :]
    found = unpickle(short, Path("x"))
    from headtail.data.readers.cifar import _checked

    with pytest.raises(HeadtailError, match=r"`data` has 6,143 bytes for 2 images of 3,072"):
        _checked(Path("x"), found, TEN)


def test_progress_is_reported(tmp_path):
    heard = []
    read_cifar(TEN, write_ten(tmp_path), lambda what, share: heard.append((what, share)))
    assert heard[0] == ("reading data_batch_1", 0.2)
    assert heard[-1] == ("reading test_batch", 1.0)


@pytest.mark.skipif(
    not REAL.exists(),
    reason=f"CIFAR-10 is not in {REAL}; set HEADTAIL_CIFAR10 to the folder that holds it",
)
def test_cifar_10_is_cifar_10():
    data = load(REAL, Reading(profile="exp"))
    assert "This is CIFAR-10, with the published number of images and labels." in data.notes
    assert (
        data.notes[-1] == "These are the 12,406 training images of CIFAR-10-LT exp, as published."
    )
    assert data.label_names == [
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ]


def test_a_file_that_may_not_be_read_is_named_with_what_to_do(tmp_path, monkeypatch):
    folder = write_ten(tmp_path)
    read = Path.read_bytes

    def denied(path):
        if path.name == TEN.train[0]:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(HeadtailError) as raised:
        load(tmp_path)
    wanted = f"`{folder / TEN.train[0]}` cannot be read: Permission denied. Make it readable, for"
    assert str(raised.value).startswith(wanted)
    assert "`chmod u+r`" in str(raised.value)
