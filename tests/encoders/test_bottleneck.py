"""The paper's encoder against its equation."""

from __future__ import annotations

import pytest
import torch

from headtail.data.bag import Bag, Picked
from headtail.encoders import Bottleneck
from headtail.encoders.weighted_bag import lengths
from headtail.errors import HeadtailError
from tests.kernels.test_cpu_bag import ragged_bag

BAG = ragged_bag(33, 20)


def plain(bag: Bag) -> Bag:
    """With each column once a row, as readers give it: only then is the length of the row that of
    its entries.
    """
    dense = bag.to_dense()
    row, column = dense.nonzero(as_tuple=True)
    offsets = torch.cat(
        [torch.zeros(1, dtype=torch.int64), torch.bincount(row, minlength=len(bag)).cumsum(0)]
    )
    return Bag(offsets, column.int(), dense[row, column], bag.num_columns)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("sparse", [True, False])
def test_hidden_states_are_the_normalised_features_times_the_table_plus_the_bias(normalise, sparse):
    bag = plain(BAG)
    encoder = Bottleneck(20, 6, sparse=sparse, normalise=normalise)
    torch.nn.init.normal_(encoder.bias)
    x = bag.to_dense().double()
    if normalise:
        x = torch.stack([row / row.norm() if row.any() else row for row in x])
    wanted = x @ encoder.weight.double() + encoder.bias.double()
    for features in (bag, bag.to_dense()):
        assert torch.allclose(encoder(features).double(), wanted, atol=1e-5)


def test_a_point_without_features_stays_at_the_bias():
    encoder = Bottleneck(20, 6)
    torch.nn.init.normal_(encoder.bias)
    empty = BAG.offsets.diff() == 0
    assert empty.any()
    assert torch.equal(encoder(BAG)[empty], encoder.bias.expand(int(empty.sum()), -1))


def test_sparse_and_dense_features_give_the_table_the_same_gradient():
    bag = plain(BAG)
    gradients = []
    start = torch.randn(20, 6)
    upstream = torch.randn(33, 6)
    for features, sparse in ((bag, True), (bag, False), (bag.to_dense(), False)):
        encoder = Bottleneck(20, 6, sparse=sparse)
        encoder.weight.data.copy_(start)
        encoder(features).backward(upstream)
        assert encoder.weight.grad is not None
        assert encoder.weight.grad.is_sparse == sparse
        gradients.append(encoder.weight.grad.to_dense())
    assert torch.allclose(gradients[0], gradients[1], atol=1e-5)
    assert torch.allclose(gradients[0], gradients[2], atol=1e-5)


def test_lengths_are_those_of_the_dense_rows():
    bag = plain(BAG)
    assert torch.allclose(lengths(bag), bag.to_dense().norm(dim=1))


def test_nothing_is_dropped_when_answering():
    encoder = Bottleneck(20, 6, dropout=0.5, feature_dropout=0.5).eval()
    assert torch.equal(encoder(BAG), encoder(BAG))
    encoder.train()
    assert not torch.equal(encoder(BAG), encoder(BAG))


def test_dropping_features_keeps_the_mean_and_divides_by_the_length_before():
    encoder = Bottleneck(20, 6, feature_dropout=0.5)
    bag = plain(BAG)
    with torch.no_grad():
        mean = torch.stack([encoder(bag) for _ in range(4000)]).mean(0)
        wanted = encoder.eval()(bag)
    assert (mean - wanted).abs().max() < 0.1


@pytest.mark.parametrize("normalise", [True, False])
def test_a_training_step_in_one_node_is_the_step_in_two(normalise):
    ids = torch.tensor([5, 0, 3, 5, 32, 1])
    results = []
    nodes = []
    for features in (Picked(BAG, ids), BAG.rows(ids)):
        torch.manual_seed(0)
        encoder = Bottleneck(20, 6, sparse=True, dropout=0.5, normalise=normalise)
        torch.nn.init.normal_(encoder.bias)
        hidden = encoder(features)
        nodes.append(type(hidden.grad_fn).__name__)
        hidden.square().sum().backward()
        results.append((hidden.detach(), encoder.weight.grad.to_dense(), encoder.bias.grad))
    assert nodes == ["_EncodeBackward", "_ShiftAndDropBackward"]
    assert results[0][0].eq(0).any(), "something was dropped"
    for one_node, two_nodes in zip(*results, strict=True):
        assert torch.equal(one_node, two_nodes)


def test_a_bag_of_other_columns_is_refused_in_training_too():
    encoder = Bottleneck(21, 6, sparse=True, dropout=0.5)
    with pytest.raises(HeadtailError, match="20 columns, but the table 21 rows"):
        encoder(Picked(BAG, torch.arange(3)))
