"""Settings of a run: checked at once, and the same after a way through a file."""

from __future__ import annotations

import pytest

from headtail.errors import HeadtailError
from headtail.training.config import Run


@pytest.mark.parametrize(
    "run",
    [
        Run(),
        Run(
            scheme="contrastive/frequency(0.75):tail@256",
            seed=2**63 - 1,
            lr=1e-7,
            smoothing=0.5,
            normalise=False,
            clip=1e20,
        ),
        Run(
            optimiser="sgd",
            momentum=0.9,
            schedule="steps",
            drops=(0.5, 0.75),
            encoder="resnet20",
            precision="bfloat16",
            augment=False,
        ),
        Run(
            scheme='odd "name" \\ with\tsigns, ü',
            stop_on="recall@10",
            optimiser="adam",
            schedule="cosine",
            batching="points",
        ),
    ],
)
def test_a_run_is_the_same_after_a_way_through_toml(run, tmp_path):
    (tmp_path / "run.toml").write_text(run.to_toml())
    assert Run.read(tmp_path / "run.toml") == run


@pytest.mark.parametrize(
    ("values", "fragment"),
    [
        ({"epochs": 0}, "`epochs` must be a whole number of at least 1, but got 0"),
        ({"batch": 2.5}, "`batch` must be a whole number"),
        ({"lr": 0.0}, "`lr` must be above 0"),
        ({"lr": -1.0}, "`lr` must be at least 0"),
        ({"lr": float("nan")}, "`lr` must be a finite number"),
        ({"dropout": 1.0}, "`dropout` is a share from 0 up to but not including 1"),
        ({"validation": -0.1}, "`validation`"),
        ({"smoothing": -1.0}, "`smoothing` must be at least 0"),
        (
            {"optimiser": "adamw"},
            "`optimiser` must be one of 'adagrad', 'rowwise-adagrad', 'adam', 'sgd', but got "
            "'adamw'",
        ),
        ({"schedule": "step"}, "`schedule` must be one of"),
        ({"batching": "rows"}, "`batching` must be one of"),
        ({"stop_on": "recall@5"}, "`stop_on` must be one of"),
        ({"normalise": "yes"}, "`normalise` must be a bool"),
        ({"encoder": "resnet18"}, "`encoder` must be one of 'auto', 'bag'"),
        ({"precision": "float16"}, "`precision` must be one of 'float32', 'bfloat16'"),
        ({"momentum": 1.0}, "`momentum` is a share from 0"),
        ({"drops": (0.5, 1.0)}, "`drops` are shares of the run between 0 and 1, but got 0.5, 1.0"),
        ({"drops": 0.5}, "`drops` are shares of the run, for example 0.6 0.8, but got 0.5"),
        ({"augment": 1}, "`augment` must be a bool"),
        ({"scheme": 3}, "`scheme` must be a str"),
        ({"seed": "0"}, "`seed` must be a int"),
        ({"seed": -1}, "`seed` must be a whole number from 0 to"),
        ({"seed": 2**63}, "`seed` must be a whole number from 0 to"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(values, fragment):
    with pytest.raises(HeadtailError, match=r".*" + fragment.replace("`", "`")):
        Run(**values)


@pytest.mark.parametrize(
    ("content", "fragment"),
    [
        (b"learning_rate = 0.1\n", "`learning_rate` in `.*run.toml` is not a setting of a run"),
        (b"optimizer = 'sgd'\n", "Did you mean `optimiser`"),
        (b"lr = \n", "run.toml` is not valid TOML"),
        (b"\xff\xfe\x00", "run.toml` is not valid TOML: it is not UTF-8 text"),
        (b"epochs = 'ten'\n", "`epochs` must be a whole number"),
    ],
)
def test_a_file_that_is_not_a_run_is_refused_with_a_sentence(content, fragment, tmp_path):
    (tmp_path / "run.toml").write_bytes(content)
    with pytest.raises(HeadtailError, match=fragment):
        Run.read(tmp_path / "run.toml")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(HeadtailError, match=r"nowhere.toml` cannot be read: No such file"):
        Run.read(tmp_path / "nowhere.toml")


def test_the_learning_rate_rises_and_falls_as_written():
    def rates(**settings) -> list[float]:
        return [Run(lr=0.1, **settings).learning_rate(step, 4) for step in range(4)]

    assert rates(schedule="constant") == [0.1] * 4
    assert rates(schedule="linear") == pytest.approx([0.1, 0.075, 0.05, 0.025])
    assert rates(schedule="cosine") == pytest.approx([0.1, 0.0853553, 0.05, 0.0146447], rel=1e-5)
    assert rates(schedule="constant", warmup=2) == pytest.approx([0.05, 0.1, 0.1, 0.1])
    assert rates(schedule="linear", warmup=2) == pytest.approx([0.05, 0.075, 0.05, 0.025])


@pytest.mark.parametrize(
    ("values", "fragment"),
    [
        ({"momentum": 0.9}, "`momentum` is for sgd, but `optimiser` is adagrad"),
        (
            {"drops": (0.5,)},
            "`drops` belong to `schedule='steps'`, and only to it, but `schedule` is linear",
        ),
        (
            {"schedule": "steps"},
            "`drops` belong to `schedule='steps'`, and only to it, but there are no `drops`",
        ),
    ],
)
def test_settings_that_make_no_sense_together_are_refused_before_any_work(values, fragment):
    with pytest.raises(HeadtailError, match=fragment):
        Run(**values).check_together()


def test_the_learning_rate_falls_to_a_tenth_at_each_drop():
    run = Run(lr=1.0, schedule="steps", drops=(0.5, 0.8))
    assert [run.learning_rate(step, 10) for step in (0, 4, 5, 7, 8, 9)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01]
    )
