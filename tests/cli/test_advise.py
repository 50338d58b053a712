"""`headtail advise`, as people type it."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

import headtail as ht
from headtail.cli import _parse, main
from headtail.cli import advice as sentences
from headtail.cli import advise as command
from headtail.core.labels import Labels
from headtail.machine import advise, step_cost
from headtail.machine.measured import Timing
from tests.cli.test_commands import told
from tests.machine.test_advise import STUDIED, studied

DATA = Path(os.environ.get("HEADTAIL_DATA") or Path(__file__).parents[3] / "shared" / "data")
FEW = ["advise", "--device", "cpu", "--memory", "64", "--labels", "2000"]
SECONDS = {"exact": 7.5e-5, "chunked": 7.5e-5, "sampled": 4e-5}
"""Of a label or negative, in the steps that tests plant: about those of a CPU."""


@pytest.fixture(autouse=True)
def planted(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")

    def time_step(method, shape, device, effort):
        columns = shape.negatives if method == "sampled" else shape.labels
        return Timing(method, shape, columns * SECONDS[method] * shape.batch / 1024, None)

    monkeypatch.setattr(step_cost, "time_step", time_step)


def flat(text):
    return " ".join(text.split())


def found(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


AGREED = {
    "delicious": ("all labels", "softmax", "logit-adjusted"),
    "diginetica": ("sampled", "within-batch:importance@1024", "within-batch:tail@1024"),
    "nowplaying": ("sampled", "within-batch:importance@1024", "within-batch:tail@1024"),
}
"""What the studies found: for few labels all of them, else the whole batch."""


@pytest.mark.parametrize("target", ["softmax", "logit-adjusted"])
@pytest.mark.parametrize("name", STUDIED)
def test_on_the_counts_of_the_studies_it_advises_what_they_found(tmp_path, capsys, name, target):
    """It once named uniform:importance@226 for Diginetica, the worst of ten schemes on the tail,
    and 57 negatives for Delicious.
    """
    path = tmp_path / f"{name}.npy"
    np.save(path, studied(name).counts.numpy())
    arguments = ["advise", "--device", "cpu", "--memory", "64", "--batch", "1024"]
    arguments += ["--counts", str(path), "--target", target]
    verdict, *schemes = AGREED[name]
    answer = found(capsys, *arguments)
    scheme = schemes[target != "softmax"]
    assert (answer["verdict"], answer["scheme"], answer["batch"]) == (verdict, scheme, 1024)
    assert main(arguments) == 0
    out = flat(capsys.readouterr().out)
    assert f"Use {scheme}" in out
    assert ("How sure: gaps" in out) == (verdict == "sampled")
    assert f'ht.scheme("{scheme}", labels)' in out


@pytest.mark.parametrize("name", AGREED)
def test_on_the_data_of_the_studies_it_advises_what_they_found(capsys, name):
    if not (DATA / name).is_dir():
        pytest.skip(f"{name} is not in {DATA}; set HEADTAIL_DATA to the folder that holds it")
    answer = found(
        capsys, "advise", "--device", "cpu", "--memory", "64", "--data", str(DATA / name)
    )
    assert (answer["verdict"], answer["scheme"]) == AGREED[name][:2]


@pytest.mark.parametrize("target", [["softmax"], ["logit-adjusted", "--tau", "0.5"]])
def test_every_table_fits_a_narrow_terminal(capsys, target):
    assert main([*FEW, "--labels", "5e5", "--target", *target]) == 0
    out = capsys.readouterr().out
    tables = out.partition("A training step")[2].partition("The loss over all labels")[0]
    assert max(map(len, tables.splitlines())) <= 80
    assert "…" not in tables
    assert len(rows_of(out)) == len(re.findall(r":\S+@", tables)), "no name is broken"
    assert "was measured over 20,000 labels" in flat(out)
    assert "outside the range" in flat(out)


def test_with_a_recall_gaps_are_points(capsys):
    shares = found(capsys, *FEW, "--labels", "5e4")["candidates"]
    points = found(capsys, *FEW, "--labels", "5e4", "--recall", "40")["candidates"]
    for share, point in zip(shares, points, strict=True):
        assert point["gap"]["largest"] == pytest.approx(
            [40 * end for end in share["gap"]["largest"]]
        )
    assert main([*FEW, "--labels", "5e4", "--recall", "40"]) == 0
    assert "points of Recall@10" in flat(capsys.readouterr().out)


def test_other_values_of_tau_are_said_to_be_interpolated(capsys):
    arguments = [*FEW, "--labels", "5e4", "--target", "logit-adjusted", "--tau", "0.5"]
    assert main(arguments) == 0
    out = flat(capsys.readouterr().out)
    assert "Use within-batch:tail(0.5)@256" in out
    assert "Only τ = 1 was tested" in out


def test_less_time_gives_fewer_negatives(capsys):
    many = found(capsys, *FEW, "--labels", "5e4", "--batch", "1024", "--minutes", "1000")
    few = found(capsys, *FEW, "--labels", "5e4", "--batch", "1024", "--minutes", "30")
    assert many["m"] == 1024
    assert few["m"] < 1024
    none = found(capsys, *FEW, "--labels", "5e4", "--batch", "1024", "--minutes", "0.01")
    assert none["verdict"] == "too slow"


@pytest.mark.parametrize(
    ("options", "words"),
    [([], 'ht.scheme("softmax", labels)'), (["--memory", "0.02"], "linear_cross_entropy")],
)
def test_the_code_that_is_shown_runs(capsys, options, words):
    if words == "linear_cross_entropy" and not hasattr(torch.nn.functional, words):
        pytest.skip("this torch has no chunked loss")
    labels = Labels.zipf(20_000)
    arguments = ["advise", "--device", "cpu", "--memory", "64", "--labels", "2e4", "--dim", "32"]
    assert main([*arguments, "--batch", "512", "--minutes", "1e6", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    code = [line.strip() for line in lines if line.startswith("    ") and line.strip()]
    assert words in " ".join(code)
    names = {"ht": ht, "torch": torch, "labels": labels, "hidden": torch.randn(512, 32)}
    names |= {"target": torch.randint(20_000, (512,)), "table": torch.randn(20_000, 32)}
    exec("\n".join(code), names)
    loss = names["loss"]
    if callable(loss):
        loss = loss(names["hidden"], names["table"], names["target"])
    assert torch.isfinite(loss)


def test_few_labels_need_no_sampling(capsys):
    assert main(["advise", "--device", "cpu", "--memory", "64", "--labels", "40"]) == 0
    out = flat(capsys.readouterr().out)
    assert "Use softmax over all labels" in out
    assert "it has no gap" in out
    assert "Expected gap" not in out


def test_where_all_labels_do_not_fit_a_sampled_scheme_is_named(capsys, monkeypatch):
    monkeypatch.setattr(advise, "possible", lambda: ("exact", "sampled"))
    assert main([*FEW, "--dim", "4096", "--memory", "0.09"]) == 0
    out = flat(capsys.readouterr().out)
    assert "The loss over all labels does not fit into memory. Use within-batch:importance@" in out


def test_what_fits_nowhere_is_reported(capsys):
    assert main([*FEW, "--dim", "100000", "--memory", "0.5"]) == 0
    out = flat(capsys.readouterr().out)
    assert "Nothing fits: even the leanest needs" in out
    assert "ht.scheme" not in out


def test_a_gpu_that_is_not_there_is_not_guessed_at(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(step_cost, "time_step", None)
    assert main(["advise", "--device", "cuda", "--labels", "3e5", "--memory", "80"]) == 0
    out = flat(capsys.readouterr().out)
    assert "Time: not measured, because there is no GPU here." in out
    assert "Where its time is affordable, use it" in out
    assert "for example `--memory 64`" in told(
        capsys, ["advise", "--device", "cuda", "--labels", "3e5"]
    )


def test_data_decide_batch_and_epochs(tmp_path, capsys):
    lines = [f"{i % 7},{7 + i % 3} {i % 11}:1" for i in range(60)]
    for name in ("train.txt", "test.txt"):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    answer = found(capsys, "advise", "--device", "cpu", "--memory", "1", "--data", str(tmp_path))
    assert (answer["epochs"], answer["batch"], answer["verdict"]) == (20, 32, "all labels")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--labels", "0"],
            "`--labels` must be a whole number from 2 to 200,000,000, such as 3e6 or 3_000_000, "
            "but got '0'.",
        ),
        (["--labels", "many"], "but got 'many'"),
        (["--labels", "2.5"], "but got '2.5'"),
        (["--labels", "1e999"], "but got '1e999'"),
        (["--dim", "0"], "`--dim` must be a whole number of at least 1, but got 0."),
        (["--batch", "0"], "`--batch` must be a whole number of at least 1, but got 0."),
        (["--epochs", "0"], "`--epochs` must be a whole number of at least 1, but got 0."),
        (["--negatives", "0"], "`--negatives` must be a whole number of at least 1, but got 0."),
        (["--memory", "0"], "`--memory` must be at least"),
        (["--minutes", "0"], "`--minutes` must be at least"),
        (["--recall", "0.0"], "`--recall` must be"),
        (["--recall", "140"], "`--recall` must be"),
        (["--recall", "0.15"], "`--recall` is in percent, from 1 to 100, but got 0.15. Write 15,"),
        (["--pairs", "0"], "`--pairs` must be a whole number from 1 to"),
        (["--pairs", "few"], "but got 'few'"),
        (["--tau", "0.5"], "`--tau` would do nothing: the softmax has no τ"),
        (["--target", "equalised"], "`--target equalised` has no tested predictions."),
        (["--zipf", "50"], "`--labels` excludes `--counts` and `--zipf`: drop one."),
    ],
)
def test_bad_arguments_get_one_sentence(capsys, arguments, sentence):
    assert sentence in told(capsys, [*FEW, *arguments])


def test_no_number_of_labels_and_no_memory_are_asked_for(capsys, monkeypatch):
    assert "Write for example `--labels 3e6`" in told(capsys, ["advise"])
    monkeypatch.setattr(command, "memory_left", lambda device: None)
    assert "for example `--memory 64`" in told(
        capsys, ["advise", "--device", "cpu", "--labels", "100"]
    )


def test_explain_expects_the_same_gap(capsys):
    advised = found(capsys, *FEW, "--labels", "5e4", "--batch", "256")["candidates"]
    named = {one["scheme"]: one["gap"] for one in advised}
    for name in ("uniform:importance@64", "frequency(0.5):importance@64"):
        explained = found(capsys, "explain", name, "--zipf", "50000", "--batch", "256")
        assert explained["expected_gap"] == named[name]
    assert main(["explain", "uniform:importance@64", "--zipf", "50000"]) == 0
    out = flat(capsys.readouterr().out)
    assert "after training" in out
    assert "data sets that were left out" in out.replace("│ │ ", "")
    assert found(capsys, "explain", "block:tail@64", "--zipf", "50")["expected_gap"] is None


@pytest.mark.parametrize(("m", "said"), [(49, False), (50, True), (5000, True)])
def test_explain_says_that_as_many_negatives_as_labels_are_needless(m, said, capsys):
    out = flat(printed(capsys, "explain", f"uniform:importance@{m}", "--zipf", "50"))
    assert ("there are only 50 labels" in out) == said
    assert ("data sets that were left out" in out.replace("│ │ ", "")) == (not said)


def test_vectors_are_said_not_to_be_among_the_data_that_were_tested(tmp_path, capsys):
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "train.npz", features=rng.normal(size=(400, 3)), labels=np.arange(400) % 200
    )
    np.savez(tmp_path / "test.npz", features=rng.normal(size=(40, 3)), labels=np.arange(40))
    arguments = ["advise", "--device", "cpu", "--memory", "1", "--data", str(tmp_path)]
    assert main([*arguments, "--minutes", "0.001", "--negatives", "4"]) == 0
    assert "None of them holds images or vectors, as your data do." in flat(capsys.readouterr().out)


# What is printed


def printed(capsys, *arguments):
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def rows_of(out):
    """Scheme: the cells of its row."""
    table = out.partition("Expected gap")[2].partition("in four")[0].partition("about four")[0]
    rows = [re.split(r"\s{2,}", line.strip()) for line in table.splitlines()]
    return {cells[0].split()[0]: cells for cells in rows if "@" in cells[0] and len(cells) > 3}


def number(text):
    return float(text.replace("−", "-"))


@pytest.fixture
def unseen(tmp_path):
    """A file of counts, some of them 0."""
    counts = Labels.zipf(20_000).counts.numpy().copy()
    counts[-7:] = 0
    np.save(tmp_path / "counts.npy", counts)
    return ["--counts", str(tmp_path / "counts.npy")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Vectors in a folder with a space in its name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my data").mkdir()
    rng = np.random.default_rng(0)
    for name, number in (("train", 600), ("test", 60)):
        np.savez(
            tmp_path / "my data" / f"{name}.npz",
            features=rng.normal(size=(number, 3)),
            labels=np.arange(number) % 300,
        )
    return ["--data", "my data", "--max-labels", "5000"]


def test_a_gap_may_be_larger_than_the_recall_over_all_labels(capsys):
    arguments = [*FEW, "--labels", "5e5", "--target", "logit-adjusted"]
    candidates = found(capsys, *arguments)["candidates"]
    largest = {one["scheme"]: one["gap"]["largest"] for one in candidates}
    rows = rows_of(printed(capsys, *arguments))
    assert rows.keys() == largest.keys()
    assert max(high for *_, high in largest.values()) > 1.5
    for scheme, cells in rows.items():
        assert number(cells[4].split("..")[1]) == pytest.approx(100 * largest[scheme][2], rel=0.05)


def test_gaps_in_points_end_at_100(capsys):
    arguments = [*FEW, "--labels", "5e5", "--target", "logit-adjusted", "--recall", "80"]
    assert max(one["gap"]["largest"][2] for one in found(capsys, *arguments)["candidates"]) > 100
    rows = rows_of(printed(capsys, *arguments))
    assert max(number(cells[4].split("..")[1]) for cells in rows.values()) == 100


def test_no_slice_exceeds_the_largest_gap(capsys):
    for target in ("softmax", "logit-adjusted"):
        arguments = [*FEW, "--labels", "5e4", "--target", target]
        for one in found(capsys, *arguments)["candidates"]:
            high = one["gap"]["largest"][2]
            assert all(abs(end) <= high for ends in one["gap"]["by_slice"].values() for end in ends)


@pytest.mark.filterwarnings("ignore:.*never draws 7 of")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--target", "logit-adjusted", "--minutes", "1e6"], 'ht.scheme("logit-adjusted"'),
        (["--target", "logit-adjusted", "--minutes", "1"], ":tail"),
        (["--minutes", "1e6"], 'ht.scheme("softmax"'),
        (["--minutes", "1"], "frequency(0.5):importance"),
    ],
)
def test_the_code_runs_where_labels_occur_only_in_test(capsys, monkeypatch, unseen, options, words):
    if "frequency" in words:
        monkeypatch.setattr("headtail.machine.expect.SAMPLERS", ("frequency(0.5)",))
    out = printed(capsys, "advise", "--device", "cpu", "--memory", "64", *unseen, *options)
    code = out[out.index("\n    l") :].partition("To measure")[0]
    assert words in code
    assert ("smoothing=1)  # 7 labels never occur in training" in code) == ("softmax" not in words)
    counts = np.load(unseen[1])
    names = {"ht": ht, "counts": counts, "labels": Labels.from_counts(counts)}
    exec("\n".join(map(str.strip, code.splitlines())), names)
    loss = names["loss"](torch.randn(4, 8), torch.randn(20_000, 8), torch.tensor([0, 1, 2, 3]))
    assert torch.isfinite(loss)


def test_smoothing_that_was_given_is_in_the_code(capsys, unseen):
    arguments = ["--target", "logit-adjusted", "--smoothing", "0.5"]
    out = printed(capsys, "advise", "--device", "cpu", "--memory", "64", *unseen, *arguments)
    assert "smoothing=0.5)" in out


def test_the_command_that_measures_the_gap_has_the_options_that_were_typed(capsys, folder):
    arguments = ["--target", "logit-adjusted", "--tau", "0.5", "--dim", "32", "--epochs", "9"]
    arguments += ["--minutes", "0.001", "--device", "cpu", "--slices", "mass", "--negatives", "64"]
    out = printed(capsys, "advise", *folder, "--memory", "1", *arguments)
    command = out.partition("To measure the gap:\n")[2].strip()
    assert "\n" not in command
    assert "'logit-adjusted(0.5)'" in command, "a shell reads brackets"
    program, *words = shlex.split(command)
    compare = _parse(words)
    assert program == "headtail"
    assert compare.data == "my data"
    assert compare.schemes[0] == "logit-adjusted(0.5)"
    assert f"Use {compare.schemes[1]}, batch {compare.training.batch}" in flat(out)
    assert (compare.training.dim, compare.training.epochs) == (32, 9)
    assert compare.reading.max_labels == 5000
    assert (compare.device, compare.slices) == ("cpu", "mass")


def test_points_with_several_labels_are_compared_with_the_same_batches(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("headtail.machine.advise.uses_all_labels", lambda *_: False)
    lines = [",".join(f"{(i + 7 * k) % 300}" for k in range(4)) + " 0:1" for i in range(300)]
    (tmp_path / "train.txt").write_text("\n".join(["300 1 300", *lines]))
    (tmp_path / "test.txt").write_text("\n".join(["40 1 300", *lines[:40]]))
    arguments = ["--data", str(tmp_path), "--memory", "1", "--device", "cpu", "--minutes", "0.001"]
    answer = found(capsys, "advise", *arguments, "--negatives", "8")
    assert answer["all_labels"]["shape"]["batch"] * 4 == answer["batch"]
    assert answer["measuring"].endswith("--batching pairs")


def test_without_data_the_command_has_a_word_to_replace(capsys):
    answer = found(capsys, *FEW, "--labels", "5e4", "--dim", "64")
    assert answer["measuring"].startswith("headtail compare DATA --schemes softmax within-batch")
    assert answer["measuring"].endswith("--batch 256 --dim 64 --device cpu")


def test_how_choices_did_is_said_of_the_first_choice_alone(capsys):
    said = "points of Recall@10 farther from their target than the best scheme there"
    arguments = [*FEW, "--labels", "5e4", "--batch", "1024"]
    out = flat(printed(capsys, *arguments, "--minutes", "1000"))
    regrets = f"{sentences.LAW.regret:.2f} and {sentences.OUTSIDE.regret:.2f}"
    assert f"The most negatives from the batch ended {regrets} {said}" in out
    for minutes in ("30", "0.01"):
        answer = found(capsys, *arguments, "--minutes", minutes)
        assert answer["scheme"] != answer["candidates"][0]["scheme"]
        out = flat(printed(capsys, *arguments, "--minutes", minutes))
        assert "How sure: gaps" in out
        assert said not in out


def test_the_table_shows_why_the_first_row_is_not_recommended(capsys):
    out = printed(capsys, *FEW, "--labels", "5e4", "--batch", "1024", "--minutes", "30")
    rows = list(rows_of(out).values())
    (best,) = (i for i, cells in enumerate(rows) if cells[0].endswith(" *"))
    assert best > 0
    assert f"Use {rows[best][0].removesuffix(' *')}," in out
    assert all(cells[-1].endswith("!") for cells in rows[:best])
    assert not rows[best][-1].endswith("!")
    assert "*: recommended. !: longer than 30 min." in flat(out)


def test_what_is_too_big_for_the_memory_is_marked(capsys):
    arguments = [*FEW, "--labels", "5e4", "--dim", "512", "--batch", "1024", "--memory", "0.21"]
    rows = rows_of(printed(capsys, *arguments))
    assert rows["frequency(0.5):importance@1024"][-1] == "too big"
    assert rows["frequency(0.5):importance@64"][-1] != "too big"


def test_every_row_outside_the_range_of_the_law_is_marked(capsys):
    rows = rows_of(printed(capsys, *FEW, "--labels", "1e5", "--batch", "1024"))
    marked = {name for name, cells in rows.items() if cells[0].endswith("†")}
    law = sentences.LAW
    numbers = {name: int(name.partition("@")[2]) for name in rows}
    outside = {name for name, m in numbers.items() if not law.lowest <= 1e5 / m <= law.highest}
    assert 0 < len(outside) < len(rows)
    assert marked == outside


def test_the_unit_of_gaps_is_explained(capsys):
    out = flat(printed(capsys, *FEW, "--labels", "5e4"))
    assert "Percent of the target's overall Recall@10" in out
    assert re.search(r"[0-9] percent of the target's overall Recall@10", out)


def test_the_number_of_pairs_decides_the_steps(capsys):
    answer = found(capsys, *FEW, "--pairs", "2e5", "--batch", "100", "--epochs", "3")
    assert (answer["pairs"], answer["steps"]) == (200_000, 6000)
    assert "2,000 labels, 200,000 training pairs" in printed(capsys, *FEW, "--pairs", "2e5")
    assert "`--pairs` sets the number of examples" in flat(printed(capsys, *FEW))
    refused = told(capsys, ["advise", "--zipf", "50", "--pairs", "5"])
    assert "`--pairs` would do nothing: only with `--labels`" in refused


def test_more_negatives_than_labels_are_said_to_be_left_out(capsys):
    out = flat(printed(capsys, *FEW, "--negatives", "5000", "64"))
    assert "Left out: m = 5,000, because there are only 2,000 labels." in out
    assert "Left out" not in printed(capsys, *FEW, "--labels", "500")


def test_a_table_of_examples_is_not_a_file_of_counts(tmp_path, capsys):
    table = tmp_path / "log.csv"
    table.write_text("user,item\n1,5\n2,6\n2,5\n")
    sentence = told(capsys, ["advise", "--counts", str(table)])
    assert sentence.strip().endswith("add `--column NAME`.")
    assert "--column" not in told(capsys, ["advise", "--counts", str(tmp_path / "none.csv")])


@pytest.mark.parametrize("name", ["advise", "explain"])
def test_the_help_lists_data_and_target_first(capsys, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        main([name, "--help"])
    first = capsys.readouterr().out.partition("source options")[0]
    assert "--data DATA" in first
    assert "--target {" in first


def test_a_larger_batch_is_predicted_where_the_batch_is_used_up(capsys):
    said = "A batch of 1,024 would take about"
    out = flat(printed(capsys, *FEW, "--labels", "5e4"))
    assert said in out
    answer = found(capsys, *FEW, "--labels", "5e4")
    larger = answer["larger_batch"]
    assert (larger["scheme"], larger["m"]) == ("within-batch:importance@1024", 1024)
    _, middle, _ = larger["gap"]["largest"]
    words = out.partition(said)[2].partition("Tune its rate, too.")[0]
    assert f"is expected to be {100 * middle:.1f} percent" in words
    alone = found(capsys, *FEW, "--labels", "5e4", "--batch", "1024", "--minutes", "100")
    same = next(one for one in alone["candidates"] if one["scheme"] == larger["scheme"])
    assert larger["gap"] == same["gap"]
    assert larger["minutes"] == pytest.approx(same["minutes"])
    assert alone["larger_batch"]["m"] == 4096
    fewer = [*FEW, "--labels", "5e4", "--batch", "1024", "--minutes", "30"]
    assert "The negatives are the whole batch" not in flat(printed(capsys, *fewer))


def test_a_larger_batch_that_takes_too_long_or_does_not_fit_is_said_to(capsys):
    arguments = [*FEW, "--labels", "5e4", "--minutes"]
    answer = found(capsys, *arguments, "60")
    own = next(one for one in answer["candidates"] if one["scheme"] == answer["scheme"])["minutes"]
    between = f"{(own + answer['larger_batch']['minutes']) / 2}"
    assert "longer than it may: its largest gap" in flat(printed(capsys, *arguments, between))
    costs = [one["cost"]["memory"] for one in answer["candidates"] if one["m"] == 256]
    memory = (costs[0] + answer["larger_batch"]["cost"]["memory"]) / 2
    little = [*FEW, "--labels", "5e4", "--negatives", "256", "--memory", f"{memory / 2**30}"]
    out = flat(printed(capsys, *little))
    assert "A batch of 1,024 does not fit into memory." in out


@pytest.mark.parametrize(("labels", "predicted"), [("1024", False), ("1025", True)])
def test_a_batch_with_as_many_labels_as_there_are_is_not_predicted(labels, predicted, capsys):
    answer = found(capsys, *FEW, "--labels", labels, "--minutes", "0.5")
    assert (answer["larger_batch"] is not None) == predicted
    assert found(capsys, *FEW, "--labels", labels, "--minutes", "1e5")["larger_batch"] is None


def test_a_larger_batch_is_predicted_in_points_too_and_without_its_time(capsys):
    arguments = ["advise", "--memory", "64", "--labels", "5e4", "--batch", "256"]
    out = flat(printed(capsys, *arguments, "--device", "cpu", "--recall", "20"))
    words = out.partition("A batch of 1,024 would take about")[2].partition("Tune")[0]
    assert "points of Recall@10" in words
    if not torch.cuda.is_available():
        out = flat(printed(capsys, *arguments, "--device", "cuda"))
        assert "A batch of 1,024: its largest gap of head, torso and tail is expected" in out


def test_a_larger_batch_is_neither_larger_than_the_data_nor_slow_to_measure(capsys, monkeypatch):
    batch = [*FEW, "--labels", "5e4", "--epochs", "100000", "--pairs"]
    assert found(capsys, *batch, "1023")["larger_batch"] is None
    assert found(capsys, *batch, "1024")["larger_batch"]["m"] == 1024
    slow = {"exact": 1.0, "chunked": 1.0, "sampled": 0.01}
    monkeypatch.setitem(globals(), "SECONDS", slow)
    out = flat(printed(capsys, *FEW, "--labels", "5e4", "--pairs", "1e4"))
    assert "a larger `--batch` gives more of them" in out
