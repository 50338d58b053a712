"""Steps in stages, and what stands in for their graphs on a CPU: they do what eager steps do."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from headtail import (
    CosFace,
    Frequency,
    HeadtailError,
    Importance,
    InfoNCE,
    LogUniform,
    Mixture,
    Queue,
    Relative,
    RowSGD,
    SampledDecoupledLoss,
    SampledSoftmaxLoss,
    Tail,
    Uniform,
    WithinBatch,
)
from headtail.collectives.gather import gather
from headtail.core.sharded_labels import ShardedLabels
from headtail.device import graphs
from headtail.device.graphs import rerun
from headtail.distributed import ShardedLabelHead
from headtail.distributed.captured import STEPS_BEFORE
from headtail.distributed.staged_step import StagedStep
from headtail.distributed.traffic import StepShape, step_messages
from headtail.losses import Loss
from headtail.losses.graph import Call
from tests.distributed import batches
from tests.distributed.batches import LABELS, Batch, D, Form, of_ranks
from tests.distributed.cases import adagrad, adam_with_decay, sgd, sgd_with_decay
from tests.distributed.counted import Call as Counted
from tests.distributed.counted import collectives

MOST = 7
"""Examples of every rank in the first step, and so the most."""


class Trained:
    """A sharded head and its optimiser.

    Args:
        loss: to be trained.
        optimizer: of its tables.
        staged: whether steps are taken in stages; else as one rank after the other asks.
        whole: whether messages are captured with the work between them.
    """

    def __init__(
        self,
        loss: Loss,
        optimizer: Any = adagrad,
        *,
        staged: bool,
        whole: bool = True,
        bias: bool = True,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        torch.manual_seed(3)
        self.head = ShardedLabelHead(LABELS, D, loss, bias=bias, dtype=dtype)
        self.optimizer = optimizer(self.head.parameters())
        if staged:
            _stand_in(self.head, self.optimizer, whole)
        self.grads: list[Tensor] = []

    def step(self, number: int, batch: Batch, *, again: Batch | None = None) -> Tensor:
        """One step, with two losses before a backward pass if there is another batch."""
        torch.manual_seed(100 + number)
        given = [batch] if again is None else [batch, again]
        hidden = [part.hidden.clone().requires_grad_() for part in given]
        losses = [self.head(h, part.target) for h, part in zip(hidden, given, strict=True)]
        for place, loss in enumerate(losses):
            (loss * (place + 1)).backward()
        self.grads += [h.grad.clone() for h in hidden if h.grad is not None]
        self.optimizer.step()
        self.optimizer.zero_grad()
        return torch.stack([loss.detach() for loss in losses])

    @property
    def tables(self) -> list[Tensor]:
        self.head.flush()
        return [table.detach().clone() for table in self.head.parameters()]


def _stand_in(
    head: ShardedLabelHead, optimizer: Any, whole: bool, examples: int | None = MOST
) -> None:
    """On a CPU, work that is done again stands in for a graph."""
    head.capture(examples=examples, messages=whole)
    for captured in (head._graphs, optimizer.graphs):
        captured.record = rerun
        captured.devices = ("cuda", "cpu")


def _batches(step: int, form: Form = batches.ids) -> Batch:
    """This rank's batch: the first ones are the largest, later ones differ, and may be empty."""
    if step == 0:
        generator = torch.Generator().manual_seed(dist.get_rank())
        return form(MOST, generator)
    return of_ranks(form, step, dist.get_world_size(), torch.float64)[dist.get_rank()]


def _same(
    loss: Callable[[], Loss],
    optimizer: Any = adagrad,
    form: Form = batches.ids,
    *,
    whole: bool = True,
    twice: bool = False,
    bias: bool = True,
) -> Trained:
    plain = Trained(loss(), optimizer, staged=False, bias=bias)
    staged = Trained(loss(), optimizer, staged=True, whole=whole, bias=bias)
    for number in range(STEPS_BEFORE + 6):
        batch = _batches(number, form)
        again = _batches(number + 20, form) if twice and number else None
        ours = staged.step(number, batch, again=again)
        torch.testing.assert_close(ours, plain.step(number, batch, again=again), **CLOSE)
    for mine, theirs in zip(staged.grads + staged.tables, plain.grads + plain.tables, strict=True):
        torch.testing.assert_close(mine, theirs, **CLOSE)
    assert staged.head.captured.shapes == [(staged.head._graphs._agreed.step.size, D)]
    assert not plain.head.captured.shapes
    return staged


CLOSE: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}


def _softmax(sampler: Any, weighting: Any, **options: Any) -> Callable[[], Loss]:
    return lambda: SampledSoftmaxLoss(sampler(), weighting, **options)


def _uniform(**options: Any) -> Callable[[], Loss]:
    return _softmax(lambda: Uniform(LABELS, 8), Importance(), **options)


def own_draws_in_stages_are_eager_ones():
    _same(_uniform())
    _same(_softmax(lambda: Uniform(LABELS, 9, replacement=False), Relative()))
    _same(_softmax(lambda: Frequency(LABELS, 8, 0.5), Tail(LABELS)), whole=False)
    _same(_softmax(lambda: LogUniform(LABELS, 8), Tail(LABELS, 0.5)), bias=False)


def own_draws_whose_weights_look_at_the_q_of_positives_too():
    _same(_softmax(lambda: Frequency(LABELS, 8, 0.5), Relative()))
    _same(_softmax(lambda: LogUniform(LABELS, 8), Relative()), form=batches.ignoring)


def mixtures_of_own_draws_too():
    parts = [Uniform(LABELS, 5), Frequency(LABELS, 6)]
    _same(_softmax(lambda: Mixture(parts), Importance()))
    _same(_softmax(lambda: Mixture(parts), Relative()))


def parts_of_a_mixture_draw_independently():
    uniform = Uniform(LABELS, 8 * dist.get_world_size())
    head = ShardedLabelHead(
        LABELS, D, SampledSoftmaxLoss(Mixture([uniform, uniform]), Importance())
    )
    batch = _batches(0)
    drawn = []
    part = head.part
    assert part is not None
    pick = part.pick
    with mock.patch.object(part, "pick", lambda batch: drawn.append(pick(batch)) or drawn[-1]):
        head(batch.hidden.float(), batch.target)
    first, second = drawn[0].ids.chunk(2)
    assert not torch.equal(first, second)


def the_joint_batch_too():
    _same(_softmax(lambda: WithinBatch(LABELS), Tail(LABELS)))
    _same(_softmax(lambda: WithinBatch(LABELS), InfoNCE()), whole=False)
    _same(_softmax(lambda: WithinBatch(LABELS), Relative()), form=batches.ignoring)


def options_too():
    _same(_uniform(temperature=0.5), bias=False)
    _same(_uniform(reduction="sum"))
    _same(_uniform(collisions="none"))
    _same(_uniform(), form=batches.ignoring)
    _same(_uniform(ignore_index=0))
    _same(_uniform(), form=batches.positions)


def optimisers_too():
    for optimizer in (sgd, sgd_with_decay, adam_with_decay):
        _same(_uniform(), optimizer)


def a_second_loss_before_the_backward_pass_keeps_the_first():
    _same(_uniform(), twice=True)
    _same(_softmax(lambda: WithinBatch(LABELS), Tail(LABELS)), twice=True, whole=False)


def labels_that_are_spread_over_ranks_too():
    def loss(labels: Any) -> Loss:
        return SampledSoftmaxLoss(WithinBatch(labels), Tail(labels))

    part = LABELS if dist.get_world_size() == 1 else _share()
    heads = [ShardedLabelHead(part, D, loss(part), dtype=torch.float64) for _ in range(2)]  # pyright: ignore[reportArgumentType]
    heads[1].load_state_dict(heads[0].state_dict())
    _stand_in(heads[1], RowSGD(heads[1].parameters(), lr=0.1), whole=True)
    batch = _batches(0)
    values = [head(batch.hidden, batch.target) for head in heads]
    torch.testing.assert_close(*values, **CLOSE)
    assert heads[1]._graphs._agreed is not None


def _share() -> ShardedLabels:
    head = ShardedLabelHead(LABELS, D, _uniform()())
    return head.labels


def ranks_do_not_ask_each_other_once_they_agreed():
    staged = Trained(_uniform()(), staged=True)
    for number in range(2):
        staged.step(number, _batches(number))
    batch = _batches(2)
    with mock.patch.object(type(staged.head.ranks), "numbers", side_effect=AssertionError):
        staged.step(2, batch)


def captured_work_is_replayed_and_not_chosen_again():
    staged = Trained(_uniform()(), staged=True)
    records = []

    def counted(work: Any, device: Any, pool: Any, generators: Any = ()) -> Any:
        records.append(generators)
        return rerun(work, device, pool)

    staged.head._graphs.record = counted
    for number in range(STEPS_BEFORE + 4):
        staged.step(number, _batches(number))
    [generators] = records
    assert generators == [staged.head._graphs._agreed.step.generator]


def a_capture_that_one_rank_cannot_make_is_given_up_by_all():
    staged = Trained(_uniform()(), staged=True)

    def failing(work: Any, device: Any, pool: Any, generators: Any = ()) -> Any:
        if dist.get_rank() == 0:
            graphs._Failed.captures += 1  # as `record` does
            raise RuntimeError("no graph today")
        return rerun(work, device, pool)

    staged.head._graphs.record = failing
    plain = Trained(_uniform()(), staged=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for number in range(STEPS_BEFORE + 3):
            batch = _batches(number)
            ours = staged.step(number, batch)
            torch.testing.assert_close(ours, plain.step(number, batch), **CLOSE)
    assert not staged.head.captured.shapes
    assert any("are not captured" in str(warning.message) for warning in told)


def what_has_no_stages_runs_eagerly_and_says_why():
    others: dict[str, Loss] = {
        "cosines": SampledSoftmaxLoss(
            Uniform(LABELS, 8), Importance(), score="cosine", score_margin=CosFace(0.1)
        ),
        "draws a part": SampledSoftmaxLoss(WithinBatch(LABELS, 3), Importance()),
        "remembers batches": SampledSoftmaxLoss(Queue(LABELS, 9), Importance()),
        "only sampled softmax": SampledDecoupledLoss(Uniform(LABELS, 8), Importance()),
    }
    for reason, loss in others.items():
        staged = Trained(loss, staged=True)
        with pytest.warns(UserWarning, match=reason):
            staged.step(0, _batches(0))
        assert staged.head._graphs._agreed is None


def larger_batches_on_all_ranks_are_agreed_on_again():
    staged = Trained(_uniform()(), staged=True)
    plain = Trained(_uniform()(), staged=False)
    for number in range(3):
        generator = torch.Generator().manual_seed(number)
        batch = batches.ids(MOST + 2 * number, generator)
        ours = staged.step(number, batch)
        torch.testing.assert_close(ours, plain.step(number, batch), **CLOSE)
        assert staged.head._graphs._agreed.step.size == MOST + 2 * number


def ranks_agree_by_themselves_once_batches_have_one_size():
    staged = Trained(_uniform()(), staged=True)
    _stand_in(staged.head, staged.optimizer, False, examples=None)
    sizes = [5, 4, 6, 6, 6, 2]
    agreed = []
    for number, size in enumerate(sizes):
        staged.step(number, batches.ids(size, torch.Generator().manual_seed(number)))
        agreed.append(staged.head._graphs._agreed is not None)
    assert agreed == [False, False, False, False, True, True]


def batches_that_differ_between_ranks_are_never_agreed_on():
    if dist.get_world_size() == 1:
        return
    staged = Trained(_uniform()(), staged=True)
    _stand_in(staged.head, staged.optimizer, False, examples=None)
    for number in range(6):
        generator = torch.Generator().manual_seed(number)
        staged.step(number, batches.ids(4 + dist.get_rank() + number % 2, generator))
        assert staged.head._graphs._agreed is None


def moved_heads_agree_again():
    staged = Trained(_uniform()(), staged=True)
    staged.step(0, _batches(0))
    assert staged.head._graphs._agreed is not None
    staged.head.to("cpu")
    assert staged.head._graphs._agreed is None
    staged.step(1, _batches(0))
    assert staged.head._graphs._agreed is not None


def evaluation_and_frozen_heads_run_eagerly():
    staged = Trained(_uniform()(), staged=True)
    staged.step(0, _batches(0))
    batch = _batches(1)
    with torch.no_grad():
        torch.manual_seed(4)
        eager = staged.head(batch.hidden, batch.target)
    torch.manual_seed(4)
    again = staged.head(batch.hidden.requires_grad_(), batch.target)
    assert type(again.grad_fn).__name__ == "_StagedBackward"
    torch.testing.assert_close(again.detach(), eager, **CLOSE)


def a_label_that_does_not_exist_makes_the_loss_not_a_number():
    staged = Trained(_uniform()(), staged=True)
    staged.step(0, _batches(0))
    batch = _batches(0)
    target = batch.target.clone()
    assert isinstance(target, Tensor)
    for missing in (LABELS.num_labels + 3, -1, -7):
        target[0] = missing
        # On a CPU its log-weight would be refused; importance weights look nothing up.
        assert bool(staged.head(batch.hidden.requires_grad_(), target).isnan())


def a_label_that_does_not_exist_makes_an_eager_loss_not_a_number_on_a_gpu():
    plain = Trained(_uniform()(), staged=False)
    batch = _batches(0)
    target = batch.target.clone()
    assert isinstance(target, Tensor)
    # As on a GPU, where a look at the labels would make the host wait.
    with (
        mock.patch("headtail.core.targets.check_ids"),
        mock.patch("headtail.core.targets._seen_to_count", return_value=False),
    ):
        for missing in (LABELS.num_labels + 3, -1, -7):
            target[0] = missing
            assert bool(plain.head(batch.hidden, target).isnan())


def a_target_of_no_example_is_refused_on_every_rank():
    staged = Trained(_uniform()(), staged=True)
    staged.step(0, _batches(0))
    with pytest.raises(HeadtailError):
        staged.head(torch.randn(D, dtype=torch.float64, requires_grad=True), torch.tensor(3))


def bytes_in_stages_are_those_of_the_formula():
    for dtype, number in ((torch.bfloat16, 2), (torch.float32, 4), (torch.float64, 8)):
        staged = Trained(_uniform()(), staged=True, dtype=dtype)
        first = _batches(0)
        first = first._replace(hidden=first.hidden.to(dtype))
        staged.step(0, first)
        with collectives() as calls:
            staged.step(1, first)
        ranks = dist.get_world_size()
        shape = StepShape(examples=MOST, dim=D, all_pairs=MOST * ranks, number=number, staged=True)
        wanted: list[Counted] = [(m.collective, m.size) for m in step_messages(shape)]
        assert calls == wanted


def no_stage_keeps_the_host_of_a_gpu_waiting():
    """Tensors on the device "meta" have no values: whoever looks at one, as a host that waits for a
    GPU does, fails.
    """
    for sampler in (Uniform(LABELS, 8), Frequency(LABELS, 8), WithinBatch(LABELS)):
        loss = SampledSoftmaxLoss(sampler, Tail(LABELS))
        head = ShardedLabelHead(LABELS, D, loss, bias=True)
        assert head.part is not None
        weight, bias = (torch.empty(p.shape, device="meta") for p in head.parameters())
        hidden = torch.empty(MOST, D, device="meta")
        target = torch.empty(MOST, dtype=torch.int64, device="meta")
        call = Call(loss, hidden, target, weight, bias)
        # There is no generator for tensors without values.
        with mock.patch.object(torch, "Generator", return_value=None):
            step = StagedStep(call, head.part.to("meta"), head.share, head.ranks, MOST)
        for stage in step.stages:
            if not stage.travels:
                stage.do()
        assert step.loss.device.type == "meta"
        with pytest.raises((RuntimeError, NotImplementedError)):
            float(step.loss)


def ranks_agree_on_stages_only_where_they_call_alike():
    if dist.get_world_size() == 1:
        return
    first = dist.get_rank() == 0
    staged = Trained(_uniform()(), staged=True)
    _stand_in(staged.head, staged.optimizer, True, examples=MOST + first)
    with pytest.raises(HeadtailError, match=r"`examples` in `head.capture` is "):
        staged.step(0, _batches(0))
    assert staged.head._graphs._agreed is None
    _stand_in(staged.head, staged.optimizer, True)
    staged.head.loss = _uniform(reduction="sum" if first else "mean")()
    with pytest.raises(HeadtailError, match=r"`reduction` is 'sum' on rank 0 and 'mean' on rank 1"):
        staged.step(0, _batches(0))
    assert staged.head._graphs._agreed is None
    staged.head.loss = _uniform()()
    staged.step(0, _batches(0))
    assert staged.head._graphs._agreed is not None


def a_rank_with_a_larger_batch_finds_out_by_the_first_message():
    staged = Trained(_uniform()(), staged=True)
    staged.step(0, _batches(0))
    agreed = staged.head._graphs._agreed
    if dist.get_world_size() == 1:
        return
    if dist.get_rank() == 0:
        larger = batches.ids(MOST + 1, torch.Generator().manual_seed(0))
        with pytest.raises(HeadtailError, match="more examples than before"):
            staged.head(larger.hidden.requires_grad_(), larger.target)
        # The others wait in the messages that follow, which a process that ends would break off.
        step = agreed.step
        step._ranks.gather_into(step._label, step._target)
        step._ranks.gather_into(step._states, step._hidden)
        with torch.no_grad():
            for stage in step.stages[1:]:
                stage.do()
    else:
        staged.step(1, _batches(0))
    assert gather(torch.tensor([dist.get_rank()])).tolist() == list(range(dist.get_world_size()))
