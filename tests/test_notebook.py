"""What notebooks show: HTML that is escaped and complete, short reprs, and figures."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from html import escape
from html.parser import HTMLParser

import pytest
import torch

import headtail as ht
from headtail.comparison.results import Comparison
from headtail.errors import HeadtailError
from headtail.report import plot
from tests.report.example import CASES, EVIL, comparison, evil, images, small

LABELS = ht.Labels.zipf(1000)


class Text(HTMLParser):
    """The texts of a page; refuses tags that are not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        assert tag not in ("script", "img"), "not escaped"

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.found.append(data)


def texts_of(value) -> list[str]:
    """The texts that a notebook shows."""
    parser = Text()
    parser.feed(value._repr_html_())
    parser.close()
    assert not parser.open
    return parser.found


def bold_in(value) -> list[str]:
    """The bold texts of its table."""
    parts = value._repr_html_().split("bold")[1:]
    return [part.split(">")[1].partition("<")[0] for part in parts]


def explained(name: str, **options):
    return ht.explain(ht.scheme(name, LABELS, 64), LABELS, **options)


def test_the_repr_of_labels_tells_what_they_are():
    assert repr(LABELS) == "Labels(1,000 labels, 74,844 examples, 10 to 10,000 per label)"
    some = ht.Labels.from_counts([0.5, 0, 2], smoothing=1)
    assert repr(some) == (
        "Labels(3 labels, 2.5 examples, 0 to 2 per label, 1 never seen, smoothing 1)"
    )


def test_the_repr_of_slices_tells_what_they_are():
    assert repr(LABELS.slices()) == (
        "Slices(head 100, torso 412, tail 488 of 1,000 labels; head: at least 100 examples, tail: "
        "fewer than 20)"
    )


def test_no_repr_prints_vectors():
    explanation = explained("within-batch:tail")
    for value in (LABELS, LABELS.slices(), explanation, ht.LogitAdjusted(LABELS), comparison()):
        assert "tensor" not in repr(value)
        assert len(repr(value)) < 2500


def test_labels_show_their_curve_and_the_first_middle_and_last_label():
    names = [f"<b>{i}" for i in range(1000)]
    shown = texts_of(replace(LABELS, names=names))
    assert "examples per label by rank, log–log" in shown
    at = shown.index("rank")
    assert shown[at : at + 8] == [
        "rank",
        "label",
        "examples",
        "share",
        "1",
        "<b>0",
        "10,000",
        "13%",
    ]
    assert shown[-4:] == ["1,000", "<b>999", "10", "0.013%"]
    assert "<svg" in LABELS._repr_html_()


@pytest.mark.parametrize("counts", [[5], [5, 5], [1, 0, 0], [0.25, 3.5], list(range(12)), [7] * 20])
def test_any_labels_are_shown(counts):
    labels = ht.Labels.from_counts(counts)
    assert texts_of(labels)[0] == "Labels"
    assert texts_of(labels.slices_by_mass())[0] == "Slices"


def test_slices_show_their_sizes():
    assert texts_of(LABELS.slices())[-9:] == (
        ["head", "100", "10.0%", "torso", "412", "41.2%", "tail", "488", "48.8%"]
    )


@pytest.mark.parametrize("name", ["within-batch:tail", "uniform:relative", "softmax", "hinge"])
def test_an_explanation_shows_its_loss_lean_and_examples(name):
    explanation = explained(name)
    shown = texts_of(explanation)
    assert shown[0] == explanation.name
    assert explanation.equation in shown
    assert all(note in shown for note in explanation.notes)
    for example in explanation.examples:
        assert f"{example.slice}, label {example.label}" in shown
        assert f"{example.implicit_loss:.3f}" in shown
    assert ("share of the negatives" in shown) is bool(explanation.sampled_share)


def test_an_explanation_of_many_examples_shows_ten():
    scores = torch.randn(30, 1000, generator=torch.Generator().manual_seed(0))
    explanation = explained("uniform:tail", scores=scores, target=torch.arange(30))
    shown = texts_of(explanation)
    assert "label 9" in shown
    assert "label 10" not in shown
    assert shown[-1] == "and 20 more examples" or "and 20 more examples" in shown


@pytest.mark.parametrize("case", CASES)
def test_any_comparison_is_shown(case):
    example = CASES[case]()
    shown = texts_of(example)
    assert shown[0] == "Comparison"
    assert set(example.means()) <= set(shown)


def test_a_comparison_shows_means_over_seeds_and_the_best_of_the_schemes():
    recalls = {"softmax": [(0.5, 0.1), (0.7, 0.2)], "uniform:tail": [(0.25, 0.4), (0.25, 0.5)]}
    about = {name: {"name": "a loss (Somebody 2020)"} for name in recalls}
    example = small(recalls | {"most-popular": [(0.9, 0.9)]}, schemes=about)
    assert example.means() == {
        "softmax": {"head": 0.6, "tail": pytest.approx(0.15)},
        "uniform:tail": {"head": 0.25, "tail": 0.45},
        "most-popular": {"head": 0.9, "tail": 0.9},
    }
    shown = texts_of(example)
    assert shown[shown.index("softmax") :] == [
        *("softmax", "a loss", "60.0%", "15.0%"),
        *("uniform:tail", "a loss", "25.0%", "45.0%"),
        *("most-popular", "90.0%", "90.0%"),
    ]
    assert bold_in(example) == ["60.0%", "45.0%"]


def test_the_last_test_of_a_run_counts():
    example = small({"softmax": [(0.5, 0.1)]})
    later = [replace(row, step=row.step + 5, value=row.value + 0.2) for row in example.rows]
    for rows in ([*example.rows, *later], [*later, *example.rows]):
        found = replace(example, rows=rows).means()["softmax"]
        assert found == {"head": 0.7, "tail": pytest.approx(0.3)}


def test_errors_of_images_are_best_where_they_are_lowest():
    errors = {"softmax": [(0.1, 0.9)], "uniform:tail": [(0.2, 0.5)]}
    about = {name: {} for name in errors}
    task = {"task": "classification"}
    assert bold_in(small(errors, "balanced-error", schemes=about, data=task)) == ["10.0%", "50.0%"]
    example = images()
    assert example.metric == "balanced-error"
    assert any("lower is better" in text for text in texts_of(example))
    assert set(example.means("recall@10")) > {"softmax"}


def test_failures_and_missing_runs_are_shown():
    example = replace(
        comparison(("softmax", "uniform:tail"), seeds=1),
        failures={"uniform:tail, seed 0": "The loss was NaN."},
        missing=["softmax, seed 1"],
    )
    shown = texts_of(example)
    assert "uniform:tail, seed 0 failed: The loss was NaN." in shown
    assert any(text.startswith("1 run is not finished: softmax, seed 1.") for text in shown)


def test_a_metric_that_was_not_measured_is_refused():
    with pytest.raises(
        HeadtailError, match=r"`metric` 'recal@10' was not measured. Did you mean `recall@10`"
    ):
        comparison().means("recal@10")


def test_the_repr_of_a_comparison_tells_what_it_is():
    assert repr(comparison()) == (
        "Comparison(10 schemes, 3 seeds on Wiki-2K, 2,000 labels, 14,146 training points)"
    )


@pytest.mark.parametrize("name", ["within-batch:tail", "softmax", "hinge"])
def test_an_explanation_is_plotted_with_all_its_numbers(name):
    explanation = explained(name)
    figure = plot(explanation)
    biases = figure.data[-1]
    assert list(biases.y) == [example.bias for example in explanation.examples]
    noises = [example.noise_untrained or 0.0 for example in explanation.examples]
    assert list(biases.error_y.array) == noises
    shares = [list(bar.y) for bar in figure.data[:-1]]
    wanted = [explanation.sampled_share, explanation.optimal_share]
    assert shares == ([list(by.values()) for by in wanted] if explanation.sampled_share else [])
    assert figure.layout.title.text.startswith(explanation.name)


def test_a_plot_of_given_scores_names_their_labels():
    scores = torch.zeros(2, 1000)
    figure = plot(explained("uniform:tail", scores=scores, target=torch.tensor([3, 3])))
    assert list(figure.layout.xaxis2.ticktext) == ["label 3", "label 3"]


def test_a_comparison_is_plotted_as_differences_to_the_softmax():
    recalls = {"softmax": [(0.5, 0.1), (0.7, 0.2)], "uniform:tail": [(0.25, 0.4), (0.25, 0.5)]}
    figure = plot(small(recalls))
    assert {trace.name: list(trace.x) for trace in figure.data} == {
        "head": [pytest.approx(-35)],
        "tail": [pytest.approx(30)],
    }
    [deviation] = figure.data[0].error_x.array
    assert deviation == pytest.approx(100 * math.sqrt(2) * 0.1)  # of −0.25 and −0.45
    assert list(figure.layout.yaxis.ticktext) == ["uniform:tail"]
    title = figure.layout.xaxis.title.text
    assert title == "Recall@10 over softmax, points (right is better)"


def test_a_plot_of_errors_says_that_left_is_better():
    title = plot(images()).layout.xaxis.title.text
    assert title == "Error against softmax, points (left is better)"


@pytest.mark.parametrize("case", CASES)
def test_any_comparison_is_plotted_or_refused_in_a_sentence(case):
    example = CASES[case]()
    few = {"a single scheme", "nothing known", "failures only", "images without errors"}
    if case in {*few, "no slices at all"}:
        with pytest.raises(HeadtailError, match="needs two schemes with results, but this one has"):
            plot(example)
    else:
        json.loads(plot(example).to_json())


def test_harmful_names_stay_text_in_a_plot():
    def strings(value) -> list[str]:
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            return [text for inner in value for text in strings(inner)]
        return [value] if isinstance(value, str) else []

    shown = strings(json.loads(plot(evil()).to_json()))
    assert any(escape(EVIL) in text for text in shown)
    assert not any("<script" in text or "<img" in text for text in shown)


def test_only_explanations_and_comparisons_are_plotted():
    with pytest.raises(HeadtailError, match=r"returned, but got Labels\."):
        plot(LABELS)


def test_without_plotly_a_sentence_names_the_extra():
    code = (
        "import sys; sys.modules['plotly'] = None\n"
        "import headtail as ht\n"
        "labels = ht.Labels.zipf(10)\n"
        "try:\n    ht.report.plot(ht.explain(ht.scheme('softmax', labels), labels))\n"
        "except ht.HeadtailError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == (
        "A figure needs plotly, which is not installed. Run `pip install 'headtail[notebook]'`.\n"
    )


def test_a_comparison_read_from_its_folder_is_shown_the_same(tmp_path):
    example = replace(comparison(("softmax", "uniform:tail"), seeds=1), settings={"data": {}})
    example.write(tmp_path)
    assert texts_of(Comparison.read(tmp_path)) == texts_of(example)


def test_a_data_set_shows_its_parts_and_notes():
    data = ht.load("synthetic:points=60,test=20,features=80,labels=12")
    data = replace(data, name="<b>", notes=("3 rows < 0 are left out.",), validation=data.test)
    pairs = data.train.num_pairs
    assert repr(data) == (
        "DataSet(<b>: train 60 points, validation 20 points, test 20 points; 80 features, 12 "
        "labels)"
    )
    assert repr(data.train) == f"Points(60 points, 80 features, 12 labels, {pairs} pairs)"
    shown = texts_of(data)
    assert shown[shown.index("train") :][:3] == ["train", "60", f"{pairs:,}"]
    assert shown[-1] == "3 rows < 0 are left out."
