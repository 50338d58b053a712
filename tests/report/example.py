"""What the tests look at: artificial comparisons, with real explanations and invented measurements;
and a browser to look with.
"""

from __future__ import annotations

import json
import math
import os
import select
import shutil
import subprocess
import time
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from headtail import Labels, explain, scheme
from headtail.comparison.results import ClassError, Comparison, Row
from headtail.schemes import PAPER

SCHEMES = (*PAPER, "softmax", "logit-adjusted")
SLICES = {"head": 0.52, "torso": 0.38, "tail": 0.17, "full": 0.41}
METRICS = {
    **{f"recall@{k}": scale for k, scale in ((1, 0.45), (10, 1.0), (50, 1.35))},
    **{f"precision@{k}": scale for k, scale in ((1, 1.1), (3, 0.8), (5, 0.6))},
    **{f"ndcg@{k}": scale for k, scale in ((1, 1.1), (3, 0.95), (5, 0.9))},
    **{f"psp@{k}": scale for k, scale in ((1, 0.7), (3, 0.72), (5, 0.75))},
    "coverage@10": 0.9,
    "macro-recall@10": 0.6,
    "balanced-error": 1.3,
    "class-weighted-error": 1.1,
}


@cache
def explained(names: tuple[str, ...] = SCHEMES) -> dict[str, dict[str, Any]]:
    labels = Labels.zipf(2000, rarest=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {name: explain(scheme(name, labels, 64), labels, batch_size=128) for name in names}
    return {
        name: {
            "name": one.name,
            "equation": one.equation,
            "rho": one.rho,
            "leans": one.leans,
            "lean": one.lean,
            "noise_untrained": max(
                (x.noise_untrained for x in one.examples if x.noise_untrained is not None),
                default=None,
            ),
            "m": one.m,
            "notes": one.notes,
        }
        for name, one in found.items()
    }


def comparison(
    names: tuple[str, ...] = SCHEMES,
    seeds: int = 3,
    epochs: int = 12,
    popular: bool = True,
    **changed: Any,
) -> Comparison:
    """Recall moves from head to tail with the lean, and with noise it falls everywhere."""
    random = np.random.default_rng(0)
    about = explained(names)
    rows = []
    for name in names:
        for seed in range(seeds):
            rows += _run(name, about[name], seed, epochs, random)
    if popular:
        rows += [
            row(
                "test",
                "most-popular",
                0,
                slice_,
                "recall@10",
                {"head": 0.11, "full": 0.06}.get(slice_, 0.0),
            )
            for slice_ in SLICES
        ]
    labels = Labels.zipf(2000, rarest=4)
    counts = labels.counts.tolist()
    slices = labels.slices(head=100, tail=20)
    ranks = sorted({round(rank) for rank in np.geomspace(1, len(counts), 200)})
    ends = np.cumsum(list(slices.sizes.values())).tolist()
    data = {
        "name": "Wiki-2K",
        "train_points": 14146,
        "test_points": 6616,
        "num_features": 101938,
        "num_labels": len(counts),
        "num_pairs": sum(counts),
        "labels_per_point": 18.64,
        "features_per_point": 673.4,
        "never_seen": 37,
        "gini": 0.714,
        "imbalance": counts[0] / counts[-1],
        "digest": "5f0c7d2b9a",
        "notes": ["37 labels of the test part never occur in training."],
        "slices": {
            "rule": slices.rule,
            "sizes": slices.sizes,
            "last_rank": dict(zip(slices.sizes, ends, strict=True)),
        },
        "curve": [[rank, counts[rank - 1]] for rank in ranks],
    }
    made_by = {
        "command": "headtail compare wiki-2k --schemes paper softmax logit-adjusted --seeds 3",
        "finished": "2026-02-03 10:21",
        "versions": {"headtail": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
        "machine": "2 cores, 8 GiB",
    }
    settings = {
        "epochs": epochs,
        "batch": 128,
        "learning_rate": 0.001,
        "hidden": 512,
        "optimiser": {"name": "adam", "decay": 0.0},
    }
    parts = {
        "rows": rows,
        "data": data,
        "schemes": about,
        "settings": settings,
        "made_by": made_by,
        "failures": {},
    }
    return Comparison(**(parts | changed))


def row(
    split: str,
    scheme: str,
    seed: int,
    slice_: str,
    metric: str,
    value: float,
    epoch: float = 12,
    spread: float = 0.008,
) -> Row:
    ends = (
        (max(value - spread, 0.0), value + spread)
        if split == "test" and math.isfinite(value)
        else (None, None)
    )
    return Row(
        "r",
        "wiki-2k",
        split,
        "softmax",
        scheme,
        None,
        seed,
        epoch,
        int(100 * epoch),
        slice_,
        metric,
        value,
        *ends,
    )


def _run(
    name: str, about: dict[str, Any], seed: int, epochs: int, random: np.random.Generator
) -> list[Row]:
    lean = math.tanh(about["lean"] / 4)
    noise = min(about["noise_untrained"] or 0.0, 3.0)
    shift = {"head": -0.10, "torso": 0.02, "tail": 0.13, "full": -0.02}
    rows = []
    for slice_, level in SLICES.items():
        recall = max(level + lean * shift[slice_] - 0.012 * noise, 0.005)
        for metric, scale in METRICS.items():
            value = min(max(recall * scale + random.normal(0, 0.004), 0.0), 1.0)
            rows.append(
                row("test", name, seed, slice_, metric, 1 - value if "error" in metric else value)
            )
    for epoch in range(1, epochs + 1):
        done = 1 - math.exp(-epoch / 3)
        rows.append(
            row(
                "train",
                name,
                seed,
                "full",
                "loss",
                7.5 - 4.2 * done + 0.3 * noise + random.normal(0, 0.03),
                epoch,
            )
        )
        rows.append(
            row(
                "validation",
                name,
                seed,
                "full",
                "recall@10",
                (0.41 - 0.012 * noise) * done + random.normal(0, 0.004),
                epoch,
            )
        )
        rows.append(
            row(
                "validation",
                name,
                seed,
                "full",
                "implicit-loss",
                7.4 - 3.9 * done + random.normal(0, 0.02),
                epoch,
            )
        )
    return rows


STUDY = ("softmax", "softmax+post-hoc", "logit-adjusted", "equalised", "adaptive", *PAPER)
COSINE = ("contrastive", *(f"contrastive/{name}" for name in PAPER[4:]))


def images(names: tuple[str, ...] = STUDY, seeds: int = 3, classes: int = 60) -> Comparison:
    """As `comparison`, of images with one label each."""
    found = comparison(names, seeds)
    rows = [
        ClassError(
            "wiki-2k",
            name,
            None,
            seed,
            label,
            f"class <{label}>",
            500 // (label + 1),
            50,
            0.3 + 0.6 * label / classes,
        )
        for name in names
        for seed in range(seeds)
        for label in range(classes)
    ]
    return replace(found, data=found.data | {"task": "classification"}, classes=rows)


TWELVE = (*SCHEMES, "contrastive/frequency(0.75):tail(1)@256", "within-batch:tail(0.5)")
EVIL = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>&%{x}"


def small(
    recalls: dict[str, list[tuple[float, float]]], metric: str = "recall@10", **changed: Any
) -> Comparison:
    """A comparison of nothing but one metric: scheme: (head, tail) a seed."""
    rows = [
        row("test", name, seed, slice_, metric, value)
        for name, pairs in recalls.items()
        for seed, pair in enumerate(pairs)
        for slice_, value in zip(("head", "tail"), pair, strict=True)
    ]
    parts: dict[str, Any] = {
        "rows": rows,
        "data": {},
        "schemes": {},
        "settings": {},
        "made_by": {},
        "failures": {},
    }
    return Comparison(**(parts | changed))


def emptied(example: Comparison, slices: tuple[str, ...]) -> Comparison:
    return replace(
        example,
        rows=[
            replace(r, value=math.nan, low=None, high=None) if r.slice in slices else r
            for r in example.rows
        ],
    )


def evil() -> Comparison:
    example = comparison(("softmax", "uniform:tail"), seeds=1, epochs=2)
    rows = [
        replace(row, scheme=EVIL) if row.scheme == "uniform:tail" else row for row in example.rows
    ]
    data = example.data | {"name": EVIL, "notes": [EVIL]}
    about = {
        "softmax": example.schemes["softmax"],
        EVIL: example.schemes["uniform:tail"] | {"name": EVIL, "equation": EVIL},
    }
    return Comparison(
        rows, data, about, {EVIL: EVIL}, {"command": EVIL, "versions": {EVIL: EVIL}}, {EVIL: EVIL}
    )


def without(example: Comparison, split: str) -> Comparison:
    return replace(example, rows=[row for row in example.rows if row.split != split])


def at_the_ends() -> Comparison:
    """Recalls of 0 and 1, errors of 1, and error bars beyond them."""

    def moved(one: Row) -> Row:
        if one.metric.endswith("loss") or one.split == "explain":
            return one
        value = float(
            round(one.value + 0.4 * (one.slice == "head" or "error" in one.metric))
            if one.seed
            else one.value
        )
        return replace(one, value=min(value, 1.0))

    example = images(SCHEMES)
    classes = [replace(one, error=float(one.error > 0.5)) for one in example.classes]
    return replace(example, rows=[moved(one) for one in example.rows], classes=classes)


def turned() -> Comparison:
    """Two models with a dial of two steps: to the tail, and back to almost nothing."""
    rows = []
    for name in ("uniform:importance", "softmax", "uniform:tail"):
        for slice_, value in {"head": 0.5, "torso": 0.4, "tail": 0.1, "full": 0.38}.items():
            rows.append(row("test", name, 0, slice_, "recall@10", value))
            moves = {"head": (0.45, 0.4), "tail": (0.2, 0.0045)}.get(slice_, (value, value))
            rows += [
                row(f"post-hoc({tau})", name, 0, slice_, "recall@10", moved)
                for tau, moved in zip(("0.25", "0.5"), moves, strict=True)
                if name != "uniform:tail"
            ]
    return comparison(
        ("uniform:importance", "softmax", "uniform:tail"),
        rows=rows,
        made_by={"folder": "my results"},
    )


def with_cold() -> Comparison:
    """A comparison with items that never occur in training."""
    example = comparison(seeds=1, epochs=2)
    tested = [row for row in example.rows if row.split == "test" and row.slice == "tail"]
    return replace(example, rows=[*example.rows, *(replace(row, slice="cold") for row in tested)])


CASES = {
    "cold items": with_cold,
    "a dial": turned,
    "ten schemes, three seeds": comparison,
    "a single scheme": lambda: comparison(("uniform:tail",), seeds=1, popular=False),
    "no softmax": lambda: comparison(SCHEMES[:4]),
    "no validation rows": lambda: without(comparison(SCHEMES[6:]), "validation"),
    "no training rows": lambda: without(comparison(SCHEMES[6:]), "train"),
    "no tail": lambda: emptied(comparison(SCHEMES[6:]), ("tail",)),
    "no slices at all": lambda: emptied(comparison(SCHEMES[6:]), ("head", "torso", "tail", "full")),
    "twelve schemes, one seed": lambda: comparison(TWELVE, seeds=1),
    "five seeds": lambda: comparison(SCHEMES[6:], seeds=5),
    "failures only": lambda: replace(
        comparison(SCHEMES[6:]), rows=[], failures={"softmax, seed 0": "The loss was NaN."}
    ),
    "nothing known": lambda: small({}),
    "harmful names": evil,
    "images": images,
    "images, two losses, no tail": lambda: emptied(
        images((*STUDY, *COSINE), seeds=1, classes=10), ("tail",)
    ),
    "images at the ends": at_the_ends,
    "recall at the ends": lambda: replace(at_the_ends(), data=comparison().data, classes=[]),
    "images without errors": lambda: replace(images(), rows=[], classes=[]),
}


FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
]
FLAGS += [
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]


def chromium() -> str | None:
    return next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )


class Browser:
    """One page of a headless Chromium, spoken to over its debugging pipe.

    Attributes:
        requests: every address it asked for.
        complaints: warnings, errors and uncaught exceptions of the console.
    """

    def __init__(self, program: str, profile: Path) -> None:
        theirs_in, self._write = os.pipe()
        self._read, theirs_out = os.pipe()
        # The browser reads from 3 and writes to 4, and a shell is the plainest way to number them
        # so.
        number = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                number,
                "bash",
                program,
                *FLAGS,
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.requests: list[str] = []
        self.complaints: list[str] = []
        pages = [
            one for one in self.send("Target.getTargets")["targetInfos"] if one["type"] == "page"
        ]
        self._session = self.send(
            "Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(60)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def size(self, width: int, dark: bool = False) -> None:
        """Of the window, and whether its owner likes the dark."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        self.send(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        self.settle()

    def open(self, path: Path) -> None:
        self.requests.clear()
        self.complaints.clear()
        self.send("Page.navigate", url=path.as_uri())
        end = time.monotonic() + 60
        while self.run(
            f"document.readyState != 'complete' || location.href != {json.dumps(path.as_uri())}"
        ):
            assert time.monotonic() < end, "the page did not load"
            time.sleep(0.02)
        self.settle()

    def settle(self) -> None:
        self.run(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => "
            "setTimeout(done, 50))))"
        )

    def run(self, script: str) -> Any:
        """What an expression is in the page; promises are awaited."""
        found = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def _next(self, seconds: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._read], [], [], seconds)[0], "the browser does not answer"
            read = os.read(self._read, 1 << 20)
            assert read, "the browser has gone"
            self._buffer += read
        message, _, self._buffer = self._buffer.partition(b"\0")
        found = json.loads(message)
        params = found.get("params", {})
        match found.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.complaints.append(str(params["entry"]))
        return found
