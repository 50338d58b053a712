"""The report: what it says, what it embeds, and how it behaves in a real browser."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from headtail.errors import HeadtailError
from headtail.report import write_report
from headtail.report.measured import Measured, Reference
from headtail.report.page import render
from headtail.report.prediction import Agreement, spearman
from headtail.report.seed_mean import SeedMean
from headtail.report.takeaway import takeaway
from headtail.report.trade_off import pareto_front, trade_off
from tests.report.example import CASES, EVIL, SCHEMES, Browser, chromium, comparison, small


@cache
def rendered(case: str) -> str:
    return render(CASES[case]())


class Tags(HTMLParser):
    """Every tag with its attributes, the text of scripts, and all other text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.scripts += [""] * (tag == "script")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and self.scripts[-1] == "":
            self.scripts[-1] = data
        elif self.lasttag != "style":
            self.text += data

    def embedded(self) -> dict[str, Any]:
        return json.loads(self.scripts[0])


@pytest.fixture(scope="module")
def page() -> str:
    return rendered("ten schemes, three seeds")


def test_several_seeds_give_the_sample_deviation_and_one_seed_its_bootstrap_interval():
    three = Measured(small({"softmax": [(0.2, 0.1), (0.3, 0.1), (0.7, 0.1)]})).of(
        "softmax", "recall@10", "head"
    )
    deviation = math.sqrt(((0.2 - 0.4) ** 2 + (0.3 - 0.4) ** 2 + (0.7 - 0.4) ** 2) / 2)
    assert (three.value, three.high - three.value, three.value - three.low) == pytest.approx(
        (0.4, deviation, deviation)
    )
    one = Measured(small({"softmax": [(0.2, 0.1)]})).of("softmax", "recall@10", "head")
    assert (one.low, one.value, one.high) == pytest.approx((0.192, 0.2, 0.208))


def test_a_seed_without_a_number_does_not_spoil_the_others():
    found = Measured(small({"softmax": [(0.2, 0.1), (math.nan, 0.1)]})).of(
        "softmax", "recall@10", "head"
    )
    assert (found.value, found.seeds) == (0.2, 1)
    assert found.high == pytest.approx(0.208)


def test_differences_are_taken_seed_by_seed():
    measured = Measured(
        small({"softmax": [(0.1, 0.0), (0.5, 0.0)], "uniform:tail": [(0.2, 0.0), (0.6, 0.0)]})
    )
    found = Reference.of(measured).difference("uniform:tail", "recall@10", "head")
    assert found.value == pytest.approx(0.1)
    assert found.deviation == pytest.approx(0.0, abs=1e-12)


def test_without_softmax_schemes_are_compared_with_their_mean():
    measured = Measured(small({"uniform:constant": [(0.2, 0.0)], "uniform:tail": [(0.6, 0.0)]}))
    assert Reference.of(measured).difference(
        "uniform:tail", "recall@10", "head"
    ).value == pytest.approx(0.2)


@given(
    st.dictionaries(
        st.sampled_from("abcdefgh"), st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8
    )
)
def test_the_pareto_front_is_all_that_no_other_beats(pairs: dict[str, tuple[float, float]]):
    def beaten(name: str) -> bool:
        x, y = pairs[name]
        return any((u, v) != (x, y) and u >= x and v >= y for u, v in pairs.values())

    front = pareto_front(pairs)
    assert set(front) == {name for name in pairs if not beaten(name)}
    assert [pairs[name][0] for name in front] == sorted(pairs[name][0] for name in front)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=3, max_size=9))
def test_the_rank_correlation_is_spearmans(pairs: list[tuple[int, int]]):
    x = [float(a) for a, _ in pairs]
    y = [float(b) for _, b in pairs]
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert math.isnan(spearman(x, y))
    else:
        assert spearman(x, y) == pytest.approx(scipy.stats.spearmanr(x, y)[0])


@pytest.mark.parametrize(
    ("order", "verdict"),
    [
        ([0.0, 0.1, 0.2, 0.3, 0.4, 0.5], "order agree: "),
        ([0.1, 0.0, 0.3, 0.2, 0.5, 0.4], "order mostly agree: "),
        ([0.2, 0.1, 0.0, 0.5, 0.4, 0.3], "order agree only weakly: "),
        ([0.1, 0.5, 0.2, 0.4, 0.0, 0.3], "disagree, as if there were no relation: "),
        ([0.5, 0.4, 0.3, 0.2, 0.1, 0.0], "disagree, and one runs against the other: "),
    ],
)
def test_the_verdict_on_the_prediction_follows_the_correlation(order: list[float], verdict: str):
    names = [f"uniform:tail({i})" for i in range(6)]
    measured = Measured(
        small({name: [(0.5, tail)] for name, tail in zip(names, order, strict=True)})
    )
    sentence = Agreement.of(
        measured, {name: {"lean": float(i)} for i, name in enumerate(names)}
    ).sentence
    assert verdict in sentence
    assert "over 6 schemes" in sentence


@pytest.mark.parametrize(
    ("recalls", "sentence"),
    [
        (
            {"softmax": [(0.5, 0.2)], "within-batch:tail": [(0.459, 0.312)]},
            "within-batch:tail has the best Tail Recall@10 (31.2%, +11.2 over softmax) and costs "
            "4.1 points on Head.",
        ),
        (
            {"softmax": [(0.5, 0.3)], "uniform:tail": [(0.4, 0.295)]},
            "softmax has the best Tail Recall@10 (30.0%, +0.5 over uniform:tail); its error bar "
            "overlaps with uniform:tail.",
        ),
        (
            {"uniform:constant": [(0.4, 0.1)], "uniform:tail": [(0.5, 0.3)]},
            "uniform:tail has the best Tail Recall@10 (30.0%, +10.0 over the mean of the schemes) "
            "and gains 5.0 points on Head too.",
        ),
        (
            {
                "softmax": [(0.5, 0.2)],
                "uniform:tail": [(0.5, 0.3)],
                "within-batch:tail": [(0.4, 0.3)],
            },
            "uniform:tail has the best Tail Recall@10 (30.0%, +10.0 over softmax) and costs "
            "nothing on Head; "
            "within-batch:tail has the same, but 10.0 points less on Head.",
        ),
        (
            {
                "softmax": [(0.5, 0.2)],
                "uniform:tail": [(0.4, 0.3)],
                "within-batch:tail": [(0.4, 0.3)],
            },
            "uniform:tail and within-batch:tail tie for the best Tail Recall@10 (30.0%, +10.0 over "
            "softmax) "
            "and cost 10.0 points on Head.",
        ),
        (  # a difference that no reader sees is a tie as well
            {
                "softmax": [(0.5, 0.2)],
                "hard(8):importance": [(0.003, 0.30001)],
                "uniform:tail": [(0.4, 0.3)],
            },
            "uniform:tail has the best Tail Recall@10 (30.0%, +10.0 over softmax) and costs 10.0 "
            "points on Head; "
            "hard(8):importance has the same, but 39.7 points less on Head.",
        ),
        (
            {
                "softmax": [(0.5, 0.3)],
                "uniform:tail": [(0.4, 0.3)],
                "uniform:constant": [(0.4, 0.1)],
            },
            "softmax has the best Tail Recall@10 (30.0%); uniform:tail has the same, but 10.0 "
            "points less on Head.",
        ),
        (
            {f"uniform:tail({i})": [(0.5, 0.0)] for i in range(4)},
            "4 schemes tie for the best Tail Recall@10 (0.0%).",
        ),
        (
            {"uniform:tail": [(0.5, 0.3)]},
            "uniform:tail reaches a Tail Recall@10 of 30.0%, with 50.0% on Head.",
        ),
        ({}, "No scheme was measured."),
    ],
)
def test_the_takeaway_says_which_is_best_and_at_what_cost(
    recalls: dict[str, list[tuple[float, float]]], sentence: str
):
    assert takeaway(Measured(small(recalls)), {}) == sentence


@pytest.mark.parametrize("case", CASES)
def test_every_figure_is_one_that_plotly_knows(case: str):
    figures = Tags(rendered(case)).embedded()["figures"]
    for figure in figures.values():
        coloured = json.loads(
            re.sub(r'color": "--[a-z]+"', 'color": "#000000"', json.dumps(figure))
        )
        coloured = json.loads(re.sub(r'"--[a-z]+"', '"#000000"', json.dumps(coloured)))
        for layout in (
            coloured["layout"],
            coloured["layout"] | coloured["narrow"],
            *coloured["byChoice"].values(),
        ):
            go.Figure(coloured["data"], layout)


def percent_axes(case: str) -> list[dict[str, Any]]:
    """Every axis of shares, for each choice of the reader."""
    found = []
    for figure in Tags(rendered(case)).embedded()["figures"].values():
        for changed in [*figure["byChoice"].values()] or [{}]:
            for name in [name for name in figure["layout"] if re.fullmatch(r"[xy]axis\d*", name)]:
                one = figure["layout"][name] | changed.get(name, {})
                found += [one] if "%" in one.get("tickformat", "") else []
    return found


@pytest.mark.parametrize("case", CASES)
def test_no_axis_of_shares_goes_below_0_or_above_1(case: str):
    ends = [
        one.get("range") or [one["autorangeoptions"][end] for end in ("clipmin", "clipmax")]
        for one in percent_axes(case)
    ]
    assert ends or case in (
        "no slices at all",
        "failures only",
        "nothing known",
        "images without errors",
    )
    assert all(0 <= low < high <= 1 for low, high in ends), ends


def test_error_bars_of_shares_end_where_shares_do():
    figure = trade_off(
        Measured(
            small({"softmax": [(1.0, 0.0), (0.8, 0.1)], "uniform:tail": [(1.0, 0.0), (0.9, 0.0)]})
        )
    )
    assert figure is not None
    for trace in figure.data[1:]:
        for side in ("x", "y"):
            value = trace[side][0]
            bar = trace[f"error_{side}"]
            assert value - bar["arrayminus"][0] >= 0
            assert value + bar["array"][0] <= 1 + 1e-12
    assert "100.0" not in figure.data[1]["hovertext"][0], "the number itself stays as it is"


def test_the_page_has_its_charts_tables_and_words(page: str):
    tags = Tags(page)
    ids = {attrs.get("id") for _, attrs in tags.tags}
    assert {
        f"chart-{name}"
        for name in ("rank-frequency", "recall", "trade-off", "curves", "prediction")
    } <= ids
    assert {
        f"table-{name}" for name in ("optimised", "metrics", "data", "settings", "versions")
    } <= ids
    for expected in (
        "headtail compare wiki-2k",
        "learning_rate",
        "Pareto front",
        "logit-adjusted loss (Menon et al. 2020)",
        "2.13.0",
    ):
        assert expected in tags.text
    assert (
        "uniform:relative, within-batch:relative: These weights are not of the form η/m"
        in tags.text
    )
    assert all(attrs.get("scope") in ("col", "row") for tag, attrs in tags.tags if tag == "th")
    assert all(attrs.get("aria-label") for _, attrs in tags.tags if attrs.get("class") == "chart")
    assert len(page.encode()) < 6e6


def test_nothing_is_loaded_from_outside(page: str):
    tags = Tags(page).tags
    addresses = [
        value
        for _, attrs in tags
        for name, value in attrs.items()
        if name in ("src", "href", "srcset", "action", "data")
    ]
    assert all(value is None or value.startswith(("#", "data:")) for value in addresses)
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_names_that_are_markup_stay_text():
    harmless = Tags(rendered("failures only"))
    harmful = Tags(rendered("harmful names"))
    assert [tag for tag, _ in harmful.tags if tag in ("script", "img")] == [
        tag for tag, _ in harmless.tags if tag in ("script", "img")
    ]
    assert EVIL in harmful.text
    assert "<" not in harmful.scripts[0]
    name = harmful.embedded()["figures"]["trade-off"]["data"][-1]["name"]
    assert name == EVIL.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def test_the_csv_of_a_table_keeps_every_digit(page: str):
    example = comparison()
    table = Tags(page).embedded()["tables"]["metrics"]
    lines = {tuple(line[:3]): line[3:] for line in table[1:]}
    for name in SCHEMES:
        values = [
            r.value
            for r in example.rows
            if (r.split, r.scheme, r.slice, r.metric) == ("test", name, "tail", "psp@3")
        ]
        assert lines[name, "tail", "psp@3"][0] == SeedMean.of(dict(enumerate(values))).value
    optimised = Tags(page).embedded()["tables"]["optimised"]
    assert {line[0]: line[5] for line in optimised[1:]} == {
        name: about["lean"] for name, about in example.schemes.items()
    }


def test_a_slice_without_numbers_shows_dashes_and_says_so():
    tags = Tags(rendered("no slices at all"))
    assert "No scheme was measured" in tags.text
    assert "nan" not in re.findall(r"[a-z]+", tags.text.lower())
    assert "No recall was measured" in tags.text
    assert (
        "–"
        in Tags(render(small({"softmax": [(0.5, math.nan)], "uniform:tail": [(0.4, 0.1)]}))).text
    )


def test_failed_runs_are_in_a_box():
    tags = Tags(rendered("failures only"))
    assert "No scheme was measured: 1 run failed." in tags.text
    assert "The loss was NaN." in tags.text
    assert any(attrs.get("id") == "failures" for _, attrs in tags.tags)


def test_without_plotly_one_sentence_names_the_extra_that_a_report_needs(monkeypatch):
    for name in ("plotly", "plotly.offline"):
        monkeypatch.setitem(sys.modules, name, None)
    sentence = r"needs plotly, which is not installed. Run `pip install 'headtail\[report\]'`."
    with pytest.raises(HeadtailError, match=sentence):
        render(small({}))


def test_a_report_that_cannot_be_written_leaves_what_was_there(tmp_path: Path):
    old = tmp_path / "report.html"
    old.write_text("old")
    old_folder = tmp_path / "folder.html"
    old_folder.mkdir()
    with pytest.raises(HeadtailError, match="cannot be written"):
        write_report(small({}), old_folder)
    assert old.read_text() == "old"
    write_report(small({}), old)
    assert "No scheme was measured" in old.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.html", "report.html"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory):
    program = chromium()
    if program is None:
        pytest.skip("no Chromium here: looked for chromium, chromium-browser and google-chrome")
    found = Browser(program, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def example_file(page: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page)
    return path


@pytest.fixture
def opened(browser: Browser, example_file: Path) -> Browser:
    """The full example on a desktop in light mode, as the last test left it: loading is slow."""
    browser.size(1200)
    if browser.run("location.href") != example_file.as_uri():
        browser.open(example_file)
    return browser


@pytest.mark.parametrize(
    "case",
    [
        "ten schemes, three seeds",
        "a single scheme",
        "no slices at all",
        "twelve schemes, one seed",
        "harmful names",
        "images",
        "images at the ends",
        "recall at the ends",
    ],
)
def test_every_page_fits_a_phone_and_a_desktop_and_loads_nothing(
    case: str, browser: Browser, tmp_path: Path
):
    path = tmp_path / "report.html"
    path.write_text(rendered(case))
    figures = Tags(rendered(case)).embedded()["figures"]
    browser.size(390)
    browser.open(path)
    assert browser.run("document.documentElement.scrollWidth") == 390
    browser.size(1200, dark=True)
    assert browser.run("document.documentElement.scrollWidth") == 1200
    drawn = browser.run(
        "[...document.querySelectorAll('.chart')].map(c => [c.id, "
        "c.querySelectorAll('.trace').length])"
    )
    expected = {
        f"chart-{n}": sum(t.get("visible", True) for t in one["data"]) for n, one in figures.items()
    }
    assert {name: count > 0 for name, count in drawn} == dict.fromkeys(expected, True)
    assert all(count >= expected[name] for name, count in drawn)
    axes = (
        "[...document.querySelectorAll('.chart')].flatMap(c => Object.keys(c._fullLayout).filter(n "
        "=> /^[xy]axis/.test(n))"
    )
    shares = (
        f"{axes}.map(n => c._fullLayout[n]).filter(one => (one.tickformat || "
        "'').includes('%')).map(one => one.range))"
    )
    assert all(-1e-9 <= low < high <= 1 + 1e-9 for low, high in browser.run(shares))
    assert browser.run("typeof window.hacked") == "undefined"
    assert browser.requests == [path.as_uri()]
    assert browser.complaints == []


def test_the_mouse_over_a_point_shows_its_scheme(opened: Browser):
    box = "document.querySelector('#chart-trade-off .scatterlayer .trace:last-child .points path')"
    opened.run(f"{box}.scrollIntoView({{block: 'center'}})")
    x, y = opened.run(
        f"(b => [b.x + b.width / 2, b.y + b.height / 2])({box}.getBoundingClientRect())"
    )
    for step in (40, 0):
        opened.send("Input.dispatchMouseEvent", type="mouseMoved", x=x - step, y=y - step)
        opened.settle()
    text = opened.run("document.querySelector('#chart-trade-off .hoverlayer').textContent")
    assert text.startswith("logit-adjustedHead Recall@10")


@pytest.mark.parametrize("width", [390, 1200])
def test_names_in_a_chart_do_not_cover_each_other(opened: Browser, width: int):
    opened.size(width)
    for chart in ("trade-off", "prediction"):
        boxes = opened.run(
            f"[...document.querySelectorAll('#chart-{chart} .annotation-text')].map(t => "
            "t.getBoundingClientRect())"
            ".map(b => [b.x, b.y, b.x + b.width, b.y + b.height])"
        )
        listed = opened.run(
            f"[...document.querySelectorAll('#chart-{chart} .legendtext')].map(t => t.textContent)"
        )
        assert len(boxes) + sum(name in SCHEMES for name in listed) == len(SCHEMES), (
            "each name is shown once"
        )
        shared = [
            max(min(a[2], b[2]) - max(a[0], b[0]), 0) * max(min(a[3], b[3]) - max(a[1], b[1]), 0)
            for i, a in enumerate(boxes)
            for b in boxes[:i]
        ]
        assert max(shared) < 60  # a touch of two line boxes is not a collision of letters


def test_charts_follow_when_the_reader_switches_to_dark_mode(opened: Browser):
    colour = "getComputedStyle(document.querySelector('#chart-recall .ytick text')).fill"
    light = opened.run(colour)
    opened.size(1200, dark=True)
    dark = opened.run(colour)
    assert (light, dark) == ("rgb(31, 35, 40)", "rgb(228, 230, 232)")
    opened.size(1200)
    assert opened.run(colour) == light


def test_the_buttons_pick_the_k_of_the_bars(opened: Browser):
    shown = (
        "document.querySelector('#chart-recall').data.filter(t => t.visible !== false).map(t => "
        "t.meta)"
    )
    assert set(opened.run(shown)) == {"recall@10"}
    opened.run("document.querySelector('[data-figure=recall] [data-choice=\"recall@50\"]').click()")
    assert set(opened.run(shown)) == {"recall@50"}
    assert (
        opened.run("document.querySelector('[data-figure=recall] [aria-pressed=true]').textContent")
        == "Recall@50"
    )


def test_a_heading_sorts_by_keyboard_and_unknown_numbers_come_last(opened: Browser):
    opened.run(
        "[...document.querySelectorAll('#table-metrics thead button')].find(b => b.textContent === "
        "'recall@1').focus()"
    )
    column = (
        "[...document.querySelectorAll('#table-metrics tbody tr')].map(r => "
        "r.cells[1].dataset.value)"
    )
    for sign in (-1, 1):
        opened.send(
            "Input.dispatchKeyEvent",
            type="keyDown",
            key="Enter",
            code="Enter",
            text="\r",
            windowsVirtualKeyCode=13,
        )
        opened.send(
            "Input.dispatchKeyEvent",
            type="keyUp",
            key="Enter",
            code="Enter",
            windowsVirtualKeyCode=13,
        )
        values = opened.run(column)
        known = [float(value) for value in values[:-1]]
        assert known == sorted(known, key=lambda value, sign=sign: sign * value)
        assert values[-1] == ""  # most-popular has no Recall@1 here


def test_the_slice_buttons_show_one_slice_at_a_time(opened: Browser):
    cells = "[...document.querySelectorAll('#table-metrics [data-slice]')]"
    visible = f"[...new Set({cells}.filter(c => c.offsetParent).map(c => c.dataset.slice))]"
    assert opened.run(visible) == ["full"]
    opened.run("document.querySelector('[data-slices] [data-choice=tail]').click()")
    assert opened.run(visible) == ["tail"]


def test_the_csv_button_saves_the_table(opened: Browser, tmp_path: Path):
    opened.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    opened.run("document.querySelector('[data-csv=optimised]').click()")
    saved = tmp_path / "headtail-optimised.csv"
    for _ in range(200):
        if saved.exists() and saved.stat().st_size:
            break
        opened.settle()
    lines = list(csv.DictReader(saved.read_text().splitlines()))
    assert [line["scheme"] for line in lines] == list(SCHEMES)
    assert [float(line["lean"]) for line in lines] == [
        about["lean"] for about in comparison().schemes.values()
    ]


def test_a_table_too_wide_for_the_text_takes_the_window_and_scrolls(opened: Browser):
    opened.size(1300)
    left, right, hidden, text = opened.run(
        "(() => { const region = document.querySelector('#table-metrics').parentElement, box = "
        "region.getBoundingClientRect();"
        " return [box.left, box.right, region.scrollWidth - region.clientWidth, "
        "document.querySelector('main').clientWidth]; })()"
    )
    assert right - left > text, "wider than the text"
    assert 0 <= left < right <= 1300
    assert hidden > 0, "the rest is scrolled to"
