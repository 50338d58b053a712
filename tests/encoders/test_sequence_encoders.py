"""Encoders of sequences: causal, indifferent to padding, and right with a shared table."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from headtail import HeadtailError, LabelHead, Labels, RowAdagrad, RowAdam, RowSGD, SoftmaxLoss
from headtail.data.batches import TrainingBatch
from headtail.data.histories import Histories
from headtail.encoders import GRU4Rec, Model, SASRec, SequenceEncoder
from headtail.schemes import scheme

L, D = 12, 8
LABELS = Labels.zipf(L)
KINDS = {
    "sasrec": lambda **options: SASRec(L, D, length=6, **options),
    "gru": lambda **options: GRU4Rec(L, D, length=6, layers=2, **options),
}
each_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
ITEMS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, -1, -1, -1], [0, -1, -1, -1, -1, -1]]).int()
TARGET = torch.tensor([[1, 4, 1, 5, 9, 2], [6, 5, 3, -100, -100, -100], [7, *[-100] * 5]])


def rich(encoder):
    """An encoder whose weights are no longer near 0."""
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return encoder.eval()


@each_kind
def test_a_position_sees_no_later_item(make):
    encoder = rich(make(tied=False))
    before = encoder(ITEMS)
    changed = ITEMS.clone()
    changed[0, 3] = 11
    after = encoder(changed)
    assert torch.equal(before[0, :3], after[0, :3])
    assert not torch.isclose(before[0, 3:], after[0, 3:]).all(1).any(), "all others see it"
    assert torch.equal(before[1:], after[1:])


@each_kind
def test_padding_changes_nothing(make):
    encoder = rich(make(tied=False))
    wide = encoder(ITEMS)
    for row, length in enumerate((6, 3, 1)):
        torch.testing.assert_close(wide[row, :length], encoder(ITEMS[row : row + 1, :length])[0])


@each_kind
def test_a_model_answers_from_the_last_item_of_each_history(make):
    head = LabelHead(LABELS, D, SoftmaxLoss())
    model = Model(rich(make(tied=False)), head).eval()
    rows, ends = torch.tensor([0, 1, 1, 2]), torch.tensor([9, 3, 0, 2])
    items = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8, 9, 5, 5, 6, 3, -1, 4]).int()
    histories = Histories(items, torch.tensor([0, 9, 12, 15]), rows, ends, 10, L)
    hidden = model.encode(histories)
    alone = [torch.arange(4, 10)[None], torch.tensor([[5, 5, 6]]), None, torch.tensor([[3]])]
    for state, sequence in zip(hidden, alone, strict=True):
        if sequence is not None:
            torch.testing.assert_close(state, model.encoder(sequence)[0, -1])
    assert hidden.isfinite().all(), "a point without any history gets some answer"
    assert model.top(histories, 3).shape == (4, 3)


def test_attention_is_the_masked_softmax():
    encoder = rich(SASRec(L, D, length=6, heads=2, layers=1, tied=False)).double()
    layer = encoder.layers[0]
    hidden = torch.randn(2, 5, D, dtype=torch.float64)
    query, key, value = layer.inputs(hidden).chunk(3, -1)
    heads = []
    for part in range(2):
        own = slice(part * D // 2, (part + 1) * D // 2)
        scores = query[..., own] @ key[..., own].transpose(1, 2) / (D / 2) ** 0.5
        scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
        heads.append(scores.softmax(-1) @ value[..., own])
    wanted = layer.output(torch.cat(heads, -1))
    torch.testing.assert_close(layer._attend(hidden), wanted)


def reference_loss(model, items, target):
    """The softmax loss of all positions by torch alone."""
    hidden = model.encoder(items)
    logits = hidden @ model.head.weight.T + model.head.bias.T
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def batch():
    row = (TARGET.flatten() >= 0).nonzero().squeeze(1)
    return TrainingBatch(ITEMS, row, TARGET.flatten()[row])


@each_kind
@pytest.mark.parametrize("tied", [True, False])
def test_one_step_is_that_of_a_direct_implementation(make, tied):
    torch.manual_seed(0)
    model = Model(make(tied=tied), LabelHead(LABELS, D, SoftmaxLoss(), bias=True))
    assert (model.encoder.weight is model.head.weight) == tied
    direct = copy.deepcopy(model)
    assert (direct.encoder.weight is direct.head.weight) == tied
    for one, loss in ((model, model(batch())), (direct, reference_loss(direct, ITEMS, TARGET))):
        optimiser = torch.optim.SGD(one.parameters(), 0.5)
        loss.backward()
        optimiser.step()
    for ours, theirs in zip(model.parameters(), direct.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


@each_kind
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("kind", [RowSGD, RowAdagrad, RowAdam])
def test_row_updates_are_those_of_sparse_gradients_in_torch(make, tied, decay, kind):
    """Entries that go to the optimiser, from the loss and from look-ups, against `.grad`."""
    torch.manual_seed(0)
    loss = scheme("uniform:importance@5", LABELS)
    first = Model(make(tied=tied, sparse=True), LabelHead(LABELS, D, loss, bias=True, sparse=True))
    second = copy.deepcopy(first)
    ours, theirs = (kind(m.parameters(), lr=0.1, weight_decay=decay) for m in (first, second))
    ours.inside_backward(at_once=not tied)
    for step in range(3):
        for model, optimiser in ((first, ours), (second, theirs)):
            torch.manual_seed(step)
            optimiser.zero_grad()
            model(batch()).backward()
            optimiser.step()
    ours.flush()
    theirs.flush()
    second = dict(second.named_parameters())
    for name, one in first.named_parameters():
        # The keys' bias has no effect, so its gradient is rounding, which some optimisers enlarge.
        if kind is RowSGD or "inputs.bias" not in name:
            torch.testing.assert_close(one, second[name], rtol=1e-4, atol=1e-5)


def test_tables_that_items_do_not_touch_stay_as_they_are():
    loss = scheme("within-batch:importance", LABELS)
    model = Model(SASRec(L, D, length=6), LabelHead(LABELS, D, loss, sparse=True))
    optimiser = RowAdam(model.parameters(), lr=0.1).inside_backward()
    before = model.head.weight.detach().clone()
    model(batch()).backward()
    optimiser.step()
    changed = (before != model.head.weight).any(1).nonzero().squeeze(1).tolist()
    inputs = set(ITEMS[ITEMS >= 0].tolist())
    assert set(changed) == inputs | set(TARGET[TARGET >= 0].tolist())


def test_dropout_is_for_training_alone():
    encoder = SASRec(L, D, tied=False, dropout=0.5)
    assert not torch.equal(encoder(ITEMS), encoder(ITEMS))
    encoder.eval()
    assert torch.equal(encoder(ITEMS), encoder(ITEMS))


def test_what_does_not_fit_is_refused():
    with pytest.raises(HeadtailError, match=r"`heads` must divide the size.*3 does not divide 8"):
        SASRec(L, D, heads=3)
    with pytest.raises(HeadtailError, match="A tied encoder reads items from the label table, but"):
        GRU4Rec(L, D)(ITEMS)
    with pytest.raises(HeadtailError, match=r"A tied encoder of 12 items and size 8.*\[12, 4\]"):
        Model(GRU4Rec(L, D), LabelHead(LABELS, 4, SoftmaxLoss()))


def test_an_encoder_of_ones_own_reads_items_in_order():
    class Last(SequenceEncoder):
        def forward(self, items):
            return self.embed(items)

    model = Model(Last(L, D, length=3), LabelHead(LABELS, D, SoftmaxLoss()))
    histories = Histories(
        torch.tensor([4, 7]).int(), torch.tensor([0, 2]), *torch.tensor([[0], [2]]), 10, L
    )
    torch.testing.assert_close(model.encode(histories)[0], model.head.weight[7] * D**0.5)


@pytest.mark.parametrize("make", [SASRec, GRU4Rec])
def test_a_long_window_is_as_wide_as_the_longest_history(make):
    head = LabelHead(LABELS, D, SoftmaxLoss())
    wide = Model(rich(make(L, D, length=10_000, tied=False)), head).eval()
    items = torch.arange(600).int() % L
    one = torch.tensor([0, 600])

    def histories(*ends):
        return Histories(items, one, torch.zeros(len(ends)).long(), torch.tensor(ends), 10, L)

    short = histories(3, 6, 9)
    long = histories(3, 600)
    assert wide.inputs(short).shape == (3, 512)
    assert wide.inputs(long).shape == (2, 600)
    assert wide.most_at_once(long, 1024) == 1024 * 512 // 600
    torch.testing.assert_close(wide.encode(short)[0], wide.encode(long)[0])
    with pytest.raises(HeadtailError, match=r"`length` is at most 10,000, but got 10,001\."):
        make(L, D, length=10_001)
