"""torch's own SGD, as the training loop wants an optimiser."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headtail.errors import check_rate


class DenseSGD(torch.optim.SGD):
    r"""$g \leftarrow g + \lambda θ,\; v \leftarrow \mu v + g,\; θ \leftarrow θ - \eta v$ for every
    weight.

    Networks whose weights all have a gradient in every step are trained by it: weight decay is
    coupled, as recipes mean it, nothing is ever pending, and on a GPU a few kernels update
    everything.

    Args:
        params: parameters with dense gradients.
        lr: η, a number or a tensor without dimensions, which a CUDA graph sees change.
        momentum: μ.
        weight_decay: λ.
    """

    def __init__(
        self, params: Any, lr: float | Tensor, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        check_rate(lr)
        params = list(params)
        fused = bool(params) and params[0].device.type == "cuda"
        super().__init__(
            params, lr=0.0, momentum=momentum, weight_decay=weight_decay, fused=fused or None
        )
        for settings in (self.defaults, *self.param_groups):
            settings["lr"] = lr  # only now: torch would look at its value, and wait for a GPU

    def advance(self) -> None:
        """`step`, by the name that row optimisers have for it."""
        self.step()

    def inside_backward(self, on: bool = True, *, at_once: bool = False) -> DenseSGD:
        """Nothing to do: a dense gradient is all there when `backward` is over."""
        return self

    def flush(self) -> None:
        """Nothing to do: no weight waits for its decay."""
