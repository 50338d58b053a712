"""The figures of the documentation are those that their scripts draw from the committed rows."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

FIGURES = Path(__file__).parents[2] / "docs" / "figures"


def drawn(name: str, monkeypatch: pytest.MonkeyPatch):
    """The module that draws a figure."""
    monkeypatch.syspath_prepend(str(FIGURES))
    spec = importlib.util.spec_from_file_location(f"figure_{name}", FIGURES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules.pop("evidence", None)  # a script of the studies has the same name
    return module


@pytest.mark.parametrize("name", ["evidence", "first_edition", "tradeoff_curves"])
def test_a_figure_is_that_of_its_rows(name, monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "evidence", raising=False)
    module = drawn(name, monkeypatch)
    module.draw(module.ROWS, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text() == (FIGURES / f"{name}.svg").read_text()


def test_schemes_with_one_name_for_all_batches_are_refused_if_a_data_set_has_two(
    monkeypatch, tmp_path
):
    monkeypatch.delitem(sys.modules, "evidence", raising=False)
    module = drawn("evidence", monkeypatch)
    assert module.common_name("within-batch:tail@256") == "within-batch:tail, whole batch"
    assert module.common_name("queue(2048):importance@512") == "queue of 8 batches:importance"
    assert module.common_name("block(1):tail@64") == "block(1):tail@64"
    head = "dataset,scheme,metric,slice,difference,low,high\n"
    line = "delicious,within-batch:tail@{},recall@10,tail,0.1,0.0,0.2\n"
    (tmp_path / "rows.csv").write_text(head + line.format(256) + line.format(128))
    with pytest.raises(SystemExit, match="another with its name"):
        module.read(tmp_path / "rows.csv")


def test_figures_of_samplers_are_those_of_their_rows(monkeypatch, tmp_path):
    module = drawn("samplers", monkeypatch)
    monkeypatch.setattr(module, "HERE", tmp_path)
    module.draw_noise(module.noise_lines())
    module.draw_learning(module.learned())
    names = sorted(path.name for path in tmp_path.glob("*.svg"))
    assert names == ["samplers_learning.svg", "samplers_noise.svg"]
    for name in names:
        assert (tmp_path / name).read_text() == (FIGURES / name).read_text()


def test_figures_of_images_are_those_of_their_rows(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "evidence", raising=False)
    module = drawn("longtail", monkeypatch)
    monkeypatch.setattr(module, "HERE", tmp_path)
    module.draw_gains(module.errors())
    module.draw_classes()
    module.draw_sweep()
    for path in tmp_path.glob("*.svg"):
        assert path.read_text() == (FIGURES / path.name).read_text()
    assert len(list(tmp_path.glob("*.svg"))) == 3
