"""The steps of a sharded head in stages and as CUDA graphs: which of them, and what ranks agree on.

Ranks agree once, when each of them can take its step in stages and their batches have had one size
for a while. After that they no longer ask each other: a rank pads its batch to the agreed size, and
one that cannot do so learns from the first message that the others have. After a few steps each
rank captures its own work as CUDA graphs; where the caller wants it and all ranks can, messages are
captured too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headtail.collectives.ranks import Ranks
from headtail.core.placement import Share
from headtail.device.graphs import Pool, Record, failed_captures, record, stream_of
from headtail.distributed.joint_batch import all_ready
from headtail.distributed.own_draws import OwnPart
from headtail.distributed.same_call import Facts
from headtail.distributed.staged_step import StagedStep
from headtail.errors import HeadtailError
from headtail.losses.captured import Captured, Watched, tell_once
from headtail.losses.fused import graph_is_kept
from headtail.losses.graph import Call, OfTable, hand_over, refuse_second_pass
from headtail.losses.modules import SampledLoss
from headtail.losses.softmax import SoftmaxSettings
from headtail.rows.link import link_of

STEPS_ALIKE = 3
"""Steps with batches of one size on all ranks, after which ranks expect no others."""
STEPS_BEFORE = 3
"""Steps in stages that run eagerly first."""
MOST_SCORES = 2**26
"""Scores that a rank holds between two stages, at most: 256 MiB."""


class Inside:
    """A loss that waits for its backward pass, and where its gradients are.

    Attributes:
        of_hidden: the gradient of the hidden states.
        of_tables: those of the tables.
    """

    def __init__(self, of_hidden: Tensor, of_tables: list[OfTable]) -> None:
        self.of_hidden = of_hidden
        self.of_tables = of_tables

    def keep(self) -> None:
        """Copy them, because another loss is about to be computed where they are."""
        self.of_hidden = self.of_hidden.clone()
        self.of_tables = [of_table.copied() for of_table in self.of_tables]


class AgreedStep:
    """A step that all ranks have agreed to take in stages.

    Args:
        call: the first one.
        step: its stages.
        ranks: who agreed.
        key: what must stay as it was.
    """

    def __init__(self, call: Call, step: StagedStep, ranks: Ranks, key: Any) -> None:
        self.step = step
        self.ranks = ranks
        self.key = key
        self.tables = call.tables
        self.runs = 0
        self._inside: ref[Inside] | None = None
        self._entries: list[OfTable] = []
        self.forget_graphs()

    def forget_graphs(self) -> None:
        """Run eagerly. Messages are the same, so other ranks need not know."""
        self.captured = False
        self.nbytes = 0
        self._failed = 0
        self._work: list[Callable[[], object]] = [stage.do for stage in self.step.stages]
        # One that was part of a capture that failed may not draw any more.
        self.step.generator = torch.Generator(self.step.loss.device)

    def loss(self, call: Call, seed: int) -> Tensor:
        """The loss of a batch of at most the agreed size."""
        hidden, target = call.hidden, call.target
        assert isinstance(target, Tensor)
        if target.dim() > 1:
            hidden = hidden.flatten(0, -2)
            target = target.flatten()
        return _Staged.apply(hidden, *self.tables, self, target, seed)  # pyright: ignore[reportReturnType]

    def _of_tables(self) -> list[OfTable]:
        """Where the gradients of tables are."""
        if not self._entries:
            rows = self.step.rows
            stream = stream_of(rows.device)  # part of the key of a step, so always the same
            pairs = zip(self.tables, self.step.values, strict=True)
            self._entries = [OfTable(table, rows, value, stream) for table, value in pairs]
        return self._entries

    def run(self, hidden: Tensor, target: Tensor, seed: int) -> tuple[Tensor, Inside]:
        """The loss, and its gradients, which stay here until the next run."""
        waiting = None if self._inside is None else self._inside()
        if waiting is not None:  # another loss is computed before its backward pass
            waiting.keep()
        step = self.step
        if self.captured and failed_captures() != self._failed:
            self.forget_graphs()  # they have lost torch's generator
        step.load(hidden, target, seed)
        self.runs += 1
        for work in self._work:
            work()
        grad_hidden = step.grad_hidden
        if target.shape[0] < step.size:
            grad_hidden = grad_hidden[: target.shape[0]]
        inside = Inside(grad_hidden, self._of_tables())
        self._inside = ref(inside)
        return step.loss.clone(), inside

    @torch.no_grad()
    def capture(self, record: Record, pool: Pool, *, whole: bool) -> None:
        """Replay the stages from now on: as one graph, or each rank's own work between messages.

        Raises RuntimeError where that is impossible.
        """
        step = self.step
        step.expect_decay()
        device = step.loss.device
        generators = [step.generator]

        def everything() -> None:
            for stage in step.stages:
                stage.do()

        if whole:
            recorded = [record(everything, device, pool, generators)]
            self._work = [recorded[0].run]
        else:
            recorded = []
            self._work = []
            for stage in step.stages:
                if stage.travels:
                    self._work.append(stage.do)
                    continue
                recorded.append(record(stage.do, device, pool, generators))
                self._work.append(recorded[-1].run)
        self.captured = True
        self._failed = failed_captures()
        self.nbytes = sum(replay.nbytes for replay in recorded)


class ShardedGraphs:
    """The steps of one head that ranks take in stages.

    Attributes:
        on: whether to do so at all.
        record: makes graphs; tests replace it where there is no GPU.
        devices: kinds of devices it works on.
        examples: the agreed size, where the caller has stated it.
        whole: whether messages are captured too.
    """

    def __init__(
        self, ranks: Ranks, on: bool = True, examples: int | None = None, *, whole: bool = False
    ) -> None:
        self.ranks = ranks
        self.on = on
        self.record: Record = record
        self.devices: tuple[str, ...] = ("cuda",)
        self.examples = examples
        self.whole = whole
        self._told: set[str] = set()
        self._agreed: AgreedStep | None = None
        self.free()

    @property
    def facts(self) -> Facts:
        """What ranks must have written alike in `capture`, if they are ever to agree."""
        return {
            "`examples` in `head.capture`": f"{self.examples}",
            "`messages` in `head.capture`": f"{self.whole}",
        }

    def free(self) -> None:
        """Free all graphs, and the room of the gradients that they fill; ranks agree again."""
        for table in () if self._agreed is None else self._agreed.tables:
            link = link_of(table)
            if link is not None:
                link.fixed.clear()
        self._agreed = None
        self._watched: Watched | None = None
        self._losses = 0
        self._sizes: list[list[int]] = []

    def loss(self, call: Call) -> Tensor | None:
        """The loss of a call in stages; None where ranks have not agreed on them."""
        agreed = self._agreed
        if agreed is None or not self._serves(call.hidden):
            return None
        if not self._still(agreed, call):
            self._agreed = None
            return None
        if agreed.runs == STEPS_BEFORE:
            self._capture(agreed)
        return agreed.loss(call, new_seed())

    def why_not(self, call: Call, part: OwnPart | None) -> str | None:
        """What keeps this rank from taking steps like this one in stages: empty where no
        warning is needed, None where nothing does.
        """
        if part is None or not self._serves(call.hidden) or not self._most(call):
            return ""
        return self._reason(call, part)

    def agreed_size(self, table: list[list[int]]) -> int | None:
        """The size of batches in stages, if all ranks agree on it now.

        Args:
            table: the numbers of all ranks in this step, which all of them know.
        """
        sizes = [examples for examples, *_ in table]
        if not all_ready(table):
            self._sizes = []
            return None
        if self.examples is not None:
            return max(self.examples, *sizes)
        self._sizes = [*self._sizes[1 - STEPS_ALIKE :], sizes]
        alike = len(self._sizes) == STEPS_ALIKE and all(
            size == sizes[0] for earlier in self._sizes for size in earlier
        )
        return sizes[0] if alike else None

    def begin(self, call: Call, seed: int, part: OwnPart, share: Share, size: int) -> Tensor:
        """The loss of the call in which all ranks are ready, with so many examples at most."""
        step = StagedStep(call, part, share, self.ranks, size)
        self._agreed = AgreedStep(call, step, self.ranks, self._key(call))
        return self._agreed.loss(call, seed)

    @property
    def captured(self) -> Captured:
        """The size that is captured, and the memory of the graphs."""
        agreed = self._agreed
        if agreed is None or not agreed.captured:
            return Captured([], 0)
        shape = (agreed.step.size, agreed.step.grad_hidden.shape[1])
        return Captured([shape], agreed.nbytes)

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and deepcopy: a copy agrees again."""
        names = ("ranks", "on", "record", "devices", "examples", "whole", "_told")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """For pickle and deepcopy."""
        vars(self).update(state)
        self._agreed = None
        self.free()

    def _serves(self, hidden: Any) -> bool:
        if not (self.on and isinstance(hidden, Tensor) and hidden.device.type in self.devices):
            return False
        if hidden.is_cuda and torch.cuda.is_current_stream_capturing():
            return False
        return torch.is_grad_enabled() and not torch.compiler.is_compiling()

    def _most(self, call: Call) -> int:
        """The size of batches, as far as this rank knows it."""
        return max(call.num_targets, self.examples or 0)

    def _still(self, agreed: AgreedStep, call: Call) -> bool:
        """Whether a call is like the one that ranks agreed on, but for the size of its batch."""
        if not _has_plain_shapes(call) or call.num_targets > agreed.step.size:
            return False
        return agreed.key == self._key(call)

    def _key(self, call: Call) -> Any:
        watched = self._watched
        if watched is None or not watched.is_same(call.loss):
            self._losses += 1
            watched = self._watched = Watched(call.loss, self._losses)
        return call.hidden.shape[-1], call.key_of_any_batch(watched.state())

    def _reason(self, call: Call, part: OwnPart) -> str | None:
        loss = call.loss
        if not isinstance(loss, SampledLoss) or not isinstance(loss.settings, SoftmaxSettings):
            return "only sampled softmax losses are"
        settings = loss.settings
        self._key(call)
        watched = self._watched
        assert watched is not None
        if reason := call.why_not() or watched.why_not:
            return reason
        if not _has_plain_shapes(call):
            return "examples have several targets"
        if settings.score != "dot" or settings.label_smoothing or settings.looks_for_known:
            return "cosines, label smoothing and known positives are computed eagerly"
        if settings.sample_weight is not None:
            return "examples have weights"
        if call.hidden.dtype == torch.float16:
            return "hidden states are float16, whose small gradients need the scaled loss"
        if isinstance(settings.temperature, Tensor) or (
            call.bias is not None and settings.temperature != 1
        ):
            return "the temperature is learnt, or divides biases"
        targets = self.ranks.size * self._most(call)
        draws = part.most_draws(targets)
        if draws is None:
            return f"`{loss.sampler.name}` draws a part of the joint batch, or of past ones"
        if targets * draws > MOST_SCORES:
            return "there are too many scores to hold between two messages"
        if len(call.weight) == 0:
            return "a rank has no labels"
        if len(call.tables) != (1 if call.bias is None else 2):
            return "a table is frozen"
        if any(link is not None and link.at_once for link in map(link_of, call.tables)):
            return "an optimiser updates its table inside the backward pass"
        return None

    def _capture(self, agreed: AgreedStep) -> None:
        """Capture as much as all ranks can."""
        device = agreed.step.loss.device
        for with_messages in (True, False) if self.whole else (False,):
            problem = None
            try:
                agreed.capture(self.record, Pool(), whole=with_messages)
            except RuntimeError as error:
                problem = str(error)
            if all(ok for (ok,) in self.ranks.numbers([problem is None], device)):
                return
            agreed.forget_graphs()
            self.tell(problem or "another rank could not capture them")

    def tell(self, reason: str) -> None:
        """Say once why something is not captured."""
        tell_once(self._told, reason)


def new_seed(generator: torch.Generator | None = None) -> int:
    """A number for the randomness of one step, from torch's generator on this rank."""
    return int(torch.randint(2**62, (), generator=generator))


def refuse_mixed(own: Exception | None) -> NoReturn:
    """Raise on a rank that cannot take its step as the other ranks do."""
    if own is not None:
        raise own
    raise HeadtailError(
        "Other ranks take this step as all ranks agreed before, but this rank calls the head in "
        "another way, or with more examples than before. Call it alike on all ranks, and write "
        "`head.capture(examples=…)` with the size of the largest batch on all of them, or "
        "`head.capture(False)`."
    )


def _has_plain_shapes(call: Call) -> bool:
    """Whether each example has one target: `[b]` of `[b, d]`, or `[B, T]` of `[B, T, d]`."""
    target = call.target
    if not isinstance(target, Tensor) or target.is_nested or target.is_floating_point():
        return False
    is_plain = target.dim() > 0 and target.dtype != torch.bool
    return is_plain and target.shape == call.hidden.shape[:-1]


class _Staged(torch.autograd.Function):
    """A step in stages in place of the loss: backward scales the gradients that it left."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, *rest: Any) -> Tensor:
        agreed: AgreedStep = rest[-3]
        loss, ctx.inside = agreed.run(hidden, *rest[-2:])
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if torch.is_grad_enabled():  # with `create_graph=True`, for a second derivative
            return _scaled_once(ctx, *grads)
        return _scaled(ctx, *grads)


def _scaled(ctx: Any, scale: Tensor) -> tuple[Any, ...]:
    """The gradients that a step left, times the gradient of the loss."""
    inside: Inside | None = ctx.inside
    if inside is None:
        refuse_second_pass()
    grads = inside.of_hidden * scale, *hand_over(inside.of_tables, scale, ctx.next_functions)
    if not graph_is_kept():
        ctx.inside = None
    return *grads, None, None, None


_scaled_once = once_differentiable(_scaled)
