"""`headtail stats`."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, field
from typing import Annotated

import torch
import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headtail.cli.drawing import sparkline
from headtail.cli.progress import reading
from headtail.comparison.compare import SliceRule, data_slices
from headtail.data.facts import facts_of
from headtail.data.image_files import ImageFiles
from headtail.data.load import Reading, load
from headtail.data.points import DataSet


@dataclass(frozen=True)
class Stats:
    """What the data look like: sizes, imbalance, head, torso and tail, and the rank–frequency
    curve.
    """

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = "synthetic"
    """A folder with training and test files, a training file, or generated data (synthetic,
    synthetic:delicious, …).
    """
    slices: SliceRule = "auto"
    """Head, torso and tail: a third of the examples each (mass), or at least 100 and fewer than 20
    examples a label (count); auto: count for pictures and vectors with one label each, otherwise
    mass.
    """
    json: bool = False
    """Print JSON for programs."""
    reading: Annotated[Reading, tyro.conf.OmitArgPrefixes] = field(default_factory=Reading)
    """How to read the data."""

    def run(self) -> int:
        """Print it."""
        with reading(Console(stderr=True)) as progress:
            data = load(self.data, self.reading, progress)
        facts = facts_of(data, data_slices(data, self.slices))
        if self.json:
            sys.stdout.write(json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
            return 0
        console = Console(highlight=False)
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column()
        what = "points" if facts["picture"] is None else "pictures"
        grid.add_row(what, f"{facts['train_points']:,} to train, {facts['test_points']:,} to test")
        if facts["picture"] is None:
            grid.add_row(
                "features", f"{facts['num_features']:,}, {facts['features_per_point']:.1f} a point"
            )
        else:
            grid.add_row(
                "size",
                f"{facts['picture'][1]} × {facts['picture'][0]} pixels, in RGB{_as_seen(data)}",
            )
        grid.add_row(
            "labels",
            f"{facts['num_labels']:,}, {facts['labels_per_point']:.2f} a point, "
            f"{facts['num_pairs']:,} pairs",
        )
        grid.add_row(
            "examples a label",
            f"{facts['most']:,} at most, {facts['median']:,.10g} median, {facts['least']:,} at "
            "least",
        )
        grid.add_row(
            "imbalance",
            "–"
            if facts["imbalance"] is None
            else f"{facts['imbalance']:,.0f} : 1, Gini {facts['gini']:.2f}",
        )
        if facts["never_seen"]:
            grid.add_row("never in training", f"{facts['never_seen']:,} labels")
        heights = torch.tensor(
            [math.log10(count) if count else -math.inf for _, count in facts["curve"]]
        )
        line = sparkline(heights[torch.linspace(0, len(heights) - 1, min(50, len(heights))).long()])
        grid.add_row("rank–frequency", Text("head ") + line + Text(" tail", style=""))
        every = len(heights) == facts["num_labels"]  # then ranks stand side by side
        grid.add_row(
            "", Text("heights logarithmic" if every else "both axes logarithmic", style="dim")
        )
        console.print(Text(data.name, style="bold"))
        console.print(grid)
        table = Table(header_style="bold", box=None, padding=(0, 2))
        for column in ("slice", "labels", "training pairs", "rarest has"):
            table.add_column(column, justify="left" if column == "slice" else "right")
        by = facts["slices"]
        for name, size in by["sizes"].items():
            table.add_row(
                name,
                f"{size:,}",
                f"{by['pairs'][name]:,}",
                f"{by['rarest'][name]:,}" if name in by["rarest"] else "–",
            )
        console.print(table)
        for note in [facts["slices"]["rule"], *data.notes]:
            console.print(Text(note, style="dim"))
        return 0


def _as_seen(data: DataSet) -> str:
    """Files keep their own size."""
    return ", as the model sees them" if isinstance(data.train.features, ImageFiles) else ""
