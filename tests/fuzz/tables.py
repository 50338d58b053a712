"""Targets made by hypothesis: tables with columns of all kinds, and arguments of commands."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

import headtail
from headtail.cli.overview import COMMANDS
from tests.fuzz.engine import Case, output
from tests.fuzz.mutate import NUMBERS, WORDS
from tests.fuzz.readers import run_command, use

TOGETHER: list[dict[str, pa.DataType]] = [
    {"user": pa.int64(), "item": pa.string()},
    {"user": pa.string(), "item": pa.int64(), "time": pa.timestamp("ns")},
    {"session": pa.int64(), "item": pa.int64(), "time": pa.int64(), "rating": pa.float64()},
    {"user": pa.int64(), "item": pa.int64(), "rating": pa.int64()},
    {"items": pa.list_(pa.int64()), "target": pa.int64()},
    {"user": pa.string(), "items": pa.list_(pa.string())},
    {"label": pa.string(), "text": pa.string()},
    {"label": pa.list_(pa.string()), "features": pa.list_(pa.float32(), 2)},
    {"head": pa.string(), "relation": pa.string(), "tail": pa.string()},
    {"image": pa.binary(), "label": pa.int64()},
]
"""Columns that make data, by the kinds that they usually have."""
NAMES = sorted({name for roles in TOGETHER for name in roles})
FIELDS = {
    "user": ["user", "item", "1", "nope", ""],
    "item": ["item", "items", "label", "2"],
    "time": ["time", "user"],
    "label": ["label", "text", "3"],
    "text": ["text", "label"],
    "features": ["features", ["a", "b"], []],
    "rating": ["rating", "time"],
    "min_rating": [3, float("nan"), -1e999, "x"],
    "split": ["time", "last", "session", "random", "never"],
    "format": ["sequences", "interactions", "triples", "dense", "raw-text", "images", "xml"],
    "holdout": [0.5, 0, 1, -1, float("nan"), 1e-9, "half"],
    "last": [1, 3, 0, -1, 2**31, "ten"],
    "label_separator": ["|", "", "\n"],
    "ngrams": [1, 0, -5],
    "max_terms": [1, 0, -1],
    "skip_bad_lines": [True, 3],
}
"""Options of reading, right and wrong."""


# hypothesis also draws constants that it finds in the source of the modules that are imported, so
# that a case would change with them.
with suppress(ImportError):  # older ones do not
    from hypothesis.internal.constants_ast import Constants

    providers._get_local_constants = Constants  # pyright: ignore[reportPrivateUsage]


def drawn(strategy: st.SearchStrategy, case: Case) -> Any:
    """The value of a strategy for a case. The first two are the simplest ones, so the third."""
    values = []

    @settings(
        max_examples=3,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @seed(case.number)
    @given(strategy)
    def draw(value: Any) -> None:
        values.append(value)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draw()
    output()
    return values[-1]


def _columns(rows: int, of: pa.DataType | None = None) -> st.SearchStrategy[pa.Array]:
    """Columns of one kind, or of every kind that Arrow has; some with nulls."""
    whole = st.integers(0, 5)
    words = st.sampled_from(["a", "b", "the cat", *WORDS])
    kinds: dict[pa.DataType, st.SearchStrategy] = {
        pa.int64(): whole | st.sampled_from([-1, 2**53 + 1, 2**63 - 1, -(2**63)]),
        pa.uint64(): whole | st.just(2**64 - 1),
        pa.int8(): whole,
        pa.float64(): st.floats() | whole.map(float),
        pa.float32(): st.floats(width=32),
        pa.string(): words,
        pa.large_string(): words,
        pa.binary(): st.binary(max_size=4),
        pa.bool_(): st.booleans(),
        pa.null(): st.none(),
        pa.date32(): st.dates(),
        pa.timestamp("ns"): st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)),
        pa.timestamp("s", "UTC"): st.just(datetime(2020, 1, 1, tzinfo=UTC)),
        pa.duration("s"): st.just(timedelta(1)),
        pa.time32("s"): st.times().map(lambda t: t.replace(microsecond=0)),
        pa.decimal128(9, 2): st.sampled_from([Decimal("1.50"), Decimal(3)]),
        pa.list_(pa.int64()): st.lists(whole | st.none() | st.just(2**53 + 1), max_size=5),
        pa.list_(pa.string()): st.lists(words, max_size=4),
        pa.list_(pa.float32(), 2): st.just([0.5, 1.5]),
        pa.list_(pa.list_(pa.int32())): st.lists(st.lists(whole, max_size=2), max_size=2),
        pa.struct({"bytes": pa.binary(), "path": pa.string()}): st.just(
            {"bytes": b"x", "path": ""}
        ),
        pa.map_(pa.string(), pa.int32()): st.just([("a", 1)]),
    }

    def column(kind: pa.DataType) -> st.SearchStrategy[pa.Array]:
        some = kinds[kind] | st.none() if rows % 3 == 0 else kinds[kind]
        values = st.lists(some, min_size=rows, max_size=rows)
        return values.map(lambda held: pa.array(held, kind))

    if of is not None:
        return column(of)
    return st.sampled_from(list(kinds)).flatmap(column)


def tables() -> st.SearchStrategy[pa.Table]:
    """Tables of up to 30 rows: columns that belong together, and others with odd names."""
    names = st.sampled_from(NAMES) | st.sampled_from(WORDS)

    def of_size(rows: int) -> st.SearchStrategy[pa.Table]:
        other = st.tuples(names, _columns(rows))
        kind = st.sampled_from(TOGETHER)

        def known(roles: dict[str, pa.DataType]) -> st.SearchStrategy[list]:
            columns = [
                st.tuples(
                    st.just(name), _columns(rows, kind) | _columns(rows, kind) | _columns(rows)
                )
                for name, kind in roles.items()
            ]
            return st.tuples(*columns).map(list)

        some = kind.flatmap(known)
        both = st.tuples(some, st.lists(other, max_size=2)).map(lambda lists: lists[0] + lists[1])
        chosen = some | both | st.lists(other, min_size=1, max_size=5)
        return chosen.map(lambda held: pa.table([c for _, c in held], [n for n, _ in held]))

    return st.sampled_from([0, 1, 2, 8, 30, 31]).flatmap(of_size)


def options() -> st.SearchStrategy[dict[str, Any]]:
    """No option, or a few."""
    one = st.sampled_from(list(FIELDS)).flatmap(
        lambda name: st.tuples(st.just(name), st.sampled_from(FIELDS[name]))
    )
    return st.just({}) | st.lists(one, max_size=2).map(dict)


_WRITERS: dict[str, Callable[[pa.Table, Path], object]] = {
    "parquet": pq.write_table,
    "feather": lambda table, path: pyarrow.feather.write_feather(table, str(path)),
    "csv": lambda table, path: table.to_pandas().to_csv(path, index=False),
    "jsonl": lambda table, path: table.to_pandas().to_json(path, orient="records", lines=True),
}


def load_table(folder: Path, case: Case) -> bool:
    """A table of odd columns, in memory or in a file, is read or refused."""
    ways = st.sampled_from(["arrow", "pandas", *_WRITERS])
    table, how, way = drawn(st.tuples(tables(), options(), ways), case)
    data: Any = table
    try:
        if way == "pandas":
            data = table.to_pandas()
        elif way != "arrow":
            data = folder / f"table.{way}"
            _WRITERS[way](table, data)
    except Exception:
        return False  # the library that writes it cannot
    output()
    use(headtail.load(data, **how))
    return True


_OPTIONS = (
    "--out",
    "--k",
    "--scheme",
    "--schemes",
    "--seed",
    "--seeds",
    "--lr",
    "--dim",
    "--epochs",
    "--batch",
    "--device",
    "--split",
    "--holdout",
    "--last",
    "--format",
    "--label",
    "--user",
    "--item",
    "--time",
    "--slices",
    "--json",
    "--post-hoc",
    "--points",
    "--min-rating",
    "--to",
    "--model",
    "--data",
    "--target",
    "--help",
    "--debug",
    "--no-such",
    "--tune",
    "--recipe",
    "--workers",
    "--negatives",
    "--test",
    "--features",
    "--root",
    "--profile",
    "--imbalance",
    "--encoder",
    "--optimizer",
    "-h",
    "--",
    "-",
    "--=",
)
_SCHEMES = (
    "softmax",
    "within-batch:tail",
    "uniform:importance@4",
    "hard(2):tail@16",
    "logit-adjusted",
    "tail:tail",
    "uniform:tail@0",
    "uniform:tail@-1",
    "uniform@1e99",
    "hard(hard(hard(1)))",
    "::::",
    "@",
    "()",
    "mixture(",
)


def _words() -> st.SearchStrategy[str]:
    letters = st.characters(blacklist_characters="\0")
    misspelt = st.sampled_from([*_OPTIONS, *COMMANDS]).flatmap(
        lambda word: st.integers(0, len(word)).map(lambda i: word[:i] + word[i + 1 :])
    )
    return st.one_of(
        st.sampled_from(_OPTIONS),
        st.sampled_from([*NUMBERS, *_SCHEMES]),
        st.sampled_from([word for word in WORDS if "\0" not in word]),
        st.sampled_from(
            ["missing.csv", "x" * 300, "a/" * 2000, "/dev/null", "/proc/self/mem", "."]
        ),
        misspelt,
        st.text(letters, max_size=9),
        st.binary(min_size=1, max_size=4).map(os.fsdecode).filter(lambda word: "\0" not in word),
    )


@dataclass(frozen=True)
class RunArguments:
    """Commands with odd arguments are run or refused; none of them trains, because
    data that could be trained on are only named to commands that look at them.
    """

    run: Path
    data: Path

    def __call__(self, folder: Path, case: Case) -> bool:
        rng = case.random()
        words = drawn(st.lists(_words(), max_size=6), case)
        command = rng.choice([*COMMANDS, rng.choice(words or [""])])
        given = {
            "train": [["missing"]],
            "compare": [["missing"]],
            "stats": [[str(self.data)], ["synthetic:labels=-1"], ["synthetic:x=1e999"]],
            "predict": [[str(self.run), str(self.data), "--out", str(folder / "best.csv")]],
            "evaluate": [[str(self.run), str(self.data)]],
            "export": [[str(self.run), "--out", str(folder / "out"), "--to", "safetensors"]],
            "report": [[str(self.run)]],
        }.get(command, [[]])
        if command in ("bench", "advise", "doctor", "audit", "tune"):
            words = ["--no-such", *words]  # they measure for seconds where nothing stops them
        first = rng.choice(given) if rng.random() < 0.8 else []
        return run_command([command, *first, *words], folder, longest=10_000).accepted
