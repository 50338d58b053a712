"""Turn the runs of `samplers.py` into the committed rows and the tables of
docs/results-samplers.md.

    .venv/bin/python experiments/samplers_tables.py experiments/results/samplers

writes `samplers.csv` (test rows), `samplers-gaps.csv`, `samplers-tuning.csv`, `samplers-noise.csv`
and `samplers-times.csv` next to the folder, and the tables into `docs/results-samplers.md`, between
their markers. Rows of runs that are not in the folder are kept. Runs that only the retrieval study
has, with the same settings, are taken from `retrieval.csv`. `docs/figures/samplers.py` draws the
figures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from study_tables import given_folder, publish, read_table, rows_in, shown, with_known, write_table

from headtail.comparison.results import Row, read_rows
from headtail.files.atomic import write_text
from headtail.files.records import to_csv
from headtail.metrics import mean_and_deviation
from headtail.training.config import Run
from samplers import CHEAP, TRAINING, chosen, tried

PAGE = Path(__file__).parents[1] / "docs" / "results-samplers.md"
RESULTS = Path(__file__).parent / "results"
TARGETS = {"logit-adjusted": "tail", "softmax": "importance"}
SLICES = ("head", "torso", "tail")
COLUMNS = (
    *(("recall@10", slice_) for slice_ in (*SLICES, "full")),
    ("recall@1", "full"),
    ("recall@50", "full"),
)
HEADLINE = (
    "uniform",
    "within-batch",
    "within-batch@512",
    "within-batch@1024",
    "block",
    "block(1)",
    "hard",
    "tilted",
    "full",
)
"""Samplers of the first table."""
NOISE = {
    "σ²/(mμ²)": "squared_error",
    "bias of the loss": "bias",
    "n_eff": "effective",
    "cos h": "hidden_cosine",
    "cos W": "table_cosine",
    "error W": "table_error",
    "draw, ms": "draw_seconds",
    "draw and gradients, ms": "step_seconds",
}


def rows_of(folder: Path) -> list[Row]:
    """Test rows of finished runs at the chosen rates; `dataset` is DATA-learn, or DATA-fast if
    shorter.
    """
    rows = []
    rates = {data: chosen(folder / data, data) for data in TRAINING}
    for path in sorted(folder.glob("*/cells/*/results.csv")):
        data = path.parents[2].name
        run = Run.read(path.parent / "run.toml")
        if rates[data].get(run.scheme) != run.lr:
            continue
        question = "learn" if run.epochs == TRAINING[data].epochs else "fast"
        found = [
            row
            for row in read_rows(path)
            if row.split == "test" and row.metric.startswith("recall@")
        ]
        rows += [replace(row, dataset=f"{data}-{question}", epoch=run.epochs) for row in found]
    return rows


def tuning_of(folder: Path, data: str) -> list[dict[str, str]]:
    """Every rate tried with seed 0: its held-out loss, and test Recall@10, which chose nothing."""
    rates = chosen(folder / data, data)
    losses = tried(folder / data, data)
    lines = []
    for path in sorted((folder / data).glob("cells/*/results.csv")):
        run = Run.read(path.parent / "run.toml")
        if run.seed == 0 and run.epochs == TRAINING[data].epochs:
            recall = {
                row.slice: f"{row.value:.4f}"
                for row in read_rows(path)
                if (row.split, row.metric) == ("test", "recall@10")
            }
            about = {
                "data": data,
                "scheme": run.scheme,
                "lr": f"{run.lr:g}",
                "chosen": str(run.lr == rates[run.scheme]),
            }
            lines.append(
                about
                | {"implicit_loss": f"{losses[run.scheme][run.lr]:.6g}"}
                | {name: recall[name] for name in SLICES}
            )
    return lines


def with_retrieval(rows: Sequence[Row], beside: Path) -> list[Row]:
    """Add the retrieval study's rows where there are none: all-label losses, and m = 64."""
    have = {(row.dataset, row.scheme) for row in rows}
    known = [row for row in rows_in(beside) if row.dataset in TRAINING]
    for row in (
        replace(row, dataset=f"{row.dataset}-learn", epoch=TRAINING[row.dataset].epochs)
        for row in known
    ):
        sampled = (
            row.m == 64
            and row.scheme.partition(":")[2] in TARGETS.values()
            and row.scheme.partition(":")[0] in CHEAP
        )
        if (
            row.metric.startswith("recall@")
            and (row.scheme in TARGETS or sampled)
            and (row.dataset, row.scheme) not in have
        ):
            rows = [*rows, row]
    return list(rows)


Values = dict[tuple[str, float, str, str], list[float]]
"""Scheme, epochs, metric and slice: values by seed."""


def values_of(rows: Sequence[Row], data: str, target: str) -> Values:
    """The runs on one data set that approximate a target, and those of the target itself."""
    values: Values = defaultdict(list)
    for row in rows:
        if row.dataset.startswith(f"{data}-") and (
            row.scheme == target or f":{TARGETS[target]}" in row.scheme
        ):
            values[row.scheme, row.epoch, row.metric, row.slice].append(row.value)
    return values


def gap_of(values: Values, target: str, scheme: str, epochs: float) -> float | None:
    """The largest difference in Recall@10 from the target over head, torso and tail, in points."""
    longest = max(of_run for _, of_run, *_ in values)
    gaps = []
    for slice_ in SLICES:
        own = values.get((scheme, epochs, "recall@10", slice_))
        full = values.get((target, longest, "recall@10", slice_))
        if own and full:
            gaps.append(abs(100 * (mean_of(own) - mean_of(full))))
    return None if scheme == target or not gaps else max(gaps)


def gap_lines(rows: Sequence[Row]) -> list[dict[str, str]]:
    """The gap of every sampled scheme, as rows."""
    lines = []
    for data, target in product(TRAINING, TARGETS):
        values = values_of(rows, data, target)
        for scheme, epochs in sorted({key[:2] for key in values}):
            gap = gap_of(values, target, scheme, epochs)
            if gap is None:
                continue
            seeds = len(values[scheme, epochs, "recall@10", "full"])
            line = {"data": data, "target": target, "sampler": sampler_of(scheme)}
            line |= {"epochs": f"{epochs:g}", "seeds": str(seeds), "gap": f"{gap:.3f}"}
            lines.append(line)
    return lines


def learning_table(
    rows: Sequence[Row], data: str, target: str, on_cpu: dict[str, float], on_gpu: dict[str, float]
) -> str:
    """Markdown table: schemes by slices, fastest first, with the largest gap to the target.

    Times are relative to uniform's whole run, from the milliseconds per step on a CPU and a GPU.
    """
    values = values_of(rows, data, target)
    found = {(scheme, epochs) for scheme, epochs, *_ in values}
    longest = max((epochs for _, epochs in found), default=0.0)
    columns = " | ".join(f"{metric.replace('recall', 'R')} {slice_}" for metric, slice_ in COLUMNS)
    lines = [
        f"| scheme | epochs | CPU time | GPU time | seeds | {columns} | gap |",
        "|---|" + "--:|" * (len(COLUMNS) + 5),
    ]
    for scheme, epochs in sorted(
        found,
        key=lambda key: (key[0] != target, on_cpu.get(sampler_of(key[0]), 0.0), key[0], -key[1]),
    ):
        cells = [shown(values.get((scheme, epochs, *column), [])) for column in COLUMNS]
        gap = gap_of(values, target, scheme, epochs)
        time = [in_uniform_runs(scheme, epochs / longest, times) for times in (on_cpu, on_gpu)]
        about = [f"{epochs:g}", *time, str(len(values[scheme, epochs, "recall@10", "full"]))]
        ending = "" if gap is None else f"{gap:.1f}"
        lines.append(f"| {scheme} | " + " | ".join([*about, *cells, ending]) + " |")
    return "\n".join(lines)


def headline(gaps: Sequence[dict[str, str]], times: Sequence[dict[str, str]]) -> str:
    """Markdown table of the samplers to choose from: time and gap on Diginetica."""
    step = {(line["device"], line["sampler"]): float(line["step_ms"]) for line in times}
    gap = {
        (line["target"], line["sampler"]): f"{float(line['gap']):.1f}"
        for line in gaps
        if (line["data"], line["epochs"]) == ("diginetica", f"{TRAINING['diginetica'].epochs}")
    }
    lines = [
        "| sampler, m = 64 unless `@m` | step on a CPU, ms | step on an H200, ms | gap to logit "
        "adjustment | gap to the softmax |",
        "|---|--:|--:|--:|--:|",
    ]
    for sampler in HEADLINE:
        found = (step.get((device, sampler)) for device in ("cpu", "cuda"))
        cells = [f"`{sampler}`" if sampler != "full" else "all labels"]
        cells += ["–" if ms is None else number(ms) for ms in found]
        cells += [gap.get((target, sampler), "0") for target in TARGETS]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def in_uniform_runs(scheme: str, share: float, times: dict[str, float]) -> str:
    """The time of a share of the epochs relative to uniform's whole run; – if not measured.

    >>> in_uniform_runs("block:tail", 3 / 8, {"uniform": 10.0, "block": 28.0})
    '1.1'
    """
    step = times.get(sampler_of(scheme))
    uniform = times.get("uniform")
    return "–" if step is None or uniform is None else f"{share * step / uniform:.2g}"


def sampler_of(scheme: str) -> str:
    """The `SAMPLER[@m]` part of a scheme.

    >>> sampler_of("within-batch:tail@512"), sampler_of("softmax")
    ('within-batch@512', 'full')
    """
    name, at, m = scheme.partition("@")
    sampler, colon, _ = name.partition(":")
    return sampler + at + m if colon else "full"


def mean_of(values: list[float]) -> float:
    """Mean over seeds."""
    return mean_and_deviation(values)[0]


def noise_table(rows: Sequence[dict[str, str]], target: str, m: str = "64") -> str:
    """Markdown table: samplers, noisiest first."""
    lines = ["| sampler | " + " | ".join(NOISE) + " |", "|---|" + "--:|" * len(NOISE)]
    of_target = [
        row
        for row in rows
        if row["target"] == target and (row["m"] == m or row["sampler"] == "full")
    ]
    for row in sorted(of_target, key=lambda row: -float(row["squared_error"])):
        numbers = {
            name: float(row[key]) * (1000 if key.endswith("seconds") else 1)
            for name, key in NOISE.items()
        }
        if row["sampler"] == "full":
            numbers["draw, ms"] = 0.0
        lines.append(
            f"| {row['sampler']} | "
            + " | ".join(number(value) for value in numbers.values())
            + " |"
        )
    return "\n".join(lines)


def number(value: float) -> str:
    """Three digits; rounding errors as 0."""
    return "0" if abs(value) < 1e-9 else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def measured(lines: Sequence[dict[str, str]], data: str, *devices: str) -> list[dict[str, str]]:
    """The measurements on a data set, on the first of these devices that has any."""
    by = {
        device: [line for line in lines if (line["data"], line["device"]) == (data, device)]
        for device in devices
    }
    return next((found for found in by.values() if found), [])


def times_table(times: Sequence[dict[str, str]]) -> str:
    """Markdown table: milliseconds per training step."""
    uniform = next((float(row["step_ms"]) for row in times if row["sampler"] == "uniform"), None)
    lines = [
        "| sampler | step, ms | × uniform | refresh: ms per step (ms each) | refresh every … steps "
        "|",
        "|---|--:|--:|--:|--:|",
    ]
    for row in sorted(times, key=lambda row: float(row["step_ms"])):
        step = float(row["step_ms"])
        refresh = float(row["refresh_ms"])
        every = int(row["every"])
        ratio = "–" if uniform is None else f"{step / uniform:.2g}"
        share = f"{refresh / every:.2g} ({refresh:,.0f})" if refresh else "–"
        lines.append(
            f"| {row['sampler']} | {step:.3g} | {ratio} | {share} | {every if refresh else '–'} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Write the CSV files and the tables."""
    folder = given_folder()
    beside = folder.parent
    rows = with_known(rows_of(folder), rows_in(beside / "samplers.csv"), _run)
    rows.sort(key=_run)
    write_text(beside / "samplers.csv", to_csv(rows, Row))
    tuning = [line for data in TRAINING for line in tuning_of(folder, data)]
    tuning = _with_held(beside / "samplers-tuning.csv", tuning, "data", "scheme", "lr")
    write_table(
        beside / "samplers-tuning.csv",
        sorted(tuning, key=lambda line: (line["data"], line["scheme"], float(line["lr"]))),
    )
    found = {
        "noise": ("data", "device", "target", "sampler", "m"),
        "times": ("data", "device", "sampler"),
    }
    for kind, key in found.items():
        new = [
            {"data": path.parent.name, "device": path.stem.partition("-")[2], **line}
            for path in sorted(folder.glob(f"*/{kind}-*.csv"))
            for line in read_table(path)
        ]
        held = _with_held(beside / f"samplers-{kind}.csv", new, *key)
        write_table(
            beside / f"samplers-{kind}.csv",
            sorted(held, key=lambda line: (line["data"], line["device"])),
        )
    write_table(
        beside / "samplers-gaps.csv", gap_lines(with_retrieval(rows, beside / "retrieval.csv"))
    )
    publish(PAGE, tables(beside))


def tables(folder: Path = RESULTS) -> dict[str, str]:
    """The tables of the page, from the rows."""
    noise, times = (read_table(folder / f"samplers-{kind}.csv") for kind in ("noise", "times"))
    both = with_retrieval(rows_in(folder / "samplers.csv"), folder / "retrieval.csv")
    on_diginetica = [line for line in times if line["data"] == "diginetica"]
    parts = {"headline": headline(read_table(folder / "samplers-gaps.csv"), on_diginetica)}
    for data in TRAINING:
        on_cpu = measured(times, data, "cpu", "cuda")
        on_gpu = measured(times, data, "cuda")
        parts[f"{data} times"] = times_table(on_cpu)
        parts[f"{data} times cuda"] = times_table(on_gpu)
        step, gpu_step = (
            {line["sampler"]: float(line["step_ms"]) for line in lines}
            for lines in (on_cpu, on_gpu)
        )
        for target in TARGETS:
            parts[f"{data} {target}"] = learning_table(both, data, target, step, gpu_step)
            parts[f"{data} noise {target}"] = noise_table(
                measured(noise, data, "cpu", "cuda"), target
            )
    return {name: part if part.count("\n") > 1 else "Not run yet." for name, part in parts.items()}


def _run(row: Row) -> tuple[str, str, float, int]:
    return row.dataset, row.scheme, row.epoch, row.seed


def _with_held(path: Path, new: Sequence[dict[str, str]], *key: str) -> list[dict[str, str]]:
    """The new lines, and those of the file with other keys."""
    return with_known(new, read_table(path), lambda line: tuple(line[name] for name in key))


if __name__ == "__main__":
    main()
