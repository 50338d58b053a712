"""A classifier for scikit-learn, for pipelines and grid searches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from headtail.data.bag import Bag
from headtail.data.load import load
from headtail.data.readers.matrix import features_of
from headtail.errors import HeadtailError, Setting, check_count, check_kind, nearest, need
from headtail.training.config import Run
from headtail.training.trainer import Trainer

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.metaestimators import available_if
else:
    about = {"package": "scikit-learn", "extra": "sklearn", "to": "A scikit-learn classifier"}
    BaseEstimator = need(module="sklearn.base", **about).BaseEstimator
    ClassifierMixin = need(module="sklearn.base", **about).ClassifierMixin
    available_if = need(module="sklearn.utils.metaestimators", **about).available_if

POINTS_AT_ONCE = 4096
"""Rows that are answered at a time."""


def _one_label_each(classifier: HeadtailClassifier) -> bool:
    return getattr(classifier, "labels_per_point_", None) is None


class HeadtailClassifier(ClassifierMixin, BaseEstimator):
    """A linear hidden layer and a label table, trained by any scheme, as a scikit-learn classifier.

    For very many labels, with one label per point or several. What a scheme does to head and tail,
    `explain` says: `ht.explain(classifier.model_.head, classifier.model_.head.labels)`.

    Args:
        scheme: what to train, for example "within-batch:tail".
        dim: size of the hidden layer.
        epochs: passes over the data; None lets the kind of data decide, as for
        lr: learning rate, and
        negatives: m of a scheme without `@m`.
        settings: further settings of `Run`, for example `{"dropout": 0.0, "optimiser": "adam"}`.
            Unless they are here, sparse rows are scaled to length 1 (`normalise`), and no point is
            held out (`validation`).
        device: "cpu" or "cuda".
        random_state: a seed, or a random state of numpy.

    Attributes:
        classes_: the labels in order; of a matrix of labels, the numbers of its columns.
        n_features_in_: D.
        labels_per_point_: of a matrix of labels, their mean number per point in training, rounded:
            how many `predict` returns. None where each point has one label.
        model_: the trained `headtail.encoders.Model`.

    >>> X, y = np.eye(3).repeat(20, 0), np.array(["ant", "bee", "cat"]).repeat(20)
    >>> classifier = HeadtailClassifier(dim=8, epochs=20, random_state=0).fit(X, y)
    >>> classifier.predict(X[[0, 30, 59]]).tolist(), classifier.predict_topk(X, 2).shape
    (['ant', 'bee', 'cat'], (60, 2))
    """

    model_: Any
    classes_: np.ndarray
    labels_per_point_: Any

    def __init__(
        self,
        scheme: str = "softmax",
        *,
        dim: int = 512,
        epochs: int | None = None,
        lr: float | None = None,
        negatives: int | None = None,
        settings: Mapping[str, Any] | None = None,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.scheme = scheme
        self.dim = dim
        self.epochs = epochs
        self.lr = lr
        self.negatives = negatives
        self.settings = settings
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> HeadtailClassifier:
        """Train on features and labels.

        Args:
            X: `[n, D]`, dense or a sparse matrix of scipy.
            y: one label per point; or a matrix `[n, L]` of zeros and ones, dense or sparse.
        """
        X = self._checked(X, reset=True)
        indicator = self._indicator(y, X.shape[0])
        data = load((X, indicator), test=(X[:1], indicator[:1]))
        with torch.random.fork_rng(devices=[]):  # a run seeds torch; the caller's draws go on
            run = self._run(sparse.issparse(X))
            trained = Trainer(run, data, device=self.device).fit()
        self.model_ = trained.model.eval()
        return self

    def predict(self, X: Any) -> Any:
        """The best label of each point; of a matrix of labels, one with the
        `labels_per_point_` best of each point.
        """
        if _one_label_each(self):
            return self.predict_topk(X, 1)[:, 0]
        best = self.predict_topk(X, self.labels_per_point_)
        rows = np.arange(len(best)).repeat(best.shape[1])
        ones = np.ones(best.size, dtype=self._matrix[1])
        answers = sparse.csr_matrix((ones, (rows, best.reshape(-1))), (len(best), self._num_labels))
        return answers if self._matrix[0] else answers.toarray()

    def predict_topk(self, X: Any, k: int) -> np.ndarray:
        """`[n, k]` the k best labels of each point, best first, exact over all labels."""
        self._check_fitted()
        if check_count("k", k) > self._num_labels:
            raise HeadtailError(f"`k` is {k}, but there are only {self._num_labels:,} labels.")
        top = [self.model_.top(some, k).cpu().numpy() for some in self._features(X)]
        return self.classes_[np.concatenate(top)]

    @available_if(_one_label_each)
    def predict_proba(self, X: Any) -> np.ndarray:
        """`[n, L]` the softmax of all scores: probabilities for schemes that lean neither way. One
        label per point only.
        """
        scores = [
            self.model_.head.logits(self.model_.encode(some)).cpu().double()
            for some in self._features(X)
        ]
        return torch.cat(scores).softmax(1).numpy()

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy; of a matrix of labels precision@1, the share of points whose best label is
        right.
        """
        self._check_fitted()
        if _one_label_each(self):
            return float(super().score(X, y, sample_weight))
        best = self.predict_topk(X, 1)[:, 0]
        answers = y if sparse.issparse(y) else np.asarray(y)
        if answers.shape != (len(best), self._num_labels):
            raise HeadtailError(
                f"`y` must be a matrix of shape [{len(best)}, {self._num_labels}], as in `fit`, "
                f"but has shape {list(answers.shape)}."
            )
        right = np.asarray(sparse.csr_matrix(answers)[np.arange(len(best)), best]).reshape(-1) != 0
        return float(np.average(right, weights=sample_weight))

    def _run(self, sparse_features: bool) -> Run:
        from sklearn.utils import check_random_state

        own = {name: getattr(self, name) for name in ("dim", "epochs", "lr", "negatives")}
        settings = {} if self.settings is None else self.settings
        check_kind("settings", settings, Mapping, '{"optimiser": "adam"}')
        known = [name for name in Run.__dataclass_fields__ if name not in (*own, "scheme", "seed")]
        for name in settings:
            if name not in known:
                raise HeadtailError(
                    Setting("settings"), f" has `{name}`, {self._instead(name, known)}"
                )
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        chosen = {"validation": 0.0, "normalise": sparse_features, **own, **settings}
        return Run(scheme=self.scheme, seed=seed, **chosen)

    def _instead(self, name: str, known: list[str]) -> str:
        """What to write where `settings` cannot have this name."""
        own = {"seed": "random_state"}.get(name, name)
        if own in self.get_params():
            return f"which is an argument of its own: write `HeadtailClassifier({own}=…)`."
        return f"which is no setting of a `Run`.{nearest(name, known)}"

    def _indicator(self, y: Any, num_points: int) -> sparse.csr_matrix:
        """`[n, L]` labels as a sparse matrix; sets what is known of them."""
        from sklearn.utils.multiclass import check_classification_targets, type_of_target
        from sklearn.utils.validation import _check_y, check_consistent_length, column_or_1d

        many = sparse.issparse(y) or type_of_target(y) == "multilabel-indicator"
        self._matrix = (sparse.issparse(y), getattr(y, "dtype", np.dtype(int)))
        check_consistent_length(np.empty(num_points), y)
        if many:
            indicator: Any = sparse.csr_matrix(y, copy=True)
            indicator.eliminate_zeros()
            others = indicator.data[indicator.data != 1]
            if len(others):
                raise HeadtailError(
                    f"`y` as a matrix must hold zeros and ones, but has {others[0]}. Write for "
                    "example `(y > 0).astype(int)`."
                )
            self.labels_per_point_ = max(1, round(indicator.nnz / num_points))
            self.classes_ = np.arange(indicator.shape[1])
            return indicator
        if y is None:
            _check_y(y)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.labels_per_point_ = None
        self.classes_, ids = np.unique(y, return_inverse=True)
        where = (np.arange(num_points), ids)
        return sparse.csr_matrix((np.ones(num_points), where), (num_points, len(self.classes_)))

    @property
    def _num_labels(self) -> int:
        return len(self.classes_)

    def _features(self, X: Any) -> Iterator[Bag | Tensor]:
        """Checked features, some rows at a time, where the model is."""
        self._check_fitted()
        X = self._checked(X, reset=False)
        device = self.model_.head.weight.device
        for start in range(0, X.shape[0], POINTS_AT_ONCE):
            yield features_of(X[start : start + POINTS_AT_ONCE]).to(device)

    def _checked(self, X: Any, *, reset: bool) -> Any:
        from sklearn.utils.validation import validate_data

        X = validate_data(self, X, reset=reset, accept_sparse="csr", dtype=np.float32)
        # Repeated entries are summed in place, which must not be the caller's.
        return X.copy() if sparse.issparse(X) and not X.has_canonical_format else X

    def _check_fitted(self) -> None:
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self, "model_")

    def __sklearn_tags__(self) -> Any:
        """Sparse features and several labels per point are fine."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = True
        return tags
