"""Labels drawn by a tree of small classifiers that imitates the data."""

from __future__ import annotations

import math
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from headtail.core.draw import Draw
from headtail.core.labels import Labels, number_of
from headtail.errors import check_count
from headtail.samplers.model.by_score import added_up
from headtail.samplers.model.clusters import NUMBERS_AT_ONCE, projection
from headtail.samplers.model.schedule import Scheduled, default_interval
from headtail.samplers.model.tree import depth_of, fit
from headtail.samplers.sampler import Step
from headtail.samplers.scorer import Scorer, finite_rows

TREE_UNIFORM_SHARE = 0.1
"""Share of uniform draws: sixteen decisions in a row are easily overconfident, and labels that q
misses add noise.
"""


@final
class Adversarial(Scheduled):
    r"""Negatives that look like positives: $q_{y'} = \prod_n \sigma(\pm(\langle u_n, x \rangle +
    c_n))$ over the nodes of a binary tree on the way to y' (Bamler and Mandt 2020), in O(log L) per
    draw.

    The tree is fitted to (hidden state, positive) pairs, not to the model's scores: it imitates the
    data, popularity included. Pairs are summed up as they come. The tree is fitted again after 32
    steps (√L / 4, if that is more), then after twice as many, and in the long run every `refresh`
    steps, to the pairs since the last time, in O(L·k² + L log L). q is always that of the tree in
    use. In `eval()` mode pairs are not remembered. A tenth of the draws is uniform.

    `share` neighbours of a batch get one draw, from the mean of their q.

    Args:
        labels: the label distribution, or just the number of labels.
        num_negatives: m.
        share: how many neighbours share a draw; 1 if each example has its own.
        dim: k, dimensions to which hidden states are projected.
        refresh: steps between trees in the long run; L / 64, and at least 100, by default.

    >>> sampler = Adversarial(100, num_negatives=4, share=2)
    >>> hidden, table = torch.randn(3, 8), torch.randn(100, 8)
    >>> sampler.draw(torch.tensor([3, 8, 5]), input=hidden, weight=table).ids.shape
    torch.Size([3, 4])
    """

    leaf: Tensor
    label: Tensor
    slope: Tensor
    shift: Tensor
    closed: Tensor
    sums: Tensor
    counts: Tensor
    squares: Tensor

    def __init__(
        self,
        labels: Labels | int,
        num_negatives: int,
        *,
        share: int = 32,
        dim: int = 32,
        refresh: int | None = None,
    ) -> None:
        super().__init__()
        self.num_labels = number_of(labels)
        self.num_negatives = check_count("num_negatives", num_negatives)
        self.share = check_count("share", share)
        self.dim = check_count("dim", dim)
        self.interval = default_interval(self.num_labels)
        if refresh is not None:
            self.interval = check_count("refresh", refresh)
        self.depth = depth_of(self.num_labels)
        self._options = {"share": share, "dim": dim, "refresh": refresh}
        self._projection = self._next_projection = torch.empty(0, dim)
        leaves = 2**self.depth
        tree_and_pairs = {
            "leaf": torch.zeros(self.num_labels, dtype=torch.int64),
            "label": torch.zeros(leaves, dtype=torch.int64),
            "slope": torch.zeros(leaves - 1, dim),
            "shift": torch.zeros(leaves - 1),
            "closed": torch.zeros(leaves - 1, dtype=torch.bool),
            "sums": torch.zeros(self.num_labels, dim),
            "counts": torch.zeros(self.num_labels),
            "squares": torch.zeros(dim, dim),
        }
        for name, value in tree_and_pairs.items():
            self.register_buffer(name, value)

    def pick(self, step: Step) -> Draw:
        """Each slot walks down the tree with the hidden state of an example of its group, or takes
        any label.
        """
        model = step.scorer
        label = step.pairs.label
        self._learn(model, label)
        x, counts = self._groups(model)
        options = {"dtype": torch.float64, "device": x.device, "generator": step.generator}
        points = torch.rand(len(x), self.num_negatives, 2 + self.depth, **options)
        members = added_up(counts)
        walks = (points[..., 0] - TREE_UNIFORM_SHARE).clamp(min=0.0) / (1 - TREE_UNIFORM_SHARE)
        member = (walks * members[:, -1:]).long()
        at = torch.searchsorted(members, member, right=True).clamp_(max=self.share - 1)
        walker = x.gather(1, at[..., None].expand(-1, -1, x.shape[2]))
        node = torch.zeros_like(at)
        for level in range(self.depth):
            odds = (self.slope.to(x.dtype)[node] * walker).sum(2) + self.shift.to(x.dtype)[node]
            right = (points[..., 2 + level] < odds.double().sigmoid()) & ~self.closed[node]
            node = 2 * node + 1 + right
        any_label = (points[..., 1] * self.num_labels).long()
        by_tree = self.label[node - (2**self.depth - 1)]
        ids = torch.where(points[..., 0] < TREE_UNIFORM_SHARE, any_label, by_tree)
        log_q_target = None
        if step.needs_target_q:
            own = F.pad(label, (0, len(x) * self.share - len(label))).view(len(x), self.share)
            both = self._log_q(x, counts, torch.cat([ids, own], 1))
            log_q = both[:, : self.num_negatives]
            log_q_target = both[:, self.num_negatives :].reshape(-1)[: len(label)]
        else:
            log_q = self._log_q(x, counts, ids)
        ids, log_q = (self._of_each(t, len(label)) for t in (ids, log_q))
        return Draw(ids, log_q, log_q_target, float(self.num_negatives))

    def log_q_given(self, step: Step, ids: Int[Tensor, "*p n"]) -> Float64[Tensor, "p n"]:
        """log q of any labels for each example of a batch, some labels at a time."""
        model = step.scorer
        if not self.has_summary:
            self._start(model, step.pairs.label)
        x, counts = self._groups(model)
        every = torch.arange(self.num_labels, device=x.device)
        parts = every.split(max(1, NUMBERS_AT_ONCE // (self.depth * max(1, len(x) * self.share))))
        log_q = torch.cat([self._log_q(x, counts, part.expand(len(x), -1)) for part in parts], 1)
        return self._of_ids(log_q, step, ids)

    def expected_m(self, batch_size: int | None = None) -> float:
        """m, whatever the batch."""
        return float(self.num_negatives)

    def extra_repr(self) -> str:
        """Size and options."""
        return (
            f"num_labels={self.num_labels}, num_negatives={self.num_negatives}, "
            f"share={self.share}, dim={self.dim}"
        )

    def for_labels(self, labels: Labels) -> Adversarial:
        """The same over the grown label set; it begins with a new tree."""
        return Adversarial(labels, self.num_negatives, **self._options)

    def get_extra_state(self) -> Tensor:
        """Steps done, the step of the next refresh, and both projections."""
        numbers = [self._steps_done, self._next_refresh, len(self._projection)]
        both = (self._projection, self._next_projection)
        projections = [matrix.reshape(-1).double().cpu() for matrix in both]
        return torch.cat([torch.tensor(numbers, dtype=torch.float64), *projections])

    def set_extra_state(self, state: Tensor) -> None:
        """Restore them."""
        d = self._restore_schedule(state, 2, self.dim)
        if d:  # without projections the next draw makes them
            now, later = state[3:].reshape(2, d, self.dim).float()
            self._store("_projection", now.to(self._projection.device))
            self._store("_next_projection", later.to(self._next_projection.device))

    def _learn(self, model: Scorer, label: Tensor) -> None:
        """Fit a tree if there is none yet, or on schedule; add these pairs; count the step."""
        if not self.has_summary:
            self._start(model, label)
        elif self.refresh_due:
            self.refit(model)
        if self.training:
            self._add_pairs(model, label)
        self.count_step()

    def _start(self, model: Scorer, label: Tensor) -> None:
        """The first tree knows the label table, and the pairs of one batch."""
        self._store("_next_projection", self._new_projection(model))
        for name in ("sums", "counts", "squares"):
            self._move(name, model.input.device)
        self._add_pairs(model, label)
        with self._warning_if_slow():
            self.refit(model)

    def _new_projection(self, model: Scorer) -> Float[Tensor, "d k"]:
        return projection(_hidden(model), model.weight.float(), self.dim)

    def _add_pairs(self, model: Scorer, label: Tensor) -> None:
        self._move("_next_projection", model.input.device)
        x = (_hidden(model) @ self._next_projection).float()  # autocast makes it narrower
        self.sums.index_add_(0, label, x)
        self.counts.index_add_(0, label, torch.ones_like(x[:, 0]))
        self.squares += x.T @ x

    def refit(self, model: Scorer) -> None:
        """Fit a tree to the pairs so far, in their projection; then start again without pairs, in a
        new projection.
        """
        self._schedule_next()
        self._store("_projection", self._next_projection)
        directions = self._projection.to(model.input.device)
        parts = model.weight.split(max(1, NUMBERS_AT_ONCE // model.weight.shape[1]))
        rows = torch.cat([finite_rows(part.float() @ directions) for part in parts])
        total = self.counts.sum().clamp(min=1.0)
        of_rows = rows.square().sum(1).mean().clamp(min=1e-30)
        length = (self.squares.trace() / total / of_rows).sqrt()
        # A label's row, scaled to the length of hidden states, counts as one example: it is all
        # that is known about labels not seen yet.
        sums = self.sums + length * rows
        counts = self.counts + 1
        mean = sums / counts[:, None]
        spread = (self.squares + length**2 * rows.T @ rows - mean.T @ sums) / counts.sum()
        values, vectors = torch.linalg.eigh(spread.double())
        least = 1e-6 * float(values.max().clamp(min=1e-30))
        whiten = (vectors * values.clamp(min=least).rsqrt()).to(rows.dtype)
        tree = fit(mean @ whiten, counts)
        tree = tree._replace(slope=tree.slope @ whiten.T)  # for hidden states that are not whitened
        for name, value in tree._asdict().items():
            self._store(name, value)
        self._store("_next_projection", self._new_projection(model))
        for pairs in (self.sums, self.counts, self.squares):
            pairs.zero_()

    def _groups(self, model: Scorer) -> tuple[Float[Tensor, "G g k"], Bool[Tensor, "G g"]]:
        """Projected hidden states in groups, 0 where they are not finite, and which of them count.

        In a group without a finite hidden state the first counts, as a 0.
        """
        wide = model.input.to(torch.promote_types(model.input.dtype, torch.float32))
        self._move("_projection", wide.device)
        x = wide @ self._projection.to(wide.dtype)
        missing = -len(x) % self.share
        counts = F.pad(x.isfinite().all(1), (0, missing)).view(-1, self.share)
        counts[:, 0] |= ~counts.any(1)
        x = F.pad(finite_rows(x), (0, 0, 0, missing))
        return x.view(len(counts), self.share, x.shape[1]), counts

    def _log_q(
        self, x: Float[Tensor, "G g k"], counts: Bool[Tensor, "G g"], ids: Int[Tensor, "G n"]
    ) -> Float64[Tensor, "G n"]:
        """log of the mean q of each group, including the uniform share."""
        level = torch.arange(self.depth, device=x.device)
        leaf = self.leaf[ids][..., None]
        node = 2**level - 1 + (leaf >> (self.depth - level))
        right = (leaf >> (self.depth - 1 - level)) & 1
        odds = self.slope.to(x.dtype)[node] @ x[:, None].transpose(2, 3)
        odds = odds + self.shift.to(x.dtype)[node][..., None]
        log_turn = F.logsigmoid(torch.where(right[..., None] > 0, odds, -odds).double())
        log_path = log_turn.masked_fill_(self.closed[node][..., None], 0.0).sum(2)
        log_members = counts.sum(1, keepdim=True).double().log()
        log_mean = log_path.masked_fill(~counts[:, None], -math.inf).logsumexp(2) - log_members
        uniform = torch.full_like(log_mean, math.log(TREE_UNIFORM_SHARE / self.num_labels))
        return torch.logaddexp(math.log1p(-TREE_UNIFORM_SHARE) + log_mean, uniform)


def _hidden(model: Scorer) -> Tensor:
    return model.finite().input.float()
