"""Averages of weights that read rows with their weight decay."""

from __future__ import annotations

import torch
from torch import nn

from headtail.rows.decay import catch_up


class AveragedModel(torch.optim.swa_utils.AveragedModel):
    """`torch.optim.swa_utils.AveragedModel` for models with tables of row optimisers.

    An average reads every row in every update. Rows that wait for their weight decay get it first,
    so that the average is that of a dense optimiser. It takes the same arguments.

    >>> table = nn.Embedding(4, 2, sparse=True)
    >>> average = AveragedModel(table, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    >>> average.update_parameters(table)
    >>> torch.equal(average.module.weight, table.weight)
    True
    """

    def update_parameters(self, model: nn.Module) -> None:
        """Take the present weights of the model in."""
        for table in model.parameters():
            catch_up(table)
        super().update_parameters(model)
