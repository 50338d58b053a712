"""`headtail stats`."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
import tyro
from rich.table import Table
from rich.text import Text

from headtail.cli.console import Console
from headtail.cli.drawing import sparkline
from headtail.cli.progress import reading, show_notes
from headtail.data.facts import facts_of
from headtail.data.image_files import ImageFiles
from headtail.data.load import load
from headtail.data.reading import Reading
from headtail.data.slices import SliceRule, data_slices
from headtail.files.names import NAME, shown


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
    """What counts as head, torso and tail: about a third of the examples each (mass), or labels
    with at least 100, with 20 to 99 and with fewer than 20 examples (count). auto: count for
    images and vectors with one label each, otherwise mass; the same in every command.
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
            sys.stdout.write(json.dumps(facts, indent=2) + "\n")
            return 0
        console = Console()
        console.print(Text(shown(data.name), style="bold"))
        console.print(_facts_table(facts, isinstance(data.train.features, ImageFiles)))
        console.print(_slices_table(facts["slices"]))
        show_notes([f"Slices: {facts['slices']['rule']}.", *data.notes], Stats, console)
        return 0


def _facts_table(facts: dict[str, Any], resized: bool) -> Table:
    """Sizes and imbalance; `resized` images have other sizes on disk."""
    train = f"{facts['train_points']:,} to train"
    rows: list[tuple[str, str | Text]] = []
    if facts["image_size"] is None:
        rows += [
            ("points", f"{train}, {facts['test_points']:,} to test"),
            (
                "features",
                f"{facts['num_features']:,}, {facts['features_per_point']:.1f} per point",
            ),
        ]
    else:
        height, width = facts["image_size"]
        as_seen = ", as the model sees them" if resized else ""
        rows += [
            ("images", f"{train}, {facts['test_points']:,} to test"),
            ("size", f"{width} × {height} pixels, in RGB{as_seen}"),
        ]
    labels = f"{facts['num_labels']:,}, {facts['labels_per_point']:.2f} per point"
    examples = f"{facts['most']:,} at most, {facts['median']:,.10g} median"
    rows += [
        ("labels", f"{labels}, {facts['num_pairs']:,} pairs"),
        ("examples per label", f"{examples}, {facts['least']:,} at least"),
        ("imbalance", _imbalance(facts)),
        ("most frequent", _named(facts["most_frequent"])),
        ("least frequent", _named(facts["least_frequent"])),
    ]
    if facts["never_seen"]:
        rows.append(("never in training", f"{facts['never_seen']:,} labels"))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in [*rows, *_curve(facts)]:
        table.add_row(name, value)
    return table


def _named(labels: list[list[Any]]) -> str:
    return ", ".join(f"{shown(name, NAME)} ({count:,})" for name, count in labels) or "–"


def _imbalance(facts: dict[str, Any]) -> str:
    if facts["imbalance"] is None:
        return "–"
    return f"{facts['imbalance']:,.0f} : 1, Gini {facts['gini']:.2f}"


def _curve(facts: dict[str, Any]) -> list[tuple[str, Text]]:
    """The rank–frequency curve as a line of characters, and what its axes are."""
    counts = [count for _, count in facts["curve"]]
    heights = torch.tensor([math.log10(count) if count else -math.inf for count in counts])
    drawn = torch.linspace(0, len(heights) - 1, min(50, len(heights))).long()
    line = Text("head ") + sparkline(heights[drawn]) + Text(" tail", style="")
    every_rank = len(heights) == facts["num_labels"]  # then ranks are evenly spaced
    axes = "heights logarithmic" if every_rank else "both axes logarithmic"
    return [("rank–frequency", line), ("", Text(axes, style="dim"))]


def _slices_table(slices: dict[str, Any]) -> Table:
    table = Table(header_style="bold", box=None, padding=(0, 2))
    for column in ("slice", "labels", "training pairs", "share", "rarest has"):
        table.add_column(column, justify="left" if column == "slice" else "right")
    for name, size in slices["sizes"].items():
        rarest = f"{slices['rarest'][name]:,}" if name in slices["rarest"] else "–"
        pairs = slices["pairs"][name]
        share = f"{pairs / max(1, sum(slices['pairs'].values())):.0%}"
        table.add_row(name, f"{size:,}", f"{pairs:,}", share, rarest)
    return table
