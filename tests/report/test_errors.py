"""The report of images with one label each: what is judged by errors, and looks like it."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pytest

from headtail.report.chart import Figure
from headtail.report.class_curves import class_curves
from headtail.report.look import families
from headtail.report.measured import Measured, Reference
from headtail.report.optimised_table import optimised_table
from headtail.report.slice_bars import slice_bars
from headtail.report.trade_off import trade_off
from tests.report.example import CASES, COSINE, STUDY, images, small
from tests.report.test_report import Tags, rendered

ERRORS = {"metric": "balanced-error", "data": {"task": "classification"}}
THREE: dict[str, list[tuple[float, float]]] = {
    "softmax": [(0.2, 0.9)],
    "within-batch:tail": [(0.35, 0.6)],
    "within-batch:relative": [(0.3, 0.95)],
}


def test_errors_saved_on_the_tail_are_a_shift_to_the_tail_and_marked_as_gains():
    measured = Measured(small(THREE, **ERRORS))
    reference = Reference.of(measured)
    assert reference.shift("within-batch:tail").value == pytest.approx(0.3 + 0.15)
    assert reference.shift("within-batch:relative").value == pytest.approx(-0.05 + 0.1)
    with_three = Measured(small({name: [pair] * 2 for name, (pair,) in THREE.items()}, **ERRORS))
    marks = {
        row[0].text: [cell.mark for cell in row[4:]] for row in optimised_table({}, with_three).rows
    }
    assert marks["within-batch:tail"] == ["down", "up"]
    # one seed has no deviation
    same = Measured(small({"softmax": [(0.2, 0.5)], "uniform:tail": [(0.2, 0.4)]}, **ERRORS))
    marks = {row[0].text: [cell.mark for cell in row[4:]] for row in optimised_table({}, same).rows}
    assert marks["uniform:tail"] == ["", "up"], "no difference is no loss"
    balanced = Measured(CASES["images, two losses, no tail"]())
    assert "Δ balanced" in [column.text for column in optimised_table({}, balanced).columns]
    about = {"softmax+post-hoc": {"name": "softmax", "lean": 0.0, "leans": "tail"}}
    [row] = (row for row in optimised_table(about, same).rows if row[0].text == "softmax+post-hoc")
    assert (row[2].text, row[2].detail) == ("0.00", "tail, by its answers")
    chart = trade_off(measured)
    assert chart is not None
    assert chart.alt.endswith("On the Pareto front: within-batch:tail, softmax.")


def test_without_a_tail_the_torso_is_set_against_the_head():
    empty = CASES["images, two losses, no tail"]()
    chart = trade_off(Measured(empty))
    reference = Reference.of(Measured(empty))
    assert chart is not None
    assert "Error on torso labels" in chart.panels[""]
    torso, head = (
        reference.difference("uniform:tail", "balanced-error", name).value
        for name in ("torso", "head")
    )
    assert reference.shift("uniform:tail").value == pytest.approx(head - torso)


def test_each_sampler_is_looked_at_beside_the_losses_over_all_labels_of_its_kind():
    found = families([*STUDY, *COSINE])
    assert list(found) == ["uniform", "within-batch", "contrastive, within-batch"]
    assert found["uniform"] == [*STUDY[:5], *(name for name in STUDY if name.startswith("uniform"))]
    assert found["contrastive, within-batch"] == list(COSINE)
    assert families(["softmax", "contrastive"]) == {
        "all labels": ["softmax"],
        "contrastive, all labels": ["contrastive"],
    }
    assert families(["queue(8):tail"]) == {"other samplers": ["queue(8):tail"]}


def bars_of(figure: Figure) -> dict[str, list[tuple[str, str]]]:
    """Column: its names and numbers."""
    return {
        column.title: [(bar.scheme, bar.text) for bar in column.bars]
        for column in figure.panels["error"]
    }


def test_bars_of_errors_have_their_numbers_and_an_empty_slice_has_no_column():
    comparison = images()
    measured = Measured(comparison)
    figure = slice_bars(measured, comparison.data, {})
    assert figure is not None
    bars = bars_of(figure)
    assert list(bars) == ["Head", "Torso", "Tail", "Balanced", "Prior-weighted"]
    tail = measured.of("uniform:tail", "balanced-error", "tail").value
    assert ("uniform:tail", f"{100 * tail:.1f}") in bars["Tail"]
    assert [name for name, _ in bars["Head"]] == list(STUDY), "without most-popular: no error known"
    weighted = measured.of("softmax", "class-weighted-error", "full").value
    assert bars["Prior-weighted"][0] == ("softmax", f"{100 * weighted:.1f}")
    assert figure.note == "In percent; lower is better. Pale bars use all labels. "
    assert rendered("images").count("opacity:.5") == 5 * 6, "all-label losses are pale"
    empty = CASES["images, two losses, no tail"]()
    figure = slice_bars(Measured(empty), empty.data, {})
    assert figure is not None
    assert list(bars_of(figure)) == ["Head", "Torso", "Balanced", "Prior-weighted"]


def test_a_class_stands_at_its_rank_with_the_mean_of_its_seeds():
    rows = [
        replace(row, train=10 * row.label + 1, error=0.1 * row.label + 0.02 * row.seed)
        for row in images(STUDY, 2, 8).classes
    ]
    figure = class_curves(replace(images(STUDY, 2, 8), classes=rows))
    assert figure is not None
    assert list(figure.panels) == ["uniform", "within-batch"]
    assert figure.chosen == "within-batch"
    tips = re.findall(r'data-tip="([^"]+)"', figure.panels["within-batch"])
    first = html.unescape(tips[0]).splitlines()
    assert first[0] == "class <7>, rank 1, 71 examples", "the most frequent first"
    assert "within-batch:tail 71.0%" in first
    assert figure.note == ""
    many = class_curves(images(classes=200))
    assert many is not None
    assert "over 11 neighbouring ranks" in many.note
    large = class_curves(images(STUDY, 1, classes=8000))
    assert large is not None
    assert sum(map(len, large.panels.values())) < 400_000


def test_pages_on_images_speak_of_errors_and_others_of_recall():
    text = Tags(rendered("images")).text
    ids = {attrs.get("id") for _, attrs in Tags(rendered("images")).tags}
    assert {"chart-slices", "chart-classes", "chart-trade-off", "chart-prediction"} <= ids
    assert "measured: error in points against softmax" in text
    assert "Recall@10" not in text[: text.index("Glossary")]
    assert "No error was measured." in Tags(rendered("images without errors")).text
    assert "Recall@10 over all labels" in Tags(rendered("a single scheme")).text
    assert "chart-classes" not in rendered("a single scheme")
