"""Every outcome of samplers that choose a block of labels first.

Their summary of the table (what lies in which block, in float32) is state, and read from them. What
follows from it, the chance of each block and of each label inside, is written down here from the
equations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from headtail import Adversarial, Block, FourierKernel, QuadraticKernel
from headtail.samplers import TableSummary
from headtail.samplers.model.adversarial import TREE_UNIFORM_SHARE
from headtail.samplers.model.blocks import UNIFORM_SHARE, Blocks

from .worlds import MODEL, L, Outcome, World, middle, scripted


class Chances(NamedTuple):
    """Of blocks, and of the labels inside each."""

    blocks: list[float]
    labels: list[list[int]]
    inside: list[list[float]]


def masses(sampler: Blocks, x: float) -> Chances:
    """Unmixed chances for a hidden state of one dimension."""
    order = sampler.order.tolist()
    rows = sampler.rows.double()[:, 0].tolist()
    labels = []
    inside = []
    blocks = []
    for block, (start, size) in enumerate(
        zip(sampler.start.tolist(), sampler.size.tolist(), strict=True)
    ):
        here = rows[start : start + size]
        labels.append(order[start : start + size])
        if isinstance(sampler, Block):
            blocks.append(size * math.exp(x * float(sampler.centre[block, 0])))
            inside.append([math.exp(x * w) if sampler.inside == "score" else 1.0 for w in here])
        elif isinstance(sampler, QuadraticKernel):
            blocks.append(sampler.alpha * x**2 * float(sampler.sums[block, 0]) + size)
            inside.append([sampler.alpha * (x * w) ** 2 + 1 for w in here])
        else:
            assert isinstance(sampler, FourierKernel)
            features = (
                x * sampler.balance.double() * sampler.omega.double()[0]
                + sampler.log_scale.double()
            ).exp()
            blocks.append(float(features @ sampler.sums[block].double()))
            inside.append([math.exp(x * w) for w in here])
    return Chances(
        [b / sum(blocks) for b in blocks], labels, [[w / sum(i) for w in i] for i in inside]
    )


def mixed(sampler: Blocks, hidden: list[float]) -> Chances:
    """Chances of a group: the mean over its examples, and a share of uniform."""
    each = [masses(sampler, x) for x in hidden]
    labels = each[0].labels
    mean = [
        [sum(c.blocks[b] * c.inside[b][i] for c in each) / len(each) for i in range(len(of))]
        for b, of in enumerate(labels)
    ]
    q = [[(1 - UNIFORM_SHARE) * x + UNIFORM_SHARE / L for x in inside] for inside in mean]
    return Chances(
        [sum(inside) for inside in q], labels, [[x / sum(inside) for x in inside] for inside in q]
    )


def visiting(
    sampler: Blocks, hidden: list[float] | None = None
) -> Callable[[int], Iterator[Outcome]]:
    """All blocks that may be visited, and all labels that may be taken from each.

    Examples that are not finite have no part in the mean.
    """
    model = (
        MODEL
        if hidden is None
        else {**MODEL, "input": torch.tensor(hidden, dtype=torch.float64)[:, None]}
    )
    examples = [1.0] if hidden is None else hidden
    sampler.draw(torch.zeros(len(examples), dtype=torch.int64), **model)
    sampler.eval()  # the summary stays
    finite = [x for x in examples if math.isfinite(x)]
    chances = mixed(sampler, finite)
    m = sampler.num_negatives
    visits = sampler.visits
    each = -(-m // visits)
    possible = [b for b, chance in enumerate(chances.blocks) if chances.labels[b]]

    def outcomes(y: int) -> Iterator[Outcome]:
        for blocks in itertools.product(possible, repeat=visits):
            first = [middle(chances.blocks, list(range(len(chances.blocks))), b) for b in blocks]
            slots = [blocks[j % visits] for j in range(m)]
            for places in itertools.product(*(range(len(chances.labels[b])) for b in slots)):
                points = [0.5] * (each * visits)
                for j, (b, place) in enumerate(zip(slots, places, strict=True)):
                    inside = chances.inside[b]
                    points[(j % visits) * each + j // visits] = middle(
                        inside, list(range(len(inside))), place
                    )
                with scripted(first + points):
                    draw = sampler.draw(torch.full((len(examples),), y), **model)
                assert draw.ids.tolist() == [
                    [chances.labels[b][i] for b, i in zip(slots, places, strict=True)]
                ] * len(examples)
                chance = math.prod(chances.blocks[b] for b in blocks)
                yield (
                    chance
                    * math.prod(chances.inside[b][i] for b, i in zip(slots, places, strict=True)),
                    draw,
                )

    return outcomes


def walking(sampler: Adversarial) -> Callable[[int], Iterator[Outcome]]:
    """All that can happen to each slot: any label, or a walk down the tree of two levels."""
    sampler.draw(torch.tensor([0]), **MODEL)
    sampler.eval()  # the tree stays
    slope = sampler.slope.double()[:, 0].tolist()
    shift = sampler.shift.double().tolist()
    closed = sampler.closed.tolist()
    right = [0.0 if closed[n] else 1 / (1 + math.exp(-slope[n] - shift[n])) for n in range(3)]
    assert not any(closed), "four labels fill the tree"

    def slots() -> Iterator[tuple[float, int, list[float]]]:
        for label in range(L):
            yield (
                TREE_UNIFORM_SHARE / L,
                label,
                [TREE_UNIFORM_SHARE / 2, (label + 0.5) / L, 0.5, 0.5],
            )
        for first, second in itertools.product((0, 1), repeat=2):
            chance = 1 - TREE_UNIFORM_SHARE
            points = [0.5 + TREE_UNIFORM_SHARE / 2, 0.5]
            for node, turn in ((0, first), (1 + first, second)):
                chance *= right[node] if turn else 1 - right[node]
                points.append(right[node] / 2 if turn else (1 + right[node]) / 2)
            yield chance, int(sampler.label[2 * first + second]), points

    def outcomes(y: int) -> Iterator[Outcome]:
        for drawn in itertools.product(list(slots()), repeat=sampler.num_negatives):
            with scripted([point for _, _, points in drawn for point in points]):
                draw = sampler.draw(torch.tensor([y]), **MODEL)
            assert draw.ids.tolist() == [[label for _, label, _ in drawn]]
            yield math.prod(chance for chance, _, _ in drawn), draw

    return outcomes


def _worlds() -> list[World]:
    options = {"share": 1, "summary": TableSummary(dim=1)}
    block = Block(L, 3, visits=2, **options)
    uniform = Block(L, 2, visits=1, inside="uniform", **options)
    quadratic = QuadraticKernel(L, 2, visits=2, alpha=3.0, **options)
    fourier = FourierKernel(L, 2, visits=2, features=8, **options)
    tree = Adversarial(L, 2, share=1, dim=1)
    return [
        World("block", block, visiting(block)),
        World("block, uniform inside", uniform, visiting(uniform)),
        World("quadratic kernel", quadratic, visiting(quadratic)),
        World("fourier kernel", fourier, visiting(fourier)),
        World("adversarial", tree, walking(tree)),
    ]


BLOCK_WORLDS = _worlds()
