"""A checkpoint of fewer labels, or of labels that are placed otherwise, read label by label."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from headtail.core.placement import Placement, Share
from headtail.distributed.checkpoint_contents import SavedTensor
from headtail.files.streamed import Piece, mapped

LABELS_AT_ONCE = 2**16
"""Labels whose rows are looked for at a time."""


@dataclass(frozen=True)
class Grown:
    """Rows of a table that has more labels than its checkpoint; old labels keep their ids.

    Attributes:
        before: where the checkpoint has the rows of its labels.
        share: the rows of this rank.
    """

    before: Placement
    share: Share

    def saved_shape(self, rows: Tensor) -> tuple[int, ...]:
        """What the checkpoint must have for these rows."""
        return (self.before.num_labels, *rows.shape[1:])

    @torch.no_grad()
    def read(self, path: Path, saved: SavedTensor, rows: Tensor) -> None:
        """Replace the rows of old labels by those of a checkpoint; others stay as they are."""
        for places in torch.arange(len(rows)).split(LABELS_AT_ONCE):
            labels = self.share.labels(places)
            old = labels < self.before.num_labels
            wanted = self.before.rows(labels[old])
            target = places[old]
            for part in saved.parts:
                first = part.at[0]
                here = (wanted >= first) & (wanted < first + part.shape[0])
                if bool(here.any()):
                    source = mapped(
                        path / part.file, Piece(saved.whole.dtype, part.shape), part.start
                    )
                    values = source[wanted[here] - first]
                    rows[target[here].to(rows.device)] = values.to(rows.device)
