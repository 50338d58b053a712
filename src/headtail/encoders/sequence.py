"""What encoders of sequences share: items in order go in, a hidden state per position comes out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headtail.data.reading import LONGEST_SEQUENCE
from headtail.errors import HeadtailError, check_count
from headtail.head import LabelHead
from headtail.rows.decay import flush
from headtail.rows.look_up import look_up

USUAL = 512
"""Up to so many, sequences are padded to `length`; beyond, to the longest."""


class SequenceEncoder(nn.Module, ABC):
    """An encoder that reads items in order: `[n, T]` ids to `[n, T, d]` hidden states.

    The hidden state of a position depends on its item and those before it, never on later ones.
    Sequences are aligned to the left, with −1 behind their end, so that padding needs no mask: no
    position that counts comes after it. For an encoder of your own, inherit from this class and
    write `forward`; `embed` looks the items up.

    Args:
        num_items: how many items there are.
        dim: d.
        length: most items that are looked at, up to 10,000.
        tied: read items from the table of the label head that a `Model` puts on this encoder,
            instead of from an own one: items and labels are the same then.
        sparse: give the own table row-sparse gradients; a tied one has those of the head.
        dropout: share of each layer that is dropped in training.
        device: of the own table.
        dtype: of the own table.
    """

    def __init__(
        self,
        num_items: int,
        dim: int = 64,
        *,
        length: int = 50,
        tied: bool = True,
        sparse: bool = False,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_items = check_count("num_items", num_items)
        self.dim = check_count("dim", dim)
        self.length = check_count("length", length, LONGEST_SEQUENCE)
        self.tied = tied
        self.sparse = sparse
        self.dropout = dropout
        self.weight: nn.Parameter | None
        self.register_parameter("weight", None)
        if not tied:
            table = torch.empty(num_items, dim, device=device, dtype=dtype)
            self.weight = nn.Parameter(nn.init.normal_(table, std=dim**-0.5))
        self.register_state_dict_pre_hook(flush)
        self.register_load_state_dict_pre_hook(flush)

    @abstractmethod
    def forward(self, items: Int[Tensor, "n T"]) -> Float[Tensor, "n T d"]:
        """`[n, T, d]` hidden states of `[n, T]` items, −1 behind the end of a sequence."""

    def tie(self, head: LabelHead) -> None:
        """Read items from the table of this head, if the encoder is tied."""
        if not self.tied:
            return
        if head.weight.shape != (self.num_items, self.dim):
            raise HeadtailError(
                f"A tied encoder of {self.num_items:,} items and size {self.dim} needs a head with "
                f"a table of that shape, but it is {list(head.weight.shape)}. Write `tied=False`, "
                "or make them equal."
            )
        self.weight = head.weight
        self.sparse = head.sparse

    def embed(self, items: Int[Tensor, "n T"]) -> Float[Tensor, "n T d"]:
        """`[n, T, d]` the rows of these items times √d, 0 where there is none."""
        if self.weight is None:
            raise HeadtailError(
                "A tied encoder reads items from the label table, but has none yet. Put both into "
                "a `Model`, or write `tied=False`."
            )
        padding = items < 0
        # Padding borrows an item of its own sequence, so that no other row is touched.
        ids = torch.where(padding, items[:, :1].clamp(min=0), items)
        rows = look_up(self.weight, ids, sparse=self.sparse).float() * self.dim**0.5
        return rows.masked_fill(padding[..., None], 0.0)

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and deepcopy: nothing may be left pending."""
        flush(self)
        return vars(self).copy()


def last_states(hidden: Float[Tensor, "n T d"], items: Int[Tensor, "n T"]) -> Float[Tensor, "n d"]:
    """`[n, d]` the hidden state at the last item of each sequence; of an empty one, at the first
    position.
    """
    last = (items >= 0).sum(1).clamp(min=1) - 1
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), last]
