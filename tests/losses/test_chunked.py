"""The exact softmax in chunks against plain PyTorch and float64 truth."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import headtail as ht
from headtail import HeadtailError
from headtail.core.targets import Ragged
from headtail.functional import backward, softmax_loss
from headtail.losses import chunked

L = 67
LABELS = ht.Labels.zipf(L)
MARGINS = {
    "unit": ht.Unit(),
    "logit-adjusted": ht.LogitAdjusted(LABELS, 1.5),
    "equalised": ht.Equalised(LABELS),
    "adaptive": ht.Adaptive(LABELS),
    "custom": ht.CustomSeparable(
        torch.linspace(-1, 1, L), torch.linspace(1, -1, L).where(torch.arange(L) > 3, -torch.inf)
    ),
    "nothing counts": ht.CustomSeparable([-torch.inf] * L, [0.0] * L),
    "no negatives": ht.CustomSeparable([0.0] * L, [-torch.inf] * L),
}
CUTS = {
    "one chunk, one tile": (2**20, 2**20),
    "chunks of 5 rows": (5 * 67 * 4, 2**20),
    "tiles of 9 labels": (2**20, 29 * 9),
    "both, ragged": (7 * 67 * 4, 7 * 11),
}
OPTIONS = {
    "defaults": {},
    "bias": {"bias": True},
    "temperature": {"temperature": 0.3, "bias": True},
    "learned temperature": {"temperature": torch.tensor(0.7), "bias": True},
    "cosine": {"score": "cosine", "temperature": 0.1},
    "arcface": {"score": "cosine", "temperature": 0.1, "score_margin": ht.ArcFace(0.5)},
    "cosface": {
        "score": "cosine",
        "temperature": torch.tensor(0.2),
        "score_margin": ht.CosFace(0.3),
        "bias": True,
    },
    "sum": {"reduction": "sum"},
    "sample weights": {"sample_weight": True},
    "smoothing": {"label_smoothing": 0.2, "bias": True},
}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Everything takes chunks, and few rows fit in one."""
    cut(monkeypatch, "both, ragged")


def cut(monkeypatch, name: str, fewest: int = 0) -> None:
    chunk_bytes, tile = CUTS[name]
    monkeypatch.setattr(chunked, "FEWEST_SCORES", {"cpu": fewest})
    monkeypatch.setattr(chunked, "CHUNK_BYTES", {"cpu": chunk_bytes})
    monkeypatch.setattr(chunked, "TILE_SCORES", {"cpu": tile})


def target_of(kind: str):
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(L, (29,), generator=generator)
    if kind == "ids":
        return ids
    if kind == "ignored":
        return torch.where(torch.arange(29) % 3 == 0, -100, ids)
    if kind == "padded":  # with repeated labels
        return torch.stack([ids, ids.roll(1).where(ids > 9, -100), ids.where(ids > 50, 3)], 1)
    lists = [row[: i % 4].tolist() for i, row in enumerate(torch.stack([ids] * 3, 1) + 0)]
    return Ragged.from_lists([[(y + k) % L for k, y in enumerate(row)] for row in lists])


def losses(margin="unit", kind="ids", *, dtype=torch.float32, plain=False, scale=1.0, **options):
    """The node that computed the loss, the loss and all gradients of one batch."""
    generator = torch.Generator().manual_seed(1)
    hidden = (scale * torch.randn(29, 13, generator=generator)).to(dtype).requires_grad_()
    table = torch.randn(L, 13, generator=generator).to(dtype).requires_grad_()
    leaves = [hidden, table]
    if options.pop("bias", False):
        options["bias"] = torch.randn(L, generator=generator).to(dtype).requires_grad_()
        leaves.append(options["bias"])
    if isinstance(options.get("temperature"), torch.Tensor):
        options["temperature"] = options["temperature"].detach().to(dtype).requires_grad_()
        leaves.append(options["temperature"])
    if "sample_weight" in options:
        options["sample_weight"] = torch.rand(29, generator=generator).to(dtype).round(decimals=1)
    with pytest.MonkeyPatch.context() as patch:
        if plain:
            patch.setattr(chunked, "FEWEST_SCORES", {"cpu": 2**60})
        loss = softmax_loss(hidden, table, target_of(kind), MARGINS[margin], **options)
    node = loss.grad_fn.name()
    (3 * loss).backward()
    return node, [loss.detach().double(), *(leaf.grad.double() for leaf in leaves)]


def compare(*case, **options) -> None:
    """Chunks err at most twice as much as the plain path in the same type."""
    node, ours = losses(*case, **options)
    by_plain, plain = losses(*case, plain=True, **options)
    _, truth = losses(*case, plain=True, **options | {"dtype": torch.float64})
    assert "ChunkedSoftmax" in node
    assert "ChunkedSoftmax" not in by_plain
    digits = torch.finfo(options.get("dtype", torch.float32)).eps
    for mine, theirs, right in zip(ours, plain, truth, strict=True):
        error = (mine - right).norm()
        assert error <= 2 * (theirs - right).norm() + 2 * digits * right.norm()


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("margin", ["unit", "equalised"])
@pytest.mark.parametrize("kind", ["ids", "ragged"])
def test_however_a_batch_is_cut_the_loss_is_the_same(monkeypatch, name, margin, kind):
    cut(monkeypatch, name)
    compare(margin, kind)


@pytest.mark.parametrize("margin", MARGINS)
@pytest.mark.parametrize("kind", ["ids", "ignored", "padded", "ragged"])
def test_every_separable_margin_and_every_form_of_targets_is_right(margin, kind):
    compare(margin, kind, bias=True)


@pytest.mark.parametrize("margin", ["unit", "logit-adjusted", "adaptive"])
@pytest.mark.parametrize("kind", ["ids", "padded"])
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_right(margin, kind, name):
    if name == "smoothing" and margin == "adaptive":
        return
    compare(margin, kind, **OPTIONS[name])


@pytest.mark.parametrize("scale", [1e-3, 30.0, 300.0])
@pytest.mark.parametrize("margin", ["unit", "adaptive"])
def test_tiny_and_huge_scores_are_right(scale, margin):
    compare(margin, scale=scale)


@pytest.mark.parametrize("margin", ["unit", "logit-adjusted", "adaptive"])
@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_bfloat16_is_no_further_off_than_plain_bfloat16(margin, scale):
    compare(margin, dtype=torch.bfloat16, scale=scale)


def test_autocast_keeps_the_gradient_of_a_float32_table_in_float32():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        compare("logit-adjusted")
        node, ours = losses("logit-adjusted")
    assert "ChunkedSoftmax" in node
    assert ours[2].float().bfloat16().float().ne(ours[2].float()).any()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("kind", ["ids", "padded"])
def test_without_gradients_only_the_loss_is_computed_in_chunks(monkeypatch, reduction, kind):
    hidden = torch.randn(29, 13)
    table = torch.randn(L, 13, requires_grad=True)
    monkeypatch.setattr(chunked.Gradients, "add", None)
    with torch.no_grad():
        ours = softmax_loss(hidden, table, target_of(kind), reduction=reduction)
        monkeypatch.setattr(chunked, "FEWEST_SCORES", {"cpu": 2**60})
        plain = softmax_loss(hidden, table, target_of(kind), reduction=reduction)
    assert torch.allclose(ours, plain, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"reduction": "none"},
        {"label_smoothing": 0.1, "margin": ht.Adaptive(LABELS)},
        {"known_positives": target_of("padded")},
        {"collisions": "none"},
        {"sample_weight": torch.rand(29, requires_grad=True)},
        {"margin": ht.Pairwise(lambda y, other: (y - other).abs().double())},
        {"input": torch.randn(29, 13, dtype=torch.float16), "weight": torch.randn(L, 13).half()},
    ],
)
def test_what_chunks_cannot_compute_takes_the_plain_path(options):
    given = {"input": torch.randn(29, 13), "weight": torch.randn(L, 13)} | options
    given["weight"].requires_grad_()
    loss = softmax_loss(target=target_of("ids"), **given)
    assert "ChunkedSoftmax" not in loss.grad_fn.name()
    assert loss.isfinite().all()


def test_small_batches_keep_the_last_bit_of_the_plain_path(monkeypatch):
    monkeypatch.undo()
    assert chunked.FEWEST_SCORES["cpu"] > 29 * L
    node, _ = losses()
    assert "ChunkedSoftmax" not in node


def test_scores_are_never_held_beyond_the_set_size(monkeypatch):
    made = []
    tiles = chunked.Tiles
    monkeypatch.setattr(chunked, "Tiles", lambda *args: made.append(tiles(*args)) or made[0])
    losses()
    assert made[0].flat[:-1].nbytes <= chunked.CHUNK_BYTES["cpu"]
    assert len(made[0].spare) <= chunked.TILE_SCORES["cpu"]


def test_frozen_tables_and_frozen_states_get_no_gradient():
    hidden = torch.randn(29, 13, requires_grad=True)
    table = torch.randn(L, 13, requires_grad=True)
    target = target_of("ids")
    softmax_loss(hidden, table.detach(), target).backward()
    softmax_loss(hidden.detach(), table, target).backward()
    right = torch.autograd.grad(F.cross_entropy(hidden @ table.T, target), (hidden, table))
    assert torch.allclose(hidden.grad, right[0], atol=1e-6)
    assert torch.allclose(table.grad, right[1], atol=1e-6)


def test_a_kept_graph_gives_the_same_gradients_twice():
    hidden = torch.randn(29, 13, requires_grad=True)
    table = torch.randn(L, 13, requires_grad=True)
    loss = softmax_loss(hidden, table, target_of("ids"))
    first = torch.autograd.grad(2 * loss, (hidden, table), retain_graph=True)
    second = torch.autograd.grad(2 * loss, (hidden, table), retain_graph=True)
    backward(loss)
    for one, two, leaf in zip(first, second, (hidden, table), strict=True):
        assert torch.equal(one, two)
        assert torch.allclose(leaf.grad, one / 2)


def test_a_second_derivative_is_refused():
    table = torch.randn(L, 13, requires_grad=True)
    loss = softmax_loss(torch.randn(29, 13), table, target_of("ids")).square()
    (grad,) = torch.autograd.grad(loss, table, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_a_margin_over_other_labels_is_refused():
    with pytest.raises(HeadtailError, match="67"):
        softmax_loss(
            torch.randn(29, 13), torch.randn(9, 13), target_of("ids") % 9, MARGINS["adaptive"]
        )


def test_a_compiled_loss_takes_the_plain_path(request: pytest.FixtureRequest):
    if request.config.getoption("--shapes"):
        pytest.skip("checks of shapes are not compiled")
    hidden = torch.randn(29, 13)
    table = torch.randn(L, 13, requires_grad=True)
    target = target_of("ids")
    compiled = torch.compile(softmax_loss, backend="eager", fullgraph=True)
    loss = compiled(hidden, table, target)
    assert torch.allclose(loss, F.cross_entropy(hidden @ table.T, target))
