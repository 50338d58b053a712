"""Raw text as sparse features: the terms of a corpus, and their weights."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headtail.data.bag import Bag
from headtail.errors import need

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

TextKind = Literal["tfidf", "hashing"]
Names = list[str] | list[int]
FEWEST_TEXTS = 2
"""Texts that a term must be in, where any term is in so many."""
MOST_COUNTED = 4_000_000
"""Terms that are counted at once; beyond them, the rarest so far are forgotten."""


@dataclass(frozen=True, eq=False)
class TextFeatures:
    r"""How texts become rows of features: a fitted vectoriser of scikit-learn, as plain values.

    With "tfidf", term t of a text has the weight \((1 + \log n_t) · (1 + \log\frac{1+N}{1+N_t})\):
    \(n_t\) is how often the text has it, \(N_t\) how many of the N training texts have it. With
    "hashing", a term's column is its hash, and its weight \(n_t\). Rows have length 1.

    Attributes:
        kind: "tfidf" or "hashing".
        ngrams: the most words of a term.
        num_columns: D.
        terms: the term of each column; empty for hashing.
        idf: `[D]` float32 weights of the terms; empty for hashing.

    >>> fitted = TextFeatures.fit(["red apple", "red car", "blue car"])
    >>> fitted.terms
    ('car', 'red')
    >>> fitted.bag(["a red red house"]).to_dense()
    tensor([[0., 1.]])
    """

    kind: TextKind
    ngrams: int
    num_columns: int
    terms: tuple[str, ...] = ()
    idf: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))

    @classmethod
    def fit(cls, texts: Iterable[str], *, ngrams: int = 2, most: int = 1 << 17) -> TextFeatures:
        """The terms of these texts.

        Args:
            texts: the training texts.
            ngrams: the most words of a term.
            most: the most terms; those in the most texts are kept.
        """
        counter = TermCounter(ngrams)
        counter.add(texts)
        return counter.features(most)

    def rows(self, texts: list[str]) -> csr_matrix:
        """`[n, D]` float32 sparse rows, columns in order."""
        matrix = self._vectoriser.transform(texts).astype(np.float32)
        matrix.sort_indices()
        return matrix

    def bag(self, texts: list[str]) -> Bag:
        """The same rows as a bag."""
        matrix = self.rows(texts)
        offsets = torch.from_numpy(matrix.indptr.astype(np.int64))
        columns = torch.from_numpy(matrix.indices.astype(np.int32))
        return Bag(offsets, columns, torch.from_numpy(matrix.data), self.num_columns)

    def tensors(self) -> dict[str, Tensor]:
        """What is large of it, to be saved; nothing has to be unpickled."""
        written = "\n".join(self.terms).encode()
        terms = torch.from_numpy(np.frombuffer(written, np.uint8).copy())
        return {"text.terms": terms, "text.idf": torch.from_numpy(self.idf)}

    def facts(self) -> dict[str, Any]:
        """The rest of it, as JSON."""
        return {"kind": self.kind, "ngrams": self.ngrams, "num_columns": self.num_columns}

    @classmethod
    def saved(cls, tensors: Mapping[str, Tensor], facts: dict[str, Any]) -> TextFeatures:
        """From what `tensors` and `facts` returned."""
        written = tensors["text.terms"].numpy().tobytes().decode()
        terms = tuple(written.split("\n")) if written else ()
        return cls(**facts, terms=terms, idf=tensors["text.idf"].numpy())

    def digest(self) -> str:
        """Changes with what it makes of a text."""
        content = json.dumps([self.facts(), self.terms, self.idf.tolist()])
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    @cached_property
    def _vectoriser(self) -> Any:
        options = _options(self.ngrams) | {"dtype": np.float32}
        if self.kind == "hashing":
            # Signs would make terms of one column cancel out.
            options |= {"n_features": self.num_columns, "alternate_sign": False}
            return _scikit_learn().HashingVectorizer(**options)
        vocabulary = {term: column for column, term in enumerate(self.terms)}
        vectoriser = _scikit_learn().TfidfVectorizer(
            **options, sublinear_tf=True, vocabulary=vocabulary
        )
        vectoriser.idf_ = self.idf
        return vectoriser


class Trained(NamedTuple):
    """What a model knows of the texts it was trained on, so that others are read for it.

    Attributes:
        features: how texts become features.
        label_names: of its labels.
        digest: of the data it was trained on.
    """

    features: TextFeatures
    label_names: Names
    digest: str


class TermCounter:
    """Counts in how many texts each term is, block by block, in bounded memory.

    Args:
        ngrams: the most words of a term.
        most: terms that are counted at once.
    """

    def __init__(self, ngrams: int, most: int = MOST_COUNTED) -> None:
        self.ngrams = ngrams
        self.most = most
        self.texts = 0
        self.counts: Counter[str] = Counter()
        self._forgotten = 0
        self._terms_of = _scikit_learn().CountVectorizer(**_options(ngrams)).build_analyzer()

    def add(self, texts: Iterable[str]) -> None:
        """Count the terms of more texts."""
        for text in texts:
            self.counts.update(set(self._terms_of(text)))
            self.texts += 1
            while len(self.counts) > self.most:
                self._forgotten += 1
                frequent = (pair for pair in self.counts.items() if pair[1] > self._forgotten)
                self.counts = Counter(dict(frequent))

    def features(self, most: int) -> TextFeatures:
        """The `most` terms in the most texts, in alphabetical order, with their weights."""
        repeated = {term for term, count in self.counts.items() if count >= FEWEST_TEXTS}
        # In a handful of texts no term may repeat.
        candidates = repeated or set(self.counts)
        by_count = sorted(candidates, key=lambda term: (-self.counts[term], term))
        terms = tuple(sorted(by_count[:most]))
        count = np.array([self.counts[term] for term in terms], np.float32)
        idf = np.log((1 + self.texts) / (1 + count)) + 1
        return TextFeatures("tfidf", self.ngrams, len(terms), terms, idf.astype(np.float32))


def _options(ngrams: int) -> dict[str, Any]:
    """What every vectoriser shares: words of any length, and runs of them."""
    return {"ngram_range": (1, ngrams), "token_pattern": r"(?u)\b\w+\b"}


def _scikit_learn() -> Any:
    return need(
        "scikit-learn",
        extra="text",
        to="Reading raw text",
        module="sklearn.feature_extraction.text",
    )
