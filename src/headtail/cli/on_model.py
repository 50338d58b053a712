"""The output of `headtail explain --model` and `headtail advise --model`: samplers on a model."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from headtail.cli.evaluate import open_with_progress
from headtail.cli.tables import broken
from headtail.cli.unused import changed, refuse
from headtail.data.reading import Reading
from headtail.device.choice import Device
from headtail.errors import HeadtailError, check_count, check_number
from headtail.evaluation.topk import encoded_pairs
from headtail.implicit.quality import (
    Batch,
    OnModel,
    best_within,
    exactly,
    frontier,
    on_model,
    quickest_with,
)
from headtail.losses import ExactLoss, SampledLoss
from headtail.schemes import check_batch, parse, scheme

LOOKED_AT = ("uniform", "frequency(0.5)", "within-batch", "resampled", "block", "hard", "model")
"""Samplers that are shown unless others are named; `model` becomes `tilted` where the target has a
margin.
"""
NUMBERS = (16, 64, 256)
"""Of negatives."""
Target = Literal["softmax", "logit-adjusted", "equalised", "adaptive"]
WEIGHTINGS: dict[Target, str] = {
    "softmax": "importance",
    "logit-adjusted": "tail",
    "equalised": "equalised",
    "adaptive": "adaptive",
}
GOOD_COSINE = 0.9
"""Of a gradient that points the right way."""
WIDE = 96
"""Characters that all columns take beside the names."""
GAP = 2
"""Characters between two columns."""
ROUNDING = 1e-6
"""What a mean over float32 losses may differ by, and be none."""
WITHOUT_MODEL = "without `--model` there is no trained model to look at"
WITH_MODEL = "with `--model` that model is measured, with its own labels"
ENCODED = 4096
"""Pairs whose hidden states are computed."""


@dataclass(frozen=True)
class OnTrained:
    """Look at a trained model instead of an untrained one."""

    model: Path | None = None
    """Folder of a finished run: measure samplers on its model, against the exact gradient. Needs
    --data.
    """
    data: Annotated[str | None, tyro.conf.arg(metavar="DATA")] = None
    """The data of that run, as for headtail train."""
    target: Target | None = None
    """The loss over all labels that sampling should approximate; by default that of the named
    scheme, or of the run.
    """
    samplers: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SAMPLER …")] = ()
    """Samplers to measure, without weights; else uniform, frequency(0.5), within-batch, resampled,
    block, hard, model or tilted.
    """
    budget: float | None = None
    """Milliseconds that drawing, loss and gradients of a batch may take: the best sampler within is
    named.
    """
    repeats: int = 4
    """Draws of each sampler for each of four sets of examples, over which it is averaged."""
    seed: int = 0
    """Seed of the randomness."""
    reading: Annotated[Reading, tyro.conf.OmitArgPrefixes] = field(default_factory=Reading)
    """How to read the data."""

    def check(self) -> None:
        """Refuse what has no meaning."""
        if self.model is None and self.data is None:
            given = changed(self, "target", "samplers", "budget", "repeats", "seed")
            refuse(
                given + changed(self.reading, *(one.name for one in fields(Reading))), WITHOUT_MODEL
            )
            return
        if self.model is None or self.data is None:
            have, miss = (
                ("--data", "--model RUN") if self.model is None else ("--model", "--data DATA")
            )
            raise HeadtailError(
                f"`{have}` needs `{miss}` beside it: a trained model is looked at on its data."
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

    def measure(
        self, numbers: Sequence[int], batch: int, device: Device
    ) -> tuple[list[OnModel], dict[str, str], str, str]:
        """Every sampler with each number of negatives; those left out, with a sentence; a line
        about the model; and the target.
        """
        assert self.model is not None, "asked for by the caller"
        assert self.data is not None, "checked"
        model, run, data, _ = open_with_progress(self.model, self.data, self.reading, device)
        family = parse(run.scheme).loss
        labels = model.head.labels
        head = model.head
        prefix = "" if family == "softmax" else f"{family}/"
        wanted = self.target or target_of(run.scheme) or "softmax"
        name = family if wanted == "softmax" else prefix + wanted
        exact = scheme(name, labels)
        assert isinstance(exact, ExactLoss), "a target is a loss over all labels"
        losses, missing = self._losses(prefix, wanted, labels, numbers, batch)
        head.flush()
        hidden, target = encoded_pairs(model, data.train, max(ENCODED, 2 * batch), self.seed)
        size = min(batch, len(target))
        with torch.no_grad():
            examples = Batch(
                hidden,
                target,
                head.weight,
                head.bias,
                probes=max(1, size // 16),
                sets=min(4, size),
                size=size,
            )
            generator = torch.Generator().manual_seed(self.seed)
            torch.manual_seed(self.seed)
            found = on_model(
                exact, losses, examples, repeats=self.repeats, generator=generator, progress=_bar
            )
            found.append(exactly(name, exact, examples))
        looked_at = f"{examples.sets} times {examples.probes} of {size:,} examples"
        about = f"{run.scheme} on {data.name}, {labels.num_labels:,} labels; {looked_at}"
        return found, missing, about, wanted

    def _losses(
        self, prefix: str, target: Target, labels: Any, numbers: Sequence[int], batch: int
    ) -> tuple[dict[str, SampledLoss], dict[str, str]]:
        names = self.samplers or tuple(
            "tilted" if n == "model" and target != "softmax" else n for n in LOOKED_AT
        )
        losses = {}
        missing = {}
        for sampler in names:
            own = {}
            refused = None
            for m in numbers:
                name = f"{prefix}{sampler}:{WEIGHTINGS[target]}@{m}"
                try:
                    check_batch(name, batch)
                    with warnings.catch_warnings():
                        # Training has already warned of labels that are never drawn.
                        warnings.simplefilter("ignore")
                        loss = scheme(name, labels)
                except HeadtailError as error:
                    refused = error
                    missing[name] = error.sentence
                    continue
                assert isinstance(loss, SampledLoss), (
                    "a sampler and a weighting make a sampled loss"
                )
                own[name] = loss
            if self.samplers and not own and refused is not None:
                raise refused  # it was asked for, and no number of negatives suits it
            losses |= own
        return losses, missing


def _bar(names: Sequence[str]) -> Iterable[str]:
    console = Console(stderr=True)
    return track(
        names, "measuring", console=console, transient=True, disable=not console.is_terminal
    )


def measured_table(found: Sequence[OnModel], target: str, width: int) -> Table:
    """One row per scheme; those that no other beats in both time and error are highlighted, unless
    that is all of them.
    """
    best = {one.scheme for one in frontier(found)}
    best = best if len(best) < len(found) else set()
    wide = width >= max((len(one.scheme) for one in found), default=0) + WIDE
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
    columns = ["scheme", "Δ loss", "σ²/(mμ²)", "n_eff", "cos h", "cos W", "error W", "ms"]
    columns = (
        columns
        if not wide
        else [*columns[:5], "bias h", *columns[5:6], "bias W", "error W", "draw ms", "step ms"]
    )
    for column in columns:
        name = column == "scheme"
        table.add_column(
            column, justify="left" if name else "right", no_wrap=not name, overflow="fold"
        )
    rows = [(one, _cells(one)) for one in found]
    numbers = (
        max([len(column), *(len(cells[column]) for _, cells in rows)]) + GAP
        for column in columns[1:]
    )
    room = width - sum(numbers) - GAP
    previous = None
    for one, cells in rows:
        sampler = one.scheme.partition(":")[0]
        if previous not in (None, sampler):
            table.add_section()
        previous = sampler
        name = Text(broken(one.scheme, room), style="bold" if one.scheme in best else "")
        table.add_row(name, *(cells[column] for column in columns[1:]))
    table.caption = (
        "Of each example for itself, on average: Δ loss (mean sampled less exact loss), σ²/(mμ²), "
        "n_eff "
        "(effective number of negatives), and the gradient of its hidden state (h).\n"
        "Of a whole batch: cos W and error W, of the label table's gradient. Examples that share a "
        "draw "
        "err together there, which σ²/(mμ²) does not show.\n"
        "cos, error: of the sampled gradient against the exact one, in units of its length.\n"
        f"{'step ms' if wide else 'ms'}: draw, loss and gradients of a batch."
    )
    table.caption += (
        "  bias: length of the mean error; bias W: of those looked at, together." if wide else ""
    )
    table.caption += "  bold: no other is both quicker and more exact." if best else ""
    return table


def _cells(one: OnModel) -> dict[str, str]:
    return {
        "Δ loss": f"{one.bias:+.2g}" if abs(one.bias) > ROUNDING else "0",
        "σ²/(mμ²)": f"{one.squared_error:.2g}" if one.squared_error > ROUNDING**2 else "0",
        "n_eff": f"{one.effective:,.0f}" if one.effective >= 1000 else f"{one.effective:.1f}",
        "cos h": f"{one.hidden.cosine:.3f}",
        "bias h": f"{one.hidden.bias:.2g}",
        "cos W": f"{one.table.cosine:.3f}",
        "bias W": f"{one.table.bias:.2g}",
        "error W": f"{one.table.error:.2g}",
        "draw ms": f"{1e3 * one.draw_seconds:.3g}",
        "step ms": f"{1e3 * one.step_seconds:.3g}",
        "ms": f"{1e3 * one.step_seconds:.3g}",
    }


def verdict(found: Sequence[OnModel], budget: float | None) -> str:
    """Which one to use, in a sentence."""
    if not found:
        return "No sampler could be measured."
    if budget is None:
        best = frontier(found)
        quickest = best[0]
        exactest = best[-1]
        if quickest is exactest:
            return (
                f"Use {quickest.scheme}: it is the quickest and its gradient errs least "
                f"({quickest.table.error:.2g})."
            )
        ends = (
            f"{one.scheme} ({1e3 * one.step_seconds:.3g} ms, error {one.table.error:.2g})"
            for one in (quickest, exactest)
        )
        return "The quickest is {}, the most exact {}. `--budget MS` chooses between.".format(*ends)
    one = best_within(found, budget / 1e3)
    if one is None:
        least = min(found, key=lambda one: one.step_seconds)
        return (
            f"Nothing takes {budget:g} ms or less: the quickest is {least.scheme} with "
            f"{1e3 * least.step_seconds:.3g} ms."
        )
    quality = f"error {one.table.error:.2g}, cosine {one.table.cosine:.3f}"
    return f"Within {budget:g} ms a batch, use {one.scheme}: its gradient errs least ({quality})."


def advice(found: Sequence[OnModel], budget: float | None) -> tuple[OnModel | None, str]:
    """What to train with: the best within the budget, or the quickest that points the right way."""
    if budget is not None:
        return best_within(found, budget / 1e3), verdict(found, budget)
    one = quickest_with(found, GOOD_COSINE)
    if one is None:
        return (
            None,
            f"No loss that was measured has a gradient with a cosine of {GOOD_COSINE:g}. Ask for "
            "more `--negatives`.",
        )
    what = (
        f"the quickest whose gradient points the right way (cosine {one.table.cosine:.3f}, at "
        f"least {GOOD_COSINE:g})"
    )
    return one, f"Use {one.scheme}: {what}, {1e3 * one.step_seconds:.3g} ms a batch."


def to_dict(
    found: Sequence[OnModel], missing: dict[str, str], budget: float | None
) -> dict[str, Any]:
    """For JSON."""
    best = None if budget is None else best_within(found, budget / 1e3)
    return {
        "samplers": [asdict(one) for one in found],
        "frontier": [one.scheme for one in frontier(found)],
        "best": None if best is None else best.scheme,
        "left_out": missing,
    }


def with_name(options: OnTrained, name: str | None) -> OnTrained:
    """The options with the sampler of the named scheme before the others, and with the target that
    its weights approximate.
    """
    if name is None:
        return options
    parsed = parse(name)
    if parsed.sampler is None:
        raise HeadtailError(
            f"`{name}` uses all labels: it is the exact loss. Name a sampled scheme, or drop it."
        )
    target = options.target or target_of(name)
    if target is None:
        raise HeadtailError(
            f"The weights of `{name}` approximate none of {', '.join(WEIGHTINGS)}. Choose one of "
            "them with `--target`; the sampler is then measured with the weights for that loss."
        )
    sampler = name.partition("@")[0].rpartition("/")[2].partition(":")[0]
    return replace(options, samplers=(sampler, *options.samplers), target=target)


def target_of(name: str) -> Target | None:
    """The loss over all labels that a scheme computes or approximates; None if it is not one of the
    targets.

    >>> [target_of(name) for name in ("block:tail@8", "contrastive", "uniform:constant")]
    ['logit-adjusted', 'softmax', None]
    """
    parsed = parse(name)
    said = parsed.margin or parsed.weighting
    known: dict[str, Target] = {"unit": "softmax"}
    known |= {name: target for target, one in WEIGHTINGS.items() for name in (target, one)}
    return None if said is None or said.args else known.get(said.name)
