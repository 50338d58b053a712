"""Which sampler to use? Samplers that look at the model, compared with samplers that do not.

    .venv/bin/python experiments/samplers.py --data DATA

Delicious (983 labels), Diginetica (43,097) and generated data with a million labels; targets: the
softmax (importance weights) and the logit-adjusted loss (tail weights); m = 64. Four questions, one
study each:

learn  Recall@k by slice after training with each sampler, at equal m; cheap ones also with more
       negatives (`@m`)
time   milliseconds of a whole training step, including the share of a sampler's periodic refresh
fast   as learn, in the time of uniform's run: slower steps get fewer epochs
noise  σ²/(mμ²), and the gradient against the exact one, on a trained model, for some m

`--only` takes numbers of studies, which run in order of importance. On a CPU processor time is
measured: give each process one thread (`--threads 1`), and start two with different studies to use
two cores. On one core of an AMD EPYC a run on Diginetica takes from 2 minutes (uniform) to 11
(`block(1)`), on Delicious 1 to 4. Studies named `exact` pass over all labels in every step, 0.9 s
on Diginetica; run them and those of generated data on a GPU (`--device cuda --workers 4`).

Resumable: finished runs are kept, and `--minutes` stops in time with every run saved.
`samplers_tables.py` turns --out into rows and tables; the results are in docs/results-samplers.md.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from study_tables import read_table, write_table

from headtail.comparison.compare import Execution, run_grid
from headtail.comparison.grid import Cell, cells
from headtail.comparison.results import read_rows
from headtail.data.load import load
from headtail.data.points import DataSet
from headtail.errors import HeadtailError
from headtail.evaluation.samplers_on_model import WEIGHTINGS
from headtail.evaluation.topk import encoded_pairs
from headtail.implicit.quality import Batch, OnModel, exactly, on_model
from headtail.losses import ExactLoss, SampledLoss
from headtail.samplers import Adversarial, Scorer
from headtail.samplers.model.blocks import Blocks
from headtail.schemes import scheme
from headtail.training.callbacks import Callback, Progress
from headtail.training.config import Run, Training
from headtail.training.saved_model import load_model
from headtail.training.trainer import Trainer
from longtail import lighten, until_stopped

GENERATED = (
    "synthetic:labels=1000000,points=2000000,test=5000,features=5000000,"
    "labels-a-point=4,features-a-point=80,zipf=0.5"
)
TRAINING = {
    "delicious": Training(
        batch=256,
        negatives=64,
        epochs=12,
        lr=0.04,
        dropout=0.5,
        feature_dropout=0.2,
        schedule="linear",
        validation=0.1,
        patience=12,
    ),
    "diginetica": Training(
        batch=1024,
        negatives=64,
        epochs=8,
        lr=0.02,
        dropout=0.5,
        schedule="constant",
        validation=0.1,
        patience=1,
    ),
    "generated": Training(
        batch=1024,
        negatives=64,
        epochs=2,
        lr=0.1,
        dim=64,
        dropout=0.0,
        schedule="constant",
        validation=0.0,
    ),
}
"""As in the retrieval study, which provides the runs over all labels; m = 64. With a million labels
no points are held out: their loss over all labels would take more memory than everything else."""
RATES = {"delicious": (0.04,), "diginetica": (0.02, 0.04), "generated": (0.1,)}
"""Learning rates that each scheme tries with seed 0; the lowest loss on held-out points wins."""
STEPS = 30
LONGEST = 20_000.0
"""Steps that are timed, and the milliseconds after which fewer are enough."""
MODEL = "block(1)"
PAIRS = 4096
"""Noise is measured on the model that this sampler trained, with hidden states of this many pairs.
"""


@dataclass(frozen=True)
class Study:
    """One question about some samplers on one data set.

    Attributes:
        name: DATA-QUESTION, or DATA-QUESTION-MORE.
        samplers: as in scheme names, `@m` too; "full" for the loss over all labels.
        targets: the losses over all labels that they estimate.
        seeds: seeds for learning.
        numbers: values of m for noise.
    """

    name: str
    samplers: tuple[str, ...]
    targets: tuple[str, ...] = ("logit-adjusted", "softmax")
    seeds: int = 3
    numbers: tuple[int, ...] = (16, 64, 256)

    @property
    def data(self) -> str:
        """Name of the data set."""
        return self.name.split("-")[0]

    @property
    def question(self) -> str:
        """Which of the four questions."""
        return self.name.split("-")[1]


CHEAP = ("uniform", "within-batch")
MORE = ("uniform@512", "within-batch@512", "within-batch@1024")
GOOD = ("block", "block(1)")
OTHERS = ("frequency(0.5)", "resampled", "quadratic-kernel", "fourier-kernel")
POOLS = ("resampled(512,frequency(0.5))", "resampled(512,within-batch)")
PASSES = ("hard", "tilted")
"""Samplers that pass over all labels for a draw."""
ADJUSTED = ("logit-adjusted",)
PLAIN = ("softmax",)

STUDIES = (
    Study("diginetica-learn", (*CHEAP, *GOOD, *MORE), ADJUSTED),
    Study("diginetica-learn-exact", ("tilted", "hard", "full"), ADJUSTED),
    Study(
        "diginetica-time", (*CHEAP, *MORE, *GOOD, *OTHERS, "adversarial", *PASSES, "full"), ADJUSTED
    ),
    Study("diginetica-fast", (*MORE, *GOOD), ADJUSTED),
    Study("diginetica-noise", (*CHEAP, *GOOD, *OTHERS, *PASSES, "full"), ADJUSTED),
    Study("diginetica-learn-softmax", (*CHEAP, *GOOD, *MORE), PLAIN),
    Study("diginetica-fast-softmax", (*MORE, *GOOD), PLAIN),
    Study("diginetica-noise-softmax", (*CHEAP, *GOOD, *OTHERS, *PASSES, "full"), PLAIN),
    Study("delicious-learn", (*CHEAP, *GOOD, *PASSES)),
    Study("delicious-time", (*CHEAP, *GOOD, *OTHERS, "adversarial", *PASSES, "full"), ADJUSTED),
    Study("delicious-fast", (*GOOD, *PASSES)),
    Study("delicious-noise", (*CHEAP, *GOOD, *OTHERS, *PASSES, "full")),
    Study("generated-learn", (*CHEAP, *GOOD, *MORE)),
    Study("generated-time", (*CHEAP, *MORE, *GOOD), ADJUSTED),
    Study("generated-fast", (*GOOD, *MORE)),
    Study("generated-noise", (*CHEAP, *GOOD, "full")),
    Study("diginetica-learn-others", (*OTHERS, *POOLS, "adversarial"), ADJUSTED, 1),
    Study("diginetica-learn-exact-softmax", ("tilted", "hard", "full"), PLAIN),
    Study("generated-learn-exact", ("full",), seeds=1),
)


def named(sampler: str, target: str) -> str:
    """The scheme with which a sampler estimates a target.

    >>> named("block(1)@8", "logit-adjusted"), named("full", "logit-adjusted")
    ('block(1):tail@8', 'logit-adjusted')
    """
    name, at, m = sampler.partition("@")
    return target if name == "full" else f"{name}:{WEIGHTINGS[target]}{at}{m}"


def schemes(study: Study) -> list[str]:
    """The schemes of a study, for all its targets."""
    return [named(sampler, target) for target in study.targets for sampler in study.samplers]


def grid_of(
    study: Study, data: DataSet, given: argparse.Namespace, rates: Mapping[str, float]
) -> list[Cell]:
    """The study's runs at these rates, by seed; studies of the same data share equal runs."""
    training = TRAINING[study.data]
    home = given.out / study.data
    grid = []
    times = {
        row["sampler"]: float(row["step_ms"])
        for row in read_table(home / f"times-{given.device}.csv")
    }
    for name in (name for name in schemes(study) if name in rates):
        epochs = (
            training.epochs if study.question == "learn" else epochs_in_time(name, training, times)
        )
        settings = replace(training, epochs=epochs, lr=rates[name])
        grid += cells(settings, [name], min(study.seeds, given.seeds), data, home)
    return sorted(grid, key=lambda cell: cell.run.seed)


def tried(home: Path, data: str) -> dict[str, dict[float, float]]:
    """Lowest held-out loss by scheme and learning rate, of finished long runs with seed 0."""
    found: dict[str, dict[float, float]] = {}
    for path in sorted(home.glob("cells/*/results.csv")):
        run = Run.read(path.parent / "run.toml")
        if run.seed == 0 and run.epochs == TRAINING[data].epochs:
            losses = [row.value for row in read_rows(path) if row.metric == "implicit-loss"]
            # nothing held out: there is only one rate
            found.setdefault(run.scheme, {})[run.lr] = min(losses, default=math.inf)
    return found


def chosen(home: Path, data: str) -> dict[str, float]:
    """The best learning rate of each scheme that was tried."""
    return {
        name: min(losses, key=lambda rate: losses[rate])
        for name, losses in tried(home, data).items()
    }


def epochs_in_time(name: str, training: Training, times: dict[str, float]) -> int:
    """Whole epochs in the time of uniform's run.

    >>> epochs_in_time("block:tail", Training(epochs=8), {"uniform": 10.0, "block": 28.0})
    3
    """
    name, _, m = name.partition("@")
    sampler = name.partition(":")[0] + ("@" + m if m else "")
    if sampler not in times or "uniform" not in times:
        raise HeadtailError(
            f"The time that a step with `{sampler}` takes is unknown. Run the study of times first."
        )
    return max(1, round(training.epochs * times["uniform"] / times[sampler]))


def learn(study: Study, source: Callable[[], DataSet], given: argparse.Namespace) -> int:
    """Tune, then train and test missing runs with other seeds; returns the number of failures."""
    data = source()
    home = given.out / study.data
    names = schemes(study)
    if study.question == "learn":
        for rate in RATES[study.data]:
            everyone: dict[str, float] = {name: rate for name in names}  # noqa: C420 - which pyright cannot type
            first = [cell for cell in grid_of(study, data, given, everyone) if cell.run.seed == 0]
            train(study, first, data, given)  # a rate that diverges loses to the others
    rates = chosen(home, study.data)
    failed = train(study, grid_of(study, data, given, rates), data, given)
    return failed + len(set(names) - set(rates))


class Shown(Callback):
    """A line per epoch of a run."""

    def __init__(self, cell: Cell) -> None:
        self.title = cell.title

    def on_epoch(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """Print it."""
        value = list(metrics.values())[-1]
        epochs = f"epoch {progress.epoch} of {progress.epochs}"
        print(f"  {self.title}: {epochs}, {value:.4f}", flush=True)


def train(study: Study, grid: list[Cell], data: DataSet, given: argparse.Namespace) -> int:
    """Train and test what is missing; returns how many runs failed."""
    if not grid:
        return 0
    print(f"{study.name}: {sum(cell.done for cell in grid)} of {len(grid)} runs done", flush=True)
    begun = time.monotonic()

    def finished(cell: Cell, sentence: str | None) -> None:
        seconds = time.monotonic() - begun
        print(
            f"{study.name} {cell.title}, learning rate {cell.run.lr:g}: {sentence or 'done'}, "
            f"{seconds:.0f} s",
            flush=True,
        )
        lighten([one for one in grid if not wanted(one.run, study.data)])

    execution = Execution(
        workers=given.workers, callbacks=lambda cell: [Shown(cell)], finished=finished
    )
    folder = given.out / study.name
    return len(run_grid(grid, data, folder, device=given.device, execution=execution).failures)


def wanted(run: Run, data: str) -> bool:
    """Whether noise is measured on this run's model."""
    models = {
        named(MODEL, target)
        for one in STUDIES
        if (one.data, one.question) == (data, "noise")
        for target in one.targets
    }
    return run.seed == 0 and run.scheme in models and run.epochs == TRAINING[data].epochs


def measure_times(study: Study, source: Callable[[], DataSet], given: argparse.Namespace) -> int:
    """Time the steps of samplers that have no time yet."""
    path = given.out / study.data / f"times-{given.device}.csv"
    data = source()
    rows = read_table(path)
    for sampler in study.samplers:
        if all(row["sampler"] != sampler for row in rows):
            run = Run(**asdict(TRAINING[study.data]), scheme=named(sampler, study.targets[0]))
            step, refresh, every = step_times(replace(run, validation=0.0), data, given.device)
            row = {
                "sampler": sampler,
                "step_ms": f"{step + refresh / every:.3f}",
                "refresh_ms": f"{refresh:.1f}",
                "every": every,
            }
            rows.append({key: str(value) for key, value in row.items()})
            write_table(path, rows)
            about = f"{row['step_ms']} ms per step, including {refresh:.0f} ms every {every} steps"
            print(f"{study.name} {sampler}: {about}", flush=True)
    return 0


def step_times(run: Run, data: DataSet, device: str) -> tuple[float, float, int]:
    """Milliseconds of a step and of a refresh of the sampler, and the steps between refreshes."""
    trainer = Trainer(run, data, device=device)
    taken = []
    for batch in islice(trainer.step.order(0), STEPS):
        taken.append(milliseconds(partial(trainer.step, batch), device))
        if sum(taken) > LONGEST and len(taken) > 2:
            break
    sampler = getattr(trainer.model.head.loss, "sampler", None)
    model = trainer.model
    step = statistics.median(taken[len(taken) // 5 :])  # the first ones compile or refresh
    if not isinstance(sampler, Blocks | Adversarial):
        return step, 0.0, 1
    hidden, _ = encoded_pairs(model, data.train, run.batch)
    scorer = Scorer(hidden, model.head.weight.detach(), model.head.bias)
    refresh = sampler.take_summary if isinstance(sampler, Blocks) else sampler.refit
    return step, milliseconds(partial(refresh, scorer), device), sampler.interval


def milliseconds(call: Callable[[], object], device: str) -> float:
    """Processor time on a CPU, which other load affects little; wall-clock time on a GPU."""
    if device == "cpu":
        begun = time.process_time()
        call()
        return 1000 * (time.process_time() - begun)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - begun)


def measure_noise(study: Study, source: Callable[[], DataSet], given: argparse.Namespace) -> int:
    """Compare samplers with the exact gradient; returns how many models are missing."""
    path = given.out / study.data / f"noise-{given.device}.csv"
    data = source()
    missing = 0
    for target in study.targets:
        name = named(MODEL, target)
        training = replace(
            TRAINING[study.data],
            lr=chosen(path.parent, study.data).get(name, TRAINING[study.data].lr),
        )
        folder = cells(training, [name], 1, data, path.parent)[0].folder
        if not (folder / "model.safetensors").exists():
            print(
                f"{study.name} {target}: `{name}` must be trained first, by {study.data}-learn",
                flush=True,
            )
            missing += 1
            continue
        model = load_model(folder)[0].to(given.device)
        head = model.head
        labels = model.head.labels
        exact = scheme(target, labels)
        assert isinstance(exact, ExactLoss), "a target is a loss over all labels"
        hidden, label = encoded_pairs(model, data.train, PAIRS)
        size = min(TRAINING[study.data].batch, len(label))
        batch = Batch(
            hidden,
            label,
            head.weight.detach(),
            head.bias,
            probes=max(1, size // 16),
            sets=min(4, size),
            size=size,
        )
        for sampler, m in ((sampler, m) for m in study.numbers for sampler in study.samplers):
            rows = read_table(path)
            key = {
                "target": target,
                "sampler": sampler,
                "m": str(labels.num_labels if sampler == "full" else m),
            }
            if any(key.items() <= row.items() for row in rows):
                continue
            torch.manual_seed(0)
            if sampler == "full":
                one = exactly(target, exact, batch)
            else:
                loss = scheme(f"{named(sampler, target)}@{m}", labels)
                assert isinstance(loss, SampledLoss), (
                    "a sampler and a weighting make a sampled loss"
                )
                [one] = on_model(
                    exact, {"": loss}, batch, generator=torch.Generator().manual_seed(0)
                )
            write_table(path, [*rows, key | flat(one)])
            print(
                f"{study.name} {target}, {sampler}@{m}: noise {one.squared_error:.3g}, cosine "
                f"{one.table.cosine:.3f}",
                flush=True,
            )
    return missing


def flat(one: OnModel) -> dict[str, str]:
    """The measurements by column name."""
    found = {name: value for name, value in asdict(one).items() if name not in ("scheme", "m")}
    parts = {
        f"{name}_{key}": value
        for name in ("hidden", "table")
        for key, value in found.pop(name).items()
    }
    return {name: f"{value:.6g}" for name, value in {**found, **parts}.items()}


def perform(study: Study, source: Callable[[], DataSet], given: argparse.Namespace) -> int:
    """Run what is missing of a study; returns how many runs failed."""
    return {"learn": learn, "fast": learn, "time": measure_times, "noise": measure_noise}[
        study.question
    ](study, source, given)


def main() -> int:
    """Run what is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with delicious/ and diginetica/"
    )
    parser.add_argument("--out", type=Path, default=Path("experiments/results/samplers"))
    names = ", ".join(f"{number} {study.name}" for number, study in enumerate(STUDIES))
    which = range(len(STUDIES))
    parser.add_argument(
        "--only",
        nargs="*",
        type=int,
        default=which,
        choices=which,
        metavar="N",
        help=f"numbers of studies: {names}",
    )
    parser.add_argument("--seeds", type=int, default=3, help="largest number of seeds")
    parser.add_argument("--workers", type=int, default=1, help="runs in parallel")
    parser.add_argument("--threads", type=int, default=None, help="threads of this process")
    parser.add_argument(
        "--minutes", type=float, default=None, help="stop after this time, with everything saved"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    torch.set_num_threads(given.threads or torch.get_num_threads())
    warnings.simplefilter("ignore")  # within-batch never draws labels without examples

    def one(study: Study) -> int:
        return perform(
            study,
            partial(load, GENERATED if study.data == "generated" else given.data / study.data),
            given,
        )

    return until_stopped((partial(one, STUDIES[number]) for number in given.only), given.minutes)


if __name__ == "__main__":
    sys.exit(main())
