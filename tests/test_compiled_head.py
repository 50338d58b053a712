"""Heads that `torch.compile` takes as one graph, and those that it cannot."""

from __future__ import annotations

import pytest
import torch

import headtail as ht

LABELS = ht.Labels.zipf(60)
DECAY = 0.3
# Scheme, whether gradients are sparse, weight decay.
CASES = [
    ("softmax", False, 0.0),
    ("logit-adjusted", False, 0.0),
    ("hinge", False, 0.0),
    ("uniform:importance@8", False, 0.0),
    ("uniform:importance@8", False, DECAY),
    ("uniform:importance@8", True, 0.0),
    ("uniform:importance@8", True, DECAY),
    ("log-uniform:importance@8", True, 0.0),
    ("frequency:importance@8", True, 0.0),
    ("uniform(excluded):tail@8", True, 0.0),
    ("uniform(without-replacement):tail@8", True, 0.0),
    ("logistic/uniform:importance@8", True, DECAY),
    ("model:importance@8", True, DECAY),
    ("tilted:tail@8", True, 0.0),
    ("hard:tail@8", True, 0.0),
    ("mixture(uniform,frequency(0.5)):tail@8", True, 0.0),
    ("within-batch:tail", True, 0.0),
    ("contrastive/within-batch:tail@4", True, DECAY),
]


def head_of(scheme: str, sparse: bool) -> ht.LabelHead:
    torch.manual_seed(0)
    loss = ht.scheme(scheme, LABELS)
    return ht.LabelHead(LABELS, 8, loss, bias=loss.settings.score == "dot", sparse=sparse)


def trained(
    head: ht.LabelHead, forward, decay: float, options, steps: int = 3
) -> list[torch.Tensor]:
    """The losses of a few steps, then the tables."""
    optimiser = ht.RowAdagrad(head.parameters(), lr=0.1, weight_decay=decay)
    losses = []
    torch.manual_seed(1)
    for _ in range(steps):
        optimiser.zero_grad()
        hidden = torch.randn(16, 8, requires_grad=True)
        loss = forward(hidden, torch.randint(60, (16,)), **options)
        loss.backward()
        losses.append(loss.detach())
        optimiser.step()
    optimiser.flush()
    return [*losses, *(parameter.detach() for parameter in head.parameters())]


@pytest.mark.parametrize(("scheme", "sparse", "decay"), CASES)
def test_a_head_compiles_into_one_graph_and_trains_as_before(scheme, sparse, decay):
    torch._dynamo.reset()
    options = {"ignore_index": None} if "within-batch" in scheme else {}
    plain = head_of(scheme, sparse)
    compiled = head_of(scheme, sparse)
    wanted = trained(plain, plain, decay, options)
    reached = trained(
        compiled, torch.compile(compiled, fullgraph=True, backend="aot_eager"), decay, options
    )
    for value, exact in zip(reached, wanted, strict=True):
        assert torch.allclose(value, exact, atol=1e-5)


def test_weight_decay_is_compiled_once_and_not_in_every_step():
    torch._dynamo.reset()
    graphs = []

    def count(graph, _):
        graphs.append(graph)
        return graph

    head = head_of("uniform:importance@8", sparse=True)
    trained(head, torch.compile(head, fullgraph=True, backend=count), DECAY, {}, steps=12)
    assert len(graphs) == 2, "before the first step nothing is due"


REFUSED = {
    "within-batch:tail": "the number of targets that are not ignored depends on their values",
    "queue:tail@8": "how many labels the queue holds is counted by the host",
    "block:tail@8": "when to look at the whole table again is counted by the host",
}


@pytest.mark.parametrize("scheme", REFUSED)
def test_a_size_or_a_schedule_that_the_host_must_know_is_not_compiled_into_one_graph(scheme):
    torch._dynamo.reset()
    head = head_of(scheme, sparse=True)
    with pytest.raises((torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError)):
        torch.compile(head, fullgraph=True, backend="eager")(
            torch.randn(16, 8), torch.randint(60, (16,))
        )
