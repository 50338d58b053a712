"""Negatives drawn by a power of their frequency."""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from headtail.core.labels import Labels, check_labels
from headtail.errors import HeadtailError, Setting, check_ids, check_number, check_same_device
from headtail.samplers.fixed.inverse import InverseSampler
from headtail.samplers.sampler import Claims


@final
class Frequency(InverseSampler):
    r"""Frequent labels are drawn more often: $q_{y'} \propto \pi_{y'}^{\alpha}$.

    With constant weights this leans to the tail, the more so the larger $\alpha$: rare labels are
    seldom pushed down.

    Holds one float64 table of L entries and draws by binary search, which works for 100 million
    labels.

    Args:
        labels: gives the prior π.
        num_negatives: m.
        power: α in [0, 1]; 0 is uniform, 1 the prior itself, 0.75 word2vec's choice.
        replacement: False draws m *different* labels with inclusion probability min(1, c·π^α), c
            such that they sum to m.
        exclude_target: draw from the other labels, separately for each example; ids are `[b, m]`.

    >>> sampler = Frequency(Labels.from_counts([8, 1, 1]), num_negatives=4, power=1 / 3)
    >>> sampler.log_q(torch.arange(3)).exp()
    tensor([0.5000, 0.2500, 0.2500], dtype=torch.float64)
    """

    cumulative: Tensor
    certain: Tensor

    def __init__(
        self,
        labels: Labels,
        num_negatives: int,
        power: float = 1.0,
        *,
        replacement: bool = True,
        exclude_target: bool = False,
    ) -> None:
        check_labels(labels)
        labels = labels.fixed()  # the table below would not follow later counts
        super().__init__(
            labels.num_labels, num_negatives, replacement=replacement, exclude_target=exclude_target
        )
        self.labels = labels
        self.power = check_number("power", power, low=0, high=1)
        drawn = labels.num_labels - (labels.never_seen if power > 0 and labels.rarest == 0 else 0)
        if exclude_target and drawn < 2:
            raise HeadtailError(
                Setting("exclude_target", True),
                " needs at least 2 labels with a positive prior. Count with ",
                Setting("smoothing", 1),
                ", or drop it.",
            )
        # One table of L float64 entries, changed in place: with 100 million labels every copy takes
        # 800 MB.
        table = labels.counts.to(torch.float64, copy=True).add_(labels.smoothing)
        table.div_(labels.total + labels.smoothing * labels.num_labels).pow_(self.power)
        certain = torch.empty(0, dtype=torch.int64)
        self._log_threshold = math.inf  # log mass from which a label is drawn in every step
        if not replacement:
            certain, smallest = _certain_labels(table, num_negatives)
            # Masses computed later differ from the table's by rounding, so the threshold is a
            # little lower.
            self._log_threshold = math.log(smallest) - 1e-9 if len(certain) else math.inf
            table[certain] = 0.0
        # A label with more than half of the mass comes last on the line, so that the sums of the
        # others are exact, however little mass they have.
        self._largest, largest_mass = _above_half(table) if exclude_target else (None, 0.0)
        if self._largest is not None:
            table[self._largest] = 0.0
        self.register_buffer("certain", certain, persistent=False)
        self.register_buffer("cumulative", table.cumsum_(0), persistent=False)
        self._rest = float(self.cumulative[-1])
        self.total = self._rest + largest_mass

    def log_q(self, ids: Int[Tensor, ...], batch_size: int | None = None) -> Float64[Tensor, ...]:
        """α·log π, normalised; without replacement, log(inclusion / m)."""
        log_mass = self._log_mass(ids)
        if self.replacement:
            return log_mass - math.log(self.total)
        inclusion = log_mass + (math.log(self._steps() / self.total) if self._steps() else 0.0)
        inclusion = torch.where(log_mass >= self._log_threshold, 0.0, inclusion)
        return inclusion - math.log(self.num_negatives)

    def mass(self, ids: Tensor) -> Tensor:
        """π^α up to a constant; 0 for labels that are drawn in every step anyway."""
        log_mass = self._log_mass(ids)
        return torch.where(log_mass >= self._log_threshold, -math.inf, log_mass).exp()

    def below(self, ids: Tensor) -> Tensor:
        """The cumulative mass before each label."""
        cumulative = self.cumulative.to(ids.device)
        start = torch.where(ids > 0, cumulative[(ids - 1).clamp(min=0)], 0.0)
        if self._largest is None:
            return start
        return torch.where(ids == self._largest, self._rest, start)

    def end(self, ids: Tensor) -> Tensor:
        """The cumulative mass up to each label."""
        end = self.cumulative.to(ids.device)[ids]
        if self._largest is None:
            return end
        return torch.where(ids == self._largest, self.total, end)

    def label_at(self, points: Tensor) -> Tensor:
        """Binary search; `right=True` steps over labels of zero mass."""
        check_same_device("sampler", self.cumulative, "target", points)
        ids = torch.searchsorted(self.cumulative, points, right=True)
        ids = ids.clamp_(max=self.num_labels - 1)
        if self._largest is None:
            return ids
        return torch.where(points < self._rest, ids, self._largest)

    def log_keep(self, label: Int[Tensor, " b"]) -> Float64[Tensor, " b"] | float:
        """log(1 − q_y) if the positive is excluded; from the others' sum if q_y is close to 1."""
        keep = super().log_keep(label)
        if self._largest is None:
            return keep
        log_rest = math.log(self._rest) - math.log(self.total)
        return torch.where(label == self._largest, log_rest, keep)

    def systematic(self, offset: Tensor) -> Tensor:
        """Labels of certain inclusion, then evenly spaced points over the others."""
        n = self._steps()
        steps = torch.arange(n, dtype=torch.float64, device=offset.device)
        drawn = self.label_at((steps + offset) * (self.total / max(n, 1)))
        return torch.cat([self.certain.to(drawn.device), drawn])

    def extra_repr(self) -> str:
        """Size, options and power."""
        return f"{super().extra_repr()}, power={self.power:g}"

    @property
    def claims(self) -> Claims:
        """Labels without a prior are missed."""
        excluded = self.exclude_target
        misses = self.power > 0 and self.labels.rarest == 0
        return Claims(
            shared=not excluded, may_miss=misses, excludes_target=excluded, replayable=True
        )

    def for_labels(self, labels: Labels) -> Frequency:
        """The same power of the grown label set's prior."""
        return Frequency(
            labels,
            self.num_negatives,
            self.power,
            replacement=self.replacement,
            exclude_target=self.exclude_target,
        )

    def _log_mass(self, ids: Tensor) -> Tensor:
        check_ids("ids", ids, self.num_labels)
        if self.power == 0:  # 0 · log 0 is not a number
            return torch.zeros_like(ids, dtype=torch.float64)
        return self.power * self.labels.log_prior(ids)

    def _steps(self) -> int:
        return self.num_negatives - len(self.certain)


def _certain_labels(mass: Tensor, m: int) -> tuple[Tensor, float]:
    """The labels with c·mass ≥ 1 where Σ min(1, c·mass) = m, and the smallest mass among them.

    At most m labels can be certain, so only the m largest matter. With the s largest certain, the
    others share m − s: c = (m − s) / (total − mass of those s). The answer is the smallest s for
    which the next label stays below 1.
    """
    support = int((mass > 0).sum())
    if m > support:
        raise HeadtailError(
            Setting("num_negatives"),
            f" is {m}, but without replacement only {support} labels have a positive prior. Write ",
            Setting("num_negatives", support),
            ", count with ",
            Setting("smoothing", 1),
            ", or draw with replacement.",
        )
    largest, ids = _largest(mass, min(m + 1, len(mass)))
    rest = mass.sum() - torch.cat([mass.new_zeros(1), largest.cumsum(0)[:-1]])
    free = m - torch.arange(len(largest), dtype=torch.float64, device=mass.device)
    # A label within rounding of certainty is certain, so that m = L takes every label.
    below_one = free * largest < rest * (1 - 1e-12)
    s = int(below_one.int().argmax()) if bool(below_one.any()) else m
    return ids[:s].sort().values, float(largest[s - 1]) if s else math.inf


def _above_half(mass: Tensor) -> tuple[int | None, float]:
    """The label with more than half of all mass, and its mass; None and 0 if there is none."""
    at = int(mass.argmax())
    largest = float(mass[at])
    return (at, largest) if 2 * largest > float(mass.sum()) else (None, 0.0)


def _largest(mass: Tensor, k: int, block: int = 2**22) -> tuple[Tensor, Tensor]:
    """The k largest masses and their labels, block by block: `topk` of the whole table would copy
    it twice.
    """
    values = mass[:0]
    ids = torch.empty(0, dtype=torch.int64, device=mass.device)
    for start in range(0, len(mass), block):
        part = mass[start : start + block]
        values = torch.cat([values, part])
        ids = torch.cat([ids, torch.arange(start, start + len(part), device=mass.device)])
        values, keep = values.topk(min(k, len(values)))
        ids = ids[keep]
    return values, ids
