"""Commands with nothing to work on."""

from tests.cli.test_commands import DATA, told


def test_no_scheme_and_no_label_get_a_sentence(tmp_path, capsys):
    assert "`--schemes` needs at least one name" in told(capsys, ["compare", DATA, "--schemes"])
    nothing = tmp_path / "train.txt"
    nothing.write_text(" 0:1\n 1:1\n 2:1\n")
    assert "has no label at all" in told(capsys, ["stats", str(nothing)])
