"""What a file may ask for: a few bytes never become gigabytes, and each limit can be raised."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
import sys
import tarfile
import zipfile

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sparse
import torch

from headtail import HeadtailError
from headtail.data import packed
from headtail.data.counts import read_counts
from headtail.data.histories import Histories
from headtail.data.load import load
from headtail.data.readers.npz_files import matrix_rows

PACK = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda content: pa.compress(content, codec="zstd", asbytes=True),
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def small_limit(monkeypatch):
    """Files that become more than 1 MiB are looked at."""
    monkeypatch.setattr(packed, "UNCHECKED", 1 << 20)
    monkeypatch.setattr("headtail.data.readers.npz_files.UNCHECKED", 1 << 20)


def refused(path, sentence, **options):
    with pytest.raises(HeadtailError, match=sentence) as error:
        load(path, **options)
    assert "\n" not in str(error.value)
    return error.value


LINES = [(row % 9, row // 9 % 9) for row in range(60_000)]
BOMBS = {
    "train.txt": b"0 1:1\n1 0:1\n" + b"\n" * 1_500_000,
    "fast.txt": b"__label__a some words\n__label__b other words\n" * 4 + b" " * 1_500_000 + b"\n",
    "log.csv": b"user,item\n" + b"".join(b"%d,%020d\n" % line for line in LINES),
    "log.jsonl": b"".join(b'{"user": %d, "item": %d}\n' % line for line in LINES),
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("ending", PACK)
def test_a_file_that_unpacks_to_far_more_than_it_is_names_the_limit(
    tmp_path, small_limit, name, ending
):
    path = tmp_path / f"{name}.{ending}"
    path.write_bytes(PACK[ending](BOMBS[name]))
    ratio = len(BOMBS[name]) / path.stat().st_size
    error = refused(
        path, r"unpack to more than 20 times as many.*raise `max_expansion`", max_expansion=20
    )
    assert error.argument == "max_expansion"
    assert load(path, max_expansion=2 * ratio).train.num_labels in (2, 9)


def test_usual_compression_stays_below_the_limit(tmp_path, small_limit):
    lines = "".join(f"{i % 7} {i % 90}:{i / 7:.3f} {90 + i % 9}:1\n" for i in range(50_000))
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(lines.encode()))
    assert len(load(tmp_path / "train.txt.gz").train) == 40_000


def test_an_archive_of_cifar_is_unpacked_up_to_the_limit(tmp_path, small_limit):
    path = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
        member.size = 50_000_000
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    refused(path, "raise `max_expansion`")


def test_a_header_of_a_member_that_asks_for_gigabytes_ends_with_the_file(tmp_path):
    path = tmp_path / "cifar-10-python.tar"
    member = tarfile.TarInfo("pax")
    member.type = tarfile.XHDTYPE
    member.size = 7 << 30
    path.write_bytes(member.tobuf(tarfile.USTAR_FORMAT) + bytes(1024))
    refused(path, "is cut off or damaged")


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("2147483646 0:1\n1 1:1\n", "max_labels"),
        ("1 2147483646:1\n0 1:1\n", "max_features"),
        ("2 5 2000000000\n1 0:1\n0 1:1\n", "max_labels"),
        ("2 2000000000 5\n1 0:1\n0 1:1\n", "max_features"),
    ],
)
def test_a_few_bytes_cannot_claim_billions_of_labels_or_features(tmp_path, text, setting):
    (tmp_path / "train.txt").write_text(text)
    error = refused(tmp_path / "train.txt", f"claims 2,.*`{setting}=2")
    assert error.argument == setting


@pytest.mark.parametrize("what", ["features", "labels"])
def test_a_few_bytes_may_claim_a_hundred_thousand_and_a_hundred_for_each_one_there(tmp_path, what):
    path = tmp_path / "train.txt"
    for number in (100_200, 100_201):
        sizes = f"{number} 5" if what == "features" else f"5 {number}"
        path.write_text(f"2 {sizes}\n0 0:1\n1 1:1\n")
        if number == 100_200:
            assert getattr(load(path).train, f"num_{what}") == number
        else:
            refused(path, f"claims 100,201 {what}, but only 2 values of a")


def test_the_limit_on_labels_can_be_set_either_way(tmp_path):
    (tmp_path / "train.txt").write_text("150000 0:1\n0 1:1\n" * 3)
    path = tmp_path / "train.txt"
    refused(path, "claims 150,001 labels, but only 6 values of a label are there")
    assert load(path, max_labels=200_000).train.num_labels == 150_001
    (tmp_path / "few.txt").write_text("9 0:1\n0 1:1\n" * 3)
    refused(tmp_path / "few.txt", "has 10 labels, but `max_labels` is 5", max_labels=5)
    refused(tmp_path / "few.txt", "has 2 features, but `max_features` is 1", max_features=1)
    refused(tmp_path / "few.txt", "`max_labels` must be a whole number", max_labels=0)
    refused(tmp_path / "few.txt", "`max_expansion` must be at least 1", max_expansion=0.5)


def test_labels_with_names_are_there(tmp_path):
    (tmp_path / "train.txt").write_text("1 0:1\n0 1:1\n" * 3)
    (tmp_path / "Y.txt").write_text("".join(f"label {i}\n" for i in range(1_001_000)))
    assert load(tmp_path).train.num_labels == 1_001_000


def test_arrays_and_matrices_cannot_claim_labels_either(tmp_path):
    features = np.random.default_rng(0).random((6, 3))
    labels = np.array([0, 1, 2, 3, 4, 2_000_000_000])
    np.savez(tmp_path / "train.npz", features=features, labels=labels)
    refused(tmp_path / "train.npz", "claims 2,000,000,001 labels")
    refused((features, labels), "claims 2,000,000,001 labels")
    refused((features, labels.astype(np.uint64) << 32), r"ids must be below 2,147,483,647")
    refused((features, labels * 1e200), r"ids must be below 2,147,483,647")
    wide = sparse.csr_matrix((6, 2_000_000_000))
    refused((wide, labels % 2), "claims 2,000,000,000 features")


def test_numbers_above_int64_are_not_taken_for_padding(tmp_path):
    labels = np.array([[0, 1], [1, 2**64 - 1], [2, 2**64 - 100]], np.uint64)
    np.savez(tmp_path / "train.npz", features=np.eye(3), labels=labels)
    refused(tmp_path / "train.npz", "`labels` has numbers above int64")


def test_bags_of_histories_are_as_long_as_the_longest_history():
    items = torch.arange(6).int()
    offsets = torch.tensor([0, 6])
    ends = torch.tensor([1, 5])
    rows = torch.zeros(2, dtype=torch.int64)
    long, short = (Histories(items, offsets, rows, ends, last, 6).bag() for last in (10**9, 5))
    assert torch.equal(long.to_dense(), short.to_dense())


def npy(header, content=b""):
    written = header.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(written)) + written + content


def header_of(kind="'<f8'", shape="(1,)"):
    return f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}"


HEADERS = {
    "a shape of terabytes": header_of(shape="(10000000, 999999)"),
    "a shape above int64": header_of(shape="(9999999999999999999,)"),
    "a negative shape": header_of(shape="(-1,)"),
    "objects": header_of("'|O'"),
    "a record": header_of("[('a', '<f8')]"),
    "an unknown type": header_of("'<q9'"),
    "an open bracket": "{'descr': '<f8', 'fortran_order': False, 'shape': (1,",
    "nested brackets": "(" * 100,
    "a call": "__import__('os').getcwd()",
}


def archive(path, *members, **options):
    with zipfile.ZipFile(path, "w", **options) as file:
        for name, content in members:
            file.writestr(name, content)


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_the_header_of_an_array_is_checked_before_anything_is_allocated(tmp_path, header):
    labels = npy(header_of("'<i8'", "(2,)"), bytes(16))
    path = tmp_path / "train.npz"
    archive(path, ("features.npy", npy(header, bytes(8))), ("labels.npy", labels))
    refused(path, "is not a readable .npz file of plain arrays of numbers: .*Write or copy it")
    (tmp_path / "counts.npy").write_bytes(npy(header, bytes(8)))
    with pytest.raises(HeadtailError, match=r"is not a readable `.npy` array of numbers"):
        read_counts(tmp_path / "counts.npy")


def test_an_array_that_unpacks_to_far_more_than_its_file_is_refused(tmp_path, small_limit):
    path = tmp_path / "train.npz"
    np.savez_compressed(path, features=np.zeros((100_000, 8)), labels=np.arange(100_000) % 5)
    refused(path, "raise `max_expansion`", max_expansion=10)
    assert len(load(path, max_expansion=2000).train) == 80_000


def test_damaged_archives_of_arrays_get_a_sentence(tmp_path):
    path = tmp_path / "train.npz"
    np.savez_compressed(path, features=np.eye(30), labels=np.arange(30) % 3)
    whole = path.read_bytes()
    place = whole.index(b"PK\x01\x02")
    for at, value in ((8, 1), (10, 99), (10, 12), (10, 14), (20, 3), (42, 255)):
        content = bytearray(whole)
        content[place + at] = value  # encrypted, packed in another way, cut, elsewhere
        path.write_bytes(content)
        refused(path, "is not a readable .npz file")
    for end in range(0, len(whole), 50):
        path.write_bytes(whole[:end])
        refused(path, "is not a readable .npz file")


def test_arrays_of_every_kind_come_out_as_numpy_wrote_them(tmp_path):
    rng = np.random.default_rng(0)
    for features in (
        rng.random((12, 3)),
        rng.random((12, 3)).astype(np.float32),
        np.asfortranarray(rng.random((12, 3))),
        rng.random((12, 3)).astype(np.float16),
    ):
        np.savez(tmp_path / "train.npz", features=features, labels=np.arange(12) % 3)
        data = load(tmp_path / "train.npz")
        assert np.array_equal(data.whole.features.numpy(), features.astype(np.float32))


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
def test_sparse_matrices_are_read_as_scipy_reads_them(tmp_path, layout):
    matrix = sparse.random(9, 7, 0.4, format=layout, random_state=0)
    sparse.save_npz(tmp_path / "m.npz", matrix)
    offsets, columns = matrix_rows(tmp_path / "m.npz")
    wanted = matrix.tocsr()
    wanted.sort_indices()
    assert offsets == wanted.indptr.tolist()
    for row in range(9):
        start, end = offsets[row : row + 2]
        assert sorted(columns[start:end]) == wanted.indices[start:end].tolist()


def test_ids_of_a_sparse_matrix_that_lie_are_refused(tmp_path):
    path = tmp_path / "m.npz"
    matrix = sparse.random(9, 7, 0.4, format="csc", random_state=0)
    for name, value in (("indices", 10**6), ("indices", -1), ("indptr", 10**6)):
        held = {"indices": matrix.indices.copy(), "indptr": matrix.indptr.copy()}
        held[name][1] = value
        np.savez(path, format=b"csc", shape=np.array([9, 7]), data=matrix.data, **held)
        with pytest.raises(HeadtailError, match="is not a sparse matrix"):
            matrix_rows(path)
    held = {"indices": matrix.indices, "indptr": matrix.indptr}
    np.savez(path, format=b"csc", shape=np.array([10**15, 7]), data=matrix.data, **held)
    with pytest.raises(HeadtailError, match="is not a sparse matrix"):
        matrix_rows(path)


def test_deeply_nested_records_get_a_sentence(tmp_path):
    good = json.dumps({"title": "red shoes", "target_ind": [0]})
    nested = '{"target_ind": [0], "title": ' + "[" * 100_000 + "]" * 100_000 + "}"
    (tmp_path / "trn.json").write_text("\n".join([good, nested, good]) + "\n")
    refused(tmp_path / "trn.json", r"line 2 is not a record")


def calls_of(work):
    """How many functions are called, which is the same on every machine."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_four_times_as_many_columns_take_four_times_as_long_to_look_at(tmp_path):
    path = tmp_path / "wide.csv"

    def calls_for(number):
        names = ",".join(f"c{i}" for i in range(number))
        rows = [",".join(["1"] * number), ",".join(["2"] * number)]
        path.write_text("\n".join([names, *rows]) + "\n")
        return calls_of(lambda: refused(path, "wide.csv"))

    calls_for(100)  # modules are imported once
    few = calls_for(2_500)
    assert 2 * few < calls_for(10_000) < 4.5 * few


def test_json_lines_that_are_not_utf8_get_a_sentence(tmp_path):
    rows = b"".join(b'{"user": %d, "item": "i%d"}\n' % line for line in LINES[:200])
    for damaged in (rows.replace(b"i1", b"i\xff"), rows.replace(b"item", b"it\xddm")):
        (tmp_path / "log.jsonl").write_bytes(damaged)
        refused(tmp_path / "log.jsonl", "is not UTF-8 text. Convert it")


def test_a_number_of_thousands_of_digits_is_a_name(tmp_path):
    rows = "user,item\n" + "".join(f"{user},{item}\n" for user, item in LINES[:200])
    (tmp_path / "log.csv").write_text(rows + "1," + "7" * 5000 + "\n")
    data = load(tmp_path / "log.csv")
    assert data.label_names[0] == "0"


def test_a_table_of_many_mixed_columns_is_read_a_few_times_only(tmp_path, monkeypatch):
    from headtail.data.tables.delimited import DelimitedSource

    number = 60
    header = ["user", "item", *(f"c{i}" for i in range(number))]
    rows = [[user, item, *[1] * number] for user, item in LINES[:60_000:20]]
    rows.append([1, 2, *["word"] * number])
    text = "\n".join(",".join(map(str, row)) for row in [header, *rows])
    (tmp_path / "log.csv").write_text(text + "\n")
    reads = []
    read = DelimitedSource._read

    def counted(self, *given):
        reads.append(1)
        return read(self, *given)

    monkeypatch.setattr(DelimitedSource, "_read", counted)
    monkeypatch.setattr("headtail.data.tables.delimited.BLOCK", 1 << 16)
    source = load(tmp_path / "log.csv", format="interactions")
    assert source.train.num_labels == 9
    assert len(reads) < 40
