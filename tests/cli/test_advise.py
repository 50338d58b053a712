"""`headtail advise`, as people type it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import headtail as ht
from headtail.cli import advise as command
from headtail.cli import main
from headtail.core.labels import Labels
from headtail.device import environment
from headtail.machine.measured import save
from tests.cli.test_commands import told
from tests.machine.test_advise import STUDIED, planted, studied

FEW = ["advise", "--device", "cpu", "--memory", "64", "--labels", "2000"]


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")


def flat(text):
    return " ".join(text.split())


@pytest.mark.parametrize("name", STUDIED)
def test_on_the_counts_of_the_studies_no_sampler_and_no_number_of_negatives_is_recommended(
    tmp_path, capsys, name
):
    """It once named uniform:importance@226 for Diginetica and frequency(0.5):importance@57 for
    Delicious.
    """
    path = tmp_path / f"{name}.npy"
    np.save(path, studied(name).counts.numpy())
    arguments = [
        "advise",
        "--device",
        "cpu",
        "--memory",
        "64",
        "--batch",
        "1024",
        "--counts",
        str(path),
    ]
    assert main(arguments) == 0
    out = flat(capsys.readouterr().out)
    for wrong in (
        "226",
        "57 negatives",
        "@57",
        "Use the sampled",
        "Use uniform",
        "Use frequency",
        "Use within-batch",
    ):
        assert wrong not in out
    assert "Not known without a trained model: which sampler, and how many negatives" in out
    assert "headtail compare DATA" in out
    assert "headtail explain --model RUN --data DATA" in out
    assert "untrained" not in out
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "open"
    assert {
        one["shape"]["negatives"] for one in found["estimates"] if one["method"] == "sampled"
    } <= {64, 256, 1024}
    assert not any("needed" in key or "noise" in key for key in json.dumps(found).split('"'))


def test_what_is_known_is_reported_time_memory_and_the_loss_that_is_approximated(capsys):
    arguments = [
        "advise",
        "--device",
        "cpu",
        "--memory",
        "64",
        "--labels",
        "5e4",
        "--dim",
        "256",
        "--batch",
        "1024",
    ]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    exact, *_, sampled = found["estimates"]
    assert found["all_labels"] == exact
    assert sampled["shape"]["labels"] == 50_000
    assert {one["scheme"]: one["loss"] for one in found["schemes"]}[
        "within-batch:tail"
    ] == "logit-adjusted loss (Menon et al. 2020)"
    assert main(arguments) == 0
    out = capsys.readouterr().out
    ratio = exact["seconds"] / sampled["seconds"]
    assert f"about {float(f'{ratio:.2g}'):,.0f} times as fast with m = 1,024" in flat(out)
    assert "50,000 labels (generated, Zipf exponent 1)" in flat(out)
    assert "The exact softmax fits into memory and has no sampling noise." in flat(out)
    assert "Expected, not measured" in out
    tables = out.partition("A training step")[2].partition("The exact softmax fits")[0]
    assert max(map(len, tables.splitlines())) <= 80
    assert "…" not in tables


@pytest.mark.parametrize(
    ("options", "words"),
    [([], 'ht.scheme("softmax", labels)'), (["--memory", "0.02"], "linear_cross_entropy")],
)
def test_the_code_that_is_shown_runs(capsys, options, words):
    if words == "linear_cross_entropy" and not hasattr(torch.nn.functional, words):
        pytest.skip("this torch has no chunked loss")
    labels = Labels.zipf(20_000)
    assert (
        main(
            [
                "advise",
                "--device",
                "cpu",
                "--memory",
                "64",
                "--labels",
                "2e4",
                "--dim",
                "32",
                "--batch",
                "512",
                *options,
            ]
        )
        == 0
    )
    code = [
        line.strip()
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("    ") and line.strip()
    ]
    assert words in " ".join(code)
    hidden = torch.randn(512, 32)
    target = torch.randint(20_000, (512,))
    table = torch.randn(20_000, 32)
    names = {
        "ht": ht,
        "torch": torch,
        "labels": labels,
        "hidden": hidden,
        "target": target,
        "table": table,
    }
    exec("\n".join(code), names)
    assert torch.isfinite(names["head"](hidden, target) if "head" in names else names["loss"])


def test_few_labels_need_no_sampling(capsys):
    assert main(["advise", "--device", "cpu", "--memory", "64", "--labels", "40"]) == 0
    out = flat(capsys.readouterr().out)
    assert "Use the exact softmax: it has no sampling noise" in out
    assert "Not known" not in out
    assert 'ht.scheme("softmax", labels)' in out


def test_where_all_labels_do_not_fit_it_is_still_not_known_which_sampler_to_use(capsys):
    assert main([*FEW, "--dim", "4096", "--memory", "0.08", "--negatives", "16"]) == 0
    out = flat(capsys.readouterr().out)
    assert "A loss over all labels does not fit into memory; a sampled one does." in out
    assert "Not known without a trained model" in out
    assert "ht.scheme" not in out


def test_what_fits_nowhere_is_reported(capsys):
    assert main([*FEW, "--dim", "100000", "--memory", "0.5", "--negatives", "256"]) == 0
    out = flat(capsys.readouterr().out)
    assert "Nothing fits: even the leanest needs 2.3 GiB." in out
    assert "LabelHead" not in out


def test_a_measurement_of_this_machine_is_used_and_one_of_another_is_not(capsys):
    assert main(FEW) == 0
    assert "Predicted from figures of another machine" in flat(capsys.readouterr().out)
    machine = planted()
    save(machine)
    assert main(FEW) == 0
    assert "bench-cpu.json` is of planted: `headtail bench` measures this one." in flat(
        capsys.readouterr().out
    )
    save(replace(machine, name=environment.machine("cpu")))
    assert main([*FEW, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "measured here on 2026-01-31" in found["basis"]
    expected = (
        0.002
        + 1.5 * 6 * 256 * 2000 * 512 / 1e11
        + 2.0 * 4 * (7 * 256 * 2000 + 8 * 2000 * 512) / 1e10
    )
    exact = next(one for one in found["estimates"] if one["method"] == "exact")
    assert exact["seconds"] == pytest.approx(expected, rel=0.02)


def test_a_gpu_need_not_be_there(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["advise", "--device", "cuda", "--labels", "3e3"]) == 0
    out = flat(capsys.readouterr().out)
    assert "NVIDIA H200" in out
    assert "fits 139 GiB" in out


def test_a_sampler_that_follows_the_model_is_described_where_its_weights_fix_the_loss(capsys):
    assert main([*FEW, "--schemes", "block:tail", "block:constant"]) == 0
    out = flat(capsys.readouterr().out)
    assert "block:tail logit-adjusted loss (Menon et al. 2020)" in out
    assert "Left out: block:constant." in out
    assert "optimises no fixed loss" in out


def test_labels_come_from_a_file_too(tmp_path, capsys):
    path = tmp_path / "counts.txt"
    path.write_text("90\n30\n0\n7\n1\n")
    assert (
        main(
            [
                "advise",
                "--device",
                "cpu",
                "--counts",
                str(path),
                "--schemes",
                "within-batch:tail",
                "uniform:importance",
            ]
        )
        == 0
    )
    out = flat(capsys.readouterr().out)
    assert "5 labels" in out
    assert "Left out: within-batch:tail." in out


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
        (["--negatives", "0"], "`--negatives` must be a whole number of at least 1, but got 0."),
        (["--negatives"], "`--negatives` needs at least one number"),
        (["--memory", "0"], "`--memory` must be at least"),
        (["--zipf", "50"], "`--labels` excludes `--counts` and `--zipf`: drop one."),
        (["--schemes"], "`--schemes` needs at least one name"),
        (["--schemes", "softmax"], "`softmax` uses all labels, which is looked at anyway."),
        (["--schemes", "unifrom:importance"], "Did you mean `uniform` or"),
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


def test_a_damaged_measurement_is_reported(capsys):
    save(planted()).write_text("{")
    assert "bench-cpu.json` is damaged" in told(capsys, FEW)
