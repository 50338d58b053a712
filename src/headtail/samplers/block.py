"""Labels drawn by the score of their block's centre, then by their own."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from headtail.errors import check_choice
from headtail.labels import Labels
from headtail.samplers.blocks import Blocks
from headtail.samplers.clusters import means


class Block(Blocks):
    r"""What the model scores high is drawn often: $q_{y'} \propto |B|\, e^{\bar f_B} \cdot r(y' \mid B)$, with $\bar f_B$ the
    score of the block's centre and $r \propto e^{f}$ inside it.

    Close to the softmax itself, whose noise is the least there is, at √L of its cost. With importance or tail weights it is
    unbiased all the same; with constant weights it pushes hardest against what the model believes already.

    Args:
        labels: the label distribution, or just the number of labels.
        num_negatives: m.
        inside: "score", or "uniform", which is cheaper and noisier.
        share, visits, dim, blocks, refresh: see `Blocks`.

    >>> sampler = Block(100, num_negatives=4, share=2)
    >>> draw = sampler.draw(torch.tensor([3, 8, 5]), input=torch.randn(3, 8), weight=torch.randn(100, 8))
    >>> draw.ids.shape, bool((draw.ids[0] == draw.ids[1]).all())
    (torch.Size([3, 4]), True)
    """

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
        dim: int = 128,
        blocks: int | None = None,
        refresh: int | None = None,
    ) -> None:
        super().__init__(labels, num_negatives, share=share, visits=visits, dim=dim, blocks=blocks, refresh=refresh)
        check_choice("inside", inside, ("score", "uniform"))
        self.inside = inside
        self._given |= {"inside": inside}
        self.register_buffer("centre", torch.zeros(self.blocks, dim))
        self.register_buffer("level", torch.zeros(self.blocks))

    def summarise(self, block: Int[Tensor, " L"], x: Float[Tensor, "p k"], temperature: float | Tensor) -> None:
        """The centre of each block, and its mean bias."""
        self.centre = means(self.rows, block, self.blocks)
        self.level = means(self.offset[:, None], block, self.blocks).squeeze(1)

    def blocks_of(self, x: Float[Tensor, "p k"], temperature: float | Tensor) -> Float[Tensor, "p K"]:
        """By log |B| + the centre's logit."""
        level = self.size.to(x.dtype).log() + self.level.to(x.dtype) / temperature
        return torch.addmm(level, x, self.centre.to(x.dtype).T).softmax(1)

    def labels_of(self, products: Float[Tensor, "*v S"], offset: Float[Tensor, "*v S"]) -> Float[Tensor, "*v S"]:
        """By the logit."""
        return products.add_(offset).softmax(-1)

    def inside_of(
        self, x: Float[Tensor, "G g k"], chance: Float[Tensor, "G g K"], block: Int[Tensor, "G T"], temperature: float | Tensor
    ) -> Float64[Tensor, "G T S"]:
        """As in `Blocks`; uniform, if so wished, without looking at scores."""
        if self.inside == "score":
            return super().inside_of(x, chance, block, temperature)
        size = self.size[block][..., None]
        return (torch.arange(self.most, device=x.device) < size).double() / size.clamp(min=1)
