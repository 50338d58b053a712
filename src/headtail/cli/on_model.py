"""Options and tables of `headtail explain --model` and `headtail advise --model`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.box import SIMPLE_HEAD
from rich.progress import track
from rich.table import Table
from rich.text import Text

from headtail.cli.console import Console
from headtail.cli.evaluate import open_with_progress
from headtail.cli.tables import broken
from headtail.cli.unused import changed, refuse
from headtail.data.reading import Reading
from headtail.device.choice import Device
from headtail.errors import HeadtailError, check_count, check_number
from headtail.evaluation.samplers_on_model import (
    NUMBERS,
    WEIGHTINGS,
    ExactTarget,
    SamplerSettings,
    measure_samplers,
    target_of,
)
from headtail.implicit.quality import OnModel, best_within, frontier, quickest_with
from headtail.schemes import parse

__all__ = [
    "NUMBERS",
    "WITHOUT_MODEL",
    "WITH_MODEL",
    "OnTrained",
    "advice",
    "measured_table",
    "to_dict",
    "verdict",
    "with_name",
]

GOOD_COSINE = 0.9
"""Least mean cosine of a gradient that points the right way."""
WIDE = 96
"""Characters that all columns but the names take."""
GAP = 2
"""Characters between two columns."""
ROUNDING = 1e-6
"""Differences between means of float32 losses up to this size are shown as 0."""
WITHOUT_MODEL = "without `--model` there is no trained model to measure"
WITH_MODEL = "with `--model` that model is measured, with its own labels"


@dataclass(frozen=True)
class OnTrained:
    """Options that measure a trained model instead of an untrained one."""

    model: Path | None = None
    """Folder of a finished run: measure samplers on its model, against the exact gradient. Needs
    --data.
    """
    samplers: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SAMPLER …")] = ()
    """Samplers to measure, without weights; by default uniform, frequency(0.5), within-batch,
    resampled, block, hard, and model or tilted.
    """
    budget: float | None = None
    """Milliseconds that drawing, loss and gradients of a batch may take; the best sampler within
    this budget is named.
    """
    repeats: int = 4
    """Draws of each sampler for each of four sets of examples, to average over."""
    seed: int = 0
    """Seed of the randomness."""

    def check(self, data: str | None, reading: Reading, others: Sequence[str] = ()) -> None:
        """Refuse options that make no sense together.

        Args:
            data: as typed.
            reading: how to read them.
            others: further options that were typed and mean nothing without a model.
        """
        if self.model is None:
            own = changed(self, "samplers", "budget", "repeats", "seed")
            refuse([*others, *own], WITHOUT_MODEL)
            if data is None:
                options = changed(reading, *(option.name for option in fields(Reading)))
                refuse(options, "without `--data` there are no data to read")
            return
        if data is None:
            raise HeadtailError(
                "`--model` needs `--data DATA`: a trained model is measured on its data."
            )
        for name in self.samplers:
            if set(name) & {":", "@"}:
                sampler = re.split("[:@]", name)[0]
                raise HeadtailError(
                    f"`{name}` is a whole scheme, but only a sampler is wanted. Write `{sampler}`."
                )
        check_count("repeats", self.repeats)
        if self.budget is not None:
            check_number("budget", self.budget, low=1e-6)

    def settings(
        self, target: ExactTarget | None, numbers: Sequence[int], batch: int
    ) -> SamplerSettings:
        """What to measure."""
        return SamplerSettings(target, self.samplers, numbers, batch, self.repeats, self.seed)

    def measure(
        self, path: str | None, reading: Reading, settings: SamplerSettings, device: Device
    ) -> tuple[list[OnModel], dict[str, str], str, str]:
        """Results, reasons for schemes left out, a line about the model, and the target."""
        assert self.model is not None, "the caller has checked it"
        assert path is not None, "`check` refuses a model without data"
        model, run, data, _ = open_with_progress(self.model, path, reading, device)
        measured = measure_samplers(model, run.scheme, data.train, settings, _bar)
        examples = measured.examples
        number = f"{examples.sets} times {examples.probes} of {examples.size:,} examples"
        about = f"{run.scheme} on {data.name}, {model.head.labels.num_labels:,} labels; {number}"
        return measured.results, dict(measured.left_out), about, measured.target


def _bar(names: Sequence[str]) -> Iterable[str]:
    console = Console(stderr=True)
    return track(
        names, "measuring", console=console, transient=True, disable=not console.is_terminal
    )


def measured_table(results: Sequence[OnModel], target: str, width: int) -> Table:
    """One line per scheme; bold where no other is better in both time and error."""
    best = {result.scheme for result in frontier(results)}
    best = best if len(best) < len(results) else set()
    wide = width >= max((len(result.scheme) for result in results), default=0) + WIDE
    table = Table(
        title=f"Against the exact {target} gradient",
        title_style="bold",
        title_justify="left",
        header_style="bold",
    )
    table.box = SIMPLE_HEAD
    table.pad_edge = False
    table.collapse_padding = True
    table.caption_justify = "left"
    columns = ["Δ loss", "σ²/(mμ²)", "n_eff", "cos h", "cos W", "error W", "ms"]
    if wide:
        columns[4:] = ["bias h", "cos W", "bias W", "error W", "draw ms", "step ms"]
    table.add_column("scheme", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True, overflow="fold")
    rows = [(result.scheme, _cells(result)) for result in results]
    widths = (max([len(c), *(len(cells[c]) for _, cells in rows)]) + GAP for c in columns)
    room = width - sum(widths) - GAP
    previous = None
    for scheme, cells in rows:
        sampler = scheme.partition(":")[0]
        if previous not in (None, sampler):
            table.add_section()
        previous = sampler
        name = Text(broken(scheme, room), style="bold" if scheme in best else "")
        table.add_row(name, *(cells[column] for column in columns))
    table.caption = _caption(wide, bold=bool(best))
    return table


def _caption(wide: bool, *, bold: bool) -> str:
    caption = (
        "Per example, on average: Δ loss (mean sampled loss minus exact loss), σ²/(mμ²), n_eff "
        "(effective number of negatives), and the gradient of the hidden state (h).\n"
        "Of a whole batch: cos W and error W, of the label table's gradient. Examples that share a "
        "draw have correlated errors there, which σ²/(mμ²) does not show.\n"
        "cos, error: of the sampled gradient against the exact one, in units of its length.\n"
        f"{'step ms' if wide else 'ms'}: draw, loss and gradients of a batch."
    )
    if wide:
        caption += "  bias: length of the mean error; bias W: of all measured examples together."
    return caption + ("  bold: no other is both faster and more accurate." if bold else "")


def _cells(result: OnModel) -> dict[str, str]:
    squared = result.squared_error
    effective = result.effective
    return {
        "Δ loss": f"{result.bias:+.2g}" if abs(result.bias) > ROUNDING else "0",
        "σ²/(mμ²)": f"{squared:.2g}" if squared > ROUNDING**2 else "0",
        "n_eff": f"{effective:,.0f}" if effective >= 1000 else f"{effective:.1f}",
        "cos h": f"{result.hidden.cosine:.3f}",
        "bias h": f"{result.hidden.bias:.2g}",
        "cos W": f"{result.table.cosine:.3f}",
        "bias W": f"{result.table.bias:.2g}",
        "error W": f"{result.table.error:.2g}",
        "draw ms": f"{1e3 * result.draw_seconds:.3g}",
        "step ms": f"{1e3 * result.step_seconds:.3g}",
        "ms": f"{1e3 * result.step_seconds:.3g}",
    }


def verdict(results: Sequence[OnModel], budget: float | None) -> str:
    """Which scheme to use, in a sentence."""
    if not results:
        return "No sampler could be measured."
    if budget is None:
        best = frontier(results)
        quickest = best[0]
        exactest = best[-1]
        if quickest is exactest:
            return (
                f"Use {quickest.scheme}: it is the quickest and its gradient errs least "
                f"({quickest.table.error:.2g})."
            )
        ends = (
            f"{end.scheme} ({1e3 * end.step_seconds:.3g} ms, error {end.table.error:.2g})"
            for end in (quickest, exactest)
        )
        return "The quickest is {}, the most exact {}. `--budget MS` chooses between.".format(*ends)
    best = best_within(results, budget / 1e3)
    if best is None:
        quickest = min(results, key=lambda result: result.step_seconds)
        return (
            f"Nothing takes {budget:g} ms or less: the quickest is {quickest.scheme} with "
            f"{1e3 * quickest.step_seconds:.3g} ms."
        )
    quality = f"error {best.table.error:.2g}, cosine {best.table.cosine:.3f}"
    return (
        f"Within {budget:g} ms per batch, use {best.scheme}: its gradient errs least ({quality})."
    )


def advice(results: Sequence[OnModel], budget: float | None) -> tuple[OnModel | None, str]:
    """What to train with: the best within the budget, or the quickest that points the right way."""
    if budget is not None:
        return best_within(results, budget / 1e3), verdict(results, budget)
    best = quickest_with(results, GOOD_COSINE)
    if best is None:
        return (
            None,
            f"No loss that was measured has a gradient with a cosine of {GOOD_COSINE:g}. Ask for "
            "more `--negatives`.",
        )
    reason = (
        "the quickest with a gradient that points the right way (cosine "
        f"{best.table.cosine:.3f}, at least {GOOD_COSINE:g})"
    )
    return best, f"Use {best.scheme}: {reason}, {1e3 * best.step_seconds:.3g} ms per batch."


def to_dict(
    results: Sequence[OnModel], missing: dict[str, str], budget: float | None
) -> dict[str, Any]:
    """For JSON."""
    best = None if budget is None else best_within(results, budget / 1e3)
    return {
        "samplers": [asdict(result) for result in results],
        "frontier": [result.scheme for result in frontier(results)],
        "best": None if best is None else best.scheme,
        "left_out": missing,
    }


def with_name(settings: SamplerSettings, name: str | None) -> SamplerSettings:
    """The settings with the sampler of a named scheme, before others, and the target that its
    weights approximate.
    """
    if name is None:
        return settings
    parsed = parse(name)
    if parsed.sampler is None:
        raise HeadtailError(
            f"`{name}` uses all labels: it is the exact loss. Name a sampled scheme, or drop it."
        )
    target = settings.target or target_of(name)
    if target is None:
        raise HeadtailError(
            f"The weights of `{name}` approximate none of {', '.join(WEIGHTINGS)}. Choose one with "
            "`--target`; the sampler is then measured with the weights for that loss."
        )
    sampler = name.partition("@")[0].rpartition("/")[2].partition(":")[0]
    return replace(settings, samplers=(sampler, *settings.samplers), target=target)
