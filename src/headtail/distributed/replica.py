"""What a rank does before and after its copy of a head computes a loss."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headtail.collectives.ranks import Ranks, is_accumulating
from headtail.device.graphs import kept_random
from headtail.head import LabelHead
from headtail.losses.inputs import Inputs
from headtail.rows.replicas import Replicas


class Share:
    """n · ranks / N, the factor that makes the mean of a rank's n targets its part of the mean over
    the N targets of all ranks: `DistributedDataParallel` averages over ranks, not over targets.
    """

    def __init__(self, ranks: Ranks, own: Tensor) -> None:
        self._own = own * ranks.size
        self._total = own.clone()
        self._work = ranks.start_sum(self._total)  # while the loss is computed

    @property
    def is_known_zero(self) -> bool:
        """Whether no target counts here; on a GPU the host would wait to know."""
        return self._own.device.type == "cpu" and not self._own

    def times(self, loss: Tensor) -> Tensor:
        """This rank's part of the mean."""
        self._work.wait()
        total = torch.where(self._total == 0, 1.0, self._total)
        return loss * (self._own / total).to(loss.dtype)


class Step(NamedTuple):
    """One loss that is being computed.

    Attributes:
        hidden: its hidden states.
        later: whether gradients are averaged after a later one.
        share: of the mean over all ranks; None where the loss is not a mean.
        random: puts torch's random state back when it is closed.
    """

    hidden: Tensor
    later: bool
    share: Share | None
    random: ExitStack


class Replica:
    """Two hooks of a head: in training, its loss becomes this rank's part of the mean over all
    ranks, and its negatives are the rank's own.
    """

    def __init__(self, head: LabelHead, replicas: Replicas) -> None:
        self.replicas = replicas
        self._step: Step | None = None
        self._handles = [
            head.register_forward_pre_hook(self.before, with_kwargs=True),  # pyright: ignore[reportAttributeAccessIssue]
            head.register_forward_hook(self.after, with_kwargs=True, always_call=True),  # pyright: ignore[reportAttributeAccessIssue]
        ]

    @classmethod
    def detach_from(cls, head: LabelHead) -> None:
        """Remove the hooks of an earlier `replicate`."""
        for hook in list(head._forward_pre_hooks.values()):
            replica = getattr(hook, "__self__", None)
            if isinstance(replica, cls):
                for handle in replica._handles:
                    handle.remove()

    @torch.compiler.disable
    def before(self, head: LabelHead, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin to count the targets of all ranks, and choose this rank's random numbers."""
        self._step = None
        given = dict(zip(("hidden", "target"), args, strict=False)) | kwargs
        hidden = given.pop("hidden", None)
        trains = head.training and torch.is_grad_enabled()
        if not trains or not isinstance(hidden, Tensor):  # which the head refuses
            return
        draw = given.pop("draw", None)
        generator = given.pop("generator", None)
        ranks = self.replicas.ranks
        ranks.check_device("hidden", hidden)
        later = is_accumulating()
        self._step = Step(hidden, later, _share_of(ranks, head, hidden, **given), ExitStack())
        if draw is None and generator is None:
            seed = int(torch.randint(2**62, (), device="cpu")) + ranks.rank
            self._step.random.enter_context(kept_random(hidden.device))
            _generator_of(hidden.device).manual_seed(seed)

    @torch.compiler.disable
    def after(
        self, head: LabelHead, args: tuple[Any, ...], kwargs: dict[str, Any], loss: Tensor | None
    ) -> Tensor | None:
        """Take this rank's share of the mean, and have gradients averaged after backward."""
        step = self._step
        self._step = None
        if step is None:
            return loss
        step.random.close()
        if loss is None:  # the head has raised an error
            return None
        if step.share is not None:
            loss = step.share.times(loss)
            if head.sparse and step.share.is_known_zero:
                # Or rows that are looked up for no target would have a gradient, of 0.
                loss = _zero_from(loss, [step.hidden, *head.loss.parameters()])
        if self.replicas.tables:
            loss = self.replicas.averaged_after(loss, later=step.later)
        return loss


class AveragedAfter:
    """A hook of a sharded head: after the backward pass of its loss, gradients of copied tables are
    averaged over all ranks.
    """

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas

    @classmethod
    def attach(cls, head: nn.Module, replicas: Replicas) -> None:
        """Register the hook, in place of that of an earlier call."""
        for key, hook in list(head._forward_hooks.items()):
            if isinstance(hook, cls):
                del head._forward_hooks[key]
        if replicas.tables:
            head.register_forward_hook(cls(replicas))  # pyright: ignore[reportArgumentType]

    @torch.compiler.disable
    def __call__(self, head: nn.Module, args: tuple[Any, ...], loss: Tensor) -> Tensor:
        """Have gradients averaged, or after a later loss."""
        if not loss.requires_grad:
            return loss
        return self.replicas.averaged_after(loss, later=is_accumulating())


def _share_of(
    ranks: Ranks, head: LabelHead, hidden: Tensor, target: Any = None, **options: Any
) -> Share | None:
    settings = head.loss.settings_with(options)  # pyright: ignore[reportArgumentType]
    if settings.reduction != "mean":
        return None
    inputs = Inputs.of(hidden, head.weight, head.bias, target, settings.ignore_index)
    return Share(ranks, settings.weights(inputs.pairs).sum(dtype=torch.float64))


def _zero_from(loss: Tensor, tensors: list[Tensor]) -> Tensor:
    """A loss of 0 with gradients of 0 for just these tensors."""
    nothing = [tensor.reshape(-1)[:0].sum().to(loss.dtype) for tensor in tensors]
    return torch.stack(nothing).sum()


def _generator_of(device: torch.device) -> torch.Generator:
    """The generator that is used where none is given."""
    if device.type != "cuda":
        return torch.default_generator
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]
