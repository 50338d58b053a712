"""The studies run through on tiny data, resume, stop, share runs and never cut a session."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import study_cli
import study_runs
import torch
import tradeoff
from evidence import Evidence
from search import Plan
from study_cli import pack, packed_often, parser_for, run_study, unpack
from study_protocols import (
    BAGS,
    HUNDREDTH,
    IMAGES,
    MILLION,
    PARTS,
    SEQUENCES,
    TAUS,
    Places,
    contrastive_schemes,
    image_schemes,
    million_schemes,
    negatives_schemes,
    read_data,
    retrieval_schemes,
    sweep_schemes,
    tau_schemes,
)
from study_runs import Protocol, SchemeWork, check_uncut, cost, perform, perform_run
from study_store import Store, adjusted_name, adjusted_scheme

from headtail.core.targets import Ragged
from headtail.data.load import load
from headtail.data.points import DataSet, Points
from headtail.errors import HeadtailError
from headtail.schemes import check_batch
from headtail.training import held_out
from headtail.training.config import Training
from tests.longtail import longtail

TINY = Training(dim=4, batch=32, negatives=8, dropout=0.0, schedule="linear", validation=0.2)
SHOP = Protocol("shop", TINY, Plan((0.1, 0.2, 0.4), 1, 2, wider=0), seeds=2)


def write_sessions(folder: Path) -> Path:
    """Session data in the form of Diginetica's files."""
    rng = np.random.default_rng(0)
    share = 1 / np.arange(1, 41)
    draw = lambda n: rng.choice(40, size=n, p=share / share.sum()).tolist()  # noqa: E731
    sessions = [draw(rng.integers(3, 7)) for _ in range(80)]
    folder.mkdir(parents=True)
    columns = {"session_id": list(range(80)), "items": sessions}
    pq.write_table(pa.table(columns), folder / "train.parquet")
    tested = [(s[:k], s[k]) for s in sessions[:15] for k in range(len(s) - 1, 0, -1)]
    items, target = zip(*tested, strict=True)
    pq.write_table(pa.table({"items": items, "target": target}), folder / "test.parquet")
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_sessions(folder / "shop")
    return folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setattr(held_out, "MOST_VALIDATION", 2000)


@pytest.fixture
def shop(root):
    return load(root / "shop")


def two_schemes(_: Protocol) -> list[str]:
    return ["softmax", "within-batch:tail@32"]


def typed(root: Path, out: Path, *more: str):
    words = ["--data", str(root), "--out", str(out), "--device", "cpu", *more]
    return parser_for("", [SHOP]).parse_args(words)


def test_a_study_searches_repeats_and_keeps_rows_and_ranks(root, tmp_path, capsys):
    assert run_study(typed(root, tmp_path), [SHOP], two_schemes) == 0
    store = Store(tmp_path / "shop")
    told = capsys.readouterr().out
    assert told.startswith(
        "shop: 14 runs"
    )  # 2 schemes × (3 rates + 3 of twice the length + 1 seed)
    assert "whole sessions, which are not trained on" in told
    by_scheme = {about["scheme"]: about for about in store.searches()}
    assert set(by_scheme) == set(two_schemes(SHOP))
    frame = store.frame()
    for scheme, about in by_scheme.items():
        assert about["tries"] == 6
        assert len(about["runs"]) == 2
        for seed, name in enumerate(about["runs"]):
            done = store.find(name)
            assert (done.scheme, done.seed, done.lr) == (scheme, seed, about["lr"])
            tested = {
                (row.metric, row.slice): row.value
                for row in store.rows(name)
                if row.split == "test"
            }
            ranks = np.load(store.path(name, ".npz"))["ranks"]
            for slice_ in ("head", "torso", "tail", "full"):
                value = frame.value(ranks, "recall@10", slice_)
                assert value == pytest.approx(tested["recall@10", slice_])
    # Slices for every rate that was tried.
    tried = [done for done in store.all() if done.scheme == "softmax" and done.seed == 0]
    assert len(tried) == 6
    assert all(store.rows(done.name) for done in tried)
    # Ranks only where points are resampled.
    kept = {path.stem for path in (tmp_path / "shop" / "runs").glob("*.npz")}
    chosen = {name for about in by_scheme.values() for name in about["runs"]}
    adjusted = {adjusted_name(name, tau) for name in by_scheme["softmax"]["runs"] for tau in TAUS}
    assert kept == chosen | adjusted


def test_adjusted_answers_are_those_of_the_softmax_models(root, tmp_path):
    run_study(typed(root, tmp_path), [SHOP], two_schemes)
    store = Store(tmp_path / "shop")
    softmax = next(about for about in store.searches() if about["scheme"] == "softmax")
    plain = store.frame().value(read(store, softmax["runs"][0]), "recall@10", "head")
    heads = []
    for tau in TAUS:
        name = adjusted_name(softmax["runs"][0], tau)
        assert store.find(name).scheme == adjusted_scheme("softmax", tau)
        assert {row.scheme for row in store.rows(name)} == {adjusted_scheme("softmax", tau)}
        heads.append(store.frame().value(read(store, name), "recall@10", "head"))
    assert heads[-1] <= plain
    assert heads[-1] <= heads[0]


def read(store: Store, name: str) -> np.ndarray:
    return np.load(store.path(name, ".npz"))["ranks"]


def test_a_finished_study_is_not_run_again(root, tmp_path, monkeypatch, capsys):
    run_study(typed(root, tmp_path), [SHOP], two_schemes)
    monkeypatch.setattr(study_runs.Trainer, "fit", None)
    capsys.readouterr()
    assert run_study(typed(root, tmp_path), [SHOP], two_schemes) == 0
    assert capsys.readouterr().out.startswith("shop: 0 runs, about 0 minutes")


def test_runs_of_an_earlier_protocol_do_not_count(root, tmp_path):
    run_study(typed(root, tmp_path), [SHOP], two_schemes)
    store = Store(tmp_path / "shop")
    before = {about["scheme"]: about["runs"] for about in store.searches()}
    changed = replace(SHOP, training=replace(TINY, batch=16))
    run_study(typed(root, tmp_path), [changed], two_schemes)
    after = {about["scheme"]: about["runs"] for about in store.searches()}
    assert after.keys() == before.keys() == set(two_schemes(SHOP))
    assert all(set(after[scheme]).isdisjoint(before[scheme]) for scheme in before)


def test_a_search_that_was_stopped_goes_on_with_its_runs(root, tmp_path, shop, monkeypatch):
    work = SchemeWork("cpu", SHOP, tmp_path / "shop")
    fit = study_runs.Trainer.fit
    taken = []

    def few(trainer):
        if len(taken) == 4:
            raise KeyboardInterrupt
        taken.append(trainer.run)
        return fit(trainer)

    monkeypatch.setattr(study_runs.Trainer, "fit", few)
    with pytest.raises(KeyboardInterrupt):
        perform(work, shop, ["softmax"], workers=1)
    assert len(Store(work.folder).all()) == 4
    taken.clear()
    taken.append(None)  # one fewer: 3 are left of 7
    assert perform(work, shop, ["softmax"], workers=1) == 0
    assert len(taken) == 4


def test_the_cost_is_stated_and_nothing_else_is_done(root, tmp_path, capsys):
    assert run_study(typed(root, tmp_path, "--cost"), [SHOP], two_schemes) == 0
    assert "About 0 minutes are missing." in capsys.readouterr().out
    assert not (tmp_path / "shop").exists()
    runs, minutes, measured = cost(SHOP, tmp_path / "shop", ["softmax"], 2, 1)
    assert (runs, measured) == (7, False)
    assert minutes == pytest.approx((3 * 1 + 3 * 2 + 1) * SHOP.seconds / 60)


@pytest.mark.parametrize(
    ("losses", "names"),
    [
        ("all", ["softmax", "within-batch:tail", "logistic"]),
        ("full", ["softmax", "logistic"]),
        ("sampled", ["within-batch:tail"]),
    ],
)
def test_losses_over_all_labels_and_sampled_ones_may_run_apart(losses, names, root, tmp_path):
    given = typed(root, tmp_path, "--losses", losses)
    kinds = ["softmax", "within-batch:tail", "logistic"]
    assert study_cli._names(given, SHOP, lambda _: kinds) == names


def test_schemes_of_the_other_kind_alone_are_refused(root, tmp_path):
    given = typed(root, tmp_path, "--losses", "sampled")
    with pytest.raises(HeadtailError, match=r"`--losses sampled`: \['softmax'\]"):
        run_study(given, [SHOP], lambda _: ["softmax"])


def test_a_file_that_is_dropped_while_a_study_is_packed_is_left_out(root, tmp_path, monkeypatch):
    run_study(typed(root, tmp_path / "a"), [SHOP], two_schemes)
    gone = next((tmp_path / "a" / "shop" / "runs").glob("*.npz"))
    read_bytes = Path.read_bytes

    def drop(path):
        if path == gone:
            path.unlink()
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", drop)
    [archive] = pack(tmp_path / "a", tmp_path / "packed", ["shop"])
    names = zipfile.ZipFile(archive).namelist()
    assert f"shop/runs/{gone.name}" not in names
    assert "shop/frame.npz" in names


def command(root: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The study as a command of its own, with two processes, as a shell starts it behind `&`."""
    script = folder / "study.py"
    script.write_text(
        "import sys\n"
        "from study_cli import parser_for, run_study\n"
        "from tests.experiments.test_study_runs import LONG, SHOP, two_schemes\n"
        "if __name__ == '__main__':\n"
        "    protocol = LONG if '--minutes' in sys.argv else SHOP\n"
        "    given = parser_for('', [protocol]).parse_args()\n"
        "    sys.exit(run_study(given, [protocol], two_schemes))\n"
    )
    here = Path(__file__).parents[2]
    paths = [str(here), str(here / "experiments"), str(here / "src")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    typed = ["--data", str(root), "--device", "cpu", "--workers", "2", *words]
    return subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, str(script), *typed],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


LONG = replace(SHOP, plan=Plan((0.1, 0.2, 0.4), 4000, 4000))
"""Takes seconds at least."""


def test_processes_do_the_same_runs_side_by_side(root, tmp_path):
    ended = command(root, tmp_path, "--out", str(tmp_path / "two"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    run_study(typed(root, tmp_path / "one"), [SHOP], two_schemes)
    two, one = (Store(tmp_path / name / "shop") for name in ("two", "one"))
    assert [done.name for done in two.all()] == [done.name for done in one.all()]
    for about in one.searches():
        for name in about["runs"]:
            assert (read(two, name) == read(one, name)).all()


def test_a_study_stops_in_time(root, tmp_path):
    words = ["--out", str(tmp_path / "out"), "--packed", str(tmp_path / "packed")]
    begun = time.monotonic()
    ended = command(root, tmp_path, *words, "--minutes", "0.002")
    assert ended.returncode == 130, ended.stdout + ended.stderr
    assert "Stopped and saved." in ended.stdout
    assert time.monotonic() - begun < 60
    assert not list(tmp_path.glob("packed/*.zip")), "nothing was finished"


def test_a_finished_study_is_packed(root, tmp_path):
    words = ["--out", str(tmp_path / "out"), "--packed", str(tmp_path / "packed")]
    assert command(root, tmp_path, *words).returncode == 0
    assert (tmp_path / "packed" / "shop-0.zip").exists()


def test_a_rate_that_diverges_is_kept_as_such(tmp_path, shop, monkeypatch):
    def diverge(trainer):
        raise HeadtailError("Training diverged: the loss is nan.")

    monkeypatch.setattr(study_runs.Trainer, "fit", diverge)
    run = SHOP.run("softmax", (0.1, 1))
    done = perform_run(run, shop, tmp_path, "cpu")
    assert done.loss == float("inf")
    assert Store(tmp_path).find(done.name) == done
    assert Store(tmp_path).rows(done.name) == []


def test_runs_are_packed_before_a_study_is_over(tmp_path):
    run = tmp_path / "out" / "shop" / "runs" / "one.json"
    archive = tmp_path / "packed" / "shop-0.zip"
    archive.parent.mkdir()
    with packed_often(tmp_path / "out", archive.parent, ["shop"], seconds=0.01):
        run.parent.mkdir(parents=True)
        run.write_text("{}", encoding="utf-8")
        until = time.monotonic() + 30
        while not archive.exists() and time.monotonic() < until:
            time.sleep(0.01)
        assert archive.exists()
    assert unpack(archive.parent, tmp_path / "elsewhere") == 1


def test_what_is_packed_comes_back_in_small_files(root, tmp_path):
    run_study(typed(root, tmp_path / "a"), [SHOP], two_schemes)
    made = pack(tmp_path / "a", tmp_path / "packed", ["shop"], most=20_000)
    assert len(made) > 1
    assert all(path.stat().st_size <= 20_000 for path in made)
    assert len(pack(tmp_path / "a", tmp_path / "packed", ["shop"])) == 1
    assert len(list((tmp_path / "packed").iterdir())) == 1  # the other parts are gone
    assert unpack(tmp_path / "packed", tmp_path / "b") > 10
    assert unpack(tmp_path / "packed", tmp_path / "b") == 0
    before, after = (Store(tmp_path / name / "shop") for name in "ab")
    assert before.all() == after.all()
    assert before.searches() == after.searches()
    assert (after.frame().group == before.frame().group).all()


def test_packed_runs_of_an_earlier_machine_are_not_run_again(root, tmp_path, monkeypatch):
    packed = ("--packed", str(tmp_path / "packed"))
    run_study(typed(root, tmp_path / "a", *packed), [SHOP], two_schemes)
    monkeypatch.setattr(study_runs.Trainer, "fit", None)
    assert run_study(typed(root, tmp_path / "b", *packed), [SHOP], two_schemes) == 0


def test_a_session_in_training_and_validation_is_refused(shop, monkeypatch):
    assert "whole sessions" in check_uncut(shop, 0.2)

    def cut(points, count, generator):
        return torch.randperm(len(points), generator=generator)[:count]

    monkeypatch.setattr(held_out, "_random_points", cut)
    with pytest.raises(HeadtailError, match="A session is in training and validation"):
        check_uncut(shop, 0.2)


def test_long_runs_are_searched_in_short_ones_and_hold_nothing_out(tmp_path):
    data = longtail()
    quick = replace(TINY, encoder="auto", validation=0.2)
    protocol = replace(SHOP, training=quick, final=2, metric="recall@1")
    work = SchemeWork("cpu", protocol, tmp_path / "x", TAUS)
    assert perform(work, data, ["softmax"], workers=1) == 0
    store = Store(tmp_path / "x")
    [about] = store.searches()
    final = [store.find(name) for name in about["runs"]]
    assert [done.epochs for done in final] == [2 * about["epochs"]] * 2
    assert all(np.isnan(done.loss) for done in final)
    assert not list((tmp_path / "x" / "working").glob("*"))
    assert store.find(adjusted_name(about["runs"][1], 1.25)) is not None


def test_every_scheme_of_every_protocol_is_one_that_its_batch_allows():
    studies = {
        retrieval_schemes: (*BAGS, *SEQUENCES),
        contrastive_schemes: (*BAGS, *PARTS, *IMAGES),
        negatives_schemes: (BAGS[1], PARTS[0]),
        image_schemes: IMAGES,
        sweep_schemes: IMAGES[1:2],
        million_schemes: (*MILLION, *HUNDREDTH),
        tradeoff.schemes: (*BAGS, *IMAGES),
    }
    pairs = [(protocol, of) for of, protocols in studies.items() for protocol in protocols]
    for protocol, schemes in pairs:
        names = schemes(protocol)
        assert len(set(names)) == len(names)
        for name in names:
            check_batch(name, protocol.training.batch, protocol.training.negatives)
        assert len(protocol.plan.rates) >= (3 if protocol in IMAGES else 5)
        assert protocol.training.schedule in ("linear", "steps")


@pytest.mark.filterwarnings("ignore:.*never draws:UserWarning")
@pytest.mark.parametrize("protocol", BAGS[:2], ids=lambda protocol: protocol.name)
def test_every_scheme_of_the_retrieval_study_trains(protocol, shop, tmp_path):
    small = replace(protocol.training, dim=8, batch=64, negatives=16)
    batch = protocol.training.batch
    for name in [*retrieval_schemes(protocol), *contrastive_schemes(protocol)]:
        here = name.replace(f"@{2 * batch}", "@32").replace(f"@{batch}", "@64")
        here = here.replace(f"queue({8 * batch})", "queue(256)").replace("@64", "@32")
        run = replace(protocol, training=small).run(here, (0.1, 1))
        done = perform_run(run, shop, tmp_path, "cpu")
        assert np.isfinite(done.loss), name


def test_what_a_user_of_beauty_has_is_not_recommended(tmp_path):
    (tmp_path / "beauty").mkdir()
    rng = np.random.default_rng(0)
    sequences = [rng.permutation(30)[: rng.integers(5, 12)].tolist() for _ in range(80)]
    table = pa.table({"user_id": list(range(80)), "items": sequences})
    pq.write_table(table, tmp_path / "beauty" / "sequences.parquet")
    data = read_data(BAGS[3], Places(tmp_path))
    assert data.test.seen is not None
    assert data.read_as == {}  # workers get these points, and do not read the files again
    assert "the item of each user before the last one" in check_uncut(data, 0.1)


@pytest.mark.filterwarnings("ignore:.*never draws:UserWarning")
@pytest.mark.parametrize("protocol", SEQUENCES, ids=lambda protocol: protocol.name)
def test_sequence_encoders_train_by_their_protocol(protocol, shop, tmp_path):
    small = replace(protocol, training=replace(protocol.training, dim=8, batch=64, length=8))
    names = retrieval_schemes(protocol)
    assert [name.partition("@")[0] for name in names] == [
        "softmax",
        "logit-adjusted",
        "within-batch:importance",
        "within-batch:tail",
        "within-batch:relative",
    ]
    for name in names:
        run = small.run(name.replace("@1024", "@64"), (0.001, 1))
        assert np.isfinite(perform_run(run, shop, tmp_path, "cpu").loss), name


def images() -> DataSet:
    """Three classes of tiny images: 60, 40 and 20 for training."""
    rng = np.random.default_rng(0)

    def part(counts):
        labels = [[y] for y, count in enumerate(counts) for _ in range(count)]
        pixels = rng.integers(0, 256, size=(len(labels), 3, 8, 8), dtype=np.uint8)
        return Points(torch.from_numpy(pixels), Ragged.from_lists(labels), 3)

    return DataSet("tiny-images", part((60, 40, 20)), part((10, 10, 10)), digest="tiny-images")


@pytest.mark.parametrize("protocol", IMAGES[:1], ids=lambda protocol: protocol.name)
def test_images_train_by_their_protocol(protocol, tmp_path):
    training = replace(protocol.training, encoder="resnet20", batch=16, negatives=4, warmup=2)
    plan = Plan((0.05, 0.1), 1, 1, wider=0)
    small = replace(protocol, training=training, plan=plan, seeds=2, final=2)
    names = tau_schemes(small)
    work = SchemeWork("cpu", small, tmp_path / "x", TAUS)
    wanted = [names["full"][0], names["within-batch"][2]]
    assert wanted == ["softmax", "within-batch:tail(0.5)@16"]
    assert perform(work, images(), wanted, workers=1) == 0
    evidence = Evidence(tmp_path / "x", resamples=20)
    assert evidence.rare == "torso"  # no class has fewer than 20 images
    assert len(evidence.chosen) == 2 + len(TAUS) + 1
    assert "softmax+retrained" in evidence.chosen
    for scheme in evidence.chosen:
        assert 0 <= evidence.mean(scheme, "recall@1", "torso") <= 1
