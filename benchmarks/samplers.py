"""Noise and step time of samplers on a trained Diginetica model; and how their cost grows with the
number of labels.

Targets: a fifth of uniform's noise and half of within-batch's in at most three of uniform's steps;
and a cost that grows no faster than √L from 10^4 to 10^6 labels, refreshes included, in long runs
and over the first 1,000 steps. README.md says what the rows show.

Run: .venv/bin/python benchmarks/samplers.py --data DATA/diginetica [--model RUN] [--threads 1]
     .venv/bin/python benchmarks/samplers.py --growth

Noise is σ²/(mμ²), the squared error of the sampled softmax loss to first order, over examples of
one training batch, by formula. A step is a whole one: batch, encoder, draw, loss, gradients,
update, and its share of the sampler's periodic refresh. Draws and refreshes are in processor time,
which on one thread equals wall-clock time on an idle machine. Without --model, a model is trained
first: within-batch:importance, 3 epochs, about two minutes.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from functools import partial
from itertools import islice
from pathlib import Path

import torch

import headtail as ht
from headtail.data.batches import Batches
from headtail.data.load import load
from headtail.data.points import DataSet
from headtail.encoders import Model
from headtail.samplers import Sampler, Scorer
from headtail.samplers.model.blocks import Blocks
from headtail.samplers.model.schedule import next_refresh
from headtail.schemes import build_sampler
from headtail.training.callbacks import Callback, Progress
from headtail.training.config import Run
from headtail.training.saved_model import load_model
from headtail.training.trainer import Trainer
from machine import append

SAMPLERS = (
    "uniform",
    "within-batch",
    "frequency(0.5)",
    "block",
    "block(1)",
    "block(32,uniform)",
    "resampled(512)",
    "resampled(512,frequency(0.5))",
    "quadratic-kernel",
    "fourier-kernel",
    "adversarial",
)
EXAMPLES = 256
"""Examples of the batch for which noise is computed."""
STEPS = 25
BEGINNING = 1000
"""First steps of a run, in which refreshes are most frequent."""
PAIRS = 410
"""Batches that a sampler which learns from pairs sees before it is measured."""


class Shown(Callback):
    """A line that shows how far training is."""

    def on_step(self, progress: Progress, loss: float) -> None:
        """Write it again."""
        step = f"step {progress.step} of {progress.epochs * progress.steps_per_epoch}"
        print(f"\rtraining a model: {progress.epoch} epochs, {step}  ", end="", flush=True)


def trained(data: DataSet, folder: Path | None) -> Model:
    """The model of a run's folder, or a new one."""
    if folder is not None:
        return load_model(folder)[0]
    run = Run(
        scheme="within-batch:importance",
        batch=1024,
        negatives=256,
        epochs=3,
        dropout=0.5,
        lr=0.04,
        schedule="constant",
    )
    model = Trainer(run, data, callbacks=Shown()).fit().model
    print()
    return model


def noise(
    sampler: Sampler, model: Scorer, target: torch.Tensor, examples: int
) -> torch.Tensor | None:
    """`[n]` σ²/(mμ²) of the first n examples, importance weights, collisions masked."""
    every = torch.arange(len(model.weight))
    batch = len(target)
    few = Scorer(model.input[:examples], model.weight, model.bias)
    share = few.logits(slice(0, len(every))).double().softmax(1)
    step = ht.samplers.Step.expected(target[:examples], batch, few)
    if isinstance(sampler, ht.Resampled):  # it has no q per label, but a variance
        return sampler.variance_of_target(step, share.scatter(1, target[:examples, None], 0.0))
    # Neighbours of a group stay together.
    q = sampler.log_q_given(ht.samplers.Step.expected(target, batch, model), every)[:examples].exp()
    term = torch.where(q > 0, share / (sampler.expected_m(batch) * q), 0.0)
    term.scatter_(1, target[:examples, None], 0.0)
    return sampler.variance_given(step, term)


def timed(call, times: int) -> float:
    """Median milliseconds of processor time."""
    taken = []
    for _ in range(times):
        start = time.process_time()
        call()
        taken.append(1000 * (time.process_time() - start))
    return statistics.median(taken)


def refresh_time(sampler: Sampler, model: Scorer) -> tuple[float, float, float]:
    """Milliseconds of a refresh, its share per step in long runs, and in the first steps."""
    if not isinstance(sampler, Blocks | ht.Adversarial):
        return 0.0, 0.0, 0.0
    refresh = sampler.take_summary if isinstance(sampler, Blocks) else sampler.refit
    whole = timed(partial(refresh, model), 3)
    taken = 0
    number = 0
    while taken < BEGINNING:
        taken = next_refresh(taken, sampler.num_labels, sampler.interval)
        number = number + 1
    return whole, whole / sampler.interval, number * whole / BEGINNING


def on_model(
    data: DataSet, model: Model, names: tuple[str, ...], sizes: list[int], batch: int
) -> list[dict[str, object]]:
    """Noise, time per draw and time per step of each sampler and m."""
    rows = []
    for m in sizes:
        trainers = {name: _trainer(data, model, name, m, batch) for name in names}
        times = _step_times(trainers)
        some = trainers[names[0]].batches
        taken = some.take(next(iter(some.order(0, 0))))
        assert isinstance(taken.target, torch.Tensor), "batches of pairs"
        with torch.no_grad():
            scorer = Scorer(
                model.encoder(taken.features), model.head.weight.detach(), model.head.bias.detach()
            )  # pyright: ignore
        for name in names:
            sampler = build_sampler(name, model.head.labels, m).eval()
            draw = {"model": scorer, "needs_target_q": False}
            sampler.draw(taken.target, **draw)
            if isinstance(sampler, ht.Adversarial):
                _show_pairs(sampler, model, some)
            found = noise(sampler, scorer, taken.target, EXAMPLES)
            row = {
                "data": data.name,
                "labels": len(scorer.weight),
                "dim": scorer.weight.shape[1],
                "batch": batch,
                "sampler": name,
                "m": m,
            }
            row |= {"noise_mean": "" if found is None else f"{float(found.mean()):.4g}"}
            row |= {"noise_median": "" if found is None else f"{float(found.median()):.4g}"}
            time_a_draw = timed(partial(sampler.draw, taken.target, **draw), STEPS)
            refresh, a_step, at_first = refresh_time(sampler, scorer)
            row |= {"draw_ms": f"{time_a_draw:.3f}"}
            row |= {"refresh_ms": f"{refresh:.1f}", "step_ms": f"{times[name][0] + a_step:.2f}"}
            row |= {
                "step_cpu_ms": f"{times[name][1] + a_step:.2f}",
                "threads": torch.get_num_threads(),
            }
            row |= {
                "amortised_ms": f"{time_a_draw + a_step:.3f}",
                "amortised_at_first_ms": f"{time_a_draw + at_first:.3f}",
            }
            printed = (
                "sampler",
                "m",
                "noise_mean",
                "noise_median",
                "draw_ms",
                "step_ms",
                "step_cpu_ms",
            )
            print("  ".join(f"{key} {row[key]}" for key in printed), flush=True)
            rows.append(row)
    return rows


def _show_pairs(sampler: Sampler, model: Model, batches: Batches) -> None:
    """Show pairs to a sampler that learns from them, as training would."""
    sampler.train()
    for ids in islice(batches.order(0, 0), PAIRS):
        batch = batches.take(ids)
        with torch.no_grad():
            hidden = model.encoder(batch.features)
        scorer = Scorer(hidden, model.head.weight, model.head.bias)
        sampler.draw(batch.target, model=scorer, needs_target_q=False)
    sampler.eval()


def _trainer(data: DataSet, model: Model, name: str, m: int, batch: int) -> Trainer:
    run = Run(
        scheme=f"{name}:importance",
        batch=batch,
        negatives=m,
        dropout=0.5,
        lr=1e-6,
        schedule="constant",
        validation=0,
    )
    trainer = Trainer(run, data)
    with torch.no_grad():
        for own, known in zip(trainer.model.parameters(), model.parameters(), strict=True):
            own.copy_(known)
    return trainer


def _step_times(trainers: dict[str, Trainer]) -> dict[str, tuple[float, ...]]:
    """Median step of each, by the clock and in processor time; turn by turn, so that what else the
    machine does meets all alike.
    """
    orders = {name: trainer.step.order(0) for name, trainer in trainers.items()}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in trainers}
    for _ in range(STEPS):
        for name, trainer in trainers.items():
            batch = next(orders[name])
            start = time.perf_counter(), time.process_time()
            trainer.step(batch)
            taken[name].append(
                (1000 * (time.perf_counter() - start[0]), 1000 * (time.process_time() - start[1]))
            )
    return {
        name: tuple(map(statistics.median, zip(*times[3:], strict=True)))
        for name, times in taken.items()
    }


def growth(
    names: tuple[str, ...], sizes: list[int], batch: int, m: int, dim: int
) -> list[dict[str, object]]:
    """Time of a draw and of a refresh against the number of labels, on 100 noisy directions."""
    rows = []
    for size in sizes:
        torch.manual_seed(0)
        centres = torch.randn(100, dim) * (2 * dim**-0.5)
        weight = centres[torch.randint(100, (size,))].add_(torch.randn(size, dim), alpha=dim**-0.5)
        target = torch.randint(size, (batch,))
        scorer = Scorer(2 * weight[target] + torch.randn(batch, dim) * dim**-0.5, weight)
        labels = ht.Labels.from_counts(torch.ones(size, dtype=torch.int64))
        for name in names:
            sampler = build_sampler(name, labels, m).eval()
            draw = {"model": scorer, "needs_target_q": False}
            sampler.draw(target, **draw)
            time_a_draw = timed(partial(sampler.draw, target, **draw), STEPS)
            refresh, a_step, at_first = refresh_time(sampler, scorer)
            row = {
                "data": "generated",
                "labels": size,
                "dim": dim,
                "batch": batch,
                "sampler": name,
                "m": m,
            }
            row |= {
                "noise_mean": "",
                "noise_median": "",
                "draw_ms": f"{time_a_draw:.3f}",
                "refresh_ms": f"{refresh:.1f}",
            }
            row |= {"step_ms": "", "step_cpu_ms": "", "threads": torch.get_num_threads()}
            row |= {
                "amortised_ms": f"{time_a_draw + a_step:.3f}",
                "amortised_at_first_ms": f"{time_a_draw + at_first:.3f}",
            }
            printed = (
                "labels",
                "sampler",
                "draw_ms",
                "refresh_ms",
                "amortised_ms",
                "amortised_at_first_ms",
            )
            print("  ".join(f"{key} {row[key]}" for key in printed), flush=True)
            rows.append(row)
    for name in names:
        own = [row for row in rows if row["sampler"] == name]
        for key in ("draw_ms", "amortised_ms", "amortised_at_first_ms"):
            times = float(str(own[-1][key])) / float(str(own[0][key]))
            print(
                f"{name}: {key} grows {times:.1f} times, √L {(sizes[-1] / sizes[0]) ** 0.5:.1f} "
                "times"
            )
    return rows


def main() -> None:
    """Rows go to results/samplers.csv."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="the Diginetica files")
    parser.add_argument("--model", type=Path, help="folder of a finished run on that data")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument(
        "--labels",
        type=float,
        nargs="+",
        default=[1e4, 1e5, 1e6],
        help="numbers of labels for --growth",
    )
    parser.add_argument("--samplers", nargs="+", default=SAMPLERS)
    parser.add_argument("-m", type=int, nargs="+", default=[64])
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    if given.data is None and not given.growth:
        parser.error(
            "--data is missing: give the folder of Diginetica, as in --data DATA/diginetica"
        )
    torch.set_num_threads(given.threads)
    warnings.simplefilter("ignore")  # within-batch never draws labels without examples
    if given.growth:
        rows = growth(
            ("block", "quadratic-kernel", "fourier-kernel", "resampled(512)"),
            [int(size) for size in given.labels],
            given.batch,
            given.m[0],
            64,
        )
    else:
        data = load(given.data)
        rows = on_model(
            data, trained(data, given.model), tuple(given.samplers), given.m, given.batch
        )
    print(append("samplers", rows))


if __name__ == "__main__":
    main()
