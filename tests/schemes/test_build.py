"""Scheme names."""

from __future__ import annotations

import pickle
import re

import pytest
import torch

from headtail import (
    ArcFace,
    CosFace,
    DecoupledLoss,
    Frequency,
    FromMargin,
    HeadtailError,
    Labels,
    LogUniform,
    PartialFC,
    Queue,
    SampledDecoupledLoss,
    SampledSoftmaxLoss,
    SoftmaxLoss,
    Tail,
    Uniform,
    WithinBatch,
    scheme,
)
from headtail.samplers.fixed.mixture import FixedMixture
from headtail.schemes import PAPER, build_sampler, parse

LABELS = Labels.zipf(100)


@pytest.mark.parametrize(
    ("text", "kind", "sampler", "m"),
    [
        ("within-batch:tail", SampledSoftmaxLoss, WithinBatch, None),
        ("within-batch:tail@32", SampledSoftmaxLoss, WithinBatch, 32),
        ("within-batch:infonce", SampledSoftmaxLoss, WithinBatch, None),
        ("queue(50):infonce@20", SampledSoftmaxLoss, Queue, 20),
        ("contrastive/frequency(0.75):tail(1)@256", SampledDecoupledLoss, Frequency, 256),
        ("uniform(excluded):importance@4", SampledSoftmaxLoss, Uniform, 4),
        ("frequency(0.5,without-replacement):relative@9", SampledSoftmaxLoss, Frequency, 9),
        ("arcface(0.3,0.2,easy)/partial-fc:infonce@7", SampledSoftmaxLoss, PartialFC, 7),
        ("cosface/within-batch:tail", SampledSoftmaxLoss, WithinBatch, None),
        ("log-uniform:constant", SampledSoftmaxLoss, LogUniform, 256),
        ("squared-hinge/queue(512):equalised@8", SampledDecoupledLoss, Queue, 8),
        ("mixture(uniform,frequency(0.5)):importance@9", SampledSoftmaxLoss, FixedMixture, None),
    ],
)
def test_names_build_what_they_say(text, kind, sampler, m):
    loss = scheme(text, LABELS)
    assert type(loss) is kind
    assert type(loss.sampler) is sampler
    if sampler is not FixedMixture:
        assert loss.sampler.num_negatives == m


def test_arguments_reach_their_objects():
    loss = scheme("contrastive/frequency(0.75,excluded):tail(0.5)@7", LABELS)
    assert loss.sampler.power == 0.75
    assert loss.sampler.exclude_target
    assert isinstance(loss.weighting, Tail)
    assert loss.weighting.margin.strength == 0.5
    assert loss.settings.score == "cosine"
    mixture = scheme("mixture(uniform,frequency(0.5)):importance@9", LABELS).sampler
    assert [part.num_negatives for part in mixture.samplers] == [5, 4]
    assert isinstance(scheme("uniform:adaptive(0.3)", LABELS).weighting, FromMargin)


@pytest.mark.parametrize(
    "text",
    [
        "softmax",
        "logit-adjusted",
        "equalised",
        "adaptive",
        "softmax+post-hoc",
        "logit-adjusted(0.5)",
    ],
)
def test_all_label_losses_have_names(text):
    assert type(scheme(text, LABELS)) is SoftmaxLoss
    assert parse(text).post_hoc == text.endswith("post-hoc")


@pytest.mark.parametrize("text", ["contrastive", "logistic", "contrastive/logit-adjusted"])
def test_all_label_decoupled_losses_have_names(text):
    assert type(scheme(text, LABELS)) is DecoupledLoss


def test_the_paper_s_eight_schemes_are_there():
    assert len(PAPER) == 8
    for text in PAPER:
        assert type(scheme(text, LABELS)) is SampledSoftmaxLoss


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("within-bach:tail", "Did you mean `within-batch`"),
        ("uniform:improtance", "Did you mean `importance`"),
        ("sofmax", "Did you mean `softmax`"),
        ("contrastve/uniform:tail", "Did you mean `contrastive`"),
        ("uniform:tail@many", "whole number of negatives"),
        ("uniform:tail@0", "whole number of negatives"),
        ("softmax@5", "uses all labels"),
        ("uniform(0.5):tail", "takes no number"),
        ("frequency(2):tail", "`power` must be between 0 and 1"),
        ("frequency(0.5,excludd):tail", "Did you mean `excluded`"),
        ("uniform:constant(3)", "takes no arguments"),
        ("mixture:tail", "needs parts"),
        ("within-batch:infonse", "Did you mean `infonce`"),
        ("within-batch:infonce(2)", "takes no arguments"),
        ("resampled:infonce", "Write weights that come from a margin"),
        ("uniform tail", "not of the form"),
        ("", "not of the form"),
        ("uniform:tail@", "whole number of negatives"),
        ("mixture(uniform,):tail", "not of the form"),
        ("uniform(excluded(3)):tail", "is not an option"),
        ("queue(10.7):tail", "whole number of labels"),
        ("queue(nan):tail", "finite number"),
        ("logit-adjusted+post-hoc", "correct twice"),
        ("within-batch:constant+post-hoc", "correct twice"),
    ],
)
def test_a_wrong_name_gets_a_sentence_with_the_nearest_right_one(text, fragment):
    with pytest.raises(HeadtailError) as caught:
        scheme(text, LABELS)
    assert fragment in str(caught.value)


def test_samplers_have_names_of_their_own():
    assert build_sampler("frequency(0.5)@7", LABELS).num_negatives == 7
    with pytest.raises(HeadtailError, match="is not a sampler"):
        build_sampler("uniforn", LABELS)


def test_no_negatives_are_not_taken_for_the_default():
    with pytest.raises(HeadtailError, match="num_negatives"):
        scheme("uniform:tail", LABELS, 0)


@pytest.mark.parametrize("text", ["Within-Batch:Tail", "within_batch:tail", " within-batch:tail "])
def test_capitals_and_underscores_do_not_matter(text):
    assert type(scheme(text, LABELS).sampler) is WithinBatch


@pytest.mark.parametrize(
    "text", ["softmax", "logit-adjusted", "uniform:tail@7", "within-batch:infonce"]
)
def test_options_reach_the_loss(text):
    loss = scheme(
        text,
        LABELS,
        score="cosine",
        temperature=0.05,
        label_smoothing=0.1,
        reduction="sum",
        ignore_index=3,
    )
    hidden = torch.randn(4, 5)
    table = torch.randn(LABELS.num_labels, 5)
    target = torch.tensor([0, 1, 3, 1])
    draw = {"draw": loss.sampler.draw(target, ignore_index=3)} if hasattr(loss, "sampler") else {}
    plain = scheme(text, LABELS)
    options = {
        "score": "cosine",
        "temperature": 0.05,
        "label_smoothing": 0.1,
        "reduction": "sum",
        "ignore_index": 3,
    }
    assert torch.equal(
        loss(hidden, table, target, **draw), plain(hidden, table, target, **draw, **options)
    )
    assert not torch.equal(
        loss(hidden, table, target, **draw), plain(hidden, table, target, **draw, ignore_index=3)
    )
    assert loss.for_labels(LABELS).options == loss.options


def test_an_option_takes_precedence_over_the_name():
    assert scheme("softmax+post-hoc", LABELS).post_hoc == 1
    assert scheme("softmax+post-hoc", LABELS, post_hoc=0.5).post_hoc == 0.5
    assert scheme("hinge/uniform:tail", LABELS, score="cosine").settings.score == "cosine"
    assert scheme("contrastive/uniform:tail", LABELS, temperature=0.5).settings.score == "cosine"


def test_a_learnable_temperature_is_a_parameter_of_the_loss():
    temperature = torch.nn.Parameter(torch.tensor(0.1))
    assert list(scheme("uniform:tail", LABELS, temperature=temperature).parameters()) == [
        temperature
    ]


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        (
            "softmax",
            {"scor": "cosine"},
            "`scor` is not an option of this loss. Did you mean `score` or `score_margin`?",
        ),
        ("uniform:tail", {"label_smooth": 0.1}, "Did you mean `label_smoothing`?"),
        (
            "hinge/uniform:tail",
            {"label_smoothing": 0.1},
            "`label_smoothing` is not an option of this loss.",
        ),
        ("uniform:tail", {"label_smoothing": 1.5}, "`label_smoothing` must be between 0 and 1"),
        ("uniform:tail", {"temperature": 0}, "`temperature` must be above 0"),
        ("uniform:tail", {"score": "euclidean"}, "`score` must be one of 'dot', 'cosine'"),
        ("contrastive/uniform:tail", {"score": "dot"}, 'works on cosines: write `score="cosine"`'),
        ("contrastive/uniform:tail", {"piece": None}, "Write for example `hinge/uniform:tail`"),
        ("uniform:tail", {"post_hoc": 1.0}, "correct twice"),
    ],
)
def test_an_option_that_does_not_fit_gets_a_sentence(text, options, sentence):
    with pytest.raises(HeadtailError, match=re.escape(sentence)):
        scheme(text, LABELS, **options)


def test_losses_from_names_can_be_pickled():
    for text in ("within-batch:equalised(0.5)", "contrastive/uniform:tail", "softmax+post-hoc"):
        assert repr(pickle.loads(pickle.dumps(scheme(text, LABELS)))) == repr(scheme(text, LABELS))


def test_margins_on_the_score_are_losses_of_cosines():
    loss = scheme("arcface(0.3,0.2,easy)/uniform:tail@7", LABELS)
    assert loss.settings.score_margin == ArcFace(0.3, 0.2, easy=True)
    assert loss.settings.score == "cosine"
    assert loss.temperature == 1 / 64
    assert scheme("cosface", LABELS, temperature=0.1).temperature == 0.1
    exact = scheme("cosface(0.2)/logit-adjusted(0.5)", LABELS)
    assert type(exact) is SoftmaxLoss
    assert exact.settings.score_margin == CosFace(0.2)
    assert exact.margin.strength == 0.5


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("arcface(0.1,0.2,0.3)/uniform:tail", "takes an angle, perhaps a margin of the cosine"),
        ("arcface(hard)", "takes an angle, perhaps a margin of the cosine"),
        ("cosface(0.1,0.2)", "`cosface` in `cosface(0.1,0.2)` takes at most one number"),
        ("arcfase/uniform:tail", "`arcfase` in `arcfase/uniform:tail` is not a loss. Did you mean"),
        ("arcface(9)", "must be between 0 and"),
        ("arcface@7", "uses all labels, so `@7` has no meaning"),
        ("partial-fc(3):infonce", "`partial-fc` in `partial-fc(3):infonce` takes no arguments"),
        ("mixture(partial-fc,uniform):tail@8", "`partial-fc` counts each label once"),
        ("hard(partial-fc):tail@8", "cannot be a part of `hard`"),
        ("resampled(partial-fc):tail@4", "cannot be a part of `resampled`"),
    ],
)
def test_wrong_margins_on_the_score_are_refused(text, sentence):
    with pytest.raises(HeadtailError, match=re.escape(sentence)):
        scheme(text, LABELS).draw(torch.zeros(1, 1), torch.zeros(1, 1), torch.tensor([1]))


@pytest.mark.parametrize("name", ["negatives", "m"])
@pytest.mark.parametrize("text", ["uniform:tail", "softmax", "hinge/uniform:importance"])
def test_other_words_for_the_number_of_negatives_are_refused_with_the_right_one(name, text):
    with pytest.raises(
        HeadtailError, match=rf"^`{name}` is not.* Write `num_negatives=64`, or `@64`"
    ):
        scheme(text, LABELS, **{name: 64})
