"""Draws from all labels by their scores, in one pass over them."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int, Shaped
from torch import Tensor

from headtail.core.draw import Draw
from headtail.core.labels import Labels, number_of
from headtail.errors import HeadtailError, check_count
from headtail.samplers.interfaces import ModelSampler
from headtail.samplers.sampler import Claims, Step
from headtail.samplers.scorer import Scorer


class OnePassSampler(ModelSampler):
    r"""Independent draws from $q_{y'} \propto e^{g_{y'}}$, with g computed from the logits, in one
    pass over the labels.

    Labels come in blocks. Each of the m slots holds a draw from the labels seen so far; when block
    t of mass $Z_t$ comes, each slot is replaced, independently and with probability $Z_t / Z_{\le
    t}$, by a draw from that block. A label y' of block t is then in a slot at the end with
    probability

    $$\frac{Z_t}{Z_{\le t}} \cdot \frac{e^{g_{y'}}}{Z_t} \cdot \prod_{s > t} \frac{Z_{<s}}{Z_{\le
    s}} = \frac{e^{g_{y'}}}{Z}.$$

    One uniform number per slot and block is enough: below the probability of replacement, it also
    selects the label. Masses are summed in float64. If every g is −inf, the example draws
    uniformly.

    Args:
        labels: the labels, or just their number.
        num_negatives: m.
        exclude_target: draw from the other labels only; else a draw that hits the positive is
            masked in the loss.
    """

    def __init__(
        self, labels: Labels | int, num_negatives: int, *, exclude_target: bool = True
    ) -> None:
        super().__init__()
        self.num_labels = number_of(labels)
        self.num_negatives = check_count("num_negatives", num_negatives)
        self.exclude_target = bool(exclude_target)
        if exclude_target and self.num_labels == 1:
            raise HeadtailError(
                "`exclude_target=True` leaves nothing to draw from when there is only 1 label."
            )

    @property
    def claims(self) -> Claims:
        """A draw for each example, by its scores."""
        return Claims(looks_at_model=True, shared=False, excludes_target=self.exclude_target)

    @abstractmethod
    def log_mass(
        self, f: Float[Tensor, "p k"], label: Int[Tensor, " p"], ids: Int[Tensor, "*p k"]
    ) -> Float64[Tensor, "p k"]:
        """g: log q up to a constant for each example, of labels with logits f. A new tensor."""

    def pick(self, step: Step) -> Draw:
        """One pass: see above."""
        model = step.scorer
        label = step.pairs.label
        options = {"dtype": torch.float64, "device": label.device, "generator": step.generator}
        ids = label.new_zeros(len(label), self.num_negatives)
        mass = torch.full_like(ids, -math.inf, dtype=torch.float64)
        seen = _Seen.nothing(label)
        points = mass
        for block, f in model.blocks():
            points = torch.rand(*ids.shape, **options)
            g, seen = self._others(f, label, block, seen)
            cumulative, here = running_sums(g)
            total = torch.logaddexp(seen.others, here)
            chance = (here - total).exp().nan_to_num(0.0)  # −inf − (−inf): nothing to draw so far
            at = interval_at(cumulative, points / chance)
            taken = points < chance
            ids = torch.where(taken, block[at], ids)
            mass = torch.where(taken, g.gather(1, at), mass)
            seen = seen._replace(others=total)
        return self._describe(ids, mass, points, label, seen)

    def log_q_given(self, step: Step, ids: Int[Tensor, "*p k"]) -> Float64[Tensor, "p k"]:
        """g − log Σ e^g, in one pass."""
        label = step.pairs.label
        seen = self._sums(step.scorer, label)
        g = self.log_mass(step.scorer.logits(ids), label, ids)
        uniform = -math.log(self.num_labels)
        return torch.where(seen.others == -math.inf, uniform, g - self._everything(seen))

    def log_keep_given(self, step: Step) -> Float64[Tensor, " p"]:
        """From the sum over the others: 1 − q_y would be rounded off where q_y is close to 1."""
        if not self.exclude_target:
            return super().log_keep_given(step)
        return self._log_keep(self._sums(step.scorer, step.pairs.label))

    def _sums(self, model: Scorer, label: Tensor) -> _Seen:
        seen = _Seen.nothing(label)
        for block, f in model.blocks():
            g, seen = self._others(f, label, block, seen)
            here = torch.logsumexp(g, 1, keepdim=True)
            seen = seen._replace(others=torch.logaddexp(seen.others, here))
        return seen

    def _others(self, f: Tensor, label: Tensor, block: Tensor, seen: _Seen) -> tuple[Tensor, _Seen]:
        """g of a block, −inf at an excluded positive, and g of the positive once its block has
        come.
        """
        g = self.log_mass(f, label, block)
        at = (label - block[0]).clamp(0, len(block) - 1)[:, None]
        here = block[at] == label[:, None]
        own = g.gather(1, at)
        if self.exclude_target:
            g.scatter_(1, at, torch.where(here, -math.inf, own))
        return g, seen._replace(target=torch.where(here, own, seen.target))

    def _everything(self, seen: _Seen) -> Tensor:
        return torch.logaddexp(seen.others, seen.target) if self.exclude_target else seen.others

    def _log_keep(self, seen: _Seen) -> Tensor:
        uniform = math.log1p(-1 / self.num_labels)
        log_keep = seen.others - self._everything(seen)
        return torch.where(seen.others == -math.inf, uniform, log_keep).squeeze(1)

    def _describe(
        self, ids: Tensor, mass: Tensor, points: Tensor, label: Tensor, seen: _Seen
    ) -> Draw:
        # If no label has any mass, no point was used: the last ones are still uniform.
        no_mass = seen.others == -math.inf
        uniform = -math.log(self.num_labels)
        any_label = (points * (self.num_labels - self.exclude_target)).long()
        if self.exclude_target:
            any_label = any_label + (any_label >= label[:, None])
        ids = torch.where(no_mass, any_label, ids)
        everything = self._everything(seen)
        log_q = torch.where(no_mass, uniform, mass - everything)
        log_q_target = torch.where(no_mass, uniform, seen.target - everything).squeeze(1)
        log_keep = self._log_keep(seen) if self.exclude_target else 0.0
        return Draw(ids, log_q, log_q_target, float(self.num_negatives), log_keep)

    def expected_m(self, batch_size: int | None = None) -> float:
        """m, whatever the batch."""
        return float(self.num_negatives)

    def extra_repr(self) -> str:
        """Size and options."""
        masked = "" if self.exclude_target else ", exclude_target=False"
        return f"num_labels={self.num_labels}, num_negatives={self.num_negatives}{masked}"


class _Seen(NamedTuple):
    """Sums over the blocks so far: log Σ e^g of the labels that can be drawn, and g of the
    positive, both `[p, 1]`.
    """

    others: Tensor
    target: Tensor

    @classmethod
    def nothing(cls, label: Tensor) -> _Seen:
        empty = torch.full((len(label), 1), -math.inf, dtype=torch.float64, device=label.device)
        return cls(empty, empty)


def interval_at(
    cumulative: Float64[Tensor, "p k"], points: Float64[Tensor, "p m"]
) -> Int[Tensor, "p m"]:
    """Which interval each point of [0, 1) falls into; intervals end at `cumulative`, in units of
    its last value.
    """
    end = cumulative[:, -1:]
    # Rounding must not select an interval of width 0 after the last one with mass.
    points = torch.minimum(points * end, torch.nextafter(end, torch.zeros_like(end)))
    return torch.searchsorted(cumulative, points, right=True).clamp_(max=cumulative.shape[1] - 1)


def running_sums(
    g: Float64[Tensor, "p k"],
) -> tuple[Float64[Tensor, "p k"], Float64[Tensor, "p 1"]]:
    """Running sums of e^g in units of its largest, and log Σ e^g."""
    largest = g.amax(1, keepdim=True)
    largest = torch.where(largest == -math.inf, 0.0, largest)
    sums = added_up((g - largest).exp_())
    return sums, largest + sums[:, -1:].log()


def added_up(mass: Shaped[Tensor, "*v k"]) -> Shaped[Tensor, "*v k"]:
    """Running sums of each row."""
    if mass.device.type == "cpu" or not torch.are_deterministic_algorithms_enabled():
        return mass.cumsum(-1)
    # torch refuses all running sums on a GPU, though only those of a single row depend on timing:
    # such a row is summed together with a copy of itself.
    alone = mass.numel() == mass.shape[-1]
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        return mass.expand(2, *mass.shape).cumsum(-1)[0] if alone else mass.cumsum(-1)
    finally:
        torch.use_deterministic_algorithms(True, warn_only=only_warns)
