"""Files that may crash their reader are read in a child process first."""

from __future__ import annotations

import io
import os
import random
import signal

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from headtail.cli.options import with_options
from headtail.cli.stats import Stats
from headtail.data import guarded
from headtail.data.counts import count_labels, read_counts
from headtail.data.guarded import fragile_files, limits_for
from headtail.data.load import load
from headtail.data.readers import sequences
from headtail.data.reading import DEFAULTS, Reading
from headtail.data.tables.arrow_sources import ParquetSource
from headtail.errors import HeadtailError
from headtail.files.cache_folder import cache_folder

LOG = pa.table(
    {
        "user": [f"u{i % 7}" for i in range(300)],
        "item": [i * 7 % 13 for i in range(300)],
        "time": list(range(300)),
    }
)
LISTS = pa.table({"items": [[(i + j) % 9 for j in range(4 + i % 5)] for i in range(40)]})


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / ".cache"))


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.parquet"
    pq.write_table(LOG, path)
    return path


@pytest.fixture
def children(monkeypatch):
    """What `run` returned, one entry per child."""
    outcomes = []
    run = guarded.run

    def noted(*args):
        outcomes.append(run(*args))
        return outcomes[-1]

    monkeypatch.setattr(guarded, "run", noted)
    return outcomes


def die_in_a_child(monkeypatch, of=None, how=None):
    """Let the reader of Parquet kill any process but this one."""
    here = os.getpid()
    batches = ParquetSource.batches

    def fatal(self, *args):
        if os.getpid() != here and (of is None or self.path.name == of):
            (how or os.abort)()
        return batches(self, *args)

    monkeypatch.setattr(ParquetSource, "batches", fatal)


def files_of_each_kind():
    """Small files, by their endings."""
    written = {}
    for number, table in enumerate((LOG, LISTS)):
        for compression in ("snappy", "zstd"):
            sink = io.BytesIO()
            pq.write_table(table, sink, compression=compression)
            written[f"{number}{compression}.parquet"] = sink.getvalue()
        sink = io.BytesIO()
        pyarrow.feather.write_feather(table, sink, compression="uncompressed")
        written[f"{number}.feather"] = sink.getvalue()
    sink = io.BytesIO()
    np.savez_compressed(sink, features=np.eye(20), labels=np.arange(20) % 3)
    written["dense.npz"] = sink.getvalue()
    lines = b"user,item,time\n" + b"".join(b"%d,%d,%d\n" % (i % 7, i % 5, i) for i in range(99))
    written["log.csv.zst"] = pa.compress(lines, codec="zstd", asbytes=True)
    return written


def test_bytes_that_changed_give_data_or_one_sentence(tmp_path):
    chance = random.Random(0)
    whole = files_of_each_kind()
    sentences = []
    for number in range(150):
        name = chance.choice(list(whole))
        content = bytearray(whole[name])
        for _ in range(chance.choice((1, 1, 4))):
            # The end of Parquet, Feather and zip files says where everything is.
            last = 1 + int(chance.expovariate(1 / 150))
            near_end = max(0, len(content) - last)
            place = near_end if number % 2 else chance.randrange(len(content))
            content[place] ^= 1 << chance.randrange(8)
        path = tmp_path / f"{number}-{name}"
        path.write_bytes(content)
        try:
            load(path)
        except HeadtailError as error:
            sentences.append(str(error))
    assert len(sentences) > 50
    assert not [sentence for sentence in sentences if "\n" in sentence]


def test_a_file_that_crashes_its_reader_is_one_sentence(log, monkeypatch, capfd):
    die_in_a_child(monkeypatch)
    with pytest.raises(HeadtailError, match=r"crashed \(SIGABRT\)\. It is probably") as raised:
        load(log)
    assert str(raised.value).startswith(f"`{log}` cannot be read")
    assert "\n" not in str(raised.value)
    assert capfd.readouterr() == ("", "")


def test_what_a_crashed_reader_had_begun_to_write_is_removed(log, monkeypatch):
    monkeypatch.setattr("headtail.data.cache.Store.close", lambda store: os.abort())
    with pytest.raises(HeadtailError, match="crashed"):
        load(log)
    left = [path.name for path in cache_folder().iterdir() if path.name.startswith(".")]
    assert not left


def test_the_file_of_several_that_crashes_its_reader_is_named(tmp_path, monkeypatch):
    for part in ("test", "train"):
        pq.write_table(LOG, tmp_path / f"{part}.parquet")
    die_in_a_child(monkeypatch, of="train.parquet")
    with pytest.raises(HeadtailError, match=rf"`{tmp_path}/train.parquet` cannot be read"):
        load(tmp_path)


def test_a_child_that_the_system_kills_is_said_to_be_out_of_memory(log, monkeypatch):
    die_in_a_child(monkeypatch, how=lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(HeadtailError, match=r"was killed, probably because .* out of memory"):
        load(log)


def test_too_much_memory_is_one_sentence_with_the_option_that_allows_more(log, monkeypatch):
    die_in_a_child(monkeypatch, how=lambda: np.empty(1 << 29))
    with pytest.raises(
        HeadtailError, match=r"needs more than 3 GiB of memory to be read"
    ) as raised:
        load(log)
    assert with_options(raised.value, Stats).endswith("allow more (`--max-memory 6`).")
    with pytest.raises(HeadtailError, match=r"more than 0\.5 GiB .* \(`max_memory=1`\)"):
        load(log, max_memory=0.5)
    load(log, max_memory=6)


def test_too_many_seconds_are_one_sentence_with_the_option_that_allows_more(log, monkeypatch):
    die_in_a_child(monkeypatch, how=signal.pause)
    with pytest.raises(HeadtailError, match=r"within 0\.3 seconds, too long for") as raised:
        load(log, max_seconds=0.3)
    assert with_options(raised.value, Stats).endswith("allow more (`--max-seconds 1`).")


def test_an_exception_of_a_reader_is_one_sentence_and_its_cause_has_the_traceback(log, monkeypatch):
    die_in_a_child(monkeypatch, how=lambda: LOG.column("none"))
    with pytest.raises(HeadtailError, match=r"cannot be read \(KeyError: ") as raised:
        load(log)
    assert "test_guarded.py" in str(raised.value.__cause__)


def test_a_small_file_is_given_up_before_30_seconds_and_takes_less_than_4_gib():
    limits = limits_for(1 << 20, DEFAULTS)
    assert limits.seconds < 30
    assert limits.memory < 4 << 30


def test_sentences_of_readers_keep_their_settings(log):
    with pytest.raises(HeadtailError) as raised:
        load(log, min_rating=3)
    assert "`--rating`" in with_options(raised.value, Stats)
    assert raised.value.argument is not None


def test_a_file_is_read_in_a_child_once_and_again_when_it_has_changed(log, children):
    first = load(log)
    assert children == [None]
    assert load(log).digest == first.digest
    assert load(log, max_seconds=100).digest == first.digest
    assert len(children) == 1
    stat = log.stat()
    content = log.read_bytes()
    log.write_bytes(content)
    os.utime(log, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    load(log)
    assert len(children) == 2, "the time of change counts, which cannot be restored"
    load(log, split="last")
    assert len(children) == 3, "other options read other parts"


def test_this_process_takes_what_the_child_has_parsed(log, children, monkeypatch):
    here = os.getpid()
    build = sequences.cached

    def only_in_a_child(files, recipe, make):
        def made(store):
            assert os.getpid() != here
            make(store)

        return build(files, recipe, made)

    monkeypatch.setattr(sequences, "cached", only_in_a_child)
    path = log.with_name("lists.parquet")
    pq.write_table(LISTS, path)
    load(path)
    assert children == [None]


def test_progress_of_the_child_is_reported(log):
    reports = []
    load(log, progress=lambda what, share: reports.append((what, share)))
    assert reports
    assert all(0 <= share <= 1 for _, share in reports)


def test_plain_text_is_read_in_this_process(tmp_path, children):
    (tmp_path / "train.txt").write_text("2 4 3\n0,2 1:0.5\n1 0:2\n")
    (tmp_path / "test.txt").write_text("1 4 3\n2 3:1\n")
    load(tmp_path)
    assert not children
    with pytest.raises(HeadtailError, match=r"`max_memory` would do nothing .* process of their"):
        load(tmp_path, max_memory=8)


@pytest.mark.parametrize(("name", "value"), [("max_memory", 0), ("max_seconds", -1)])
def test_limits_are_positive(log, name, value):
    with pytest.raises(HeadtailError, match=rf"`{name}` must be positive, but got {value}"):
        load(log, **{name: value})


def test_limits_are_not_among_the_options_that_data_are_known_by(log):
    assert load(log, max_seconds=60).read_as == load(log).read_as


def test_fragile_files_are_found_by_their_names_and_first_bytes(tmp_path):
    for name in ("a.parquet", "b.csv", "c.jpg", "train/d.feather", "other/e.arrow", "data/f.pq.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    (tmp_path / "g.txt").write_bytes(b"\x28\xb5\x2f\xfd")
    os.mkfifo(tmp_path / "h.parquet")
    held = {file.name for file in fragile_files([tmp_path, None])}
    assert held == {"a.parquet", "d.feather", "f.pq.gz", "g.txt"}
    assert fragile_files([tmp_path / "b.csv", tmp_path / "missing.pq"]) == []


def test_counts_of_parquet_are_read_in_a_child_too(log, children, monkeypatch):
    counts = log.with_name("counts.parquet")
    pq.write_table(pa.table({"count": [3, 1]}), counts)
    assert read_counts(counts).num_labels == 2
    assert count_labels(log, "item").num_labels == 13
    assert children == [None, None]
    die_in_a_child(monkeypatch)
    with pytest.raises(HeadtailError, match=r"crashed \(SIGABRT\)"):
        count_labels(log, "user")


def test_what_a_child_has_counted_is_not_counted_again(log, monkeypatch):
    from headtail.data.tables import tally

    counted_here = []
    add_up = tally.add_up
    monkeypatch.setattr(tally, "add_up", lambda paths: (counted_here.append(1), add_up(paths))[1])
    labels = count_labels(log, "item")
    assert (labels.num_labels, labels.total) == (13, len(pq.read_table(log)))
    assert count_labels(log, "item").names == labels.names
    assert not counted_here


def test_counting_has_the_limits_that_its_errors_name(log, children):
    for count in (read_counts, count_labels):
        with pytest.raises(HeadtailError, match="`max_memory` must be positive, but got -1"):
            count(log, max_memory=-1)
    with pytest.raises(
        HeadtailError, match=r"within 1e-06 seconds, .* allow more \(`max_seconds=1`"
    ):
        count_labels(log, "item", max_seconds=1e-6)
    assert count_labels(log, "item", max_seconds=60, max_memory=4).num_labels == 13


def test_images_are_not_looked_at_one_by_one(tmp_path, monkeypatch):
    for number in range(9):
        (tmp_path / f"{number}.JPG").write_bytes(b"1")
    (tmp_path / "a.parquet").write_bytes(b"1")
    looked_at = []
    stat = os.stat

    def noted(path, **options):
        looked_at.append(os.fspath(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", noted)
    assert fragile_files([tmp_path]) == [tmp_path / "a.parquet"]
    assert str(tmp_path / "a.parquet") in looked_at
    assert not any(path.endswith(".JPG") for path in looked_at)


def test_a_list_of_an_arrow_file_that_points_outside_is_one_sentence(tmp_path):
    path = tmp_path / "lists.feather"
    table = pa.table({"items": [[5, 6, 7], [5, 6], [7]] * 5})
    pyarrow.feather.write_feather(table, path, compression="uncompressed")
    offsets = np.array([0, 3, 5, 6, 9], np.int32).tobytes()
    outside = np.array([0, 3, 1 << 30, 6, 9], np.int32).tobytes()
    content = path.read_bytes()
    assert offsets in content
    path.write_bytes(content.replace(offsets, outside))
    with pytest.raises(HeadtailError, match="is not a readable Feather or Arrow file"):
        load(path, Reading(format="sequences"))
