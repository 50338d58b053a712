"""What losses are computed from, checked once: hidden states, label table, targets, negatives."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from headtail.core.draw import Draw
from headtail.core.targets import Pairs, Target
from headtail.core.weightings import Weighting
from headtail.errors import (
    HeadtailError,
    check_ids,
    check_kind,
    check_num_labels,
    check_same_device,
)
from headtail.rows.decay import catch_up, decays
from headtail.rows.link import Rows
from headtail.rows.rounding import widened


@dataclass(frozen=True, eq=False)
class Inputs:
    """A batch and the label table it is scored against.

    Attributes:
        hidden: `[b, d]` hidden states.
        weight: `[L, d]` label table.
        bias: `[L]` or `[L, 1]` label biases, or None.
        pairs: the targets.
        sparse: whether gradients of the tables hold only the rows in use.
    """

    hidden: Float[Tensor, "b d"]
    weight: Float[Tensor, "L d"]
    bias: Tensor | None
    pairs: Pairs
    sparse: bool = False

    @classmethod
    def of(
        cls,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Target,
        ignore_index: int | None,
        sparse: bool = False,
    ) -> Inputs:
        """Check that all of them fit together. The only place of a step that looks at targets."""
        positions = None
        if isinstance(hidden, Tensor) and hidden.dim() == 3:
            positions = (hidden.shape[0], hidden.shape[1])
            target = by_position(target, positions)
            hidden = hidden.flatten(0, 1)
        _check_table(hidden, weight, bias)
        pairs = Pairs.of(target, num_labels=weight.shape[0], ignore_index=ignore_index)
        check_hidden(hidden, pairs)
        if positions is not None:
            pairs = replace(pairs, positions=positions)
        return cls(hidden, weight, bias, pairs, sparse)

    @property
    def tables(self) -> list[Tensor]:
        """The label table, and the biases if there are any."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    @property
    def decays(self) -> bool:
        """Whether a table has weight decay that its rows receive only when they are read."""
        return decays(self.weight) or (self.bias is not None and decays(self.bias))

    def catch_up(self, rows: Rows) -> None:
        """Give rows of all tables the weight decay that they are due, before they are read."""
        for table in self.tables:
            catch_up(table, rows)

    def rows_with(self, draw: Draw) -> Tensor:
        """The rows in use: those of positives, then those of negatives."""
        return torch.cat([self.pairs.label, draw.ids.reshape(-1)])


def check_draw(
    draw: Draw, weighting: Weighting, pairs: Pairs, num_labels: int | None, other: str = "`weight`"
) -> None:
    """Refuse a draw that was made for other targets, and weights for other labels."""
    check_kind("draw", draw, Draw, "sampler.draw(target)")
    check_same_device("draw.ids", draw.ids, "target", pairs.label)
    check_ids("draw.ids", draw.ids, num_labels)
    for num_targets in draw.made_for:
        if num_targets != len(pairs.label):
            raise HeadtailError(
                f"`draw` was made for {num_targets} targets, but there are {len(pairs.label)}. "
                "Pass the targets of this very batch to `sampler.draw`; negatives from the batches "
                'of other ranks are those of `WithinBatch(labels, group="world")`.'
            )
    check_kind("weighting", weighting, Weighting, "Importance()")
    check_num_labels("weighting", weighting.num_labels, other, num_labels)


def check_hidden(hidden: Tensor, pairs: Pairs) -> None:
    """Refuse hidden states that do not fit the targets."""
    check_kind("input", hidden, Tensor, "torch.randn(b, d)")
    if hidden.dim() != 2 or hidden.shape[0] != pairs.num_examples:
        raise HeadtailError(
            f"`input` must have shape [b, d] with b = {pairs.num_examples} targets, but got "
            f"{list(hidden.shape)}. Flatten other axes into the first."
        )
    if not hidden.is_floating_point():
        raise HeadtailError(f"`input` must be floating point, but got {hidden.dtype}.")
    check_same_device("target", pairs.label, "input", hidden)


def check_embeddings(
    hidden: Tensor, embeddings: Tensor, name: str, lead: tuple[int | str, ...]
) -> None:
    """Refuse embeddings that do not fit the hidden states; "m" in `lead` fits any size."""
    check_kind(name, embeddings, Tensor, "item_tower(items)")
    wanted = [*lead, hidden.shape[-1]]
    fits = embeddings.dim() == len(wanted) and all(
        size in ("m", actual) for size, actual in zip(wanted, embeddings.shape, strict=True)
    )
    if not fits:
        shape = ", ".join(map(str, wanted))
        raise HeadtailError(
            f"`{name}` must have shape [{shape}] to fit `input` and `target`, but got "
            f"{list(embeddings.shape)}."
        )
    check_same_device(name, embeddings, "input", hidden)
    _check_dtypes(hidden, embeddings, name)


def by_position(target: Target, positions: tuple[int, int]) -> Target:
    """`[B, T]` targets of `[B, T, d]` hidden states, one position after the other."""
    if isinstance(target, Pairs):
        return target
    if not isinstance(target, Tensor) or target.is_nested or target.shape[:2] != positions:
        got = list(target.shape) if isinstance(target, Tensor) else f"a {type(target).__name__}"
        raise HeadtailError(
            f"`input` has {positions[0]} × {positions[1]} positions, so `target` must have the "
            f"shape {list(positions)}, with −100 where nothing is predicted, but got {got}."
        )
    return target.flatten(0, 1)


def _check_table(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    check_kind("input", hidden, Tensor, "torch.randn(b, d)")
    check_kind("weight", weight, Tensor, "head.weight")
    if weight.dim() != 2 or hidden.dim() != 2 or weight.shape[1] != hidden.shape[1]:
        raise HeadtailError(
            f"`weight` must have shape [L, d] and `input` [b, d], but got {list(weight.shape)} and "
            f"{list(hidden.shape)}."
        )
    check_same_device("weight", weight, "input", hidden)
    _check_dtypes(hidden, weight, "weight")
    if bias is None:
        return
    check_kind("bias", bias, Tensor, "torch.zeros(L)")
    check_same_device("bias", bias, "input", hidden)
    if bias.shape not in ((len(weight),), (len(weight), 1)):
        raise HeadtailError(f"`bias` must have shape [{len(weight)}], but got {list(bias.shape)}.")


def _check_dtypes(hidden: Tensor, other: Tensor, name: str) -> None:
    if hidden.dtype != other.dtype and not torch.is_autocast_enabled(hidden.device.type):
        raise HeadtailError(
            f"`{name}` is {other.dtype} but `input` is {hidden.dtype}. Cast one, or use "
            "`torch.autocast`."
        )


def directions(vectors: Tensor) -> Tensor:
    """Scale vectors to length 1; a zero vector stays zero.

    In float32, because the guard against division by zero is 0 in float16.
    """
    return F.normalize(widened(vectors), dim=-1).to(vectors.dtype)
