"""The classifier for scikit-learn: its own checks, pipelines, searches, and many labels."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import headtail as ht
from headtail.integrations.sklearn import HeadtailClassifier

SMALL: dict[str, Any] = {"dim": 16, "random_state": 0}


@parametrize_with_checks([HeadtailClassifier(dim=32, random_state=0)])
def test_the_checks_of_scikit_learn(estimator, check) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def texts() -> tuple[sparse.csr_matrix, np.ndarray]:
    """Words that name their label, and others."""
    generator = np.random.default_rng(0)
    y = np.minimum(generator.zipf(1.5, 600), 40) - 1
    words = generator.integers(40, 200, (600, 3))
    columns = np.concatenate([y[:, None], words], 1).reshape(-1)
    rows = np.arange(600).repeat(4)
    return sparse.csr_matrix((np.ones(2400), (rows, columns)), (600, 200)), y


def several(y: np.ndarray) -> sparse.csr_matrix:
    """Each point's label and the one after it."""
    rows = np.arange(len(y)).repeat(2)
    columns = np.stack([y, (y + 1) % 40], 1).reshape(-1)
    return sparse.csr_matrix((np.ones(len(rows), int), (rows, columns)), (len(y), 40))


@pytest.mark.parametrize("scheme", ["softmax", "within-batch:tail", "uniform:importance@16"])
def test_it_learns_with_any_scheme(scheme: str, texts) -> None:
    X, y = texts
    classifier = HeadtailClassifier(scheme, epochs=30, settings={"dropout": 0.0}, **SMALL).fit(X, y)
    assert classifier.score(X, y) > 0.9
    assert type(classifier.model_.head.loss) is type(
        ht.scheme(scheme, classifier.model_.head.labels)
    )


def test_the_best_labels_are_those_of_all_scores(texts) -> None:
    X, y = texts
    classifier = HeadtailClassifier(epochs=2, **SMALL).fit(X, y)
    probabilities = classifier.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    best = classifier.predict_topk(X, 5)
    np.testing.assert_array_equal(best[:, 0], classifier.classes_[probabilities.argmax(1)])
    order = np.argsort(-probabilities, 1, kind="stable")[:, :5]
    np.testing.assert_array_equal(best, classifier.classes_[order])


def test_sparse_and_dense_features_give_the_same(texts) -> None:
    X, y = texts
    settings = {"batch": 32, "dropout": 0.0, "normalise": True}
    made = [
        HeadtailClassifier(epochs=2, lr=0.05, settings=settings, **SMALL).fit(some, y)
        for some in (X, X.toarray())
    ]
    np.testing.assert_allclose(made[0].predict_proba(X), made[1].predict_proba(X), atol=1e-3)
    # A model answers in either form.
    np.testing.assert_allclose(
        made[0].predict_proba(X), made[0].predict_proba(X.toarray()), atol=1e-6
    )


def test_labels_keep_their_type_and_order() -> None:
    X = np.eye(3).repeat(20, 0)
    y = np.array(["pear", "fig", "apple"]).repeat(20)
    classifier = HeadtailClassifier(epochs=20, **SMALL).fit(X, y)
    assert classifier.classes_.tolist() == ["apple", "fig", "pear"]
    assert classifier.predict(X).tolist() == y.tolist()


@pytest.mark.parametrize("dense", [False, True])
def test_several_labels_per_point(dense: bool, texts) -> None:
    X, y = texts
    labels = several(y)
    given = labels.toarray() if dense else labels
    classifier = HeadtailClassifier(
        "uniform:importance@16", epochs=30, settings={"dropout": 0.0}, **SMALL
    ).fit(X, given)
    assert classifier.labels_per_point_ == 2
    answers = classifier.predict(X)
    assert sparse.issparse(answers) is not dense
    assert answers.shape == labels.shape
    assert (answers.sum(1) == 2).all()
    assert classifier.score(X, given) > 0.9
    best = classifier.predict_topk(X, 1)[:, 0]
    right = labels.toarray()[np.arange(len(best)), best]
    assert classifier.score(X, given) == right.mean()
    assert not hasattr(classifier, "predict_proba")


def test_what_is_given_is_not_changed(texts) -> None:
    X, y = texts
    labels = several(y)
    labels.data[::3] = 0  # zeros that are written down
    X = sparse.csr_matrix((X.data.astype(np.float32), X.indices, X.indptr), X.shape)
    before = X.indices.copy(), labels.indices.copy(), labels.indptr.copy()
    HeadtailClassifier(epochs=1, **SMALL).fit(X, labels)
    for now, then in zip((X.indices, labels.indices, labels.indptr), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_equal_seeds_give_equal_models_and_leave_torch_as_it_was(texts) -> None:
    X, y = texts
    classifier = HeadtailClassifier("uniform:tail@8", epochs=2, **SMALL)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = classifier.fit(X, y).predict_proba(X)
    assert torch.equal(torch.rand(3), expected)
    np.testing.assert_array_equal(clone(classifier).fit(X, y).predict_proba(X), first)
    other = clone(classifier).set_params(random_state=1).fit(X, y).predict_proba(X)
    assert not np.array_equal(other, first)


def test_a_pickled_classifier_answers_the_same(texts) -> None:
    X, y = texts
    classifier = HeadtailClassifier(epochs=1, **SMALL).fit(X, y)
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict_proba(X), classifier.predict_proba(X))


def test_a_pipeline_from_texts() -> None:
    texts = ["red apple", "green apple", "blue sky", "grey sky"] * 15
    y = ["fruit", "fruit", "air", "air"] * 15
    pipeline = make_pipeline(TfidfVectorizer(), HeadtailClassifier(epochs=20, **SMALL))
    assert pipeline.fit(texts, y).predict(["an apple", "the sky"]).tolist() == ["fruit", "air"]


def test_a_grid_search_over_schemes() -> None:
    generator = np.random.default_rng(0)
    y = generator.integers(3, size=90)
    X = np.eye(3)[y] + 0.1 * generator.normal(size=(90, 3))
    pipeline = make_pipeline(StandardScaler(), HeadtailClassifier(epochs=5, **SMALL))
    grid = {"headtailclassifier__scheme": ["softmax", "logit-adjusted"]}
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(X, y)
    assert search.best_score_ > 0.9


def test_explain_takes_what_was_trained(texts) -> None:
    X, y = texts
    head = HeadtailClassifier("within-batch:tail", epochs=1, **SMALL).fit(X, y).model_.head
    assert ht.explain(head, head.labels).leans == "tail"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"optimizer": "adam"}, "`settings` has `optimizer`, which is no setting of a `Run`. Did "),
        ({"dim": 3}, "`settings` has `dim`, which is an argument of its own: write `HeadtailCla"),
        ({"seed": 3}, "`settings` has `seed`, which is an argument of its own: write `HeadtailCl"),
        (3, "`settings` must be a Mapping"),
    ],
)
def test_wrong_settings_are_named(settings, sentence, texts) -> None:
    with pytest.raises(ht.HeadtailError, match=sentence):
        HeadtailClassifier(settings=settings, **SMALL).fit(*texts)


def test_settings_reach_the_run(texts) -> None:
    X, y = texts
    weights = []
    for optimiser in ("adagrad", "sgd"):
        classifier = HeadtailClassifier(epochs=1, settings={"optimiser": optimiser}, **SMALL)
        weights.append(classifier.fit(X, y).model_.head.weight.detach())
    assert not torch.equal(*weights)


def test_more_answers_than_labels_are_refused(texts) -> None:
    X, y = texts
    classifier = HeadtailClassifier(epochs=1, **SMALL).fit(X, y)
    with pytest.raises(ht.HeadtailError, match="`k` is 99, but there are only"):
        classifier.predict_topk(X, 99)


def test_labels_that_do_not_match_are_refused(texts) -> None:
    X, y = texts
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        HeadtailClassifier(**SMALL).fit(X, y[:-1])


def test_training_warns_of_nothing(texts) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        HeadtailClassifier("within-batch:importance", epochs=1, **SMALL).fit(*texts)


@pytest.mark.parametrize(
    ("y", "found"),
    [
        (2 * np.eye(4, dtype=int), "2"),
        (-sparse.eye(4, format="csr"), "-1.0"),
        (sparse.csr_matrix(np.diag([1, np.nan])), "nan"),
    ],
)
def test_a_matrix_of_labels_holds_zeros_and_ones(y, found) -> None:
    sentence = f"`y` as a matrix must hold zeros and ones, but has {found}. Write for example"
    with pytest.raises(ht.HeadtailError, match=sentence):
        HeadtailClassifier(**SMALL).fit(np.eye(y.shape[0]), y)


@pytest.mark.parametrize("y", [np.eye(4)[:, :2], np.eye(4)[:2], np.arange(4)])
def test_a_score_against_other_shapes_is_refused(y) -> None:
    classifier = HeadtailClassifier(**SMALL).fit(np.eye(4), np.eye(4, dtype=int))
    with pytest.raises(ht.HeadtailError, match=r"`y` must be a matrix of shape \[4, 4\], as in"):
        classifier.score(np.eye(4), y)
