"""Draws from all labels by their scores, in one pass over them."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from headtail.core.draw import Draw
from headtail.core.labels import Labels, number_of
from headtail.errors import HeadtailError, check_count
from headtail.samplers.claims import Claims
from headtail.samplers.interfaces import ModelSampler
from headtail.samplers.sampler import Step
from headtail.samplers.scorer import Scorer


class OnePassSampler(ModelSampler):
    r"""Independent draws from $q_{y'} \propto e^{g_{y'}}$, where $g$ follows from the logits, in
    one pass over the labels.

    Labels come in blocks. Each of the m slots holds a draw from the labels seen so far; when block
    t of mass $Z_t$ comes, each slot is replaced, independently and with probability $Z_t / Z_{\le
    t}$, by a draw from that block. A label y' of block t is then in a slot at the end with
    probability

    $$\frac{Z_t}{Z_{\le t}} \cdot \frac{e^{g_{y'}}}{Z_t} \cdot \prod_{s > t} \frac{Z_{<s}}{Z_{\le
    s}} = \frac{e^{g_{y'}}}{Z}.$$

    One uniform number a slot and block is enough: below the probability of replacement, it also
    points at the label. Masses are summed in float64. Where every g is −inf, the example draws
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
        m = self.num_negatives
        ids = torch.zeros(len(label), m, dtype=torch.int64, device=label.device)
        mass = torch.full(ids.shape, -math.inf, dtype=torch.float64, device=label.device)
        seen = _Seen.nothing(label)
        points = mass
        for block, f in model.blocks():
            points = torch.rand(
                len(label), m, dtype=torch.float64, device=label.device, generator=step.generator
            )
            g, seen = self._others(f, label, block, seen)
            cumulative, here = running_sums(g)
            total = torch.logaddexp(seen.others, here)
            chance = (here - total).exp().nan_to_num(0.0)  # −inf − (−inf): nothing to draw so far
            at = pointed_at(cumulative, points / chance)
            taken = points < chance
            ids = torch.where(taken, block[at], ids)
            mass = torch.where(taken, g.gather(1, at), mass)
            seen = seen._replace(others=total)
        return self._describe(ids, mass, points, label, seen)

    def log_q_given(self, step: Step, ids: Int[Tensor, "*p k"]) -> Float64[Tensor, "p k"]:
        """g less the logarithm of its sum, in one pass."""
        label = step.pairs.label
        seen = self._sums(step.scorer, label)
        g = self.log_mass(step.scorer.logits(ids), label, ids)
        return torch.where(
            seen.others == -math.inf, -math.log(self.num_labels), g - self._everything(seen)
        )

    def log_keep_given(self, step: Step) -> Float64[Tensor, " p"]:
        """From the others' own sum: 1 − q_y would be lost where the positive has nearly everything."""
        if not self.exclude_target:
            return super().log_keep_given(step)
        return self._log_keep(self._sums(step.scorer, step.pairs.label))

    def _sums(self, model: Scorer, label: Tensor) -> _Seen:
        seen = _Seen.nothing(label)
        for block, f in model.blocks():
            g, seen = self._others(f, label, block, seen)
            seen = seen._replace(
                others=torch.logaddexp(seen.others, torch.logsumexp(g, 1, keepdim=True))
            )
        return seen

    def _others(self, f: Tensor, label: Tensor, block: Tensor, seen: _Seen) -> tuple[Tensor, _Seen]:
        """g of a block, −inf at an excluded positive, and the positive's own g once its block
        comes.
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
        even = math.log1p(-1 / self.num_labels)
        return torch.where(
            seen.others == -math.inf, even, seen.others - self._everything(seen)
        ).squeeze(1)

    def _describe(
        self, ids: Tensor, mass: Tensor, points: Tensor, label: Tensor, seen: _Seen
    ) -> Draw:
        # Where nothing has a mass, no point was used: the last ones are still uniform.
        nothing = seen.others == -math.inf
        even = -math.log(self.num_labels)
        some = (points * (self.num_labels - self.exclude_target)).long()
        some = some + (some >= label[:, None]) if self.exclude_target else some
        everything = self._everything(seen)
        log_q = torch.where(nothing, even, mass - everything)
        log_q_target = torch.where(nothing, even, seen.target - everything).squeeze(1)
        log_keep = self._log_keep(seen) if self.exclude_target else 0.0
        return Draw(
            torch.where(nothing, some, ids),
            log_q,
            log_q_target,
            float(self.num_negatives),
            log_keep,
        )

    def expected_m(self, batch_size: int | None = None) -> float:
        """m, whatever the batch."""
        return float(self.num_negatives)

    def extra_repr(self) -> str:
        """Size and options."""
        masked = "" if self.exclude_target else ", exclude_target=False"
        return f"num_labels={self.num_labels}, num_negatives={self.num_negatives}{masked}"


class _Seen(NamedTuple):
    """log Σ e^g over the labels that can be drawn and came so far, and g of the positive: `[p, 1]`
    each.
    """

    others: Tensor
    target: Tensor

    @classmethod
    def nothing(cls, label: Tensor) -> _Seen:
        empty = torch.full((len(label), 1), -math.inf, dtype=torch.float64, device=label.device)
        return cls(empty, empty)


def pointed_at(
    cumulative: Float64[Tensor, "p k"], points: Float64[Tensor, "p m"]
) -> Int[Tensor, "p m"]:
    """The places whose intervals hold these points of [0, 1), when intervals end at `cumulative` in
    units of its last.
    """
    end = cumulative[:, -1:]
    # Rounding must not point behind the last place that has a width.
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


def added_up(mass: Float64[Tensor, "*v k"]) -> Float64[Tensor, "*v k"]:
    """Running sums of each row."""
    if mass.device.type == "cpu" or not torch.are_deterministic_algorithms_enabled():
        return mass.cumsum(-1)
    # torch refuses all of them on a GPU, though only the sums of a lone row depend on timing: such
    # a row gets a twin.
    alone = mass.numel() == mass.shape[-1]
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        return mass.expand(2, *mass.shape).cumsum(-1)[0] if alone else mass.cumsum(-1)
    finally:
        torch.use_deterministic_algorithms(True, warn_only=only_warns)
