"""Vectors: a label table for other programs, in which a score is one inner product."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from headtail.answers.scored_table import ScoredTable
from headtail.core.labels import Labels
from headtail.errors import HeadtailError
from headtail.files.atomic import write_text
from headtail.losses.inputs import directions
from headtail.rows.rounding import widened

RECIPE = "query.json"
NAMES = "labels.json"


@dataclass(frozen=True, eq=False)
class Vectors:
    r"""Label vectors v and queries q with $f_y = \langle q, v_y \rangle$, whatever the head is.

    A vector is $[w_y / T, \; b_y / T - \tau \log \pi_y]$, with $w_y / \lVert w_y \rVert$ for
    cosines; a query is $[x, \; 1]$, with $x / \lVert x \rVert$ for cosines. Without biases and
    adjustment, the last number of both is left out. Zeros may follow.

    Attributes:
        table: what they are made of.
        multiple: what the number of numbers per vector must be a multiple of.
    """

    table: ScoredTable
    multiple: int = 1

    def __len__(self) -> int:
        return len(self.table)

    @property
    def append(self) -> list[float]:
        """What is appended to a hidden state."""
        offset = [] if self.table.bias is None and not self.table.post_hoc else [1.0]
        short = -(self.table.weight.shape[1] + len(offset)) % self.multiple
        return offset + [0.0] * short

    @property
    def dim(self) -> int:
        """Numbers per vector."""
        return self.table.weight.shape[1] + len(self.append)

    def rows(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:
        """The vectors of these labels."""
        folded = self.table.part(ids.to(self.table.weight.device)).folded()
        rows = folded.weight
        rows = rows if folded.bias is None else torch.cat([rows, folded.bias], 1)
        broken = rows.isnan().any(1)
        if broken.any():
            raise HeadtailError(
                f"The vector of label {int(ids[broken.nonzero()[0, 0].cpu()])} is not a number, so "
                "that nothing can find it. Export a model whose training did not diverge."
            )
        return F.pad(rows, (0, self.dim - rows.shape[1]))

    def queries(self, hidden: Float[Tensor, "b d"]) -> Float[Tensor, "b dim"]:
        """Hidden states as queries."""
        hidden = widened(hidden)
        hidden = directions(hidden) if self.table.cosine else hidden
        tail = hidden.new_tensor(self.append).expand(len(hidden), -1)
        return torch.cat([hidden, tail], 1)

    def recipe(self) -> dict[str, Any]:
        """How to make a query, for JSON."""
        return {
            "num_labels": len(self),
            "hidden_size": self.table.weight.shape[1],
            "normalise": self.table.cosine,
            "append": self.append,
            "dim": self.dim,
            "score": "inner product of query and label vector",
            "post_hoc": self.table.post_hoc,
        }

    def describe(self, folder: Path, facts: dict[str, Any]) -> None:
        """Write the recipe, with these facts, and the names of the labels to a folder."""
        write_description(folder, {**self.recipe(), **facts}, self.table.labels)


def write_description(folder: Path, facts: dict[str, Any], labels: object) -> None:
    """Write facts about an export, and the names of its labels where they have any, as JSON."""
    names = labels.names if isinstance(labels, Labels) else None
    if names is not None:
        write_text(folder / NAMES, json.dumps(list(names)))
    facts = {**facts, "label_names": None if names is None else NAMES}
    write_text(folder / RECIPE, json.dumps(facts, indent=1) + "\n")
