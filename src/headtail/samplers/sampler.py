"""What every sampler promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64, Int
from torch import Tensor, nn

from headtail.core.draw import Draw
from headtail.core.labels import Labels
from headtail.core.targets import IGNORE_INDEX, Pairs, Target
from headtail.errors import HeadtailError
from headtail.samplers.claims import Claims
from headtail.samplers.scorer import Scorer


class Step(NamedTuple):
    """One batch as samplers see it: all that m and q depend on, apart from a sampler's own memory.

    A sampler inside another one is asked for its m and its q with the very step it draws for.

    Attributes:
        pairs: the targets.
        model: what scores labels, for samplers that look at it.
        generator: source of randomness.
        tell_target: whether log q of the positives is wanted, where it costs something.
        long_run: whether no batch is meant but any one of `size` examples, with full queues.
        size: the number of examples of such a batch, if known.
    """

    pairs: Pairs
    model: Scorer | None = None
    generator: torch.Generator | None = None
    tell_target: bool = True
    long_run: bool = False
    size: int | None = None

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
        """The model, for samplers that said they look at it."""
        assert self.model is not None, "`draw` hands it over where a sampler looks at it"
        return self.model


class Sampler(nn.Module, ABC):
    """Draws negative labels, and knows how likely they were.

    It is a `FixedSampler`, a `ModelSampler`, or a pool (`Resampled`), whose labels have no known q.

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
        bias: Tensor | None = None,
        temperature: float | Tensor = 1.0,
        score: str = "dot",
        generator: torch.Generator | None = None,
        ignore_index: int | None = IGNORE_INDEX,
        tell_target: bool = True,
    ) -> Draw:
        """Draw the negatives of one batch.

        Args:
            target: the batch's positives: `[b]` ids, padded `[b, k]` ids or a `Ragged`.
            input: `[b, d]` hidden states,
            weight: `[L, d]` label table,
            bias: `[L]` or `[L, 1]`, or None,
            temperature: by which logits are divided, and
            score: "dot" or "cosine": what samplers that look at the model see; others need none of
                it.
            generator: source of randomness; equal seeds give equal draws.
            ignore_index: targets with this id are no examples; None promises that there are none.
            tell_target: whether `log_q_target` is wanted. Relative weights alone ask, and samplers
                that look at the model may leave it out otherwise.
        """
        pairs = Pairs.of(target, num_labels=self.num_labels, ignore_index=ignore_index)
        if generator is not None and generator.device.type != pairs.label.device.type:
            raise HeadtailError(
                f"`generator` is on {generator.device} but `target` is on {pairs.label.device}. "
                "Make one there: "
                f"`torch.Generator({pairs.label.device.type!r})`."
            )
        with torch.no_grad():
            model = None
            if self.claims.looks_at_model:
                if input is None or weight is None:
                    raise HeadtailError(
                        f"`{self.name}` looks at the model: pass `input` and `weight` to `draw`."
                    )
                self._check_fits(input, weight, pairs.num_examples)
                model = Scorer(
                    pairs.rows(input.detach()), weight.detach(), bias, temperature, score
                )
            step = Step(pairs, model, generator, tell_target)
            draw = self.pick(step)
            self.remember(step)
            return draw

    def _check_fits(self, input: Tensor, weight: Tensor, examples: int) -> None:
        """Refuse a model that does not fit the targets, or another number of labels."""
        shapes = (examples, weight.shape[-1]), (self.num_labels, weight.shape[-1])
        if (input.shape, weight.shape) != shapes:
            want = (
                f"`input` must have shape [{examples}, d], a row a target, and `weight` "
                f"[{self.num_labels}, d]"
            )
            raise HeadtailError(f"{want}, but got {list(input.shape)} and {list(weight.shape)}.")

    @abstractmethod
    def pick(self, step: Step) -> Draw:
        """Draw for targets that are already pairs. The only place with randomness.

        What is drawn from in later steps changes in `remember`, so that m and q are the same before
        and after.
        """

    def remember(self, step: Step) -> None:
        """Take note of a batch after its draw, in all samplers inside."""
        for part in self.samplers:
            part.remember(step)

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
        """−inf just for labels that are never drawn, whatever the model."""

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
