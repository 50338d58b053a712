"""Labels drawn by a kernel of hidden state and label whose sum over a block is cheap."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtail.core.labels import Labels
from headtail.core.margins import Separable
from headtail.errors import HeadtailError, check_count, check_number
from headtail.samplers.model.blocks import Blocks
from headtail.samplers.model.clusters import AT_A_TIME

MOST_DIMENSIONS = 64
"""A quadratic kernel keeps k² / 2 numbers a block: with more, its sums cost more than the scores
they spare.
"""


@final
class QuadraticKernel(Blocks):
    r"""$q_{y'} \propto \alpha \langle h, w_{y'} \rangle^2 + 1$ (Blanc and Rendle 2018), in at most
    64 dimensions.

    The sum over a block is a quadratic form of h, so blocks are chosen, and labels inside them,
    exactly by the kernel. It grows with the score far more slowly than the softmax does, and with
    scores below zero too: noisier than `Block`, and on a trained model it may be noisier than
    uniform. Biases and margins are not looked at.

    Args:
        labels: the label distribution, or just the number of labels.
        num_negatives: m.
        alpha: α, the weight of the square beside the constant.
        share, visits, dim, blocks, refresh: see `Blocks`.

    >>> sampler = QuadraticKernel(3, num_negatives=1, alpha=2, share=1)
    >>> sampler.draw(torch.tensor([0]), input=torch.ones(1, 1), weight=torch.tensor([[0.0], [1.0], [-2.0]])).m
    1.0

    >>> from headtail.samplers import Scorer, Step
    >>> scorer = Scorer(torch.ones(1, 1), torch.tensor([[0.0], [1.0], [-2.0]]))
    >>> step = Step.expected(torch.tensor([0]), model=scorer)
    >>> q = sampler.log_q_given(step, torch.arange(3)).exp()[0]  # 1 : 3 : 9
    >>> [round(100 * share) for share in q.tolist()]
    [8, 23, 69]
    """

    sums: Tensor

    def __init__(
        self,
        labels: Labels | int,
        num_negatives: int,
        *,
        alpha: float = 100.0,
        share: int = 32,
        visits: int | None = None,
        dim: int = 32,
        blocks: int | None = None,
        refresh: int | None = None,
    ) -> None:
        _check_dim(dim)
        super().__init__(
            labels,
            num_negatives,
            share=share,
            visits=visits,
            dim=dim,
            blocks=blocks,
            refresh=refresh,
        )
        self.alpha = check_number("alpha", alpha, low=0)
        self._given |= {"alpha": alpha}
        self.register_buffer("sums", torch.zeros(self.blocks, dim * (dim + 1) // 2))

    def summarise(
        self, block: Int[Tensor, " L"], x: Float[Tensor, "p k"], temperature: float | Tensor
    ) -> None:
        """Σ wwᵀ of each block, its upper triangle."""
        sums = torch.zeros(self.blocks, self.dim * (self.dim + 1) // 2, device=self.rows.device)
        for some, of in _parts(self.rows, block, sums.shape[1]):
            sums.index_add_(0, of, _pairs(some))
        self.note("sums", sums)

    def blocks_of(
        self, x: Float[Tensor, "p k"], temperature: float | Tensor
    ) -> Float[Tensor, "p K"]:
        """By α hᵀ(Σ wwᵀ)h + |B|."""
        # each pair stands for two
        twice = 2 - torch.eye(self.dim, dtype=x.dtype, device=x.device)[*_triangle(x)]
        square = (_pairs(x) * (self.alpha * twice)) @ self.sums.to(x.dtype).T
        # rounding may leave a square below 0
        return _shares(square.clamp_(min=0.0).add_(self.size))

    def labels_of(
        self, products: Float[Tensor, "*v S"], offset: Float[Tensor, "*v S"]
    ) -> Float[Tensor, "*v S"]:
        """By α⟨h, w⟩² + 1."""
        held = offset > torch.finfo(offset.dtype).min
        return _shares(products.square_().mul_(self.alpha).add_(1.0).mul_(held))


@final
class FourierKernel(Blocks):
    r"""$P(B) \propto \varphi(h)^\top \sum_{y \in B} \varphi(w_y) \approx \sum_{y \in B} e^{f_y}$,
    then by $e^{f}$ inside: random features for the exponential kernel (Rawat et al. 2019), in at
    most 64 dimensions.

    Features of sines and cosines can sum to less than nothing, so these are the positive ones,
    $\varphi(x) = e^{\omega^\top x - \|x\|^2/2}$ with normal ω, whose mean product is $e^{\langle x,
    w \rangle}$ too. Their noise grows with the lengths of hidden states and labels: `Block` mostly
    knows more about a block.

    Args:
        labels: the label distribution, or just the number of labels.
        num_negatives: m.
        features: D, how many ω.
        margin: ρ of the softmax that is meant, where that is not 1: to go with `Tail(labels)`,
            `margin=Tail(labels).margin`. Without it draws suit importance weights; other weights
            from a margin are as exact, and noisier.
        share, visits, dim, blocks, refresh: see `Blocks`.

    >>> FourierKernel(100, 4).draw(torch.tensor([3]), input=torch.randn(1, 8), weight=torch.randn(100, 8)).ids.shape
    torch.Size([1, 4])
    """

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
        dim: int = 64,
        blocks: int | None = None,
        refresh: int | None = None,
        margin: Separable | None = None,
    ) -> None:
        _check_dim(dim)
        options = {
            "share": share,
            "visits": visits,
            "dim": dim,
            "blocks": blocks,
            "refresh": refresh,
            "margin": margin,
        }
        super().__init__(labels, num_negatives, **options)
        self.features = check_count("features", features)
        self._given |= {"features": features}
        # The same in every run: what a seed decides is what is drawn.
        self.register_buffer(
            "omega", torch.randn(dim, features, generator=torch.Generator().manual_seed(0))
        )
        self.register_buffer("sums", torch.zeros(self.blocks, features))
        self.register_buffer("log_scale", torch.zeros(features))
        self.register_buffer("balance", torch.ones(()))

    def summarise(
        self, block: Int[Tensor, " L"], x: Float[Tensor, "p k"], temperature: float | Tensor
    ) -> None:
        """Σ φ(w)·e^bias of each block; each feature in units of its largest, so that none is lost."""
        # ⟨x, w⟩ = ⟨s·x, w/s⟩: the features are least noisy where both are of a length.
        lengths = [
            (t.float().square().sum() / max(1, len(t))).clamp(min=1e-12) for t in (self.rows, x)
        ]
        self.note("balance", (lengths[0] / lengths[1]).pow(0.25))
        omega = self.omega.to(self.rows.device)
        rows = self.rows / self.balance
        bias = self.offset / temperature
        level = bias - 0.5 * rows.square().sum(1)
        log_scale = torch.full((self.features,), -torch.inf, device=rows.device)
        for some, of in _parts(rows, level, self.features):
            log_scale = torch.maximum(log_scale, (some @ omega + of[:, None]).amax(0))
        sums = torch.zeros(self.blocks, self.features, device=rows.device)
        each = torch.stack([level, block.to(level.dtype)], 1)
        for some, of in _parts(rows, each, self.features):
            sums.index_add_(0, of[:, 1].long(), (some @ omega + of[:, :1] - log_scale).exp())
        self.note("log_scale", log_scale)
        self.note("sums", sums)

    def blocks_of(
        self, x: Float[Tensor, "p k"], temperature: float | Tensor
    ) -> Float[Tensor, "p K"]:
        """By φ(h)ᵀ Σ φ(w)."""
        log_features = (x * self.balance.to(x.dtype)) @ self.omega.to(x) + self.log_scale.to(
            x.dtype
        )
        return _shares(
            (log_features - log_features.amax(1, keepdim=True)).exp_() @ self.sums.to(x.dtype).T
        )

    def labels_of(
        self, products: Float[Tensor, "*v S"], offset: Float[Tensor, "*v S"]
    ) -> Float[Tensor, "*v S"]:
        """By the logit: inside a block nothing needs to be guessed."""
        return products.add_(offset).softmax(-1)


def _check_dim(dim: int) -> None:
    if check_count("dim", dim) > MOST_DIMENSIONS:
        raise HeadtailError(
            f"`dim` is {dim}, but a kernel's sums pay in at most {MOST_DIMENSIONS} dimensions. "
            "Write `dim=64`."
        )


def _triangle(x: Float[Tensor, "n k"]) -> tuple[Tensor, Tensor]:
    first, second = torch.triu_indices(x.shape[1], x.shape[1], device=x.device)
    return first, second


def _pairs(x: Float[Tensor, "n k"]) -> Float[Tensor, "n k2"]:
    """All products of two coordinates, each pair once."""
    first, second = _triangle(x)
    return x.index_select(1, first) * x.index_select(1, second)


def _shares(mass: Tensor) -> Tensor:
    """Of the sum over the last axis, in place."""
    return mass.div_(mass.sum(-1, keepdim=True))


def _parts(rows: Tensor, beside: Tensor, width: int) -> zip[tuple[Tensor, Tensor]]:
    """Rows, and what belongs to them, some at a time."""
    some = max(1, AT_A_TIME // width)
    return zip(rows.split(some), beside.split(some), strict=True)
