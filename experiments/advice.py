"""Runs behind `headtail advise`: gaps of sampled schemes to their targets, and probes to predict
them from.

    nice python experiments/advice.py --data DATA --minutes 30

Parts of Diginetica, Nowplaying, Beauty and Gowalla with few enough labels for the loss over all of
them on a CPU, Delicious, and generated data. On each, the softmax and the logit-adjusted loss are
trained, and so are their sampled schemes: three samplers, and `block(1)`, with several numbers of
negatives. Settings are the defaults of the kind of data but for `dim` and `batch`.

Before it starts, it prints how many runs are missing and about how long they take. One line per run
goes to experiments/results/advice.csv when it is over; a run that has a line is not run again.
Probes (`advice_probe.py`) go to advice-probes.csv: of all these sets, and of the whole
data sets whose runs are in retrieval.csv, samplers.csv and results/defaults. `advice_tables.py`
fits and tests the predictions.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from advice_probe import measure_probe, recall_of, train_probe
from defaults import recalls
from parts import read_part
from study_tables import read_table, write_table

from headtail.core.slices import NAMES
from headtail.data.facts import kind_of
from headtail.data.load import load
from headtail.data.points import DataSet
from headtail.data.slices import data_slices
from headtail.machine.target import Target
from headtail.training.config import Run
from headtail.training.trainer import Trainer

RESULTS = Path(__file__).parent / "results"
TARGETS = (Target(0.0), Target(1.0))
SAMPLERS = ("uniform", "within-batch")
NUMBERS = (16, 64, 256)
CANDIDATES = (
    *((name, m) for m in NUMBERS for name in SAMPLERS),
    ("frequency(0.5)", 64),
    ("block(1)", 64),
)


@dataclass(frozen=True)
class Studied:
    """A data set.

    Attributes:
        name: in the files.
        source: the data set that it is a part of; what is left out together when predictions are
            tested.
        data: a folder in --data, or generated data.
        labels: of the part that is taken; 0 for all.
        dim: size of the hidden states.
        batch: pairs in a batch.
        trained: whether models are trained here; else rows of other studies are used.
    """

    name: str
    source: str
    data: str
    labels: int = 0
    dim: int = 128
    batch: int = 256
    trained: bool = True


def _generated(name: str, shape: str) -> Studied:
    return Studied(name, name, f"synthetic:{shape}")


SETS = (
    Studied("delicious", "delicious", "delicious", trained=False),
    Studied(
        "amazoncat", "amazoncat", "synthetic:amazoncat-13k,scale=0.1", batch=1024, trained=False
    ),
    Studied("diginetica", "diginetica", "diginetica", batch=1024, trained=False),
    Studied("nowplaying", "nowplaying", "nowplaying", batch=1024, trained=False),
    Studied("beauty", "beauty", "beauty", batch=1024, trained=False),
    Studied("gowalla", "gowalla", "gowalla", batch=1024, trained=False),
    Studied(
        "wikilshtc", "wikilshtc", "synthetic:wikilshtc-325k,scale=0.1", batch=1024, trained=False
    ),
    Studied("diginetica-part", "diginetica", "diginetica", 2500),
    Studied("nowplaying-part", "nowplaying", "nowplaying", 3000),
    Studied("beauty-part", "beauty", "beauty", 3000),
    Studied("delicious-256", "delicious", "delicious"),
    _generated("generated-flat", "labels=1500,points=12000,zipf=0.5,seed=1"),
    _generated("generated-steep", "labels=3000,points=15000,zipf=1.2,seed=2"),
    Studied("gowalla-part", "gowalla", "gowalla", 2500),
)
MORE = (("uniform", 512), ("uniform", 1024), ("within-batch", 512), ("within-batch", 1024))
"""Candidates that only the whole data sets have."""


def read(studied: Studied, root: Path) -> DataSet:
    """A data set, or its part."""
    if studied.data.startswith("synthetic"):
        return load(studied.data)
    if not studied.labels:
        return load(root / studied.data)
    return read_part(root / studied.data, studied.labels)


def schemes_of(target: Target) -> list[str]:
    """The target and its sampled schemes."""
    return [target.name, *(target.sampled(name, m) for name, m in CANDIDATES)]


def train(studied: Studied, data: DataSet, until: float) -> None:
    """Train what is missing of a set."""
    path = RESULTS / "advice.csv"
    for target in TARGETS:
        names = [(target.name, "", 0), *((target.sampled(*one), *one) for one in CANDIDATES)]
        for name, sampler, m in names:
            lines = read_table(path)
            key = {"set": studied.name, "target": target.name, "sampler": sampler, "m": str(m)}
            if any(key.items() <= line.items() for line in lines) or time.monotonic() > until:
                continue
            begun = time.monotonic()
            run = Run(scheme=name, dim=studied.dim, batch=studied.batch)
            trained = Trainer(run, data).fit()
            measured = recalls("test", trained.model, data.test, data_slices(data))
            seconds = time.monotonic() - begun
            line = {"set": studied.name, "source": studied.source, **key}
            line |= {"batch": str(studied.batch), "dim": str(studied.dim), "seed": "0"}
            line |= {"labels": str(data.train.num_labels), "pairs": str(data.train.num_pairs)}
            line |= {"best_epoch": str(trained.state.best_epoch)} | measured
            line |= {"seconds": f"{seconds:.1f}"}
            write_table(path, [*lines, line])
            shown = " ".join(f"{100 * float(measured[f'test_{s}']):.1f}" for s in (*NAMES, "full"))
            print(f"{studied.name} {name}: {shown}, {seconds:.0f} s", flush=True)


def probe(studied: Studied, data: DataSet) -> None:
    """Train and measure the probe of a set, unless that is done."""
    path = RESULTS / "advice-probes.csv"
    if any(line["set"] == studied.name for line in read_table(path)):
        return
    begun = time.monotonic()
    model = train_probe(data, batch=studied.batch)
    slices = data_slices(data)
    new = []
    fixed = [one for one in CANDIDATES if one[0] != "block(1)"]
    candidates = fixed if studied.trained else [*fixed, *MORE]
    for target in TARGETS:
        recall = {"recall": f"{recall_of(model, data.test, target):.5f}"}
        found = measure_probe(model, data, slices, target, candidates, studied.batch)
        for (sampler, m), shift in found.items():
            line = {"set": studied.name, "source": studied.source, "target": target.name}
            line |= {"sampler": sampler, "m": str(m), "batch": str(studied.batch)}
            line |= {"labels": str(data.train.num_labels), "pairs": str(data.train.num_pairs)}
            line["kind"] = kind_of(data)
            for part, by_slice in asdict(shift).items():
                line |= {f"{part}_{name}": f"{value:.6g}" for name, value in by_slice.items()}
            new.append(line | recall)
    write_table(path, [*read_table(path), *new])
    print(f"{studied.name}: probe, {time.monotonic() - begun:.0f} s", flush=True)


def missing(sets: Iterable[Studied]) -> int:
    """How many runs have no line yet."""
    lines = read_table(RESULTS / "advice.csv")
    done = {(line["set"], line["target"], line["sampler"], line["m"]) for line in lines}
    wanted = {
        (one.name, target.name, sampler, str(m))
        for one in sets
        if one.trained
        for target in TARGETS
        for sampler, m in (("", 0), *CANDIDATES)
    }
    return len(wanted - done)


def main() -> int:
    """Run what is missing."""
    about = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=about)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--only", nargs="*", default=None, help="names of sets")
    parser.add_argument("--minutes", type=float, default=30.0, help="begin no run after these")
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sets = [one for one in SETS if given.only is None or one.name in given.only]
    number = missing(sets)
    print(f"{number} runs of about 8 s each, {number * 8 / 60:.0f} minutes; and the probes")
    for studied in sets:
        if time.monotonic() < until:
            data = read(studied, given.data)
            probe(studied, data)
            if studied.trained:
                train(studied, data, until)
    return 0


if __name__ == "__main__":
    sys.exit(main())
