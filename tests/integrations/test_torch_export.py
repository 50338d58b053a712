"""Whole models as programs of `torch.export`: every encoder, any batch, answers of `topk`."""

from __future__ import annotations

import json

import pytest
import torch

from headtail import HeadtailError, LabelHead, Labels, SoftmaxLoss
from headtail.data.bag import Bag
from headtail.encoders import Bottleneck, GRU4Rec, Model, ResNet, SASRec
from headtail.integrations.torch_export import _padded, example_for, export

LABELS = Labels.from_counts(torch.arange(60, 0, -1), names=[f"item {i}" for i in range(60)])
IN_ORDER = torch.tensor([[1, 2, -1, -1, -1], [1, 2, 3, 4, 5], [3, -1, -1, -1, -1], [0] * 5])
BAG = Bag(
    torch.tensor([0, 4, 5, 5, 8, 10]),
    torch.tensor([0, 3, 3, 1, 2, 4, 0, 1, 2, 2]).int(),
    torch.arange(10).float() - 3,
    5,
)
CASES = {
    "bag": (lambda: Bottleneck(5, 8), {"features": "sparse", "num_features": 5}, BAG),
    "plain bag": (
        lambda: Bottleneck(5, 8, normalise=False),
        {"features": "sparse", "num_features": 5},
        BAG,
    ),
    "dense": (
        lambda: Bottleneck(5, 8),
        {"features": "dense", "num_features": 5},
        torch.arange(35.0).view(7, 5),
    ),
    "sasrec": (lambda: SASRec(60, 8, length=5), {"features": "histories"}, IN_ORDER),
    "gru": (lambda: GRU4Rec(60, 8, length=5), {"features": "histories"}, IN_ORDER),
    "images": (
        lambda: ResNet(20),
        {"picture": [8, 8]},
        torch.arange(5 * 3 * 64).view(5, 3, 8, 8).to(torch.uint8),
    ),
}


def model_of(name: str) -> Model:
    encoder = CASES[name][0]()
    head = LabelHead(
        LABELS, getattr(encoder, "dim", 8), SoftmaxLoss(score="cosine", temperature=0.2), bias=True
    )
    torch.nn.init.normal_(head.bias)
    return Model(encoder, head).eval()


def inputs_of(features) -> tuple[torch.Tensor, ...]:
    return tuple(_padded(features).values()) if isinstance(features, Bag) else (features,)


@pytest.mark.parametrize("name", CASES)
def test_a_program_answers_as_the_model(tmp_path, name):
    model = model_of(name)
    _, facts, features = CASES[name]
    folder = export(model, tmp_path / "out", example_for(model, facts), 3, post_hoc=0.5)
    program = torch.export.load(folder / "model.pt2").module()
    values, indices = program(*inputs_of(features))
    best = model.head.topk(model.encode(features), 3, post_hoc=0.5)
    assert torch.equal(indices, best.indices)
    assert torch.allclose(values, best.values, rtol=1e-4, atol=1e-5)
    assert json.loads((folder / "labels.json").read_text())[7] == "item 7"
    about = json.loads((folder / "query.json").read_text())
    for described, value in zip(about["inputs"].values(), inputs_of(features), strict=True):
        assert described["dtype"] == str(value.dtype).removeprefix("torch.")
        assert described["shape"][0] == "batch"
        assert described["shape"][1:] in (["width"], list(value.shape[1:]))
    assert about["outputs"] == ["values", "indices"]
    assert about["k"] == 3


def test_the_encoder_alone_makes_hidden_states(tmp_path):
    model = model_of("bag")
    folder = export(model, tmp_path / "out", BAG, None)
    program = torch.export.load(folder / "model.pt2").module()
    assert torch.allclose(program(*inputs_of(BAG)), model.encode(BAG), atol=1e-6)
    assert sorted(path.name for path in folder.iterdir()) == ["model.pt2", "query.json"]


def test_bad_use_gets_a_sentence_and_leaves_no_folder(tmp_path):
    model = model_of("bag")
    with pytest.raises(HeadtailError, match="`model` must be a Model, but got LabelHead"):
        export(model.head, tmp_path / "out", BAG)  # pyright: ignore[reportArgumentType]
    with pytest.raises(HeadtailError, match="`features` must hold two points or more"):
        export(model, tmp_path / "out", BAG.rows(torch.tensor([0])))
    with pytest.raises(HeadtailError, match="`features` is a Bag, which SASRec cannot be exported"):
        export(model_of("sasrec"), tmp_path / "out", BAG)
    with pytest.raises(HeadtailError, match="`k` is 61, but there are only 60 labels"):
        export(model, tmp_path / "out", BAG, 61)
    assert not list(tmp_path.iterdir())
