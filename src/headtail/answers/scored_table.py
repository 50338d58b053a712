"""ScoredTable: a label table with all that decides a label's score."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from headtail.core.frequencies import LabelFrequencies
from headtail.device.host_memory import HostTensor
from headtail.errors import HeadtailError, check_kind, check_same_device
from headtail.losses.inputs import directions
from headtail.rows.rounding import widened


@dataclass(frozen=True, eq=False)
class ScoredTable:
    r"""A label table that scores hidden states: $f_y = (s(x, w_y) + b_y) / T - \tau \log \pi_y$.

    Attributes:
        weight: `[L, d]` w, with its weight decay.
        bias: `[L, 1]` b, or None.
        cosine: whether s is the cosine; else it is the dot product.
        temperature: T.
        labels: they hold π; None without an adjustment.
        post_hoc: τ of post-hoc logit adjustment.
        ids: `[L]` the labels that the rows belong to, if the table is a part of another.
    """

    weight: Float[Tensor, "L d"]
    bias: Float[Tensor, "L 1"] | None
    cosine: bool
    temperature: float | Tensor
    labels: LabelFrequencies | None
    post_hoc: float = 0.0
    ids: Int64[Tensor, " L"] | None = None

    def __len__(self) -> int:
        return len(self.weight)

    def part(self, ids: Int64[Tensor, " n"]) -> ScoredTable:
        """These rows, as a table."""
        bias = None if self.bias is None else self.bias[ids]
        labels = ids if self.ids is None else self.ids[ids]
        return replace(self, weight=self.weight[ids], bias=bias, ids=labels)

    def near(self, rows: slice) -> ScoredTable:
        """These rows of a table in host memory, copied to the device that uses it."""
        device = self.weight.device
        weight, bias = (
            None if table is None else _host(table)[rows].to(device, non_blocking=True)
            for table in (self.weight, self.bias)
        )
        assert weight is not None
        ids = torch.arange(*rows.indices(len(self)), device=device)
        return replace(self, weight=weight, bias=bias, ids=ids)

    def folded(self) -> ScoredTable:
        """The same scores as plain dot products and an offset for each label.

        Temperature, bias and adjustment become part of a copy of the rows. Where scores are
        cosines, hidden states must be scaled to length 1 first.
        """
        temperature = self.temperature
        if isinstance(temperature, Tensor):
            temperature = temperature.item()
        weight = widened(self.weight.detach())
        if self.cosine:
            weight = directions(weight)
        weight = weight / temperature
        offset = None
        if self.bias is not None or self.post_hoc:
            bias = 0.0 if self.bias is None else self.bias.detach().squeeze(1).double()
            offset = (bias / temperature - self.adjustment(slice(None))).to(weight)[:, None]
        return ScoredTable(weight, offset, False, 1.0, None)

    def adjustment(self, rows: slice) -> Float64[Tensor, " n"]:
        r"""$\tau \log \pi_y$ of the labels in these rows."""
        if self.labels is None:
            return torch.zeros(len(self), dtype=torch.float64, device=self.weight.device)[rows]
        if self.ids is None:
            labels = torch.arange(*rows.indices(len(self)), device=self.weight.device)
        else:
            labels = self.ids[rows]
        return self.post_hoc * self.labels.log_prior(labels)

    def scores(self, hidden: Float[Tensor, "b d"], rows: slice) -> Float[Tensor, "b n"]:
        """`[b, n]` the scores of the labels in these rows, in float32 at least."""
        weight = self.weight[rows]
        bias = None if self.bias is None else self.bias[rows].squeeze(1)
        if self.cosine:
            hidden = directions(hidden)
            weight = directions(weight)
        if not torch.is_autocast_enabled(hidden.device.type):
            # Scores in bfloat16, with their 8 bits, would often be equal.
            hidden = widened(hidden)
            weight = widened(weight)
        # In fewer digits than float32, the sum would be rounded before it is widened.
        fused = bias is not None and bias.dtype == hidden.dtype == torch.float32
        scores = widened(F.linear(hidden, weight, bias if fused else None))
        return self._finished(scores, None if fused else bias, rows)

    def scores_of_pairs(
        self, hidden: Float[Tensor, "p d"], labels: Int64[Tensor, " p"]
    ) -> Float[Tensor, " p"]:
        """`[p]` the score of one label for each hidden state, in float32 at least."""
        pairs = self.part(labels)
        weight = pairs.weight
        if self.cosine:
            hidden = directions(hidden)
            weight = directions(weight)
        scores = (widened(hidden) * widened(weight)).sum(1)
        bias = None if pairs.bias is None else pairs.bias.squeeze(1)
        return pairs._finished(scores, bias, slice(None))

    def _finished(self, scores: Tensor, bias: Tensor | None, rows: slice) -> Tensor:
        """Products of these rows with bias, temperature and adjustment."""
        if bias is not None:
            scores = scores + bias
        # A division by 1 would be a wasted pass over memory.
        if isinstance(self.temperature, Tensor) or self.temperature != 1:
            scores = scores / self.temperature
        if self.post_hoc:
            scores = scores - self.adjustment(rows).to(scores.dtype)
        return scores


def _host(table: Tensor) -> Tensor:
    """The host's tensor, without waiting: a copy on the same stream comes after all updates."""
    return table.host if isinstance(table, HostTensor) else table


def check_hidden(hidden: Tensor, weight: Tensor, name: str = "hidden") -> None:
    """Refuse hidden states that do not fit a table."""
    check_kind(name, hidden, Tensor, "encoder(features)")
    if hidden.dim() != 2 or hidden.shape[1] != weight.shape[1]:
        raise HeadtailError(
            f"`{name}` must have shape [b, {weight.shape[1]}], but got {list(hidden.shape)}."
        )
    check_same_device(name, hidden, "head.weight", weight)
    if hidden.dtype != weight.dtype and not torch.is_autocast_enabled(hidden.device.type):
        raise HeadtailError(
            f"`{name}` is {hidden.dtype}, but the head {weight.dtype}. Cast one, or use "
            "`torch.autocast`."
        )
