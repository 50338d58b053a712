"""What the library says works in Python: it names no option and no command of the command line."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import headtail

SOURCE = Path(headtail.__file__).parent
COMMAND_LINE = ("cli", "__main__.py")
FILES = sorted(
    path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] not in COMMAND_LINE
)


def strings_in(tree: ast.AST) -> list[str]:
    """All string constants that a user could see: docstrings are left out."""
    hidden = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in node.body
        if isinstance(statement, ast.Expr)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in hidden
    ]


def names_the_command_line(text: str) -> bool:
    return bool(re.search(r"(^|[\s`(])--([a-z]|$)|`headtail [a-z]", text))


def is_style(path: Path, text: str) -> bool:
    """Whether this is a variable of the report's style sheet: `--ink`, `var(--ink)`, `--rows:2`."""
    variable = r"var\(--[a-z]*|(^|;)--[a-z]*(:|$)"
    return "report" in path.parts and not names_the_command_line(re.sub(variable, "", text))


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(SOURCE)) for path in FILES])
def test_no_sentence_of_the_library_names_an_option_or_a_command(path):
    strings = strings_in(ast.parse(path.read_text(encoding="utf-8")))
    named = [text for text in strings if names_the_command_line(text) and not is_style(path, text)]
    assert named == []


def test_options_and_commands_are_recognised():
    for text in ("Write `--lr 1`.", " with --test", "without `--", "Run `headtail bench`."):
        assert names_the_command_line(text)
    for text in ("a -- b", "`headtail.load` reads it", "of headtail runs"):
        assert not names_the_command_line(text)


@pytest.mark.parametrize("odd", ["\n", "\r", "\x1b[31m", "\x00", "\u202e", "\u2028", "\udce9"])
def test_names_from_files_cannot_break_a_sentence_or_reach_the_terminal(odd):
    error = headtail.HeadtailError(f"`a{odd}b` is not a label.")
    assert str(error).isprintable()
    assert str(error) == f"`a{odd.encode('unicode_escape').decode()}b` is not a label."
    assert error.sentence.render(str) == str(error)


@pytest.mark.parametrize("mark", ["`", "'"])
def test_the_middle_of_a_long_name_is_left_out(mark):
    error = headtail.HeadtailError(
        f"{mark}{'a' * 3000}{mark} is not a label, and `{'b' * 298}` is."
    )
    shown = f"{mark}{'a' * 49}…{'a' * 49}{mark}"
    assert str(error) == f"{shown} is not a label, and `{'b' * 298}` is."


def test_the_middle_of_a_long_value_of_a_setting_is_left_out():
    setting = headtail.errors.Setting("item", "a" * 3000)
    error = headtail.HeadtailError("Write ", setting, ".")
    assert str(error) == f"Write `item='{'a' * 50}…{'a' * 50}'`."
