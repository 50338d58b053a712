"""The sampled softmax of a label table in one autograd node: a fast twin of the plain path for training steps on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headtail.losses.terms import Settings
from headtail.samplers.draw import Draw
from headtail.targets import Pairs


def fits(input: Tensor, weight: Tensor, bias: Tensor | None, pairs: Pairs, draw: Draw, settings: Settings) -> bool:
    """Whether this is the common case: float32 on the CPU, one positive an example, shared negatives, none ignored, a mean."""
    plain = settings.score == "dot" and settings.reduction == "mean" and settings.sample_weight is None
    plain &= not isinstance(settings.temperature, Tensor) and settings.temperature == 1
    floats = all(t is None or (t.device.type == "cpu" and t.dtype == torch.float32) for t in (input, weight, bias))
    plain &= not torch.is_autocast_enabled("cpu")
    column = bias is None or bias.dim() == 2
    return plain and floats and column and draw.shared and draw.ids.numel() > 0 and pairs.all_count and not pairs.multi_label


def softmax_of_rows(
    input: Tensor, weight: Tensor, bias: Tensor | None, label: Tensor, ids: Tensor, a: Tensor, b: Tensor, mask: Tensor
) -> Tensor:
    r"""The mean of $\log\big[1 + \sum_{y'} e^{f_{y'} - f_y + a_y + b_{y'}}\big]$; `weight` and `bias` get row-sparse gradients."""
    return _SoftmaxOfRows.apply(input, weight, bias, label, ids, a.float(), b.float(), mask)  # pyright: ignore[reportReturnType]


class _SoftmaxOfRows(torch.autograd.Function):
    """Gradients are taken while the numbers are at hand: with p the softmax over the positive and the negatives,

    ∂/∂f_y' = p_y', ∂/∂f_y = −Σ p_y'.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        label: Tensor,
        ids: Tensor,
        a: Tensor,
        b: Tensor,
        mask: Tensor,
    ) -> Tensor:
        positive, negatives = weight.index_select(0, label), weight.index_select(0, ids)
        f_y, f = torch.bmm(input[:, None], positive[:, :, None])[:, 0, 0], input @ negatives.T
        if bias is not None:
            f_y, b = f_y + bias[label, 0], b + bias[ids, 0]
        z = f.add_(b).add_((a - f_y)[:, None]).masked_fill_(mask, -torch.inf)
        top = z.amax(1).clamp_(min=0.0)  # the positive's own term is e^0
        terms = z.sub_(top[:, None]).exp_()
        rest = terms.sum(1)
        total = rest + (-top).exp()
        share = 1.0 / (total * len(label))
        p, pushed = terms.mul_(share[:, None]), (rest * share)[:, None]
        n, rows = len(label), torch.cat([label, ids])
        of_rows = torch.empty(len(rows), input.shape[1])  # written in place: [b, d] is large beside everything else here
        torch.mul(input, -pushed, out=of_rows[:n])
        torch.mm(p.T, input, out=of_rows[n:])
        of_input = (p @ negatives).addcmul_(positive, pushed, value=-1.0)
        of_bias = None if bias is None else torch.cat([-pushed, p.sum(0)[:, None]])
        ctx.shapes = weight.shape, None if bias is None else bias.shape
        ctx.gradients = of_input, rows, of_rows, of_bias
        return (top + total.log()).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        scale, (of_input, rows, of_rows, of_bias) = grads[0], ctx.gradients
        if float(scale) != 1:  # a loss that is used as it is needs no second pass
            of_input, of_rows, of_bias = (None if g is None else g * scale for g in (of_input, of_rows, of_bias))
        weight, bias = (
            None if values is None else torch.sparse_coo_tensor(rows[None], values, shape, check_invariants=False)
            for values, shape in zip((of_rows, of_bias), ctx.shapes, strict=True)
        )
        return of_input, weight, bias, None, None, None, None, None
