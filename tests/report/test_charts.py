"""What a chart or a table of the report shows, before any browser sees it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from headtail.report.look import looks
from headtail.report.measured import Measured, Reference
from headtail.report.name_places import Canvas, legible, place
from headtail.report.optimised_table import optimised_table
from headtail.report.page import render
from headtail.report.prediction import Agreement, prediction
from headtail.report.trade_off import trade_off
from tests.report.example import TWELVE, comparison, explained, small

OTHERS = tuple(
    f"{name}:importance"
    for name in ("hard(8)", "frequency(0.5)", "block", "mixture(uniform,queue)", "resampled(512)")
)
CANVAS = Canvas(600, 400, (0, 1), (0, 1), font=12)


def test_schemes_of_one_colour_differ_in_shape():
    found = looks([*TWELVE, *OTHERS, "most-popular"])
    assert len({(look.colour, look.symbol) for look in found.values()}) == len(found)
    assert {found[name].symbol for name in ("softmax", "uniform:tail", "within-batch:tail")} == {
        "diamond",
        "circle",
        "triangle-up",
    }
    assert not any(
        look.symbol.endswith("-dot") and "open" not in look.symbol for look in found.values()
    ), "a dot of its own colour"


def test_names_of_crowded_points_find_places_of_their_own():
    points = {f"within-batch:{i}": (0.5 + 0.001 * i, 0.5) for i in range(6)}
    spots = place(points, CANVAS)
    boxes = [
        (CANVAS.pixel(*points[name])[0] + spot.dx, CANVAS.pixel(*points[name])[1] + spot.dy)
        for name, spot in spots.items()
    ]
    width = 12 * 0.56 * len("within-batch:0")
    height = 12
    clash = [
        (a, b)
        for i, a in enumerate(boxes)
        for b in boxes[:i]
        if abs(a[0] - b[0]) < width and abs(a[1] - b[1]) < height
    ]
    assert not clash


@pytest.mark.parametrize("spread", [0.05, 0.1])
def test_no_leader_runs_through_another_name(spread: float):
    points = {
        f"within-batch:tail({i})@64": (0.5 + spread * math.cos(2.4 * i), 0.5 + spread * math.sin(i))
        for i in range(15)
    }
    spots = legible(points, CANVAS)
    assert any(not spot.near for spot in spots.values()), "some have a leader"
    at = {name: CANVAS.pixel(*points[name]) for name in points}
    boxes = {name: (at[name][0] + spot.dx, at[name][1] + spot.dy) for name, spot in spots.items()}
    half = {name: (0.56 * 12 * len(name) / 2, 6) for name in points}
    for name, spot in spots.items():
        for share in [] if spot.near else [i / 40 for i in range(8, 40)]:
            x, y = (a + (b - a) * share for a, b in zip(at[name], boxes[name], strict=True))
            through = [
                one
                for one in boxes
                if abs(x - boxes[one][0]) < half[one][0] and abs(y - boxes[one][1]) < half[one][1]
            ]
            assert not set(through) - {name}, (name, through)


def test_a_name_without_room_stands_in_the_legend_and_every_other_at_its_point():
    crowd = {f"uniform:tail({i})": [(0.5 + i / 4000, 0.3)] for i in range(15)}
    figure = trade_off(Measured(small({"softmax": [(0.9, 0.1)], **crowd})))
    assert figure is not None
    named = {note["text"] for note in figure.layout["annotations"]}
    listed = {trace["name"] for trace in figure.data if trace["showlegend"]} - {
        "Pareto front: no scheme is better on both"
    }
    assert "softmax" in named
    assert listed
    assert named | listed == {"softmax", *crowd}
    assert not named & listed


def test_the_shift_is_drawn_in_points():
    measured = Measured(small({"softmax": [(0.9, 0.1)], "uniform:tail": [(0.5, 0.4)]}))
    agreement = Agreement.of(measured, {"softmax": {"lean": 0.0}, "uniform:tail": {"lean": 2.0}})
    figure = prediction(agreement, Reference.of(measured))
    assert figure is not None
    assert figure.data[1]["y"] == [pytest.approx(70)]
    assert "+70.0 points" in figure.data[1]["hovertext"][0]
    assert (
        figure.layout["yaxis"]["title"]["text"]
        == "tail minus head Recall@10, in points against softmax"
    )
    assert "%" not in figure.layout["yaxis"]["tickformat"]


def test_a_few_schemes_in_order_prove_nothing():
    measured = Measured(small({"softmax": [(0.5, 0.1)], "uniform:tail": [(0.4, 0.2)]}))
    assert (
        "too few"
        in Agreement.of(
            measured, {"softmax": {"lean": 0.0}, "uniform:tail": {"lean": 2.0}}
        ).sentence
    )


def test_small_noise_is_not_shown_as_none():
    about = {
        "uniform:tail": {**explained()["uniform:tail"], "noise_untrained": 0.00031},
        "softmax": explained()["softmax"],
    }
    table = optimised_table(about, Measured(comparison(("uniform:tail", "softmax"))))
    assert [row[3].text for row in table.rows] == ["0.00031", "–"]


def test_a_long_title_breaks_between_its_words():
    example = comparison()
    page = render(replace(example, data={**example.data, "name": "synthetic:points=600,test=100"}))
    assert "<h1>synthetic:<wbr>points=600,<wbr>test=100: head and tail</h1>" in page
