"""A faiss index of a label table: bias, cosine, temperature and post-hoc adjustment folded in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from headtail.answers.scored_table import check_hidden
from headtail.answers.vectors import Vectors
from headtail.data.progress import Progress
from headtail.errors import HeadtailError, Sentence, Setting, check_kind, need
from headtail.files.atomic import new_folder
from headtail.head import LabelHead

INDEX_FILE = "index.faiss"
AT_ONCE = 2**16
"""Labels that are added to an index at a time."""
TRAINED_ON = 2**18
"""Labels that an index learns its cells or codes from, and"""
PER_CELL = 64
"""labels for each cell, where there are many cells."""
ASKED = 256
"""Label rows that recall is measured with, where no hidden states are given."""
DEEPEST = 10
"""The k of recall@k."""
ENOUGH = 0.95
"""Recall below which there is advice."""


class FaissExport(NamedTuple):
    """What was exported.

    Attributes:
        path: folder with the index.
        recall: share of the exact best k labels that the index finds.
        k: at most 10.
        asked: what the index was asked, in words.
    """

    path: Path
    recall: float
    k: int
    asked: str

    @property
    def advice(self) -> Sentence | None:
        """How to find more of the best labels, where the index misses many."""
        if self.recall >= ENOUGH:
            return None
        return Sentence(
            f"The index misses {1 - self.recall:.0%} of the best {self.k} labels. To miss fewer, "
            "search more of it: ",
            Setting("search", "nprobe=16"),
            " for cells (IVF), ",
            Setting("search", "efSearch=128"),
            " for graphs (HNSW).",
        )


def export(
    head: LabelHead,
    path: str | Path,
    index: str = "Flat",
    *,
    search: str = "",
    post_hoc: float | None = None,
    correct_twice: bool = False,
    queries: Float[Tensor, "n d"] | None = None,
    progress: Progress | None = None,
) -> FaissExport:
    """Build a faiss index of the labels, whose inner products are the scores of `head.topk`.

    The folder gets `index.faiss`, `query.json`, which says how a hidden state becomes a query
    (`normalise`: scale it to length 1; `append`: these numbers), and `labels.json`, the names of
    the labels where they have any. A flat index answers as `head.topk` does; others are faster and
    miss labels, how many is in `recall`.

    Args:
        head: a trained head.
        path: folder to make.
        index: what faiss builds, as its `index_factory` takes it: "Flat", "IVF1024,Flat",
            "HNSW32", "IVF1024,PQ16", …
        search: settings of the search, saved with the index, as faiss's `ParameterSpace` takes
            them: "nprobe=16", "efSearch=128".
        post_hoc: τ of post-hoc logit adjustment, as in `head.topk`.
        correct_twice: as in `head.topk`.
        queries: hidden states to measure recall with; by default, random rows of the label table.
        progress: called with what is being done, and the share that is done.
    """
    check_kind("head", head, LabelHead, "model.head")
    faiss = need("faiss-cpu", module="faiss", extra="faiss", to="Building a faiss index")
    report = progress or (lambda what, share: None)
    check_kind("index", index, str, "Flat")
    check_kind("search", search, str, "nprobe=16")
    if queries is not None:
        check_hidden(queries, head.weight, "queries")
    vectors = Vectors(head.scored_table(post_hoc, correct_twice), _multiple(index))
    with new_folder(Path(path)) as folder:
        built = _build(faiss, vectors, index, report)
        _set_search(faiss, built, search)
        report("measuring recall", 1.0)
        found = _recall(head, vectors, built, queries)._replace(path=Path(path))
        _write(faiss, built, folder / INDEX_FILE)
        facts = {f"recall@{found.k}": found.recall, "recall_measured_on": found.asked}
        vectors.describe(folder, {"index": INDEX_FILE, "built": index, "search": search, **facts})
    return found


def _build(faiss: Any, vectors: Vectors, index: str, report: Progress) -> Any:
    """An index of all labels."""
    try:
        built = faiss.index_factory(vectors.dim, index, faiss.METRIC_INNER_PRODUCT)
        if not built.is_trained:
            report("training the index", 0.0)
            built.train(_numpy(vectors.rows(_sample(len(vectors), _trained_on(faiss, built)))))
        for ids in torch.arange(len(vectors)).split(AT_ONCE):
            report("adding labels", int(ids[0]) / len(vectors))
            built.add(_numpy(vectors.rows(ids)))
    except RuntimeError as error:
        raise HeadtailError(
            Setting("index", index),
            f" cannot be built for {len(vectors):,} labels of {vectors.dim} numbers: "
            f"{_reason(error)}. Write for example ",
            Setting("index", "Flat"),
            ", ",
            Setting("index", "IVF64,Flat"),
            " or ",
            Setting("index", "HNSW32"),
            ".",
        ) from error
    return built


def _multiple(index: str) -> int:
    """The number of pieces that product quantisation cuts vectors into, all of the same size."""
    pieces = re.search(r"PQ(\d+)", index)
    return max(1, int(pieces[1])) if pieces else 1


def _trained_on(faiss: Any, built: Any) -> int:
    """How many labels the index learns from."""
    try:
        return max(TRAINED_ON, PER_CELL * faiss.extract_index_ivf(built).nlist)
    except RuntimeError:  # it has no cells
        return TRAINED_ON


def _set_search(faiss: Any, built: Any, search: str) -> None:
    try:
        if search:
            faiss.ParameterSpace().set_index_parameters(built, search)
    except RuntimeError as error:
        raise HeadtailError(
            Setting("search", search),
            f" does not fit the index: {_reason(error)}. Write for example ",
            Setting("search", "nprobe=16"),
            " for cells (IVF) or ",
            Setting("search", "efSearch=128"),
            " for graphs (HNSW).",
        ) from error


def _recall(head: LabelHead, vectors: Vectors, built: Any, queries: Tensor | None) -> FaissExport:
    """How many of the exact best labels the index finds; of equal scores, any will do."""
    asked = "hidden states"
    if queries is None:
        queries = head.weight.detach()[_sample(len(vectors), ASKED).to(head.weight.device)]
        asked = "rows of the label table"
    k = min(DEEPEST, len(vectors))
    tau = vectors.table.post_hoc
    best = head.topk(queries, k, post_hoc=tau, correct_twice=True).values
    _, labels = built.search(_numpy(vectors.queries(queries)), k)
    labels = torch.from_numpy(labels).to(queries.device)
    values = head.topk(queries, k, candidates=labels, post_hoc=tau, correct_twice=True).values
    rounding = 1e-5 * best.abs().amax(1, keepdim=True)
    recall = (values >= best[:, -1:] - rounding).double().mean()
    return FaissExport(Path(), float(recall), k, f"{len(queries):,} {asked}")


def _write(faiss: Any, built: Any, path: Path) -> None:
    try:
        faiss.write_index(built, str(path))
    except RuntimeError as error:  # it reports a full disk in its own way
        raise OSError(_reason(error)) from error


def _sample(number: int, most: int) -> Tensor:
    """Ids in random order, the same every time; all if there are not more than `most`."""
    return torch.randperm(number, generator=torch.Generator().manual_seed(0))[:most]


def _numpy(vectors: Tensor) -> Any:
    return vectors.detach().float().cpu().contiguous().numpy()


def _reason(error: RuntimeError) -> str:
    """What faiss says, without the place in its code."""
    text = re.sub(r"^Error in .* at \S+:\d+: ", "", " ".join(str(error).split()))
    return text.rpartition(" failed: ")[2].rstrip(".") or "faiss refuses it"
