"""What a chart or a table of the report shows, before any browser sees it."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headtail.report.chart import Scale
from headtail.report.learning_curves import learning_curves
from headtail.report.look import looks
from headtail.report.measured import Measured, Reference
from headtail.report.name_places import labels_for
from headtail.report.optimised_table import optimised_table
from headtail.report.page import render
from headtail.report.prediction import Agreement, prediction
from headtail.report.scatter import NamedPoints
from headtail.report.seed_mean import SeedMean
from headtail.report.trade_off import Dial, trade_off
from tests.report.example import TWELVE, comparison, explained, row, small, turned

WIDEST_DIGIT = 7.3
"""Pixels, in the letters of small charts."""
OTHERS = tuple(
    f"{name}:importance"
    for name in ("hard(8)", "frequency(0.5)", "block", "mixture(uniform,queue)", "resampled(512)")
)
AREA = (0.0, 0.0, 600.0, 400.0)


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


@pytest.mark.parametrize("spread", [0.6, 30.0, 90.0])
def test_labels_do_not_cover_each_other_or_other_points(spread: float):
    points = {
        f"within-batch:tail({i})": (300 + spread * math.cos(2.4 * i), 200 + spread * math.sin(i))
        for i in range(7)
    }
    labels = labels_for(points, AREA, font=12)
    boxes = {name: (x, y, 12 * 0.56 * len(text), 12.0) for name, (text, x, y) in labels.items()}
    clash = [
        (name, other)
        for name, a in boxes.items()
        for other, b in boxes.items()
        if name < other
        and abs(a[0] - b[0]) < (a[2] + b[2]) / 2
        and abs(a[1] - b[1]) < (a[3] + b[3]) / 2
    ]
    assert not clash
    named = [name for name, label in labels.items() if label.text == name]
    assert (len(named) > 0) is (spread > 1), "points on top of each other have numbers"
    for name in named:
        x, y, width, height = boxes[name]
        covered = [
            other
            for other, (u, v) in points.items()
            if other != name and abs(x - u) < width / 2 and abs(y - v) < height / 2
        ]
        assert not covered


def test_labels_stay_inside_the_chart():
    corners = {f"uniform:tail({x})": (float(x), 200.0) for x in (2, 598)}
    for text, x, _ in labels_for(corners, AREA, font=12).values():
        assert x - 0.28 * 12 * len(text) >= 0
        assert x + 0.28 * 12 * len(text) <= 600


def test_a_point_without_room_for_its_name_has_a_number_and_the_legend_its_name():
    crowd = {f"uniform:tail({i})": [(0.5 + i / 4000, 0.3)] for i in range(15)}
    figure = trade_off(Measured(small({"softmax": [(0.9, 0.1)], **crowd})))
    assert figure is not None
    wide, narrow = figure.panels[""].split('<div class="narrow">')
    for drawn in (wide, narrow):
        named = re.findall(r'class="name"[^>]*>([^<]+)</text>', drawn)
        listed = dict(re.findall(r"<b>(\d+)</b>.*?</svg>([^<]+)</li>", drawn))
        assert "softmax" in named
        assert listed
        assert sorted(listed.get(text, text) for text in named) == sorted(["softmax", *crowd])


@given(
    low=st.floats(-1e4, 1e4),
    span=st.floats(1e-6, 1e6),
    most=st.integers(3, 9),
    share=st.booleans(),
)
def test_ticks_of_an_axis_are_inside_it_and_never_repeat(
    low: float, span: float, most: int, share: bool
):
    scale = Scale(low, low + span, share=share)
    ticks = scale.ticks(most)
    assert len(ticks) <= most + 1
    assert all(low - 1e-6 * span <= tick <= low + span * (1 + 1e-6) for tick in ticks)
    if span > 1e-6 * abs(low):
        assert len(set(scale.texts(ticks))) == len(ticks)


@pytest.mark.parametrize("end", [0.0004, 0.001, 0.011, 0.3])
def test_an_axis_of_small_shares_has_enough_decimals(end: float):
    found = Scale(0, end, share=True)
    ticks = found.ticks(6)
    assert len(ticks) >= 3
    for tick, text in zip(ticks, found.texts(ticks), strict=True):
        assert float(text.rstrip("%")) == pytest.approx(100 * tick)


def test_only_whole_epochs_are_ticks_and_powers_of_ten_are_short():
    assert Scale(1, 8, whole=True).ticks(4) == [2, 4, 6, 8]
    assert Scale(1, 2e6, log=True).texts(Scale(1, 2e6, log=True).ticks(8)) == [
        "1",
        "10",
        "100",
        "1k",
        "10k",
        "100k",
        "1M",
    ]


def test_error_bars_and_axes_of_shares_end_where_shares_do():
    means = {
        "softmax": (SeedMean(0.9, 0.7, 1.1, 2), SeedMean(0.05, -0.1, 0.2, 2)),
        "uniform:tail": (SeedMean(0.95, 0.9, 1.0, 2), SeedMean(0.0, 0.0, 0.0, 2)),
    }
    points = NamedPoints(means, dict.fromkeys(means, ""), looks(list(means)), ("", ""), shares=True)
    bars = [bar for name in means for bar in points.error_bars(name)]
    assert len(bars) == 4
    assert all(0 <= end <= 1 for bar in bars for point in bar for end in point)
    frame = points.frame(900)
    assert (frame.x.high, frame.y.low) == (1, 0)


def test_each_loss_has_its_own_scale_and_shares_have_one():
    rows = [
        row(
            split,
            name,
            0,
            "full",
            metric,
            scale * (value if metric == "loss" else 0.1 * value),
            epoch,
        )
        for name, scale in (("softmax", 1.0), ("uniform:constant", 0.01))
        for split, metric in (("train", "loss"), ("validation", "recall@10"))
        for epoch, value in enumerate((4.0, 3.0, 2.0), start=1)
    ]
    figure = learning_curves(small({}, rows=rows))
    assert figure is not None
    heights = {
        title: re.findall(r'class="curve"[^>]*|d="([^"]+)"', panel)
        for title, panel in figure.panels.items()
    }
    losses = set(filter(None, heights["training loss"]))
    assert len(losses) == 1, "curves of the same shape look the same, whatever their size"
    assert len(set(filter(None, heights["validation recall@10"]))) == 2


def test_the_best_epoch_is_marked():
    figure = learning_curves(comparison(("softmax",), seeds=1))
    assert figure is not None
    assert figure.panels["training loss"].count(">best</text>") == 1


def test_the_shift_is_drawn_in_points():
    measured = Measured(small({"softmax": [(0.9, 0.1)], "uniform:tail": [(0.5, 0.4)]}))
    agreement = Agreement.of(measured, {"softmax": {"lean": 0.0}, "uniform:tail": {"lean": 2.0}})
    figure = prediction(agreement, Reference.of(measured))
    assert figure is not None
    assert "measured shift +70.0 points" in figure.panels[""]
    assert "tail minus head Recall@10, in points" in figure.panels[""]
    assert figure.note == "Points against softmax."


def test_the_dial_has_the_means_of_its_seeds_and_starts_at_the_test():
    example = turned()
    again = [replace(r, seed=1, value=r.value + 0.02) for r in example.rows]
    found = replace(example, rows=[*example.rows, *again])
    dial = Dial.of(found, Measured(found))
    assert dial is not None
    assert dial.taus == [0, 0.25, 0.5]
    assert list(dial.models) == ["uniform:importance", "softmax"], "what leans has no dial"
    assert dial.models["softmax"]["head"] == pytest.approx([0.51, 0.46, 0.41])
    assert dial.chosen(["uniform:tail", "softmax"]) == "softmax"
    assert Dial.of(comparison(), Measured(comparison())) is None


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


def test_numbers_of_points_in_a_corner_do_not_cover_each_other():
    points = {name: (598.0, 398.0 + i / 4) for i, name in enumerate("abcd")}
    labels = labels_for(points, AREA, 13)
    places = [(label.x, label.y) for label in labels.values()]
    apart = [abs(x - u) >= 9 or abs(y - v) >= 13 for x, y in places for u, v in places]
    assert sum(apart) == len(apart) - len(places), places


def test_long_numbers_of_a_learning_curve_are_not_cut_off():
    rows = [
        row("validation", "uniform:constant", 0, "full", "implicit-loss", value, epoch)
        for epoch, value in enumerate((0.4277, 0.4319, 0.4324, 0.4357), 1)
    ]
    figure = learning_curves(small({}, rows=rows))
    assert figure is not None
    panel = figure.panels["validation implicit loss"]
    ticks = re.findall(r'<text x="([\d.]+)"[^>]*text-anchor="end">(0\.\d+)<', panel)
    assert [text for _, text in ticks] == ["0.4275", "0.4300", "0.4325", "0.4350"]
    assert all(float(x) - WIDEST_DIGIT * (len(text) - 0.5) >= 0 for x, text in ticks)


def test_names_are_drawn_over_the_dots_of_the_dial_and_the_key_shows_the_front_as_it_is():
    example = turned()
    measured = Measured(example)
    figure = trade_off(measured, Dial.of(example, measured))
    assert figure is not None
    (panel,) = figure.panels.values()
    drawing, _, keys = panel.partition("</svg>")
    assert drawing.rindex('class="ring"') < drawing.index('class="name"')
    assert 'class="front"' in keys
