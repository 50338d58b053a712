"""Labels drawn by kernels of hidden state and label that are cheap to sum over a block."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtail.core.labels import Labels
from headtail.core.margins import Separable
from headtail.errors import HeadtailError, check_count, check_number
from headtail.samplers.model.blocks import Blocks
from headtail.samplers.model.clusters import NUMBERS_AT_ONCE
from headtail.samplers.model.summary import DEFAULT_SUMMARY, TableSummary

MOST_DIMENSIONS = 64
"""A quadratic kernel keeps k² / 2 numbers per block: with more dimensions, its sums cost more than
the scores they save.
"""


@final
class QuadraticKernel(Blocks):
    r"""$q_{y'} \propto \alpha \langle h, w_{y'} \rangle^2 + 1$ (Blanc and Rendle 2018), in at most
    64 dimensions.

    The sum over a block is a quadratic form of h, so blocks, and labels inside them, are chosen
    exactly by the kernel. It grows far more slowly with the score than the softmax does, and also
    for scores below zero: noisier than `Block`, and on a trained model perhaps noisier than
    uniform. It ignores biases and margins.

    Args:
        labels: the label distribution, or just the number of labels.
        num_negatives: m.
        alpha: α, the weight of the square relative to the constant.
        share, visits, summary: see `Blocks`.

    >>> sampler = QuadraticKernel(3, num_negatives=1, alpha=2, share=1)
    >>> from headtail.samplers import Scorer, Step
    >>> scorer = Scorer(torch.ones(1, 1), torch.tensor([[0.0], [1.0], [-2.0]]))
    >>> sampler.draw(torch.tensor([0]), model=scorer).m
    1.0
    >>> step = Step.expected(torch.tensor([0]), model=scorer)
    >>> q = sampler.log_q_given(step, torch.arange(3)).exp()[0]  # 1 : 3 : 9
    >>> [round(100 * share) for share in q.tolist()]
    [8, 23, 69]
    """

    default_dim = 32
    sums: Tensor

    def __init__(
        self,
        labels: Labels | int,
        num_negatives: int,
        *,
        alpha: float = 100.0,
        share: int = 32,
        visits: int | None = None,
        summary: TableSummary = DEFAULT_SUMMARY,
    ) -> None:
        super().__init__(labels, num_negatives, share=share, visits=visits, summary=summary)
        _check_dim(self.dim)
        self.alpha = check_number("alpha", alpha, low=0)
        self._options |= {"alpha": alpha}
        self.register_buffer("sums", torch.zeros(self.blocks, self.dim * (self.dim + 1) // 2))

    def summarise_blocks(
        self, block: Int[Tensor, " L"], x: Float[Tensor, "p k"], temperature: float | Tensor
    ) -> None:
        """Σ wwᵀ of each block, its upper triangle."""
        sums = torch.zeros(self.blocks, self.dim * (self.dim + 1) // 2, device=self.rows.device)
        for rows, blocks in _parts(self.rows, block, sums.shape[1]):
            sums.index_add_(0, blocks, _pairs(rows))
        self._store("sums", sums)

    def block_probabilities(
        self, x: Float[Tensor, "p k"], temperature: float | Tensor
    ) -> Float[Tensor, "p K"]:
        """By α hᵀ(Σ wwᵀ)h + |B|."""
        # each pair of two coordinates is stored once but counts twice
        twice = 2 - torch.eye(self.dim, dtype=x.dtype, device=x.device)[*_triangle(x)]
        square = (_pairs(x) * (self.alpha * twice)) @ self.sums.to(x.dtype).T
        # rounding can make a square negative
        return _shares(square.clamp_(min=0.0).add_(self.size))

    def label_probabilities(
        self, products: Float[Tensor, "*v S"], offset: Float[Tensor, "*#v S"]
    ) -> Float[Tensor, "*v S"]:
        """By α⟨h, w⟩² + 1."""
        held = offset > torch.finfo(offset.dtype).min
        return _shares(products.square_().mul_(self.alpha).add_(1.0).mul_(held))


@final
class FourierKernel(Blocks):
    r"""$P(B) \propto \varphi(h)^\top \sum_{y \in B} \varphi(w_y) \approx \sum_{y \in B} e^{f_y}$,
    then by $e^{f}$ inside: random features for the exponential kernel (Rawat et al. 2019), in at
    most 64 dimensions.

    Features of sines and cosines can have a negative sum, so these are the positive ones,
    $\varphi(x) = e^{\omega^\top x - \|x\|^2/2}$ with normal ω, which have the mean product
    $e^{\langle x, w \rangle}$ too. Their noise grows with the lengths of hidden states and labels:
    `Block` is mostly more accurate.

    Args:
        labels: the label distribution, or just the number of labels.
        num_negatives: m.
        features: D, how many ω.
        share, visits, summary: see `Blocks`.
        margin: as in `Block`.

    >>> hidden, table = torch.randn(1, 8), torch.randn(100, 8)
    >>> FourierKernel(100, 4).draw(torch.tensor([3]), input=hidden, weight=table).ids.shape
    torch.Size([1, 4])
    """

    default_dim = 64
    omega: Tensor
    sums: Tensor
    log_scale: Tensor
    balance: Tensor

    def __init__(
        self,
        labels: Labels | int,
        num_negatives: int,
        *,
        features: int = 256,
        share: int = 32,
        visits: int | None = None,
        summary: TableSummary = DEFAULT_SUMMARY,
        margin: Separable | None = None,
    ) -> None:
        super().__init__(
            labels, num_negatives, share=share, visits=visits, summary=summary, margin=margin
        )
        _check_dim(self.dim)
        self.features = check_count("features", features)
        self._options |= {"features": features}
        # The same in every run: the user's seed decides draws only.
        fixed = torch.Generator().manual_seed(0)
        self.register_buffer("omega", torch.randn(self.dim, features, generator=fixed))
        self.register_buffer("sums", torch.zeros(self.blocks, features))
        self.register_buffer("log_scale", torch.zeros(features))
        self.register_buffer("balance", torch.ones(()))

    def summarise_blocks(
        self, block: Int[Tensor, " L"], x: Float[Tensor, "p k"], temperature: float | Tensor
    ) -> None:
        """Σ φ(w)·e^bias of each block; each feature in units of its largest, against underflow."""
        # ⟨x, w⟩ = ⟨s·x, w/s⟩: the features are least noisy if both have the same length.
        of_rows, of_hidden = (
            (t.float().square().sum() / max(1, len(t))).clamp(min=1e-12) for t in (self.rows, x)
        )
        self._store("balance", (of_rows / of_hidden).pow(0.25))
        omega = self.omega.to(self.rows.device)
        rows = self.rows / self.balance
        bias = self.offset / temperature
        level = bias - 0.5 * rows.square().sum(1)
        log_scale = torch.full((self.features,), -torch.inf, device=rows.device)
        for part, levels in _parts(rows, level, self.features):
            log_scale = torch.maximum(log_scale, (part @ omega + levels[:, None]).amax(0))
        sums = torch.zeros(self.blocks, self.features, device=rows.device)
        both = torch.stack([level, block.to(level.dtype)], 1)
        for part, of_part in _parts(rows, both, self.features):
            features = (part @ omega + of_part[:, :1] - log_scale).exp()
            sums.index_add_(0, of_part[:, 1].long(), features)
        self._store("log_scale", log_scale)
        self._store("sums", sums)

    def block_probabilities(
        self, x: Float[Tensor, "p k"], temperature: float | Tensor
    ) -> Float[Tensor, "p K"]:
        """By φ(h)ᵀ Σ φ(w)."""
        log_features = (x * self.balance.to(x.dtype)) @ self.omega.to(x)
        log_features = log_features + self.log_scale.to(x.dtype)
        features = (log_features - log_features.amax(1, keepdim=True)).exp_()
        return _shares(features @ self.sums.to(x.dtype).T)


def _check_dim(dim: int) -> None:
    if check_count("dim", dim) > MOST_DIMENSIONS:
        raise HeadtailError(
            f"`dim` is {dim}, but kernels save work in at most {MOST_DIMENSIONS} dimensions. "
            f"Write `summary=TableSummary(dim={MOST_DIMENSIONS})`."
        )


def _triangle(x: Float[Tensor, "n k"]) -> tuple[Tensor, Tensor]:
    first, second = torch.triu_indices(x.shape[1], x.shape[1], device=x.device)
    return first, second


def _pairs(x: Float[Tensor, "n k"]) -> Float[Tensor, "n k2"]:
    """All products of two coordinates, each pair once."""
    first, second = _triangle(x)
    return x.index_select(1, first) * x.index_select(1, second)


def _shares(mass: Tensor) -> Tensor:
    """Divided by the sum over the last axis, in place."""
    return mass.div_(mass.sum(-1, keepdim=True))


def _parts(rows: Tensor, of_rows: Tensor, width: int) -> zip[tuple[Tensor, Tensor]]:
    """Parts of the rows, and of what belongs to them, with `width` numbers to be held per row."""
    size = max(1, NUMBERS_AT_ONCE // width)
    return zip(rows.split(size), of_rows.split(size), strict=True)
