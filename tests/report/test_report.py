"""The report: what it says, what it embeds, and how it behaves in a real browser."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from headtail.comparison.results import Try
from headtail.errors import HeadtailError
from headtail.report import write_report
from headtail.report.measured import Measured, Reference
from headtail.report.page import render
from headtail.report.prediction import Agreement, spearman
from headtail.report.seed_mean import SeedMean
from headtail.report.trade_off import pareto_front
from tests.report.example import CASES, EVIL, SCHEMES, Browser, chromium, comparison, small, turned


@cache
def rendered(case: str) -> str:
    example = CASES[case]()
    times = {name: {"training_seconds": 5400.0, "step_seconds": 0.0012} for name in example.schemes}
    return render(replace(example, made_by=example.made_by | {"times": times}))


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


def test_the_page_has_its_charts_tables_and_words(page: str):
    tags = Tags(page)
    ids = {attrs.get("id") for _, attrs in tags.tags}
    assert {
        f"chart-{name}"
        for name in ("rank-frequency", "slices", "trade-off", "curves", "prediction")
    } <= ids
    assert {
        f"table-{name}"
        for name in ("answer", "optimised", "metrics", "data", "settings", "versions")
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
    assert len(page.encode()) < 1.5e6


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


def test_without_jinja2_one_sentence_names_the_extra_that_a_report_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    sentence = r"needs jinja2, which is not installed. Run `pip install 'headtail\[report\]'`."
    with pytest.raises(HeadtailError, match=sentence):
        render(small({}))


def test_runs_that_are_missing_are_named_at_the_top():
    text = Tags(render(comparison(missing=["softmax, seed 3", "uniform:tail, seed 3"]))).text
    top = text[: text.index("Head, torso and tail")]
    assert "2 runs are not finished: softmax, seed 3; uniform:tail, seed 3." in top
    assert "not finished" not in Tags(rendered("ten schemes, three seeds")).text


def test_every_bar_has_its_number_and_every_scheme_its_time():
    times = {name: {"training_seconds": 90.0, "step_seconds": 0.0012} for name in SCHEMES}
    example = comparison()
    page = render(comparison(made_by=example.made_by | {"times": times, "workers": 2}))
    measured = Measured(example)
    text = re.sub(r"\s+", " ", Tags(page).text)
    for name in SCHEMES:
        tail = measured.of(name, "recall@10", "tail").value
        assert re.search(rf"{re.escape(name)} {100 * tail:.1f}\b", text)
        assert f"{name} 1.5 min" in text
    assert "1.2 ms per step" in text
    assert "2 runs at the same time" in text


def test_answers_are_shown_by_name_for_the_schemes_that_matter():
    point = {"point": 7, "slice": "tail", "right": ["<left> shoe"]}
    answers = {
        "uniform:importance": [point | {"answers": ["boot", "<left> shoe"]}],
        "softmax": [point | {"answers": ["sock"]}],
        "uniform:tail": [point | {"answers": ["never shown"]}],
    }
    page = render(replace(turned(), answers=answers))
    assert "boot, <b>&lt;left&gt; shoe</b>" in page
    assert "sock" in Tags(page).text
    assert "never shown" not in page, "it is neither best nor the full softmax"
    assert "What the models answer" not in rendered("ten schemes, three seeds")


def test_what_tuning_tried_is_listed():
    tries = [
        Try("softmax", 0.02, 4, 4, "implicit-loss", 5.25, "yes"),
        Try("softmax", 2.0, 4, 0, "implicit-loss", math.nan),
    ]
    page = render(comparison(tries=tries))
    assert re.search(r'class="best">\s*5.25', page)
    assert "nan" not in re.findall(r"\w+", Tags(page).text), "a run that diverged has a dash"
    assert Tags(page).embedded()["tables"]["tries"][2] == [
        *("softmax", 2.0, 4, 0, "implicit-loss", None, "no"),
    ]
    assert "What tuning tried" not in rendered("ten schemes, three seeds")


def test_labels_are_shown_by_name():
    example = comparison()
    labels = {"head": [["shoes", 900]], "tail": [["<left> shoe", 2]]}
    data = example.data | {"slices": example.data["slices"] | {"examples": labels}}
    text = Tags(render(comparison(data=data))).text
    assert "shoes 900" in text
    assert "<left> shoe 2" in text


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
        "a dial",
        "cold items",
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
    heights = "[...document.querySelectorAll('.chart')].map(c => c.getBoundingClientRect().height)"
    for width, dark in ((390, False), (1200, True)):
        browser.size(width, dark)
        browser.open(path)
        assert browser.run("document.documentElement.scrollWidth") == width
        assert all(height > 40 for height in browser.run(heights))
        assert browser.run(CUT_OFF) == []
        assert browser.run(SCROLLED) == [], "small tables fit"
    assert browser.run("typeof window.hacked") == "undefined"
    assert browser.requests == [path.as_uri()]
    assert browser.complaints == []


SCROLLED = (
    "[...document.querySelectorAll('.scroll:has(.compact)')].filter(r => r.scrollWidth > "
    "r.clientWidth).map(r => r.ariaLabel)"
)
CUT_OFF = """[...document.querySelectorAll('.chart svg')].filter(s => s.checkVisibility())
  .flatMap(s => { const edge = s.getBoundingClientRect();
    return [...s.querySelectorAll('text')].filter(t => { const box = t.getBoundingClientRect();
      return box.width && (box.left < edge.left - 1 || box.right > edge.right + 1
        || box.top < edge.top - 3 || box.bottom > edge.bottom + 3); })
      .map(t => t.textContent); })"""
"""Texts of charts that reach beyond them."""


def test_the_mouse_over_a_point_shows_its_scheme(opened: Browser):
    box = "document.querySelector('#chart-trade-off .wide polygon[data-tip]')"
    opened.run(f"{box}.scrollIntoView({{block: 'center'}})")
    x, y = opened.run(
        f"(b => [b.x + b.width / 2, b.y + b.height / 2])({box}.getBoundingClientRect())"
    )
    for step in (300, 0):
        opened.send("Input.dispatchMouseEvent", type="mouseMoved", x=x - step, y=y - step)
        opened.settle()
    assert opened.run("document.getElementById('tip').hidden") is False
    first, second, *_ = opened.run("document.getElementById('tip').textContent").splitlines()
    assert first in SCHEMES
    assert second.startswith("Head Recall@10")
    opened.send("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    opened.settle()
    assert opened.run("document.getElementById('tip').hidden") is True


@pytest.mark.parametrize("width", [390, 1200])
def test_every_point_is_named_and_names_do_not_cover_each_other(opened: Browser, width: int):
    opened.size(width)
    kind = "narrow" if width == 390 else "wide"
    for chart in ("trade-off", "prediction"):
        within = f"#chart-{chart} .{kind}"
        boxes = opened.run(
            f"[...document.querySelectorAll('{within} text.name')].map(t => [t.textContent, "
            "t.getBoundingClientRect()])"
            ".map(([n, b]) => [n, b.x, b.y, b.x + b.width, b.y + b.height])"
        )
        listed = opened.run(
            f"[...document.querySelectorAll('{within} .legend li')].map(l => "
            "[l.querySelector('b')?.textContent, l.lastChild.textContent])"
        )
        key = {number: name for number, name in listed if number}
        assert sorted(key.get(name, name) for name, *_ in boxes) == sorted(SCHEMES)
        shared = [
            max(min(a[3], b[3]) - max(a[1], b[1]), 0) * max(min(a[4], b[4]) - max(a[2], b[2]), 0)
            for i, a in enumerate(boxes)
            for b in boxes[:i]
        ]
        assert max(shared) < 60  # a touch of two line boxes is not a collision of letters


def test_charts_follow_when_the_reader_switches_to_dark_mode(opened: Browser):
    colour = "getComputedStyle(document.querySelector('#chart-trade-off text.name')).fill"
    light = opened.run(colour)
    opened.size(1200, dark=True)
    dark = opened.run(colour)
    assert (light, dark) == ("rgb(31, 35, 40)", "rgb(228, 230, 232)")
    opened.size(1200)
    assert opened.run(colour) == light


def test_the_buttons_pick_the_k_of_the_bars(opened: Browser):
    shown = (
        "[...document.querySelectorAll('#chart-slices [data-panel]')].filter(p => "
        "p.checkVisibility()).map(p => p.dataset.panel)"
    )
    assert opened.run(shown) == ["recall@10"]
    opened.run("document.querySelector('[data-figure=slices] [data-choice=\"recall@50\"]').click()")
    assert opened.run(shown) == ["recall@50"]
    assert (
        opened.run("document.querySelector('[data-figure=slices] [aria-pressed=true]').textContent")
        == "Recall@50"
    )


def test_the_dial_reads_off_head_torso_and_tail_and_the_command(browser: Browser, tmp_path: Path):
    path = tmp_path / "report.html"
    example = turned()
    path.write_text(render(example))
    browser.size(390)
    browser.open(path)
    row = (
        "[...document.querySelectorAll('#dial-table tbody tr')].map(r => "
        "[...r.cells].map(c => c.textContent.trim()))"
    )
    places = (
        "[...document.querySelectorAll('.narrow .ring')].map(r => [r.getAttribute('cx'), "
        "r.getAttribute('cy')])"
    )
    command = "document.getElementById('dial-command').textContent"
    before = browser.run(row)
    assert before[0] == ["uniform:importance", "50.0%", "40.0%", "10.0%", "38.0%"]
    assert "--scheme uniform:importance --post-hoc 0 " in browser.run(command)
    at_first = browser.run(places)
    turn = (
        "const s = document.getElementById('tau'); s.value = 2; s.dispatchEvent(new Event('input'))"
    )
    browser.run(f"(() => {{ {turn} }})()")
    assert browser.run("document.getElementById('tau-value').textContent") == "0.5"
    assert browser.run(row)[0] == ["uniform:importance", "40.0%", "40.0%", "0.45%", "38.0%"]
    assert all(a != b for a, b in zip(at_first, browser.run(places), strict=True))
    browser.run("document.querySelector('#dial-table input[value=softmax]').click()")
    assert browser.run(command) == (
        "headtail predict 'my results' DATA --scheme softmax --post-hoc 0.5 --out best.parquet"
    )
    assert browser.complaints == []


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


def test_cold_items_have_bars_a_choice_of_metrics_and_a_word_in_the_glossary():
    page = rendered("cold items")
    assert "Cold: items that never occur in training" in page
    assert "Cold" not in render(comparison(seeds=1, epochs=2))
    assert 'data-choice="cold"' in page
    assert "<dt>cold</dt>" in page
    assert re.search(r"<h4>Cold\s*<small>37 labels", page)
