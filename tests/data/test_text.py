"""Text files against a slow, obvious reader, and each way in which they can be bad."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import subprocess
import sys
import time
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headtail.data.bag import Bag
from headtail.data.packed import line_blocks
from headtail.data.points import Points
from headtail.data.readers.parse_lines import parse_block
from headtail.data.readers.parsed import Room
from headtail.data.readers.text import read_text
from headtail.errors import HeadtailError
from headtail.kernels.dispatch import use_kernels

ROOT = Path(__file__).parents[2]
DELICIOUS = Path(os.environ.get("HEADTAIL_DATA") or ROOT.parent / "shared" / "data") / "delicious"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def write(tmp_path):
    def write(content: str | bytes, name: str = "train.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def lists(points: Points) -> list[tuple[list[int], list[tuple[int, float]]]]:
    """Each point as its labels and its features."""
    bag = points.features
    labels = points.labels
    assert isinstance(bag, Bag)
    features = list(zip(bag.columns.tolist(), bag.values.tolist(), strict=True))
    f = bag.offsets.tolist()
    y = labels.offsets.tolist()
    return [
        (labels.values[y[i] : y[i + 1]].tolist(), features[f[i] : f[i + 1]])
        for i in range(len(points))
    ]


def slow(lines: list[str]) -> list[tuple[list[int], list[tuple[int, float]]]]:
    """The obvious reader of good lines without comments."""
    found = []
    for line in lines:
        first, *rest = line.split(" ")
        pairs = [token.split(":") for token in ([first] if ":" in first else []) + rest if token]
        labels = [] if ":" in first or not first else [int(label) for label in first.split(",")]
        found.append((labels, [(int(column), float(np.float32(value))) for column, value in pairs]))
    return found


def leftovers(cache: Path) -> list[str]:
    return (
        [path.name for path in cache.iterdir() if path.name != "digests"] if cache.exists() else []
    )


NUMBERS = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.floats(-1e6, 1e6).map(lambda x: f"{x:.6f}"),
    st.integers(-(10**25), 10**25).map(str),
    st.sampled_from(
        [
            "1.",
            ".5",
            "+2",
            "-0",
            "1e5",
            "1E-3",
            "0.000000000000000000000000001e27",
            "12345678901234567890.125",
            "1e-400",
        ]
    ),
)
LINES = st.lists(
    st.tuples(
        st.lists(st.integers(0, 40), unique=True, max_size=5),
        st.dictionaries(st.integers(0, 90), NUMBERS, max_size=6),
        st.booleans(),
    ).map(
        lambda x: (
            ",".join(map(str, x[0]))
            + " " * bool(x[0] or x[2])
            + " ".join(f"{c}:{v}" for c, v in x[1].items())
        )
    ),
    min_size=1,
    max_size=12,
)


ODD = [
    "",
    "# nothing",
    "3,x 1:2",
    "1,1 0:1",
    "2 5:1 5:2",
    "40 90:1",
    "41 0:1",
    "1 91:1",
    "1 3:",
    "1 3:nan",
    "1 3:1e400",
    "1 3:-1e-400",
    "1 3:1e30 4:-2.5E+3",
    "1 3:123456789012345678901234567890",
    "1 99999999999999999999:1",
    "1 qid:7 2:0.1",
]
"""Lines that are bad in some way, blank, or at the edge of what float32 holds."""


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    lines=LINES,
    size=st.integers(1, 200),
    newline=st.sampled_from(["\n", "\r\n"]),
    last=st.booleans(),
)
def test_any_good_file_is_read_as_the_obvious_reader_does_whatever_the_block_size(
    write, lines, size, newline, last
):
    content = newline.join([f"{len(lines)} 91 41", *lines]) + (
        newline if last or not lines[-1].strip() else ""
    )
    points = read_text(write(content), block=size).points
    assert [labels for labels, _ in lists(points)] == [labels for labels, _ in slow(lines)]
    for (_, got), (_, expected) in zip(lists(points), slow(lines), strict=True):
        assert [column for column, _ in got] == [column for column, _ in expected]
        # Digits past the 17th are dropped, so a value may be the neighbour of the nearest float32,
        # never further.
        np.testing.assert_array_max_ulp(
            *(np.array([v for _, v in x], np.float32) for x in (got, expected)), maxulp=1
        )


def test_values_as_programs_print_them_become_the_nearest_float32(write):
    rng = np.random.default_rng(0)
    texts = [
        f"{x:.{d}f}"
        for d in range(1, 10)
        for x in rng.random(2000) * 10.0 ** rng.integers(-3, 6, 2000)
    ]
    texts += [
        repr(float(x))
        for x in rng.integers(1, 2**31, 5000).astype(np.uint32).view(np.float32)
        if np.isfinite(x)
    ]
    points = read_text(write(" " + " ".join(f"{i}:{x}" for i, x in enumerate(texts)) + "\n")).points
    assert isinstance(points.features, Bag)
    np.testing.assert_array_equal(
        points.features.values.numpy(), np.array(texts, np.float64).astype(np.float32)
    )


def test_labels_and_features_may_be_missing_and_keep_the_order_of_the_file(write):
    points = read_text(write("5,2 9:1 3:2\n 1:1\n4:.5 0:2\n7\n8 \n")).points
    assert lists(points) == [
        ([5, 2], [(9, 1), (3, 2)]),
        ([], [(1, 1)]),
        ([], [(4, 0.5), (0, 2)]),
        ([7], []),
        ([8], []),
    ]
    assert (points.num_features, points.num_labels) == (10, 9)


def test_blank_lines_count_up_to_the_number_that_the_header_promises(write):
    assert len(read_text(write("4 2 2\n\n1 0:1\n\n\n\n\n")).points) == 4
    assert len(read_text(write("2 2 2\n\n1 0:1\n\n\n", "b.txt")).points) == 2


def test_blank_lines_at_the_end_are_no_points_without_a_header_but_those_before_are(write):
    for size in (1, 3, 1000):
        path = write("1 0:1\n\n \n2 1:1\n\n\n", f"{size}.txt")
        assert lists(read_text(path, block=size).points) == [
            ([1], [(0, 1)]),
            ([], []),
            ([], []),
            ([2], [(1, 1)]),
        ]


def test_a_skipped_line_takes_the_place_of_a_blank_one_in_what_the_header_promises(write):
    path = write("3 2 2\n1 0:1\nbad\n\n\n\n")
    file = read_text(path, skip_bad_lines=True)
    assert (len(file.points), file.bad_lines, len(file.notes)) == (2, 1, 1)
    assert file.points.rows.tolist() == [0, 2]


@pytest.mark.parametrize("size", [1, 9, 1000])
def test_skipped_lines_leave_points_the_rows_they_stand_in(write, size):
    path = write("bad\n1 0:1\n\n# no point\nbad\n \n2 1:1\nbad\n0 0:1\n\n")
    file = read_text(path, skip_bad_lines=True, block=size)
    assert file.points.rows.tolist() == [1, 2, 4, 5, 7]


def test_without_a_header_the_largest_ids_decide_the_width_wherever_they_are(write):
    points = read_text(write("1 70:1\n60 2:1\n3 4:1\n"), block=8).points
    assert (points.num_features, points.num_labels) == (71, 61)


def test_comments_and_query_ids_are_left_out(write):
    points = read_text(write("# by hand\n1,3 qid:4 2:1 # é:7\n  # more\nqid:5 2:3#\n")).points
    assert lists(points) == [([1, 3], [(2, 1)]), ([], [(2, 3)])]


def test_windows_line_ends_and_a_byte_order_mark_change_nothing(write):
    unix = read_text(write("2 5 5\n1,2 3:1\n4 \n")).points
    windows = read_text(write(b"\xef\xbb\xbf2 5 5\r\n1,2 3:1\r\n4 \r\n", "w.txt")).points
    assert lists(unix) == lists(windows)


@pytest.mark.parametrize("name", ["x.txt", "x.txt.gz", "x.svm"])
@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_archives_are_reported_by_their_content_whatever_their_name(write, pack, name):
    assert lists(read_text(write(pack(b"1 0:1\n2 1:1\n"), name)).points) == [
        ([1], [(0, 1)]),
        ([2], [(1, 1)]),
    ]


def test_three_numbers_are_a_header_only_if_nothing_else_stands_there(write):
    assert read_text(write("1 5 7\n3 1:1\n")).header == (1, 5, 7)
    assert read_text(write("1,5,7\n3 1:1\n", "b.txt")).header is None
    assert read_text(write("1 5:1 7:1\n", "c.txt")).header is None
    assert read_text(write(f"1\t5 7{' ' * 200}\n3 1:1\n", "d.txt")).header == (1, 5, 7)
    with pytest.raises(HeadtailError, match="line 1: `5` is not a feature"):
        read_text(write(f"1 5 {'7' * 5000}\n3 1:1\n", "e.txt"))


def test_given_sizes_are_enforced_without_a_header_and_must_agree_with_one(write):
    points = read_text(write("1 2:1\n"), num_features=9, num_labels=8).points
    assert (points.num_features, points.num_labels) == (9, 8)
    with pytest.raises(HeadtailError, match=r"line 1: feature 2 is out of range 0…1"):
        read_text(write("1 2:1\n"), num_features=2)
    with pytest.raises(
        HeadtailError, match=r"`num_labels` is 8, but 4 in the header of `.*train.txt`"
    ):
        read_text(write("1 3 4\n1 2:1\n"), num_labels=8)


GOOD = "3 5 4\n1 0:1\n2 1:1\n"
BAD = {
    "label 4 is out of range 0…3": GOOD + "1,4 0:1\n",
    "label 99999999999999999999 is out of range 0…3": GOOD + "99999999999999999999 0:1\n",
    "feature 5 is out of range 0…4": GOOD + "1 5:1\n",
    "`x` is not a label id": GOOD + "x 0:1\n",
    "`-1` is not a label id": GOOD + "-1 0:1\n",
    "`1.0` is not a label id": GOOD + "1.0 0:1\n",
    "a label is missing next to a comma": GOOD + "1, 0:1\n",
    "`x:1` is not a feature and its value": GOOD + "1 x:1\n",
    "`-2:1` is not a feature and its value": GOOD + "1 -2:1\n",
    "`3` is not a feature and its value": GOOD + " 3 1:1\n",
    "feature 3 has no value": GOOD + "1 3:",
    "feature 3 has the value `nan`, which is not a finite number": GOOD + "1 3:nan\n",
    "feature 3 has the value `-inf`": GOOD + "1 3:-inf\n",
    "feature 3 has the value `1e39`": GOOD + "1 3:1e39\n",
    "feature 3 has the value `1e`": GOOD + "1 3:1e\n",
    "feature 3 has the value `1_0`": GOOD + "1 3:1_0\n",
    "feature 3 has the value `1.2.3`": GOOD + "1 3:1.2.3\n",
    "feature 3 has the value `0x1`": GOOD + "1 3:0x1\n",
    "feature 3 has the value `.`": GOOD + "1 3:.\n",
    "feature 3 occurs twice": GOOD + "1 3:1 0:1 3:2\n",
    "label 2 occurs twice": GOOD + "2,1,2 0:1\n",
}


@pytest.mark.parametrize("why", BAD)
def test_a_bad_line_is_reported_with_its_number_and_leaves_nothing_in_the_cache(write, cache, why):
    path = write(BAD[why])
    with pytest.raises(HeadtailError) as error:
        read_text(path)
    assert str(error.value).startswith(f"{path}, line 4: {why}")
    assert leftovers(cache) == []


@pytest.mark.parametrize("why", BAD)
def test_a_bad_line_can_be_skipped_and_is_reported_in_a_note(write, why):
    file = read_text(write(BAD[why]), skip_bad_lines=True)
    assert (len(file.points), file.bad_lines, len(file.notes)) == (2, 1, 1)
    assert file.notes[0].startswith(
        f"{file.notes[0].partition(': ')[0]}: skipped 1 bad line, the first is line 4 ({why}"
    )
    assert lists(file.points) == slow(["1 0:1", "2 1:1"])


def test_skipped_lines_are_counted_over_all_blocks_and_the_first_is_named(write):
    path = write("40 9 9\n" + "".join("1 0:1\n" if i % 4 else "1 9:1\n" for i in range(40)))
    file = read_text(path, skip_bad_lines=True, block=16)
    assert file.notes == (
        f"{path}: skipped 10 bad lines, the first is line 2 (feature 9 is out of range 0…8)",
    )
    assert (len(file.points), file.bad_lines) == (30, 10)


def test_a_wrong_number_of_points_is_an_error_or_with_skipping_a_note(write, cache):
    path = write("12920 5 4\n" + "1 0:1\n" * 1200)
    with pytest.raises(
        HeadtailError, match=r"train.txt: header promises 12,920 points but the file has 1,200"
    ):
        read_text(path)
    assert leftovers(cache) == []
    assert read_text(path, skip_bad_lines=True).notes == (
        f"{path}: header promises 12,920 points but the file has 1,200",
    )
    with pytest.raises(HeadtailError, match="header promises 1 points but the file has 2"):
        read_text(write("1 5 4\n1 0:1\n2 0:1\n"))


NOISE = np.random.default_rng(0).bytes(5000)
NO_POINTS = {
    "nothing": (b"", "is empty"),
    "header": (b"3 5 4\n", "holds a header but no points"),
    "comments": (b"\n\n# nothing\n", "holds no points"),
    "zeros": (b"1 0:1\n\0\0", "is not a text file"),
    "bytes": (bytes(range(1, 256)) * 9, "is not a text file"),
    "utf-16": ("1 0:1\n".encode("utf-16"), "is not a text file"),
    "cut gzip": (gzip.compress(NOISE.hex().encode())[:-2000], "is cut off"),
    "cut bzip2": (bz2.compress(NOISE)[:-2000], "is cut off"),
    "cut xz": (lzma.compress(NOISE)[:-2000], "is cut off"),
    "damaged gzip": (gzip.compress(b"1 0:1\n")[:-8] + b"damaged!", "cannot be read"),
    "damaged xz": (lzma.compress(b"1 0:1\n" * 99)[:30] + b"damaged!" * 9, "cannot be read"),
    "too wide": (b"1 99999999999 4\n1 0:1\n", "line 1: `num_features` is 99,999,999,999"),
}


@pytest.mark.parametrize("what", NO_POINTS)
def test_what_is_no_text_of_points_is_refused_with_a_sentence(write, cache, what):
    content, says = NO_POINTS[what]
    with pytest.raises(HeadtailError, match=says):
        read_text(write(content))
    assert leftovers(cache) == []


def test_a_path_that_is_no_readable_file_is_reported(tmp_path, write):
    write("1 0:1\n")
    with pytest.raises(HeadtailError, match=r"does not exist. Did you mean `.*train.txt`"):
        read_text(tmp_path / "trian.txt")
    with pytest.raises(HeadtailError, match=r"is a folder. Give a file in it"):
        read_text(tmp_path)
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("train.txt", "1 0:1\n")
    with pytest.raises(HeadtailError, match="is a zip archive"):
        read_text(tmp_path / "x.zip")
    if Path("/proc/self/mem").exists():
        with pytest.raises(HeadtailError, match="cannot be read: Input/output error"):
            read_text(Path("/proc/self/mem"))


def test_a_line_that_does_not_end_is_refused_before_memory_does(write):
    with pytest.raises(HeadtailError, match="has a line of more than"):
        read_text(write("1 0:1 " * 400), block=100, longest_line=1000)


def test_progress_ends_at_one_and_is_not_reported_for_what_is_in_the_cache(write):
    path = write("1 0:1\n" * 100)
    reports = []
    read_text(path, progress=lambda *report: reports.append(report), block=64)
    assert reports[-1] == ("reading train.txt", 1.0)
    assert len(reports) > 1
    assert [share for _, share in reports] == sorted(share for _, share in reports)
    reports.clear()
    read_text(path, progress=lambda *report: reports.append(report), block=64)
    assert reports == []


@settings(max_examples=60, deadline=None)
@given(good=LINES, odd=st.lists(st.sampled_from(ODD), max_size=5))
def test_parsing_gives_the_same_numbers_with_and_without_a_compiler(good, odd):
    lines = [*good, *odd, *good]
    block = "".join(f"{line}\n" for line in lines).encode()
    results = []
    for compiled in (True, False):
        room = Room.of(len(block))
        with use_kernels(compiled):
            parsed = parse_block(block, 91, 41, room)
        numbers = (parsed.features, parsed.features, parsed.points, parsed.labels, parsed.points)
        written = [array[:n] for array, n in zip(room, (*numbers, parsed.points), strict=True)]
        results.append((parsed, [array.tobytes() for array in written]))
    assert results[0] == results[1]


def test_parsing_works_where_compiled_code_cannot_be_kept():
    code = (
        "from headtail.data.readers.parse_lines import parse_block; "
        "from headtail.data.readers.parsed import Room; room = Room.of(9); "
        "print(parse_block(b'3 17:1\\n', 99, 99, room).points, room.columns[0])"
    )
    # No source file lies in a zip archive here, so numba finds no folder for its cache.
    environment = os.environ | {"NUMBA_CACHE_LOCATOR_CLASSES": "ZipCacheLocator"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert run.stdout.strip() == "1 17", run.stderr


@pytest.mark.skipif(
    not DELICIOUS.exists(),
    reason=f"Delicious is not in {DELICIOUS}; set HEADTAIL_DATA to the folder above it",
)
@pytest.mark.parametrize(("part", "pairs"), [("train", 246_088), ("test", 60_229)])
def test_delicious_is_read_as_the_obvious_reader_does(part, pairs):
    lines = (DELICIOUS / f"{part}.txt").read_text().splitlines()
    points = read_text(DELICIOUS / f"{part}.txt").points
    expected = slow(lines[1:])
    assert lists(points) == expected
    assert points.num_pairs == sum(len(labels) for labels, _ in expected) == pairs
    counted = Counter(label for labels, _ in expected for label in labels)
    assert torch.bincount(points.labels.values, minlength=983).tolist() == [
        counted[label] for label in range(983)
    ]


def test_a_line_without_an_end_is_read_in_time_that_grows_with_its_length(write):
    path = write(b"0" * (32 << 20))
    began = time.process_time()
    [(line, share)] = line_blocks(path, block=1 << 12)
    assert time.process_time() - began < 5, "8,192 pieces, each of them copied once"
    assert (len(line), share) == ((32 << 20) + 1, 1.0)


@pytest.mark.parametrize("block", [1, 2, 3, 7, 100])
def test_lines_are_whole_whatever_is_read_at_once(write, block):
    content = b"one\n\ntwo three\nfour"
    blocks = [lines for lines, _ in line_blocks(write(content), block)]
    assert b"".join(blocks) == content + b"\n"
    assert all(lines.endswith(b"\n") for lines in blocks)


def test_a_small_file_of_very_many_empty_lines_is_refused_before_any_is_parsed(write):
    path = write(gzip.compress(b"\n" * (65 << 20)), "train.txt.gz")
    with pytest.raises(HeadtailError, match="unpack to more than 200 times as many"):
        next(line_blocks(path, max_expansion=200))
