"""LabelHead: training, exact top-k, growing, and the guard against correcting twice."""

from __future__ import annotations

import copy
import gc
import pickle
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from headtail import (
    Constant,
    DecoupledLoss,
    Given,
    HeadtailError,
    Importance,
    LabelHead,
    Labels,
    LogitAdjusted,
    Queue,
    Ragged,
    Relative,
    RowAdagrad,
    RowAdam,
    RowSGD,
    SampledSoftmaxLoss,
    SoftmaxLoss,
    Tail,
    Uniform,
    WithinBatch,
    scheme,
)
from headtail.answers import topk as topk_module
from headtail.encoders import Bottleneck
from headtail.functional import contrastive

LABELS = Labels.zipf(50)


def unbiased(labels=LABELS):
    return SampledSoftmaxLoss(Uniform(labels, 20), Importance())


def test_training_brings_the_loss_down_and_the_right_label_up():
    """Fifty clusters of points, one a label."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(50, 16, generator=generator)
    head = LabelHead(
        LABELS, 16, SampledSoftmaxLoss(WithinBatch(LABELS), Tail(LABELS)), bias=True, sparse=True
    )
    optimiser = RowAdam(head.parameters(), lr=0.05)
    for _ in range(150):
        target = torch.randint(50, (64,), generator=generator)
        hidden = centres[target] + 0.1 * torch.randn(64, 16, generator=generator)
        optimiser.zero_grad()
        head(hidden, target, generator=generator).backward()
        optimiser.step()
    assert (head.topk(centres, 1).indices[:, 0] == torch.arange(50)).float().mean() > 0.95


def test_topk_equals_the_full_sort_whatever_the_block(monkeypatch):
    head = LabelHead(LABELS, 8, unbiased(), bias=True)
    torch.nn.init.normal_(head.bias)
    hidden = torch.randn(3, 8)
    full = (hidden @ head.weight.T + head.bias.squeeze(1)).topk(7)
    for scores_held in (1, 3 * 7, 3 * 20, 10**9):
        monkeypatch.setattr(topk_module, "BLOCK_SCORES", scores_held)
        best = head.topk(hidden, 7)
        assert torch.equal(best.indices, full.indices)
        assert torch.allclose(best.values, full.values)
    assert torch.allclose(head.logits(hidden).topk(7).values, full.values)


def test_topk_never_holds_all_scores(monkeypatch):
    head = LabelHead(LABELS, 8, unbiased())
    monkeypatch.setattr(topk_module, "BLOCK_SCORES", 40)
    widths = []
    linear = F.linear
    monkeypatch.setattr(
        F, "linear", lambda h, w, *rest: widths.append(len(w)) or linear(h, w, *rest)
    )
    head.topk(torch.randn(4, 8), 5)
    assert max(widths) == 10
    assert sum(widths) == 50


def test_a_cosine_head_ranks_by_cosine():
    loss = DecoupledLoss(piece=contrastive(), score="cosine")
    head = LabelHead(LABELS, 8, loss)
    hidden = torch.randn(3, 8)
    expected = F.cosine_similarity(hidden[:, None], head.weight[None], dim=-1).topk(4)
    assert torch.equal(head.topk(hidden, 4).indices, expected.indices)


def test_post_hoc_adjustment_subtracts_log_prior():
    head = LabelHead(LABELS, 8, unbiased())
    hidden = torch.randn(3, 8)
    expected = (hidden @ head.weight.T - 0.7 * LABELS.prior.log().float()).topk(5)
    assert torch.equal(head.topk(hidden, 5, post_hoc=0.7).indices, expected.indices)


@pytest.mark.parametrize(
    "loss",
    [
        SoftmaxLoss(LogitAdjusted(LABELS)),
        SampledSoftmaxLoss(Uniform(LABELS, 20), Tail(LABELS, 0.3)),
        SampledSoftmaxLoss(WithinBatch(LABELS), Constant()),
    ],
    ids=["logit-adjusted", "tail", "equalised"],
)
def test_a_loss_that_leans_to_the_tail_is_not_corrected_twice(loss):
    head = LabelHead(LABELS, 8, loss)
    with pytest.raises(HeadtailError, match="correct twice"):
        head.topk(torch.randn(2, 8), 3, post_hoc=1.0)
    assert head.topk(torch.randn(2, 8), 3, post_hoc=1.0, correct_twice=True).indices.shape == (2, 3)


@pytest.mark.parametrize(
    "loss", [unbiased(), SampledSoftmaxLoss(WithinBatch(LABELS), Relative()), SoftmaxLoss()]
)
def test_losses_without_a_lean_to_the_tail_may_be_adjusted_afterwards(loss):
    assert LabelHead(LABELS, 8, loss).topk(torch.randn(2, 8), 3, post_hoc=1.0).indices.shape == (
        2,
        3,
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda p: RowSGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda p: RowAdam(p, lr=0.1, weight_decay=0.01),
        lambda p: RowAdagrad(p, lr=0.1, initial_accumulator_value=0.2),
        lambda p: torch.optim.AdamW(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.2),
    ],
    ids=["RowSGD", "RowAdam", "RowAdagrad", "AdamW", "SGD", "Adagrad"],
)
def test_new_labels_get_rows_and_old_rows_and_state_stay(make):
    row = "Row" in type(make([torch.nn.Parameter(torch.ones(1, 1))])).__name__
    head = LabelHead(
        LABELS, 8, SampledSoftmaxLoss(Queue(LABELS, 16), Tail(LABELS)), bias=True, sparse=row
    )
    optimiser = make(head.parameters())

    def step(size):
        optimiser.zero_grad()
        head(torch.randn(6, 8), torch.randint(size, (6,))).backward()
        optimiser.step()

    for _ in range(3):
        step(50)
    weight = head.weight
    head.state_dict()  # catches lazy weight decay up, so that rows can be compared
    rows = head.weight.detach().clone()
    state = {
        k: v.clone()
        for k, v in optimiser.state[weight].items()
        if isinstance(v, torch.Tensor) and v.shape == weight.shape
    }
    assert state
    head.grow(LABELS.grow([4, 2, 9]), optimiser)
    assert head.weight is weight
    assert head.weight.shape == (53, 8)
    assert head.bias.shape == (53, 1)
    assert torch.equal(head.weight[:50], rows)
    assert head.weight[50:].abs().sum() > 0
    assert head.loss.sampler.num_labels == 53
    for name, value in state.items():
        assert torch.equal(optimiser.state[weight][name][:50], value)
        assert (optimiser.state[weight][name][50:] == (0.2 if name == "sum" else 0.0)).all()
    for _ in range(4):
        step(53)
    assert head.topk(torch.randn(2, 8), 53).indices.max() == 52


def test_what_is_saved_and_answered_has_its_weight_decay():
    head = LabelHead(LABELS, 4, unbiased(), sparse=True)
    start = head.weight.detach().clone()
    optimiser = RowSGD(head.parameters(), lr=0.1, weight_decay=0.5)
    hidden = torch.zeros(2, 4)  # no gradient but the decay
    for _ in range(5):
        optimiser.zero_grad()
        head(hidden, torch.tensor([0, 1])).backward()
        optimiser.step()
    assert torch.allclose(head.state_dict()["weight"], start * 0.95**5, rtol=1e-5)
    optimiser.zero_grad()
    head(hidden, torch.tensor([0, 1])).backward()
    optimiser.step()
    head.topk(hidden, 3)
    assert torch.allclose(head.weight, start * 0.95**6, rtol=1e-5)


def test_a_head_saves_and_restores_with_its_queue():
    loss = lambda: SampledSoftmaxLoss(Queue(LABELS, 8), Tail(LABELS))  # noqa: E731
    head = LabelHead(LABELS, 4, loss())
    head(torch.randn(3, 4), torch.tensor([1, 2, 3]))
    other = LabelHead(LABELS, 4, loss())
    other.load_state_dict(head.state_dict())
    hidden = torch.randn(3, 4)
    assert (
        head(hidden, torch.tensor([4, 5, 6])).item()
        == other(hidden, torch.tensor([4, 5, 6])).item()
    )


def test_options_of_a_batch_reach_the_loss():
    head = LabelHead(LABELS, 4, unbiased())
    hidden = torch.randn(2, 4)
    target = torch.tensor([1, 2])
    draw = head.loss.draw(hidden, head.weight, target)
    plain = head(hidden, target, draw=draw)
    first = head(hidden, target, draw=draw, sample_weight=torch.tensor([1.0, 0.0]))
    masked = head(hidden, target, draw=draw, known_positives=draw.ids[None, :].expand(2, -1))
    assert plain.item() != first.item()
    assert masked.item() == 0


@pytest.mark.parametrize(
    "name",
    [
        "softmax",
        "within-batch:tail",
        "contrastive/frequency(0.75):importance@16",
        "hinge/uniform:constant@8",
    ],
)
def test_heads_built_from_scheme_names_train(name):
    head = LabelHead(LABELS, 4, scheme(name, LABELS))
    head(torch.randn(5, 4), torch.tensor([1, 2, 3, 4, 0])).backward()
    assert head.weight.grad.isfinite().all()


def test_an_exact_loss_has_no_sparse_gradient():
    with pytest.raises(HeadtailError, match="sampled loss"):
        LabelHead(LABELS, 4, SoftmaxLoss(), sparse=True)


def decaying_head(sparse: bool = True) -> tuple[LabelHead, torch.optim.Optimizer, torch.Tensor]:
    """A head with rows that see no gradient but a decay of 0.95 per step, in which only few are
    touched.
    """
    head = LabelHead(LABELS, 4, unbiased(), sparse=sparse)
    start = head.weight.detach().clone()
    return head, RowSGD(head.parameters(), lr=0.1, weight_decay=0.5), start


def idle_steps(head, optimiser, count: int) -> None:
    for _ in range(count):
        optimiser.zero_grad()
        head(torch.zeros(2, 4), torch.tensor([0, 1])).backward()
        optimiser.step()


def test_pending_weight_decay_outlives_its_optimiser():
    head, optimiser, start = decaying_head()
    idle_steps(head, optimiser, 5)
    del optimiser
    gc.collect()
    head.topk(torch.zeros(1, 4), 1)
    assert torch.allclose(head.weight, start * 0.95**5, rtol=1e-5)


def test_a_second_optimiser_does_not_lose_what_the_first_owes():
    head, optimiser, start = decaying_head()
    idle_steps(head, optimiser, 3)
    second = RowSGD(head.parameters(), lr=0.1, weight_decay=0.5)
    idle_steps(head, second, 2)
    head.flush()
    assert torch.allclose(head.weight, start * 0.95**5, rtol=1e-5)


@pytest.mark.parametrize(
    "copy_of",
    [copy.deepcopy, lambda head: pickle.loads(pickle.dumps(head))],
    ids=["deepcopy", "pickle"],
)
def test_a_copied_head_owes_nothing_and_answers_the_same(copy_of):
    head, optimiser, start = decaying_head()
    idle_steps(head, optimiser, 5)
    twin = copy_of(head)
    assert torch.allclose(twin.weight, start * 0.95**5, rtol=1e-5)
    idle_steps(head, optimiser, 2)
    hidden = torch.randn(2, 4)
    assert torch.allclose(
        twin.topk(hidden, 3).values / 0.95**-2, head.topk(hidden, 3).values, rtol=1e-4
    )


def test_restored_weights_are_not_decayed_for_the_past():
    head, optimiser, start = decaying_head()
    idle_steps(head, optimiser, 2)
    best = copy.deepcopy(head.state_dict())
    idle_steps(head, optimiser, 5)
    head.load_state_dict(best)
    head.topk(torch.zeros(1, 4), 1)
    assert torch.allclose(head.weight, start * 0.95**2, rtol=1e-5)


def test_the_forward_pass_reads_decayed_rows():
    """Row 7 is drawn again after steps without it: the loss must be that of a head decayed in every
    step.
    """
    start = torch.randn(50, 4)
    head = LabelHead(LABELS, 4, unbiased(), sparse=True)
    with torch.no_grad():
        head.weight.copy_(start)
    optimiser = RowSGD(head.parameters(), lr=0.1, weight_decay=0.5)
    hidden = torch.randn(1, 4)
    target = torch.tensor([3])

    def draw(label: int):
        return Given(50, torch.tensor([label]), torch.tensor([0.02]).log()).draw(target)

    for _ in range(4):  # a zero hidden state: no gradient, only decay
        optimiser.zero_grad()
        head(torch.zeros(1, 4), target, draw=draw(9)).backward()
        optimiser.step()
    decayed = start * 0.95**4
    expected = softmax_of(hidden @ decayed[3], hidden @ decayed[7], weight=50.0)
    assert head(hidden, target, draw=draw(7)).item() == pytest.approx(expected, rel=1e-5)


def softmax_of(positive, negative, weight: float) -> float:
    return float(torch.log1p(weight * (negative - positive).exp()))


def test_new_rows_owe_no_decay_of_the_time_before_them():
    head, optimiser, _ = decaying_head()
    idle_steps(head, optimiser, 5)
    head.grow(LABELS.grow([5]))
    fresh = head.weight[50].detach().clone()
    idle_steps(head, optimiser, 1)
    head.flush()
    assert torch.allclose(head.weight[50], fresh * 0.95, rtol=1e-5)


@pytest.mark.parametrize("exact", [False, True])
def test_a_loss_without_a_head_sees_rows_with_their_weight_decay(exact):
    table = torch.nn.Parameter(torch.randn(50, 4))
    start = table.detach().clone()
    optimiser = RowSGD([table], lr=0.1, weight_decay=0.5)
    F.embedding(torch.tensor([0]), table, sparse=True).sum().backward()
    optimiser.step()
    loss = SoftmaxLoss() if exact else SampledSoftmaxLoss(Uniform(LABELS, 3), Importance())
    hidden = torch.randn(1, 4)
    negatives = {} if exact else {"draw": loss.draw(hidden, table, torch.tensor([7]))}
    decayed = torch.nn.Parameter(start * (1 - 0.1 * 0.5))
    decayed.data[0] = table.detach()[0]
    expected = loss(hidden, decayed, torch.tensor([7]), **negatives)
    assert loss(hidden, table, torch.tensor([7]), **negatives).item() == pytest.approx(
        expected.item()
    )


def test_padding_touches_no_row():
    """Label 0 is not a target here: its row must not move, not even by momentum or by moments."""
    for make in (lambda p: RowSGD(p, lr=0.1, momentum=0.9), lambda p: RowAdam(p, lr=0.1)):
        head = LabelHead(
            LABELS, 4, SampledSoftmaxLoss(Uniform(LABELS, 3), Importance()), sparse=True
        )
        optimiser = make(head.parameters())
        head(torch.randn(1, 4), torch.tensor([0])).backward()
        optimiser.step()
        before = head.weight[0].detach().clone()
        draw = Given(50, torch.tensor([20, 21]), torch.tensor([0.02, 0.02]).log())
        for _ in range(5):
            optimiser.zero_grad()
            target = torch.tensor([[5, 6], [7, -100]])
            head(torch.randn(2, 4), target, draw=draw.draw(target)).backward()
            optimiser.step()
        assert torch.equal(head.weight[0], before)


def test_answers_are_scaled_by_the_temperature_and_adjusted_in_every_block(monkeypatch):
    loss = SampledSoftmaxLoss(Uniform(LABELS, 5), Importance(), temperature=0.2)
    head = LabelHead(LABELS, 8, loss)
    hidden = torch.randn(3, 8)
    monkeypatch.setattr(topk_module, "BLOCK_SCORES", 3 * 20)
    adjusted = (hidden @ head.weight.T) / 0.2 - LABELS.prior.log().float()
    assert torch.allclose(
        head.topk(hidden, 6, post_hoc=1.0).values, adjusted.topk(6).values, rtol=1e-5
    )
    assert torch.allclose(
        head.topk(hidden, 6).values, ((hidden @ head.weight.T) / 0.2).topk(6).values, rtol=1e-5
    )


def test_a_learnable_temperature_is_trained_and_saved():
    tau = torch.nn.Parameter(torch.tensor(0.5))
    head = LabelHead(
        LABELS, 4, SampledSoftmaxLoss(Uniform(LABELS, 5), Importance(), temperature=tau)
    )
    assert "loss.temperature" in head.state_dict()
    optimiser = torch.optim.SGD(head.parameters(), lr=0.01)
    head(torch.randn(4, 4), torch.tensor([1, 2, 3, 4])).backward()
    optimiser.step()
    assert tau.item() != 0.5
    head.grow(LABELS.grow([3]))
    assert head.loss.temperature is tau


def test_validation_batches_are_not_remembered_by_a_queue():
    head = LabelHead(LABELS, 4, SampledSoftmaxLoss(Queue(LABELS, 8), Constant()))
    head(torch.randn(2, 4), torch.tensor([1, 2]))
    head.eval()
    head(torch.randn(2, 4), torch.tensor([30, 31]))
    head.train()
    assert head.loss.sampler.draw(torch.tensor([5])).ids.tolist() == [1, 2]


def test_the_caller_s_own_negatives_train_a_head():
    given = Given(50, torch.tensor([4, 9]), torch.tensor([0.1, 0.2]).log())
    head = LabelHead(LABELS, 4, SampledSoftmaxLoss(given, Tail(LABELS)))
    head(torch.randn(2, 4), torch.tensor([1, 2])).backward()
    assert head.weight.grad[[4, 9]].abs().sum() > 0


def test_the_head_s_ignored_targets_never_reach_the_sampler():
    loss = SampledSoftmaxLoss(WithinBatch(LABELS), Tail(LABELS), ignore_index=-7)
    head = LabelHead(LABELS, 4, loss)
    draw = loss.draw(torch.randn(3, 4), head.weight, torch.tensor([1, -7, 2]))
    assert draw.ids.tolist() == [1, 2]
    assert head(torch.randn(3, 4), torch.tensor([1, -7, 2])).isfinite()


def test_half_precision_tables_train_with_sparse_rows():
    for dtype in (torch.float16, torch.bfloat16):
        head = LabelHead(LABELS, 4, unbiased(), bias=True, sparse=True, dtype=dtype)
        head(torch.randn(2, 4, dtype=dtype), torch.tensor([1, 2])).backward()
        RowSGD(head.parameters(), lr=0.1).step()
        assert head.weight.isfinite().all()


def test_answers_of_a_post_hoc_scheme_are_adjusted_by_themselves():
    head = LabelHead(LABELS, 8, scheme("softmax+post-hoc", LABELS))
    hidden = torch.randn(3, 8)
    assert torch.equal(head.topk(hidden, 5).indices, head.topk(hidden, 5, post_hoc=1.0).indices)
    assert not torch.equal(head.topk(hidden, 5).indices, head.topk(hidden, 5, post_hoc=0.0).indices)


def test_new_weights_owe_nothing_and_kept_ones_all():
    head, optimiser, start = decaying_head()
    idle_steps(head, optimiser, 4)
    head.load_state_dict({}, strict=False)
    head.flush()
    assert torch.allclose(head.weight, start * 0.95**4, rtol=1e-5)
    idle_steps(head, optimiser, 4)
    head.reset_parameters()
    fresh = head.weight.detach().clone()
    head.flush()
    assert torch.equal(head.weight, fresh)


def test_labels_without_a_prior_cannot_be_adjusted_even_twice():
    labels = Labels.from_counts([100, 50, 0])
    head = LabelHead(labels, 4, SampledSoftmaxLoss(WithinBatch(labels), Constant()))
    with pytest.raises(HeadtailError, match="positive prior"):
        head.topk(torch.randn(1, 4), 1, post_hoc=1.0, correct_twice=True)


def test_the_guard_looks_at_the_loss_the_head_has_now():
    head = LabelHead(LABELS, 4, unbiased())
    head.topk(torch.randn(1, 4), 1, post_hoc=1.0)
    head.loss = SampledSoftmaxLoss(WithinBatch(LABELS), Tail(LABELS))
    with pytest.raises(HeadtailError, match="correct twice"):
        head.topk(torch.randn(1, 4), 1, post_hoc=1.0)


def test_an_ignore_index_of_the_call_reaches_the_sampler():
    target = torch.tensor([3, 0, 0, 5, 0, 7])
    hidden = torch.randn(6, 4)
    fixed = SampledSoftmaxLoss(WithinBatch(LABELS), Tail(LABELS), ignore_index=0)
    asked = SampledSoftmaxLoss(WithinBatch(LABELS), Tail(LABELS))
    head = LabelHead(LABELS, 4, fixed)
    other = LabelHead(LABELS, 4, asked)
    other.load_state_dict(head.state_dict())
    assert other(hidden, target, ignore_index=0).item() == head(hidden, target).item()
    assert asked(hidden, head.weight, target, ignore_index=0).item() == head(hidden, target).item()


def test_a_loss_that_does_not_fit_leaves_a_growing_head_as_it_was():
    head = LabelHead(LABELS, 4, unbiased())
    with pytest.raises(HeadtailError, match="samples from 50 labels"):
        head.grow(LABELS.grow([1]), loss=head.loss)
    assert len(head.weight) == 50
    assert head.labels is LABELS


def test_samplers_that_look_at_the_model_see_decayed_rows():
    seen = []

    class Looking(Uniform):
        @property
        def claims(self):
            return replace(super().claims, looks_at_model=True)

        def pick(self, step):
            seen.append(step.model.weight.clone())
            return super().pick(step)

    head = LabelHead(LABELS, 4, SampledSoftmaxLoss(Looking(LABELS, 3), Importance()), sparse=True)
    start = head.weight.detach().clone()
    optimiser = RowSGD(head.parameters(), lr=0.1, weight_decay=0.5)
    idle_steps(head, optimiser, 4)
    assert torch.allclose(seen[-1], start * 0.95**3, rtol=1e-5)


def decaying(head: LabelHead, **options) -> RowSGD:
    return RowSGD(head.parameters(), lr=0.1, weight_decay=0.2, **options)


def touch(head: LabelHead, optimiser, row: int = 0) -> None:
    """A step that decays every row, and has a gradient of nothing for one."""
    optimiser.zero_grad()
    (0 * head.rows(torch.tensor([row]))).sum().backward()
    optimiser.step()


def test_rows_have_their_weight_decay_and_give_the_table_its_gradient():
    head = LabelHead(LABELS, 4, unbiased(), sparse=True)
    start = head.weight.detach().clone()
    optimiser = decaying(head)
    for _ in range(5):
        touch(head, optimiser)
    ids = torch.tensor([[7, 7], [3, 0]])
    assert torch.allclose(head.rows(ids), start[ids] * 0.98**5)
    assert torch.equal(head.weight[9], start[9]), "only the rows that are read catch up"
    optimiser.zero_grad()
    head.rows(ids).sum().backward()
    assert head.weight.grad.is_sparse
    assert head.weight.grad.to_dense()[[7, 3, 0, 9]].tolist() == [
        [2.0] * 4,
        [1.0] * 4,
        [1.0] * 4,
        [0.0] * 4,
    ]


@pytest.mark.parametrize(
    ("ids", "words"),
    [(torch.tensor([50]), "from 0 to 49"), (torch.tensor([0.5]), "integer label ids")],
)
def test_rows_of_labels_that_do_not_exist_are_refused(ids, words):
    with pytest.raises(HeadtailError, match=words):
        LabelHead(LABELS, 4, unbiased()).rows(ids)


def averages(call) -> tuple[torch.Tensor, torch.Tensor]:
    """The average of all steps by torch, with `call(head, optimiser)` before each update, and by
    hand.
    """
    head = LabelHead(LABELS, 4, unbiased(), sparse=True)
    start = head.weight.detach().double()
    optimiser = decaying(head)
    average = torch.optim.swa_utils.AveragedModel(torch.nn.ModuleList([head]))
    for _ in range(10):
        touch(head, optimiser)
        call(head, optimiser)
        average.update_parameters(torch.nn.ModuleList([head]))
    truth = start * sum(0.98**step for step in range(1, 11)) / 10
    return average.module[0].weight.detach().double(), truth


@pytest.mark.parametrize("who", ["head", "optimiser"])
def test_an_average_of_weights_is_right_after_a_flush(who):
    average, truth = averages(
        lambda head, optimiser: (head if who == "head" else optimiser).flush()
    )
    assert torch.allclose(average, truth, rtol=1e-5)


def test_an_average_of_weights_is_right_with_a_flush_after_every_step():
    head = LabelHead(LABELS, 4, unbiased(), sparse=True)
    start = head.weight.detach().clone()
    optimiser = decaying(head)
    optimiser.register_step_post_hook(lambda its, *_: its.flush())
    average = torch.optim.swa_utils.AveragedModel(head)
    for _ in range(10):
        touch(head, optimiser)
        average.update_parameters(head)
    assert torch.allclose(
        average.module.weight, start * sum(0.98**step for step in range(1, 11)) / 10, rtol=1e-5
    )


def test_an_average_that_begins_in_the_middle_begins_with_decayed_rows():
    head = LabelHead(LABELS, 4, unbiased(), sparse=True)
    start = head.weight.detach().clone()
    optimiser = decaying(head)
    for _ in range(3):
        touch(head, optimiser)
    average = torch.optim.swa_utils.AveragedModel(torch.nn.Sequential(torch.nn.Linear(4, 4), head))
    assert torch.allclose(average.module[1].weight, start * 0.98**3, rtol=1e-5)


def test_a_head_in_evaluation_has_its_weight_decay():
    head = LabelHead(LABELS, 4, unbiased(), sparse=True)
    start = head.weight.detach().clone()
    optimiser = decaying(head)
    for _ in range(3):
        touch(head, optimiser)
    torch.nn.Sequential(head).eval()
    assert torch.allclose(head.weight, start * 0.98**3, rtol=1e-5)


@pytest.mark.parametrize(
    "read",
    [lambda m: m.state_dict()["weight"], lambda m: copy.deepcopy(m).weight],
    ids=["saved", "copied"],
)
def test_features_that_are_saved_or_copied_have_their_weight_decay(read):
    encoder = Bottleneck(10, 4, sparse=True)
    start = encoder.weight.detach().clone()
    optimiser = RowSGD([encoder.weight], lr=0.1, weight_decay=0.2)
    for _ in range(3):
        encoder.weight.grad = torch.sparse_coo_tensor(
            torch.tensor([[0]]), torch.zeros(1, 4), (10, 4)
        )
        optimiser.step()
    assert torch.allclose(read(encoder), start * 0.98**3, rtol=1e-5)


def slowly_best(scores: torch.Tensor, k: int, exclude: list[list[int]]) -> list[list[int]]:
    """Sort the labels that remain, one example at a time."""
    found = []
    for row, ruled_out in zip(scores.tolist(), exclude, strict=True):
        rest = sorted(set(range(len(row))) - set(ruled_out), key=lambda y: -row[y])[:k]
        found.append(rest + [-1] * (k - len(rest)))
    return found


def padded(lists: list[list[int]]) -> torch.Tensor:
    width = max(map(len, lists))
    return torch.tensor([row + [-1] * (width - len(row)) for row in lists])


@pytest.mark.parametrize("block", [1, 7, 2**24])
@pytest.mark.parametrize("score", ["dot", "cosine"])
@pytest.mark.parametrize("form", [list, Ragged.from_lists, padded])
def test_excluded_labels_are_never_answered_however_many_they_are(monkeypatch, block, score, form):
    monkeypatch.setattr("headtail.answers.topk.BLOCK_SCORES", block)
    labels = Labels.zipf(20)
    loss = SoftmaxLoss(score=score, temperature=0.5)
    head = LabelHead(labels, 4, loss, bias=score == "dot")
    hidden = torch.randn(5, 4)
    exclude = [[], [3, 3, 19], list(range(20)), list(range(17)), [*range(0, 20, 2)]]
    best = head.topk(hidden, 6, exclude=form(exclude))
    scores = head.logits(hidden)
    assert best.indices.tolist() == slowly_best(scores, 6, exclude)
    missing = best.indices == -1
    assert missing.sum() == 6 + 3
    assert (best.values[missing] == -torch.inf).all()
    wanted = scores.gather(1, best.indices.clamp(min=0))
    assert torch.allclose(best.values[~missing], wanted[~missing], atol=1e-6)


def test_excluded_labels_are_ranked_by_adjusted_scores_too():
    labels = Labels.zipf(30)
    head = LabelHead(labels, 4, SoftmaxLoss())
    hidden = torch.randn(3, 4)
    exclude = [[0, 1, 2], [], [29]]
    adjusted = head.logits(hidden) - labels.prior.log().float()
    found = head.topk(hidden, 5, exclude=exclude, post_hoc=1.0).indices
    assert found.tolist() == slowly_best(adjusted, 5, exclude)
