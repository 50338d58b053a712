"""TopLabels: the best labels as a module without training, for `torch.export` and servers."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from headtail.answers.scored_table import ScoredTable, check_hidden
from headtail.answers.topk import best_labels, without_gradients
from headtail.losses.inputs import directions


class TopLabels(nn.Module):
    """The k best labels of hidden states, from a copy of a table with all that decides scores
    folded in. `LabelHead.exported` makes one.

    Args:
        table: scores the labels.
        k: how many labels to return.
    """

    vectors: Tensor
    offset: Tensor | None

    def __init__(self, table: ScoredTable, k: int) -> None:
        super().__init__()
        folded = table.folded()
        self.register_buffer("vectors", folded.weight)
        self.register_buffer("offset", folded.bias)
        self.cosine = table.cosine
        self.k = k
        self.eval()

    @without_gradients
    def forward(self, hidden: Float[Tensor, "b d"]) -> tuple[Tensor, Tensor]:
        """`[b, k]` values and `[b, k]` label ids, best first: a plain tuple, which any program that
        loads an exported graph can read.
        """
        hidden = hidden.to(self.vectors.dtype)
        check_hidden(hidden, self.vectors)
        if self.cosine:
            hidden = directions(hidden)
        table = ScoredTable(self.vectors, self.offset, False, 1.0, None)
        values, indices = best_labels(table, hidden, self.k)
        return values, indices

    def extra_repr(self) -> str:
        """Labels, size and k."""
        return f"num_labels={len(self.vectors)}, dim={self.vectors.shape[1]}, k={self.k}"
