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
from headtail.samplers.model.clusters import AT_A_TIME, projection
from headtail.samplers.model.schedule import Scheduled, in_the_long_run
from headtail.samplers.model.tree import depth_of, fit
from headtail.samplers.sampler import Step
from headtail.samplers.scorer import Scorer, finite_rows

BY_CHANCE = 0.1
"""Share of uniform draws: sixteen decisions in a row are easily too sure of themselves, and what q
misses is noise.
"""


@final
class Adversarial(Scheduled):
    r"""Negatives that look like positives: $q_{y'} = \prod_n \sigma(\pm(\langle u_n, x \rangle +
    c_n))$ over the nodes of a binary tree on the way to y' (Bamler and Mandt 2020), in O(log L) a
    draw.

    The tree is fitted to (hidden state, positive) pairs, not to the model's scores: it imitates the
    data, popularity included. Pairs are summed up as they come. The tree is fitted anew after 32
    steps (√L / 4, if that is more), then after twice as many, and at last every `refresh` steps, to
    the pairs since the last time, in O(L·k² + L log L). q is always that of the tree in use. In
    `eval()` mode pairs are not remembered. A tenth of the draws is uniform.

    `share` neighbours of a batch get one draw, of the mean of their q.

    Args:
        labels: the label distribution, or just the number of labels.
        num_negatives: m.
        share: how many neighbours share a draw; 1 for each example its own.
        dim: k, dimensions to which hidden states are projected.
        refresh: steps between trees in the long run; L / 64, and at least 100, by default.

    >>> sampler = Adversarial(100, num_negatives=4, share=2)
    >>> sampler.draw(torch.tensor([3, 8, 5]), input=torch.randn(3, 8), weight=torch.randn(100, 8)).ids.shape
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
        self.every = (
            in_the_long_run(self.num_labels) if refresh is None else check_count("refresh", refresh)
        )
        self.depth = depth_of(self.num_labels)
        self._given = {"share": share, "dim": dim, "refresh": refresh}
        self._left = self._next = torch.empty(0, dim)
        leaves = 2**self.depth
        tree = {
            "leaf": torch.zeros(self.num_labels, dtype=torch.int64),
            "label": torch.zeros(leaves, dtype=torch.int64),
        }
        tree |= {"slope": torch.zeros(leaves - 1, dim), "shift": torch.zeros(leaves - 1)}
        tree |= {"closed": torch.zeros(leaves - 1, dtype=torch.bool)}
        pairs = {
            "sums": torch.zeros(self.num_labels, dim),
            "counts": torch.zeros(self.num_labels),
            "squares": torch.zeros(dim, dim),
        }
        for name, value in (tree | pairs).items():
            self.register_buffer(name, value)

    def pick(self, step: Step) -> Draw:
        """Each slot walks down the tree with the hidden state of one of its group, or takes any
        label.
        """
        model = step.scorer
        label = step.pairs.label
        self._keep_up(model, label)
        x, there = self._groups(model)
        options = {"dtype": torch.float64, "device": x.device, "generator": step.generator}
        points = torch.rand(len(x), self.num_negatives, 2 + self.depth, **options)
        members = there.cumsum(1)
        who = (points[..., 0] - BY_CHANCE).clamp(min=0.0) / (1 - BY_CHANCE) * members[:, -1:]
        at = torch.searchsorted(members, who.long(), right=True).clamp_(max=self.share - 1)
        walker = x.gather(1, at[..., None].expand(-1, -1, x.shape[2]))
        node = torch.zeros_like(at)
        for level in range(self.depth):
            odds = (self.slope.to(x.dtype)[node] * walker).sum(2) + self.shift.to(x.dtype)[node]
            right = (points[..., 2 + level] < odds.double().sigmoid()) & ~self.closed[node]
            node = 2 * node + 1 + right
        anyone = (points[..., 1] * self.num_labels).long()
        ids = torch.where(
            points[..., 0] < BY_CHANCE, anyone, self.label[node - (2**self.depth - 1)]
        )
        asked = ids
        if step.tell_target:
            own = F.pad(label, (0, len(x) * self.share - len(label))).view(len(x), self.share)
            asked = torch.cat([ids, own], 1)
        log_q = self._log_q(x, there, asked)
        of_target = (
            log_q[:, self.num_negatives :].reshape(-1)[: len(label)] if step.tell_target else None
        )
        ids, log_q = (
            t[:, : self.num_negatives].repeat_interleave(self.share, 0)[: len(label)]
            for t in (ids, log_q)
        )
        return Draw(ids, log_q, of_target, float(self.num_negatives))

    def log_q_given(self, step: Step, ids: Int[Tensor, "*p n"]) -> Float64[Tensor, "p n"]:
        """log q of any labels for each example of a batch, some labels at a time."""
        model = step.scorer
        if self._due == 0:
            self._start(model, step.pairs.label)
        x, there = self._groups(model)
        number = len(model.input)
        part = max(1, AT_A_TIME // (self.depth * max(1, x.shape[0] * self.share)))
        every = torch.arange(self.num_labels, device=x.device)
        q = torch.cat(
            [self._log_q(x, there, some.expand(len(x), -1)) for some in every.split(part)], 1
        )
        q = q.repeat_interleave(self.share, 0)[:number]
        return q.gather(1, ids) if ids.dim() == 2 else q[:, ids.reshape(-1)]

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
        return Adversarial(labels, self.num_negatives, **self._given)

    def get_extra_state(self) -> Tensor:
        """Steps taken, the next refit, and both projections."""
        numbers = torch.tensor([self._taken, self._due, len(self._left)], dtype=torch.float64)
        return torch.cat(
            [numbers, *(left.reshape(-1).double().cpu() for left in (self._left, self._next))]
        )

    def set_extra_state(self, state: Tensor) -> None:
        """Restore them."""
        self._taken, self._due, d = (int(v) for v in state[:3])
        for name, part in zip(
            ("_left", "_next"), state[3:].reshape(2, d, self.dim).float(), strict=True
        ):
            if d:  # without projections the next draw takes them
                self.note(name, part.to(getattr(self, name).device))

    def _keep_up(self, model: Scorer, label: Tensor) -> None:
        """Fit a tree where there is none, or where the present one has served its time; and
        remember these pairs.
        """
        if self._due == 0:
            self._start(model, label)
        elif self.due:
            self.refit(model)
        if self.training:
            self._remember(model, label)
        self.passed()

    def _start(self, model: Scorer, label: Tensor) -> None:
        """The first tree knows the label table, and the pairs of one batch."""
        self.note("_next", projection(_hidden(model), model.weight.float(), self.dim))
        for name in ("sums", "counts", "squares"):
            self.bring(name, model.input.device)
        self._remember(model, label)
        with self.telling():
            self.refit(model)

    def _remember(self, model: Scorer, label: Tensor) -> None:
        self.bring("_next", model.input.device)
        x = (_hidden(model) @ self._next).float()  # autocast makes it narrow
        self.sums.index_add_(0, label, x)
        self.counts.index_add_(0, label, torch.ones_like(x[:, 0]))
        self.squares += x.T @ x

    def refit(self, model: Scorer) -> None:
        """A tree of the pairs so far, in their projection; then a new projection, and no pairs."""
        self.set_next_look()
        self.note("_left", self._next)
        left = self._left.to(model.input.device)
        parts = model.weight.split(max(1, AT_A_TIME // model.weight.shape[1]))
        rows = torch.cat([finite_rows(part.float() @ left) for part in parts])
        total = self.counts.sum().clamp(min=1.0)
        length = (
            self.squares.trace() / total / rows.square().sum(1).mean().clamp(min=1e-30)
        ).sqrt()
        # A label's own row, as long as hidden states are, counts as one example: it is all that is
        # known of labels not seen.
        sums = self.sums + length * rows
        counts = self.counts + 1
        mean = sums / counts[:, None]
        spread = (self.squares + length**2 * rows.T @ rows - mean.T @ sums) / counts.sum()
        values, vectors = torch.linalg.eigh(spread.double())
        white = (
            vectors * values.clamp(min=1e-6 * float(values.max().clamp(min=1e-30))).rsqrt()
        ).to(rows.dtype)
        tree = fit(mean @ white, counts)
        tree = tree._replace(slope=tree.slope @ white.T)  # of hidden states as they come
        for name, value in (
            tree._asdict() | {"_next": projection(_hidden(model), model.weight.float(), self.dim)}
        ).items():
            self.note(name, value)
        for pairs in (self.sums, self.counts, self.squares):
            pairs.zero_()

    def _groups(self, model: Scorer) -> tuple[Float[Tensor, "G g k"], Bool[Tensor, "G g"]]:
        """Projected hidden states in groups, 0 where they are not finite, and which of them count.

        In a group without a finite hidden state the first counts, as a 0.
        """
        wide = model.input.to(torch.promote_types(model.input.dtype, torch.float32))
        self.bring("_left", wide.device)
        x = wide @ self._left.to(wide.dtype)
        lacking = -len(x) % self.share
        there = F.pad(x.isfinite().all(1), (0, lacking)).view(-1, self.share)
        there[:, 0] |= ~there.any(1)
        x = F.pad(finite_rows(x), (0, 0, 0, lacking))
        return x.view(len(there), self.share, x.shape[1]), there

    def _log_q(
        self, x: Float[Tensor, "G g k"], there: Bool[Tensor, "G g"], ids: Int[Tensor, "G n"]
    ) -> Float64[Tensor, "G n"]:
        """log of the mean q of each group, uniform share included."""
        level = torch.arange(self.depth, device=x.device)
        leaf = self.leaf[ids][..., None]
        node = 2**level - 1 + (leaf >> (self.depth - level))
        right = (leaf >> (self.depth - 1 - level)) & 1
        odds = (
            self.slope.to(x.dtype)[node] @ x[:, None].transpose(2, 3)
            + self.shift.to(x.dtype)[node][..., None]
        )
        log_turn = F.logsigmoid(torch.where(right[..., None] > 0, odds, -odds).double())
        log_path = log_turn.masked_fill_(self.closed[node][..., None], 0.0).sum(2)
        log_members = there.sum(1, keepdim=True).double().log()
        log_mean = log_path.masked_fill(~there[:, None], -math.inf).logsumexp(2) - log_members
        by_chance = torch.full_like(log_mean, math.log(BY_CHANCE / self.num_labels))
        return torch.logaddexp(math.log1p(-BY_CHANCE) + log_mean, by_chance)


def _hidden(model: Scorer) -> Tensor:
    return model.finite().input.float()
