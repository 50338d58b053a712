"""What every sampler can do, what it promises (`Claims`), and the batch it draws for (`Step`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64, Int
from torch import Tensor, nn

from headtail.core.draw import Draw
from headtail.core.labels import Labels
from headtail.core.targets import IGNORE_INDEX, Pairs, Target
from headtail.errors import HeadtailError, PythonName
from headtail.samplers.scorer import Scorer


@dataclass(frozen=True)
class Claims:
    """What callers need to know about a sampler before it draws.

    Attributes:
        looks_at_model: drawing reads hidden states and the label table, which must be up to date.
        shared: all examples of a batch get the same negatives, `ids` of shape `[m]`.
        marginal: the log q of a draw is that of the label itself, which weights that do not come
            from a margin need.
        knows_every_q: log q is known for any label, not only for those drawn.
        may_miss: some label may have q = 0.
        excludes_target: the positive is never drawn, and q of the others is divided by 1 − q_y.
        group: how many neighbours of a batch get one draw, from the mean of their q.
        memory: how many labels of past batches are remembered.
        source: "batch" or "past" if negatives are labels of training examples, so that a label
            without examples is never drawn.
        replayable: every draw is the same work on the device, whatever the host does in between:
            a CUDA graph may hold it.
        alone: it cannot be a part of another sampler.
    """

    looks_at_model: bool = False
    shared: bool = True
    marginal: bool = True
    knows_every_q: bool = True
    may_miss: bool = False
    excludes_target: bool = False
    group: int = 1
    memory: int = 0
    source: str | None = None
    replayable: bool = False
    alone: bool = False


class Step(NamedTuple):
    """One batch as samplers see it: all that m and q depend on, apart from a sampler's own memory.

    A sampler inside another one reports its m and its q for the very step it draws for.

    Attributes:
        pairs: the targets.
        model: what scores labels, for samplers that look at it.
        generator: source of randomness.
        needs_target_q: whether log q of the positives is needed, where it costs something.
        long_run: whether this describes any batch of `size` examples, with full queues, instead of
            a particular one.
        size: the number of examples of such a batch, if known.
        fixed_size: whether the shape of a draw should follow from the shape of the targets alone,
            so that the host need not wait for the number of those that count.
    """

    pairs: Pairs
    model: Scorer | None = None
    generator: torch.Generator | None = None
    needs_target_q: bool = True
    long_run: bool = False
    size: int | None = None
    fixed_size: bool = False

    @classmethod
    def expected(
        cls, label: Int[Tensor, " p"], batch_size: int | None = None, model: Scorer | None = None
    ) -> Step:
        """Examples with these positives in any batch of this size, once queues are full."""
        pairs = Pairs.of(label, ignore_index=None)
        return cls(pairs, model, long_run=True, size=batch_size)

    @property
    def batch_size(self) -> int | None:
        """How many targets count."""
        if self.long_run:
            return self.size
        if self.pairs.all_count:
            return len(self.pairs.label)
        return int((~self.pairs.ignored).sum())

    @property
    def scorer(self) -> Scorer:
        """The model, for samplers that claim to look at it."""
        assert self.model is not None, "`draw` passes it to samplers that look at it"
        return self.model


class Sampler(nn.Module, ABC):
    """Draws negative labels, and knows how likely they were.

    It is a `FixedSampler`, a `ModelSampler`, or a pool (`Resampled`), where the q of a label is
    unknown.

    A sampler is a module so that its tables move with the model and its state, if any, is saved
    with it. It has no parameters, and no gradient flows through what it draws.
    """

    num_labels: int

    @property
    @abstractmethod
    def claims(self) -> Claims:
        """What it promises about its draws."""

    def draw(
        self,
        target: Target,
        *,
        input: Tensor | None = None,
        weight: Tensor | None = None,
        model: Scorer | None = None,
        generator: torch.Generator | None = None,
        ignore_index: int | None = IGNORE_INDEX,
        needs_target_q: bool = True,
        fixed_size: bool = False,
    ) -> Draw:
        """Draw the negatives of one batch.

        Args:
            target: the batch's positives: `[b]` ids, padded `[b, k]` ids or a `Ragged`.
            input: `[b, d]` hidden states, for samplers that look at the model; others need neither
                this nor the next two.
            weight: `[L, d]` label table.
            model: instead of these two, if there are biases, a temperature or cosine scores:
                `Scorer(input, weight, bias)`.
            generator: source of randomness; equal seeds give equal draws.
            ignore_index: targets with this id do not count; None promises that there are none.
            needs_target_q: whether `log_q_target` is needed. Only relative weights need it, and
                samplers that look at the model may leave it out otherwise.
            fixed_size: whether the shape of the draw should not depend on how many targets count:
                see `Draw.void`.
        """
        pairs = Pairs.of(target, num_labels=self.num_labels, ignore_index=ignore_index)
        if generator is not None and generator.device.type != pairs.label.device.type:
            raise HeadtailError(
                f"`generator` is on {generator.device} but `target` is on {pairs.label.device}. "
                f"Create it there: `torch.Generator({pairs.label.device.type!r})`."
            )
        if model is None and input is not None and weight is not None:
            model = Scorer(input, weight)
        with torch.no_grad():
            step = Step(
                pairs,
                self._scorer_of(pairs, model),
                generator,
                needs_target_q,
                fixed_size=fixed_size,
            )
            draw = self.pick(step)
            self.remember(step)
            return draw

    def _scorer_of(self, pairs: Pairs, model: Scorer | None) -> Scorer | None:
        """The model with one hidden state per pair, or None if the sampler does not look at it."""
        if not self.claims.looks_at_model:
            return None
        if model is None:
            raise HeadtailError(
                f"`{self.name}` looks at the model: pass `input` and `weight` to `draw`."
            )
        examples = pairs.num_examples
        input = model.input.detach()
        weight = model.weight.detach()
        dim = weight.shape[-1]
        if (input.shape, weight.shape) != ((examples, dim), (self.num_labels, dim)):
            raise HeadtailError(
                f"`input` must have shape [{examples}, d], one row per target, and `weight` "
                f"[{self.num_labels}, d], but got {list(input.shape)} and {list(weight.shape)}."
            )
        rest = model.bias, model.temperature, model.score, model.logits_at_once
        return Scorer(pairs.rows(input), weight, *rest)

    @abstractmethod
    def pick(self, step: Step) -> Draw:
        """Draw for targets that are already pairs. The only place with randomness.

        It must not change a memory of past batches, only `remember` may: m and q of a step are the
        same before and after.
        """

    def remember(self, step: Step) -> None:
        """Add a batch to the memory after its draw, in all samplers inside."""
        for part in self.samplers:
            part.remember(step)

    @property
    def settled(self) -> bool:
        """Whether its next training step is the same work on the device as later ones, so that a
        CUDA graph of such a step may be replayed.
        """
        return True

    def settle(self) -> None:
        """Behave as in later steps, for steps that will be undone."""

    def count_step(self) -> None:
        """Called after each training step of a `CapturedStep`, eager or replayed; for samplers that
        count them.
        """

    @property
    def name(self) -> str:
        """The name of its public class."""
        return type(self).__name__

    def _get_name(self) -> str:
        return self.name

    @property
    def samplers(self) -> Sequence[Sampler]:
        """The samplers inside this one."""
        return []

    def m_given(self, step: Step) -> float:
        """The m of a draw in this step."""
        return self.expected_m(step.batch_size)

    @abstractmethod
    def expected_m(self, batch_size: int | None = None) -> float:
        """The m that `draw` reports for a batch of this size."""

    def independent(self, batch_size: int | None = None) -> bool:
        """Whether the draws of one call are independent, so that the variance falls as 1/m."""
        return True

    @abstractmethod
    def log_support(self, ids: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """−inf for labels that are never drawn, whatever the model, and finite for all others."""

    @property
    def device(self) -> torch.device | None:
        """Where the tables are; None for samplers without any."""
        return next((buffer.device for buffer in self.buffers()), None)

    @abstractmethod
    def for_labels(self, labels: Labels) -> Sampler:
        """The same sampler over a grown label set."""

    def refresh(self, target: Int[Tensor, " n"]) -> None:
        """Replace what is remembered by these labels, in all samplers inside."""
        for part in self.samplers:
            part.refresh(target)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        # `model.half()` is meant for weights: a table of probabilities moves between devices but
        # keeps its float64 digits.
        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(move, recurse)


def check_part(part: Sampler, whole: str) -> None:
    """Refuse a sampler that works only by itself as a part of another."""
    if part.claims.alone:
        raise HeadtailError(
            PythonName(part.name),
            " counts each label once, whatever drew it, so it cannot be a part of ",
            PythonName(whole),
            ". Use it alone.",
        )
