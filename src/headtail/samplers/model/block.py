"""Labels drawn by the score of their block's centre, then by their own."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from headtail.core.labels import Labels
from headtail.core.margins import Separable
from headtail.errors import check_choice
from headtail.samplers.model.blocks import Blocks
from headtail.samplers.model.clusters import means
from headtail.samplers.model.summary import DEFAULT_SUMMARY, LEAST_OFFSET, TableSummary


@final
class Block(Blocks):
    r"""Labels with high scores are drawn often: $q_{y'} = P(B)\, r(y' \mid B)$, a block by
    $P(B) \propto e^{\langle h, \bar w_B \rangle} \sum_{y \in B} \rho_y\, e^{c_y}$, with $\bar w_B$
    its centre and c biases, and a label inside it by $r \propto \rho\, e^{f}$.

    Close to $q^* \propto \rho\, e^{f}$, the q of minimum variance, for O(√L) instead of O(L). With
    importance or tail weights it is unbiased all the same; with constant weights it pushes hardest
    against what the model already predicts.

    Args:
        labels: the label distribution, or just the number of labels.
        num_negatives: m.
        inside: "score", or "uniform", which is cheaper and noisier.
        share, visits, summary: see `Blocks`.
        margin: ρ of the softmax that the draws are for: with `Tail(labels)`,
            `margin=Tail(labels).margin`. Without it draws suit importance weights; other weights
            from a margin are as exact, but noisier.

    >>> sampler = Block(100, num_negatives=4, share=2)
    >>> hidden, table = torch.randn(3, 8), torch.randn(100, 8)
    >>> draw = sampler.draw(torch.tensor([3, 8, 5]), input=hidden, weight=table)
    >>> draw.ids.shape, bool((draw.ids[0] == draw.ids[1]).all())
    (torch.Size([3, 4]), True)

    >>> from headtail import SampledSoftmaxLoss, Tail
    >>> labels = Labels.zipf(100)
    >>> sampler = Block(labels, 4, margin=Tail(labels).margin)
    >>> SampledSoftmaxLoss(sampler, Tail(labels)).sampler  # as scheme("block:tail@4", labels)
    Block(num_labels=100, num_negatives=4, share=32, visits=4, margin=LogitAdjusted)
    """

    finer = 2
    least_visits = 6
    slots_per_visit = 11
    centre: Tensor
    level: Tensor

    def __init__(
        self,
        labels: Labels | int,
        num_negatives: int,
        *,
        inside: str = "score",
        share: int = 32,
        visits: int | None = None,
        summary: TableSummary = DEFAULT_SUMMARY,
        margin: Separable | None = None,
    ) -> None:
        super().__init__(
            labels, num_negatives, share=share, visits=visits, summary=summary, margin=margin
        )
        check_choice("inside", inside, ("score", "uniform"))
        self.inside = inside
        self._options |= {"inside": inside}
        self.register_buffer("centre", torch.zeros(self.blocks, self.dim))
        self.register_buffer("level", torch.zeros(self.blocks))

    def summarise_blocks(
        self, block: Int[Tensor, " L"], x: Float[Tensor, "p k"], temperature: float | Tensor
    ) -> None:
        """The centre of each block, and the logarithm of its mean e^offset."""
        self._store("centre", means(self.rows, block, self.blocks))
        offset = self.offset.double() / temperature
        largest = torch.segment_reduce(offset, "max", lengths=self.size, initial=LEAST_OFFSET)
        shifted = (offset - largest[block]).exp()
        total = torch.segment_reduce(shifted, "sum", lengths=self.size, initial=0.0)
        mean = (total / self.size.clamp(min=1)).clamp(min=1e-300)
        self._store("level", (largest + mean.log()).float())

    def block_probabilities(
        self, x: Float[Tensor, "p k"], temperature: float | Tensor
    ) -> Float[Tensor, "p K"]:
        """By ⟨x, centre⟩ and the sum of the block's e^offset."""
        level = self.size.to(x.dtype).log() + self.level.to(x.dtype)
        return torch.addmm(level, x, self.centre.to(x.dtype).T).softmax(1)

    def inside_of(
        self,
        x: Float[Tensor, "G g k"],
        chance: Float[Tensor, "G g K"],
        block: Int[Tensor, "G T"],
        temperature: float | Tensor,
    ) -> Float64[Tensor, "G T S"]:
        """As in `Blocks`, or uniform, without scores."""
        if self.inside == "score":
            return super().inside_of(x, chance, block, temperature)
        size = self.size[block][..., None]
        return (torch.arange(self.capacity, device=x.device) < size).double() / size.clamp(min=1)
