"""What docs/migrate.md says of other libraries: that their losses are these schemes, and what
explain prints for each.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import headtail as ht
from headtail.functional import sampled_softmax_loss, two_tower_softmax_loss

PAGE = (Path(__file__).parents[1] / "docs" / "migrate.md").read_text(encoding="utf-8")
EXPLAINED = re.findall(r"^```text\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
ZIPF = ht.Labels.zipf(10_000)
LABELS = ht.Labels.zipf(30)
B, D = 16, 6


def as_printed(scheme: str) -> str:
    found = ht.explain(ht.scheme(scheme, ZIPF), ZIPF, batch_size=256)
    lean = f"to the {found.leans} by {abs(found.lean):.2f} nats"
    if found.leans == "neither":
        lean = "to neither head nor tail"
    name = found.name or "a softmax loss with no common name"
    return f"{scheme}\noptimises  {name}\n           {found.equation}\nleans      {lean}\n"


@pytest.mark.parametrize("block", EXPLAINED, ids=lambda block: block.split()[0])
def test_explain_says_what_the_page_shows(block: str) -> None:
    assert block == as_printed(block.split(maxsplit=1)[0])


def test_every_scheme_of_the_first_table_is_explained_as_it_says() -> None:
    rows = re.findall(r"^\| .* \| `([^`]+)` \| (the tail|the head|neither) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 8
    for scheme, side in rows:
        found = ht.explain(ht.scheme(scheme, ZIPF, 1000), ZIPF, batch_size=256)
        assert found.leans == side.removeprefix("the ")


@pytest.fixture
def towers() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(8, (B,), generator=generator)  # some items repeat
    options = {"generator": generator, "dtype": torch.float64}
    table = torch.randn(30, D, **options)
    return torch.randn(B, D, **options), table[target], target


def test_multiple_negatives_ranking_loss(towers) -> None:
    queries, items, target = towers
    theirs = F.cross_entropy(20 * F.normalize(queries) @ F.normalize(items).T, torch.arange(B))
    draw = ht.WithinBatch(LABELS).draw(target)
    options = {"score": "cosine", "temperature": 1 / 20}
    ours = two_tower_softmax_loss(queries, items, items, target, draw, ht.InfoNCE(), **options)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("removes_hits", [False, True])
@pytest.mark.parametrize("corrected", [False, True])
def test_retrieval_of_tensorflow_recommenders(towers, corrected: bool, removes_hits: bool) -> None:
    queries, items, target = towers
    scores = queries @ items.T / 0.5
    if corrected:
        scores = scores - LABELS.log_frequency(target)
    if removes_hits:
        copies = (target[:, None] == target) & ~torch.eye(B, dtype=torch.bool)
        scores = scores.masked_fill(copies, -torch.inf)
    theirs = F.cross_entropy(scores, torch.arange(B), reduction="sum")
    ours = two_tower_softmax_loss(
        queries,
        items,
        items,
        target,
        ht.WithinBatch(LABELS).draw(target),
        ht.Relative() if corrected else ht.InfoNCE(),
        collisions="target" if removes_hits else "slot",
        temperature=0.5,
        reduction="sum",
    )
    torch.testing.assert_close(ours, theirs)


def test_sampled_softmax_loss_of_tensorflow(towers) -> None:
    hidden, _, target = towers
    generator = torch.Generator().manual_seed(1)
    table = torch.randn(30, D, generator=generator, dtype=torch.float64)
    bias = torch.randn(30, generator=generator, dtype=torch.float64)
    sampler = ht.LogUniform(LABELS, 12)
    draw = sampler.draw(target, generator=generator)
    counts = 12 * sampler.log_q(torch.arange(30)).exp()
    positive = (hidden * table[target]).sum(1) + bias[target] - counts[target].log()
    drawn = hidden @ table[draw.ids].T + bias[draw.ids] - counts[draw.ids].log()
    drawn = drawn.masked_fill(draw.ids == target[:, None], -torch.inf)
    logits = torch.cat([positive[:, None], drawn], 1)
    theirs = F.cross_entropy(logits, torch.zeros(B, dtype=torch.int64), reduction="none")
    ours = sampled_softmax_loss(
        hidden, table, target, draw, ht.Relative(), bias=bias, reduction="none"
    )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("scheme", ["uniform(excluded):infonce@1", "frequency(excluded):infonce@1"])
def test_bpr_of_recbole(towers, scheme: str) -> None:
    hidden, _, target = towers
    table = torch.randn(30, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    loss = ht.scheme(scheme, LABELS)
    draw = loss.sampler.draw(target)
    assert draw.ids.shape == (B, 1)
    assert bool((draw.ids[:, 0] != target).all())
    gaps = (hidden * (table[target] - table[draw.ids[:, 0]])).sum(1)
    torch.testing.assert_close(loss(hidden, table, target, draw=draw), -F.logsigmoid(gaps).mean())


def test_the_gradient_of_insightface_leaves_out_one_factor() -> None:
    """Under `no_grad`, the moved cosine has the slope of the cosine itself."""
    cosine = torch.tensor([0.2, 0.7], dtype=torch.float64, requires_grad=True)
    theta = cosine.detach().acos()
    moved = ht.ArcFace(0.5).moved(cosine)
    torch.testing.assert_close(moved.detach(), (theta + 0.5).cos())
    moved.sum().backward()
    torch.testing.assert_close(cosine.grad, (theta + 0.5).sin() / theta.sin())
