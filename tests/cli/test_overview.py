"""The page of commands, their help, and what is answered without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headtail.cli import main
from headtail.cli.overview import COMMANDS


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_version_and_help_do_not_import_torch(argument):
    code = (
        "import sys; from headtail.__main__ import main; sys.argv[1:] = [sys.argv[1]]; main(); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, argument], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "headtail" in done.stdout


def test_threads_of_the_command_line_sleep_while_they_wait(monkeypatch):
    code = (
        "import os, sys; sys.argv[1:] = ['--version']; from headtail.__main__ import main; main(); "
        "print(os.environ['OMP_WAIT_POLICY'])"
    )
    for given, expected in ((None, "PASSIVE"), ("ACTIVE", "ACTIVE")):
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
        if given:
            monkeypatch.setenv("OMP_WAIT_POLICY", given)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout.split()[-1] == expected


def test_an_error_ends_the_command_while_pyarrow_still_reads_ahead():
    code = """
import sys, time
import pyarrow, pyarrow.csv
import headtail.__main__ as command

class SlowFile:
    closed = False
    def read(self, size):
        time.sleep(0.02)
        return b"1,2\\n" * (1 << 14)

def fail():
    options = pyarrow.csv.ReadOptions(block_size=1 << 16)
    file = pyarrow.PythonFile(SlowFile(), mode="r")
    fail.reader = pyarrow.csv.open_csv(file, options)
    print("one sentence", file=sys.stderr)
    return 2

command.run = fail
sys.argv[1:] = ["stats"]
sys.exit(command.main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "one sentence\n")


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_headtail_alone_lists_every_command_with_its_job(words, capsys):
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in COMMANDS:
        assert any(line.startswith(f"  {name} ") for line in lines), name
    assert "Use a trained model" in lines
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_fits_80_columns_and_ends_with_an_example(
    command, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as leaving:
        main([command, "--help"])
    assert leaving.value.code == 0
    lines = capsys.readouterr().out.rstrip().splitlines()
    assert lines[-1] == f"Example: {COMMANDS[command].example}"
    assert lines[0].startswith(f"usage: headtail {command} ")
    assert max(map(len, lines)) <= 80
    for nothing in ("(default: none)", "(default: False)"):
        assert nothing not in "\n".join(lines)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_example_of_a_command_names_options_that_it_has(command):
    from headtail.cli.options import as_option, options_of

    options = {as_option(name) for name in options_of(COMMANDS[command].load())}
    words = COMMANDS[command].example.split()
    assert words[:2] == ["headtail", command]
    assert {word for word in words if word.startswith("--")} <= options
