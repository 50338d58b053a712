"""Label tables in faiss and as plain vectors: the answers of `topk`, whatever the head."""

from __future__ import annotations

import builtins
import json
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from headtail import (
    HeadtailError,
    Importance,
    LabelHead,
    Labels,
    RowSGD,
    SampledSoftmaxLoss,
    SoftmaxLoss,
    Tail,
    Uniform,
    scheme,
)
from headtail.integrations import faiss as to_faiss
from headtail.integrations import safetensors as to_safetensors

faiss = pytest.importorskip("faiss")
LABELS = Labels.from_counts(torch.arange(400, 0, -1), names=[f"label {i}" for i in range(400)])
HEADS = {
    "dot": {},
    "bias": {"bias": True},
    "cosine": {"score": "cosine"},
    "cosine, bias and temperature": {"score": "cosine", "bias": True, "temperature": 0.05},
    "learnt temperature": {"temperature": nn.Parameter(torch.tensor(0.3)), "bias": True},
    "bfloat16": {"bias": True, "dtype": torch.bfloat16},
    "float64": {"bias": True, "dtype": torch.float64},
}


def head_of(bias=False, dtype=None, **options) -> LabelHead:
    head = LabelHead(LABELS, 8, SoftmaxLoss(**options), bias=bias, dtype=dtype)
    if bias:
        nn.init.normal_(head.bias)
    return head


def queries_of(hidden: torch.Tensor, folder) -> np.ndarray:
    """As the documentation says, without headtail."""
    recipe = json.loads((folder / "query.json").read_text())
    queries = hidden.float().numpy()
    if recipe["normalise"]:
        queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    tail = np.tile(np.float32(recipe["append"]), (len(queries), 1))
    return np.hstack([queries, tail]).astype(np.float32)


def same(values, indices, best):
    values = torch.as_tensor(values).float()
    assert torch.allclose(values, best.values.float(), rtol=1e-4, atol=1e-4)
    apart = best.values.diff(dim=1).abs().amin(1) > 1e-3  # scores that rounding cannot swap
    assert apart.any()
    assert torch.equal(torch.as_tensor(indices)[apart], best.indices[apart])


@pytest.mark.parametrize("tau", [None, 0.7])
@pytest.mark.parametrize("name", HEADS)
def test_a_flat_index_and_plain_vectors_answer_as_topk(tmp_path, name, tau):
    head = head_of(**HEADS[name])
    hidden = torch.randn(30, 8).to(head.weight.dtype)
    best = head.topk(hidden, 5, post_hoc=tau)
    done = to_faiss.export(head, tmp_path / "index", post_hoc=tau)
    assert done.recall == 1.0
    index = faiss.read_index(str(done.path / "index.faiss"))
    same(*index.search(queries_of(hidden, done.path), 5), best)
    folder = to_safetensors.export(head, tmp_path / "vectors", post_hoc=tau)
    vectors = load_file(folder / "vectors.safetensors")["vectors"]
    scores = torch.from_numpy(queries_of(hidden, folder) @ vectors.T)
    same(*scores.topk(5), best)
    for written in (done.path, folder):
        assert json.loads((written / "labels.json").read_text()) == list(LABELS.names)


@pytest.mark.parametrize(
    ("kind", "search", "at_least"),
    [
        ("IVF4,Flat", "nprobe=4", 1.0),
        ("IVF4,Flat", "", 0.2),
        ("HNSW16", "efSearch=400", 0.95),
        ("PQ4x4", "", 0.1),
    ],
)
def test_recall_is_the_share_of_the_best_labels_that_the_index_finds(
    tmp_path, kind, search, at_least
):
    head = head_of(bias=True)
    hidden = torch.randn(50, 8)
    done = to_faiss.export(head, tmp_path / "index", kind, search=search, queries=hidden)
    index = faiss.read_index(str(done.path / "index.faiss"))
    _, found = index.search(queries_of(hidden, done.path), 10)
    best = head.topk(hidden, 10).indices.tolist()
    shared = [len({*a} & {*b}) / 10 for a, b in zip(found.tolist(), best, strict=True)]
    assert done.recall == pytest.approx(np.mean(shared), abs=0.003)
    assert done.recall >= at_least
    recipe = json.loads((done.path / "query.json").read_text())
    assert recipe["recall@10"] == done.recall
    assert recipe["recall_measured_on"] == done.asked == "50 hidden states"


def test_labels_that_nobody_named_are_their_ids(tmp_path):
    labels = Labels.zipf(20)
    head = LabelHead(labels, 4, SoftmaxLoss())
    folder = to_faiss.export(head, tmp_path / "index").path
    assert json.loads((folder / "query.json").read_text())["label_names"] is None
    assert not (folder / "labels.json").exists()


def test_labels_with_equal_rows_do_not_count_as_missed(tmp_path):
    head = head_of()
    with torch.no_grad():
        head.weight.copy_(head.weight[:4].repeat(100, 1))
    assert to_faiss.export(head, tmp_path / "index").recall == 1.0


def test_the_adjustment_of_a_post_hoc_scheme_is_folded_in(tmp_path):
    head = LabelHead(LABELS, 8, scheme("softmax+post-hoc", LABELS))
    hidden = torch.randn(20, 8)
    folder = to_faiss.export(head, tmp_path / "index").path
    index = faiss.read_index(str(folder / "index.faiss"))
    same(*index.search(queries_of(hidden, folder), 5), head.topk(hidden, 5))


def test_exports_have_their_weight_decay(tmp_path):
    loss = SampledSoftmaxLoss(Uniform(LABELS, 3), Importance())
    head = LabelHead(LABELS, 8, loss, sparse=True)
    start = head.weight.detach().clone()
    optimiser = RowSGD(head.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(3):
        head(torch.zeros(1, 8), torch.tensor([0])).backward()
        optimiser.step()
        optimiser.zero_grad()
    folder = to_safetensors.export(head, tmp_path / "vectors")
    vectors = torch.from_numpy(load_file(folder / "vectors.safetensors")["vectors"])
    assert torch.allclose(vectors, start * 0.95**3, rtol=1e-5)


def test_large_tables_are_added_in_parts_with_progress(tmp_path, monkeypatch):
    monkeypatch.setattr(to_faiss, "AT_ONCE", 100)
    seen = []
    head = head_of(bias=True)
    done = to_faiss.export(
        head, tmp_path / "index", "IVF4,Flat", progress=lambda *step: seen.append(step)
    )
    assert faiss.read_index(str(done.path / "index.faiss")).ntotal == 400
    assert seen == [
        ("training the index", 0.0),
        *(("adding labels", share) for share in (0.0, 0.25, 0.5, 0.75)),
        ("measuring recall", 1.0),
    ]


def test_product_quantisation_gets_vectors_that_it_can_cut(tmp_path):
    head = head_of(bias=True)  # 8 numbers and one for the bias
    folder = to_faiss.export(head, tmp_path / "index", "PQ4x4").path
    assert json.loads((folder / "query.json").read_text())["append"] == [1.0, 0.0, 0.0, 0.0]


def leaning() -> LabelHead:
    return LabelHead(LABELS, 8, SampledSoftmaxLoss(Uniform(LABELS, 5), Tail(LABELS)))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"index": "Flatt"}, "`index='Flatt'` cannot be built for 400 labels of 8 numbers: could"),
        ({"index": "IVF900,Flat"}, "`index='IVF900,Flat'` cannot be built for 400 labels of 8 num"),
        ({"index": 3}, "`index` must be a str, but got int"),
        ({"search": "nprobe=3"}, "`search='nprobe=3'` does not fit the index: "),
        ({"head": nn.Linear(2, 3)}, "`head` must be a LabelHead, but got Linear"),
        ({"post_hoc": "much"}, "`post_hoc` must be a finite number"),
        ({"head": leaning(), "post_hoc": 1.0}, "`post_hoc` would correct twice"),
        ({"queries": torch.randn(3, 4)}, "`queries` must have shape [b, 8], but got [3, 4]."),
        ({"queries": [[1.0] * 8]}, "`queries` must be a Tensor, but got list"),
    ],
)
def test_bad_use_gets_a_sentence_and_leaves_no_folder(tmp_path, change, sentence):
    arguments = {"head": head_of(), "path": tmp_path / "index", **change}
    with pytest.raises(HeadtailError) as error:
        to_faiss.export(**arguments)
    assert str(error.value).startswith(sentence)
    assert "/project/" not in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("export", [to_faiss.export, to_safetensors.export])
def test_a_table_that_diverged_is_refused(tmp_path, export):
    head = head_of()
    with torch.no_grad():
        head.weight[7] = torch.nan
    with pytest.raises(HeadtailError, match="The vector of label 7 is not a number, so that noth"):
        export(head, tmp_path / "labels")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("export", [to_faiss.export, to_safetensors.export])
def test_what_is_there_is_not_overwritten(tmp_path, export):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(HeadtailError, match=r"exists already\. Name another folder"):
        export(head_of(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_missing_faiss_names_its_extra(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "faiss", raising=False)
    real = builtins.__import__

    def refuse(name, *rest):
        if name == "faiss":
            raise ModuleNotFoundError("No module named 'faiss'", name="faiss")
        return real(name, *rest)

    monkeypatch.setattr("importlib.import_module", refuse)
    with pytest.raises(HeadtailError, match=r"faiss-cpu, which is not installed.*headtail\[faiss"):
        to_faiss.export(head_of(), tmp_path / "index")
