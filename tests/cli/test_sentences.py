"""Sentences of the command line name what can be typed there, and nothing else."""

from __future__ import annotations

import copy
import importlib
import json
import pickle
import re

import numpy as np
import pytest

from headtail import Labels
from headtail.cli import bench, main
from headtail.cli.evaluate import Evaluate
from headtail.cli.on_model import NUMBERS
from headtail.cli.options import COMMANDS, options_of, with_options
from headtail.cli.train import Train
from headtail.errors import HeadtailError, PythonName, Sentence, Setting
from headtail.machine.measured import Machine, Timing
from headtail.machine.shape import Shape
from headtail.schemes import build_sampler, check_batch
from headtail.schemes.words import NAMES
from headtail.training.config import Run
from headtail.training.recipes import DEFAULTS
from tests.cli.test_commands import DATA, QUICK, told

HELP = (
    "compare",
    "train",
    "evaluate",
    "predict",
    "stats",
    "report",
    "explain",
    "audit",
    "bench",
    "advise",
    "doctor",
)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", DATA, "--scheme", "modell:importance"], "Did you mean `model`?"),
        (["train", "--device", "x'y"], "`--device` must be one of 'auto', 'cpu', 'cuda', but got"),
        (
            ["evaluate"],
            "`headtail evaluate` needs `RUN` and `DATA`. Write for example `headtail eval",
        ),
        (["predict", "run"], "`headtail predict` needs `FILE` and `--out`. Write for example"),
        (
            ["train", DATA, "--scheme", "model"],
            "`model` is not a scheme, only its sampler. Write a weighting too, for example "
            "`model:importance`.",
        ),
        (["explain", "model(3):importance"], "`model` in `model(3):importance` takes no number"),
        (["explain", "mixture(model,uniform):importance"], "Write `model(masked)`."),
        (["explain", "mixture(frequency(0.5,excluded),uniform):tail"], "Write `frequency(0.5)`."),
        (["explain", "hard(8,model):importance"], "Write `model(masked)`."),
        (
            ["explain", "mixture(resampled,uniform):tail"],
            "`resampled(2048,mixture(uniform,within-batch))`",
        ),
        (["explain", "hard(8,resampled):tail"], "`hard(uniform)`"),
        (["explain", "resampled(9999,resampled):tail"], "Take for example `resampled(9999)`."),
        (["explain", "model:constant"], "`constant` on `model` optimises no fixed loss"),
        (
            ["explain", "logit-adjusted+post-hoc"],
            "Drop `+post-hoc`, or train with a loss that leans to neither",
        ),
        (["explain", "within-batch:tail", "--batch", "1"], "`--batch` is 1"),
        (
            ["explain", "within-batch:tail@9999", "--batch", "64"],
            "`@9999` in `within-batch:tail@9999` is more than the 64 labels",
        ),
        (
            ["train", DATA, "--scheme", "within-batch:tail@65", "--batch", "64"],
            "Write `@64` at most, or a larger `--batch`.",
        ),
        (
            ["compare", DATA, "--schemes", "queue(32):tail@64"],
            "is more than the 32 labels that the queue remembers",
        ),
        (["explain", "resampled(8):importance@64"], "draws 64 negatives from a pool of 8"),
        (
            ["explain", "uniform(without-replacement):tail@99", "--zipf", "50"],
            "Write `@50`, or draw with replacement.",
        ),
        (
            ["explain", "uniform(without-replacement):tail", "--zipf", "50", "--negatives", "99"],
            "`--negatives` is 99, but without replacement there are only 50 labels to draw. Write "
            "`--negatives 50`",
        ),
        (
            ["explain", "uniform(excluded,without-replacement):tail"],
            "`excluded` draws with replacement only.",
        ),
        (["explain", "uniform:tail", "--negatives", "0"], "`--negatives` must be a whole number"),
        (["train", DATA, "--holdout", "0.5"], "`--holdout` would do nothing to"),
        (["train", "none.txt", "--weight-decay", "-1"], "`--weight-decay` must be at least 0"),
        (["explain", "--zipf", "1"], "`--zipf` must be at least 2"),
        (["advise", "--labels", "1"], "from 2 to"),
        (["explian"], "`explian` is not a command. Did you mean `explain`?"),
        (
            ["audit", "uniform", "--draws", "0"],
            "`--draws` must be a whole number of at least 1, but got 0.",
        ),
    ],
)
def test_a_sentence_says_what_to_write(tmp_path, monkeypatch, capsys, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    found = told(capsys, arguments)
    assert sentence in found
    assert not re.search(
        r"--model`|[a-z]_|=True|\(labels|\(\)", found.replace("`--model RUN`", "")
    ), "words of Python"


def test_counts_of_two_axes_are_refused_without_a_word_of_python(tmp_path, capsys):
    np.save(tmp_path / "counts.npy", np.ones((3, 3)))
    sentence = told(capsys, ["explain", "--counts", str(tmp_path / "counts.npy")])
    assert "[3, 3]" in sentence
    assert sentence.endswith("Save one count per label.")
    np.save(tmp_path / "one.npy", np.ones(1))
    assert "Count at least 2." in told(capsys, ["explain", "--counts", str(tmp_path / "one.npy")])


def test_labels_that_are_never_drawn_are_reported_in_the_words_of_the_command(tmp_path, capsys):
    np.save(tmp_path / "counts.npy", np.array([3, 1, 0]))
    sentence = told(
        capsys, ["explain", "frequency:importance", "--counts", str(tmp_path / "counts.npy")]
    )
    assert "`frequency` never draws 1 of 3 labels" in sentence
    assert "Count with `--smoothing 1`, or mix in `uniform`." in sentence


def test_a_folder_with_another_run_names_the_options_that_differ(tmp_path, capsys):
    folder = ["--out", str(tmp_path / "run")]
    assert main(["train", DATA, *QUICK, "--scheme", "uniform:tail", *folder]) == 0
    capsys.readouterr()
    assert "other `--dim`, `--scheme`." in told(
        capsys, ["train", DATA, "--dim", "8", "--epochs", "1", *folder]
    )


def test_what_was_typed_is_never_taken_for_an_option(tmp_path, capsys):
    (tmp_path / "run.toml").write_text('encodr = "auto"\n')
    with pytest.raises(HeadtailError) as raised:
        Run.read(tmp_path / "run.toml")
    sentence = with_options(raised.value, Train)
    assert sentence.startswith("`encodr` in `")
    assert "Did you mean `encoder`" in sentence
    assert "`seed` is not a command." in told(capsys, ["seed"])


def test_settings_are_written_as_options_and_classes_as_in_schemes():
    sentence = Sentence(
        *(
            "Write ",
            PythonName("Importance"),
            " or ",
            PythonName("Tail"),
            ", ",
            Setting("dim", 8),
            ".",
        )
    )
    assert with_options(sentence, Train) == "Write `importance` or `tail`, `--dim 8`."
    assert sentence == "Write `Importance` or `Tail`, `dim=8`."


def test_every_function_that_has_a_command_exists_and_is_written_as_that_command():
    for name, command in COMMANDS.items():
        room, _, function = name.rpartition(".")
        assert callable(getattr(importlib.import_module(room), function))
        error = HeadtailError("Run ", PythonName(name), ".")
        assert with_options(error, Train) == f"Run `{command}`."


def test_an_error_keeps_its_parts_across_processes_and_copies():
    error = HeadtailError("Try ", Setting("clip", 1), ".")
    for other in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert (str(other), other.argument) == ("Try `clip=1`.", "clip")
        assert with_options(other, Train) == "Try `--clip 1`."
    longer = HeadtailError(error.sentence, " The model is kept.")
    assert with_options(longer, Train) == "Try `--clip 1`. The model is kept."


def test_debug_shows_the_traceback_and_nothing_else_does(tmp_path, capsys):
    wrong = ["explain", "--counts", str(tmp_path / "none.npy")]
    assert main(wrong) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("headtail: ")
    assert captured.err.count("\n") == 1
    with pytest.raises(HeadtailError):
        main([*wrong, "--debug"])


def test_a_setting_that_the_command_does_not_have_is_not_written_as_an_option():
    error = HeadtailError(Setting("lr"), " must be above 0, or nothing is learned.")
    assert with_options(error, Train).startswith("`--lr` must")
    assert with_options(error, Evaluate) == str(error)
    assert "data" not in options_of(Train), "typed without a name"


def test_every_sampler_and_weighting_has_its_name_here():
    from headtail import samplers
    from headtail.core import weightings

    classes = {name for name in samplers.__all__ if isinstance(getattr(samplers, name), type)}
    abstract = {
        "Claims",
        "Draw",
        "FixedSampler",
        "Given",
        "ModelSampler",
        "Sampler",
        "Scorer",
        "Step",
        "TableSummary",
    }
    assert classes - abstract <= set(NAMES)
    assert {"Constant", "Importance", "Relative", "Tail"} <= {
        name for name in NAMES if hasattr(weightings, name)
    }


def test_as_many_negatives_as_the_batch_has_are_no_mistake():
    check_batch("within-batch:tail@64", 64)
    check_batch("uniform:tail@9999", 64)
    with pytest.raises(HeadtailError, match="more than the 64 labels of a batch"):
        check_batch("within-batch:tail@65", 64)


M = {  # what stands in the help of each command
    "train": (
        "Number of negatives m, where the scheme has no @m; for within-batch that many of the "
        "batch. By default, the kind of data decides."
    ),
    "compare": (
        "Number of negatives m, where the scheme has no @m; for within-batch that many of the "
        "batch. By default, the kind of data decides."
    ),
    "explain": (
        "Number of negatives m, where the scheme has no @m; by default 256, for within-batch the "
        "whole batch, and with --model 16, 64 and 256 in turn."
    ),
    "audit": (
        "Number of negatives m, where the sampler has no @m; by default 256, for within-batch the "
        "whole batch, for a queue all that it remembers."
    ),
    "bench": "Number of negatives m of the sampled loss, shared by the batch. (default: 256)",
    "advise": (
        "A trained model: then samplers are measured on it, with m of 16, 64 and 256, instead of "
        "predicted."
    ),
}


@pytest.mark.parametrize("command", M)
def test_the_number_of_negatives_is_given_in_the_same_words_by_every_command(
    command, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert M[command] in re.sub(r"[\s│]+", " ", capsys.readouterr().out)


def test_the_number_of_negatives_is_what_the_help_says(capsys):
    for scheme, m in (("uniform:tail", 256), ("within-batch:tail", 99), ("uniform:tail@8", 8)):
        assert main(["explain", scheme, "--batch", "100", "--zipf", "500", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["m"] == m
    assert (DEFAULTS["text"].negatives, NUMBERS) == (256, (16, 64, 256))
    sampler = build_sampler("queue", Labels.zipf(500))
    assert (sampler.capacity, sampler.num_negatives) == (256, None)


def test_the_slices_of_the_header_are_those_of_the_shares_and_their_rule_is_named(
    capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["explain", "within-batch:tail", "--zipf", "2"]) == 0
    out = capsys.readouterr().out
    assert "head 1 label (67% of the examples), torso 0 labels (0%), tail 1 label (33%)" in out
    assert "head 67%, torso 0%, tail 33%" in out
    assert main(["explain", "within-batch:tail", "--zipf", "500"]) == 0
    assert "about a third of the examples each" in capsys.readouterr().out
    assert main(["explain", "within-batch:tail", "--zipf", "500", "--slices", "count"]) == 0
    assert "head: at least 100 examples, tail: fewer than 20" in capsys.readouterr().out


def test_one_reason_for_four_schemes_is_given_once(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["explain", "--zipf", "100", "--batch", "1"]) == 0
    out = capsys.readouterr().out
    assert out.count("an example alone has no negatives") == 1
    assert (
        "Left out: within-batch:constant, within-batch:importance, within-batch:relative, "
        "within-batch:tail." in out
    )


def test_where_every_run_failed_no_table_is_shown(tmp_path, capsys):
    schemes = ["logit-adjusted+post-hoc", "equalised+post-hoc"]
    assert (
        main(["compare", DATA, *QUICK, "--schemes", *schemes, "--out", str(tmp_path / "none")]) == 1
    )
    out = capsys.readouterr().out
    assert "Nothing was trained: all 2 runs failed." in out
    assert "most-popular" not in out
    assert "report: " in out
    page = (tmp_path / "none" / "report.html").read_text(encoding="utf-8")
    assert "topk(" not in page
    assert "softmax+post-hoc" in page
    assert main(["report", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out == out
    assert (tmp_path / "none" / "report.html").read_text(encoding="utf-8") == page


@pytest.mark.parametrize("command", HELP)
def test_help_shows_no_python(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    text = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    assert "None" not in text
    assert "(default: )" not in text
    assert not re.search(r"\d, \d{3}\b", text), "a number that is cut at its comma"


def test_none_may_be_written_for_an_option_that_is_left_out(capsys):
    assert main(["explain", "softmax", "--zipf", "none", "--counts", "None"]) == 0
    assert "10,000 labels" in capsys.readouterr().out


def test_an_audit_of_a_model_sampler_is_small_and_says_so(capsys, monkeypatch):
    monkeypatch.setattr("headtail.cli.audit.DRAWS", (20_000, 400))
    monkeypatch.setattr("headtail.cli.audit.LABELS", (10_000, 20))
    monkeypatch.setattr("headtail.cli.audit.WAIT", 0.0)
    assert main(["audit", "model", "--batch", "4", "--negatives", "8"]) == 0
    captured = capsys.readouterr()
    out = " ".join(captured.out.split())
    assert "20 labels and 400 draws by default. More: `--zipf 10000` `--draws 20000`." in out
    assert re.fullmatch(r"drawing 400 times: about \d+ seconds", captured.err.strip())
    assert main(["audit", "uniform", "--zipf", "100", "--draws", "2000"]) == 0
    assert "by default" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("exact", "sentence"),
    [
        ((2.0, 3.0), "faster at all of these numbers of labels, from 600 on."),
        ((0.5, 0.9), "as fast as the sampled one up to 1,200 labels: use it."),
        ((0.5, 3.0), "faster at 1,200 labels, and not yet at 600: there, use the exact loss."),
    ],
)
def test_bench_claims_no_more_than_it_measured(exact, sentence):
    shapes = [Shape(labels, 8, 4, 256) for labels in (600, 1200)]
    timings = [Timing("sampled", shape, 1.0, None) for shape in shapes]
    timings += [Timing("exact", *each, None) for each in zip(shapes, exact, strict=True)]
    machine = Machine("x", "cpu", "2026-01-31", "2", None, 1.0, 1.0, tuple(timings), {})
    assert bench._sentence(machine).endswith(sentence)
