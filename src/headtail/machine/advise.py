"""What a step with each loss is expected to cost, and which loss a scheme approximates.

How good a sampled loss is for a *trained* model does not follow from counts: noise depends on the
scores, and that of an untrained model is far too small. So nothing here recommends a sampler or a
number of negatives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from headtail.core.labels import Labels
from headtail.core.slices import Slices
from headtail.errors import HeadtailError, PythonName
from headtail.implicit import explain
from headtail.losses import SampledLoss
from headtail.machine.measured import Machine, Timing
from headtail.machine.shape import METHODS, NUMBER, Method, Shape, memory_of, possible
from headtail.schemes import scheme

SCHEMES = (
    "uniform:importance",
    "frequency(0.5):importance",
    "within-batch:importance",
    "within-batch:constant",
    "within-batch:tail",
)
"""Sampled schemes that are described unless others are named."""
NEGATIVES = (64, 256, 1024)
"""Numbers of negatives for which a step is predicted."""
MOST_EXPLAINED = 3_000_000
"""Labels over which a scheme is explained; of more, the most frequent ones."""
MODEL_ERROR = 2.0
"""Predictions within this factor of each other are too close to call."""
TRUST_IN_RATES = 0.001
"""Weight of the machine's own rates against a measured step: they decide only what no step shows.
"""
SCORE_PASSES = 7
"""How often a step walks over the scores: written; read and written by log-softmax and its
gradient; read by two products.
"""
TABLE_PASSES = 8
"""The same for the table, or its rows in use: read by two products, its gradient written, five
passes of Adagrad.
"""


class Ideal(NamedTuple):
    """Seconds of a step if every phase ran at the machine's own rates.

    Attributes:
        operations: over the rate of a matrix product.
        bytes: over the bandwidth.
    """

    operations: float
    bytes: float


@dataclass(frozen=True)
class Cost:
    """Seconds of a step, t = overhead + operations · ideal operations + bytes · ideal bytes: its
    phases follow one another.
    """

    overhead: float
    operations: float
    bytes: float

    def __call__(self, ideal: Ideal) -> float:
        """t."""
        return self.overhead + self.operations * ideal.operations + self.bytes * ideal.bytes


@dataclass(frozen=True)
class Estimate:
    """What a step is expected to cost.

    Attributes:
        method: how the loss is taken.
        shape: of what.
        seconds: a step.
        memory: bytes at the peak.
        fits: whether the memory suffices.
    """

    method: Method
    shape: Shape
    seconds: float
    memory: int
    fits: bool


@dataclass(frozen=True)
class Approximation:
    """The loss over all labels that a sampled scheme approximates, the better the more negatives it
    has.

    Attributes:
        scheme: its name.
        loss: the name of that loss; None if it has none.
        equation: that loss as an equation.
        lean: where it leans, in nats: above 0 to the tail, below 0 to the head.
        leans: "tail", "head" or "neither".
        never_drawn: number of labels that are never negatives.
    """

    scheme: str
    loss: str | None
    equation: str
    lean: float
    leans: str
    never_drawn: int


Verdict = Literal["all labels", "sampled", "open", "nothing fits"]


@dataclass(frozen=True)
class Advice:
    """What is known before training.

    Attributes:
        verdict: "all labels", where a loss over them fits and sampling is not expected to save
            time; "sampled", where nothing else fits; "nothing fits"; else "open", because what
            sampling saves is known, and what it does to a trained model is not.
        all_labels: the quickest loss over all labels that fits; None if none does.
        estimates: of each loss over all labels, and of the sampled one for each number of
            negatives.
        schemes: what sampled schemes approximate.
    """

    verdict: Verdict
    all_labels: Estimate | None
    estimates: tuple[Estimate, ...]
    schemes: tuple[Approximation, ...]

    @property
    def sampled(self) -> list[Estimate]:
        """Sampled steps that fit."""
        return [one for one in self.estimates if one.method == "sampled" and one.fits]


def ideal_of(method: Method, shape: Shape, machine: Machine) -> Ideal:
    """Operations and bytes of a step, in seconds of this machine."""
    columns = shape.negatives if method == "sampled" else shape.labels
    rows = shape.batch + shape.negatives if method == "sampled" else shape.labels
    # a multiplication and an addition, forward and twice backward
    operations = 6 * shape.batch * columns * shape.dim
    numbers = SCORE_PASSES * shape.batch * columns + TABLE_PASSES * rows * shape.dim
    if method == "chunked":  # each chunk reads and writes the gradient of the table
        numbers += 2 * math.ceil(shape.batch / shape.chunk) * rows * shape.dim
    return Ideal(operations / machine.rate, NUMBER * numbers / machine.bandwidth)


def fit(ideals: Sequence[Ideal], seconds: Sequence[float]) -> Cost:
    """The cost, with nothing below 0, of least squared relative error; what measured steps do not
    tell stays near ideal, at 1.

    >>> steps = [Ideal(1.0, 1.0), Ideal(10.0, 10.0), Ideal(10.0, 1.0)]
    >>> cost = fit(steps, [2.0 + 0.5 * step.operations + 3 * step.bytes for step in steps])
    >>> round(cost.overhead, 1), round(cost.operations, 1), round(cost.bytes, 1)
    (2.0, 0.5, 3.0)
    """
    from scipy.optimize import nnls  # slow to load

    measured = [
        [1 / t, ideal.operations / t, ideal.bytes / t]
        for ideal, t in zip(ideals, seconds, strict=True)
    ]
    near_ideal = [[0.0, TRUST_IN_RATES, 0.0], [0.0, 0.0, TRUST_IN_RATES]]
    found, _ = nnls(
        measured + near_ideal, [1.0] * len(measured) + [TRUST_IN_RATES] * len(near_ideal)
    )
    return Cost(*map(float, found))


def costs(machine: Machine) -> dict[Method, Cost]:
    """Each method's cost from what was measured; a chunked loss that was not is taken to be as good
    as the exact one.
    """
    by: dict[Method, list[Timing]] = {
        method: [t for t in machine.timings if t.method == method] for method in METHODS
    }
    by["chunked"] = by["chunked"] or by["exact"]
    found = {}
    for method, timings in by.items():
        if not timings:
            raise HeadtailError(
                f"The measurement of this machine has no {method} step. Run ",
                PythonName("headtail.machine.bench.measure"),
                " to measure it again.",
            )
        found[method] = fit(
            [ideal_of(one.method, one.shape, machine) for one in timings],
            [one.seconds for one in timings],
        )
    return found


def predict(method: Method, shape: Shape, machine: Machine, memory: int) -> Estimate:
    """What a step is expected to cost on a machine that was measured, with so much memory."""
    seconds = costs(machine)[method](ideal_of(method, shape, machine))
    needed = memory_of(method, shape)
    return Estimate(method, shape, seconds, needed, needed <= memory)


def crossover(shape: Shape, machine: Machine) -> int | None:
    """The number of labels from which the sampled loss is quicker than the exact one: 1 if always,
    None if that is unknown.
    """
    found = costs(machine)
    sampled = found["sampled"](ideal_of("sampled", shape, machine))
    exact = found["exact"]
    of_a_label = exact(ideal_of("exact", replace(shape, labels=1), machine)) - exact.overhead
    return max(1, math.ceil((sampled - exact.overhead) / of_a_label)) if of_a_label else None


def approximation(
    name: str, labels: Labels, batch_size: int, slices: Slices | None = None
) -> Approximation:
    """The loss that a sampled scheme approximates; slices are thirds of the examples unless others
    are given.
    """
    if labels.num_labels > MOST_EXPLAINED:
        most = labels.counts.topk(MOST_EXPLAINED)
        labels = Labels(most.values, labels.smoothing)
        slices = None if slices is None else replace(slices, of_label=slices.of_label[most.indices])
    loss = scheme(name, labels)
    if not isinstance(loss, SampledLoss):
        raise HeadtailError(
            f"`{name}` uses all labels and draws no negatives. Write a sampled scheme, for example "
            "`uniform:tail`."
        )
    known = explain(loss, labels, batch_size=batch_size, slices=slices)
    return Approximation(
        name, known.name, known.equation, known.lean, known.leans, known.never_drawn
    )


def choose(
    shape: Shape,
    negatives: Iterable[int],
    schemes: Iterable[Approximation],
    machine: Machine,
    memory: int,
) -> Advice:
    """What fits, what it costs, and whether that decides between all labels and sampling."""
    whole = [
        predict(method, shape, machine, memory) for method in possible() if method != "sampled"
    ]
    sampled = [predict("sampled", replace(shape, negatives=m), machine, memory) for m in negatives]
    best = min((one for one in whole if one.fits), key=_with_chunks_in_doubt, default=None)
    quickest = min((one.seconds for one in sampled if one.fits), default=None)
    return Advice(_verdict(best, quickest), best, (*whole, *sampled), tuple(schemes))


def _verdict(all_labels: Estimate | None, sampled: float | None) -> Verdict:
    """Seconds decide only where sampling saves none: otherwise nothing is known about what it costs
    in quality.
    """
    if all_labels is None:
        return "nothing fits" if sampled is None else "sampled"
    if sampled is None or all_labels.seconds < MODEL_ERROR * sampled:
        return "all labels"
    return "open"


def _with_chunks_in_doubt(one: Estimate) -> float:
    """The chunked loss equals the exact one and is less handy: it must be clearly quicker."""
    return one.seconds * (MODEL_ERROR if one.method == "chunked" else 1)


def _reference(
    method: Method, labels: int, batch: int, seconds: float, dim: int = 512, negatives: int = 256
) -> Timing:
    return Timing(method, Shape(labels, dim, batch, negatives), seconds, None)


REFERENCES = {
    # `headtail bench` with one thread, in seconds of CPU time.
    "cpu": Machine(
        name="AMD EPYC, 1 core",
        device="cpu",
        date="2026-11-15",
        torch="2.13.0+cpu",
        memory=None,
        bandwidth=22.4e9,
        rate=93.3e9,
        timings=(
            _reference("exact", 10_000, 256, 0.1137),
            _reference("exact", 100_000, 256, 1.2158),
            _reference("exact", 100_000, 256, 0.3405, dim=64),
            _reference("chunked", 10_000, 256, 0.1128),
            _reference("chunked", 100_000, 256, 1.3041),
            _reference("chunked", 100_000, 256, 0.2694, dim=64),
            _reference("sampled", 10_000, 256, 0.00401),
            _reference("sampled", 100_000, 256, 0.00441),
            _reference("sampled", 1_000_000, 256, 0.00761),
            _reference("sampled", 100_000, 256, 0.00142, dim=64),
            _reference("sampled", 10_000, 256, 0.04515, negatives=4096),
        ),
        answers={},
    ),
    # Batch 1024, dim 512, 256 shared negatives (benchmarks/results/head_step.csv): bfloat16 for the
    # exact loss, float32 and Adagrad (SGD for 4096 negatives) for the sampled one; a CUDA graph a
    # step, but for the exact loss over a million labels.
    "cuda": Machine(
        name="NVIDIA H200",
        device="cuda",
        date="2026-11-15",
        torch="2.11.0",
        memory=139 * 2**30,
        bandwidth=4.24e12,
        rate=787e12,
        timings=(
            _reference("exact", 13_330, 1024, 0.317e-3),
            _reference("exact", 325_056, 1024, 3.35e-3),
            _reference("exact", 1_000_000, 1024, 10.3e-3),
            _reference("sampled", 13_330, 1024, 0.0390e-3),
            _reference("sampled", 325_056, 1024, 0.0395e-3),
            _reference("sampled", 3_000_000, 1024, 0.0396e-3),
            _reference("sampled", 1_000_000, 1024, 0.3456e-3, negatives=4096),
            _reference("sampled", 10_000_000, 1024, 0.0395e-3),
        ),
        answers={},
    ),
}
"""Figures for machines that were not measured."""
