"""The report of images with one label each: what is judged by errors, and looks like it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headtail.report.class_curves import class_curves
from headtail.report.error_bars import error_bars
from headtail.report.look import families
from headtail.report.measured import Measured, Reference
from headtail.report.optimised_table import optimised_table
from headtail.report.takeaway import takeaway
from headtail.report.trade_off import trade_off
from tests.report.example import CASES, COSINE, STUDY, images, small
from tests.report.test_report import Tags, rendered

ERRORS = {"metric": "balanced-error", "data": {"task": "classification"}}
THREE: dict[str, list[tuple[float, float]]] = {
    "softmax": [(0.2, 0.9)],
    "within-batch:tail": [(0.35, 0.6)],
    "within-batch:relative": [(0.3, 0.95)],
}


@pytest.mark.parametrize(
    ("errors", "sentence"),
    [
        (
            THREE,
            "within-batch:tail has the lowest Tail error (60.0%, −30.0 against softmax) and costs "
            "15.0 points on Head.",
        ),
        (
            {"softmax": [(0.2, 0.5)], "uniform:tail": [(0.1, 0.6)]},
            "softmax has the lowest Tail error (50.0%, −10.0 against uniform:tail).",
        ),
        (
            {"softmax": [(0.2, 0.5)], "uniform:tail": [(0.1, 0.4)]},
            "uniform:tail has the lowest Tail error (40.0%, −10.0 against softmax) and gains 10.0 "
            "points on Head too.",
        ),
    ],
)
def test_of_errors_the_lowest_is_best(errors: dict[str, list[tuple[float, float]]], sentence: str):
    assert takeaway(Measured(small(errors, **ERRORS)), {}) == sentence


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
    assert chart.layout["yaxis"]["title"]["text"] == "Error on torso labels"
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


def test_bars_of_errors_are_the_numbers_and_an_empty_slice_is_a_dash():
    comparison = images()
    figure = error_bars(Measured(comparison), comparison.data)
    measured = Measured(comparison)
    assert figure is not None
    bars = {trace["name"]: trace for trace in figure.data if trace["type"] == "bar"}
    assert set(bars) == set(STUDY)
    expected = [
        measured.of("uniform:tail", "balanced-error", name)
        for name in ("head", "torso", "tail", "full")
    ]
    expected.append(measured.of("uniform:tail", "class-weighted-error", "full"))
    assert bars["uniform:tail"]["y"] == [one.value for one in expected]
    assert bars["uniform:tail"]["error_y"]["array"] == [one.high - one.value for one in expected]
    assert all(bars[name]["opacity"] < 1 for name in STUDY[:5]), "all-label losses are pale"
    assert [
        trace["name"] for trace in figure.data if trace["type"] == "bar" and trace["showlegend"]
    ].count("softmax") == 1
    assert not [note for note in figure.layout["annotations"] if note["text"] == "–"]
    assert figure.note == "Lower is better. Pale bars use all labels. The dotted line is softmax. "
    alone = images(STUDY[5:], seeds=1)
    only = error_bars(Measured(alone), alone.data)
    assert only is not None
    assert only.note == "Lower is better. "
    assert all(trace["type"] == "bar" for trace in only.data)
    empty = CASES["images, two losses, no tail"]()
    figure = error_bars(Measured(empty), empty.data)
    assert figure is not None
    assert [note["x"] for note in figure.layout["annotations"] if note["text"] == "–"] == [2] * 3, (
        "in each of the panels"
    )


def test_a_class_stands_at_its_rank_with_the_mean_of_its_seeds():
    rows = [
        replace(row, train=10 * row.label + 1, error=0.1 * row.label + 0.02 * row.seed)
        for row in images(STUDY, 2, 8).classes
    ]
    figure = class_curves(replace(images(STUDY, 2, 8), classes=rows))
    assert figure is not None
    assert figure.choices == ("uniform", "within-batch")
    line = next(trace for trace in figure.data if trace["name"] == "within-batch:tail")
    assert line["visible"]
    assert line["y"] == pytest.approx([0.1 * label + 0.01 for label in range(7, -1, -1)]), (
        "the most frequent first"
    )
    assert "class &lt;7&gt;, rank 1, 71 examples" in line["hovertext"][0]
    assert figure.note == ""
    many = class_curves(images(classes=200))
    assert many is not None
    assert "over 11 neighbouring ranks" in many.note


def test_pages_on_images_speak_of_errors_and_others_of_recall():
    text = Tags(rendered("images")).text
    ids = {attrs.get("id") for _, attrs in Tags(rendered("images")).tags}
    assert {"chart-errors", "chart-classes", "chart-trade-off", "chart-prediction"} <= ids
    assert "Error by slice" in text
    assert "measured: error in points against softmax" in text
    assert "Recall by slice" not in text
    assert "No error was measured." in Tags(rendered("images without errors")).text
    assert "Recall by slice" in Tags(rendered("a single scheme")).text
    assert "chart-classes" not in rendered("a single scheme")
