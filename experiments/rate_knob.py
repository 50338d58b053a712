"""Is the learning rate a knob of head and tail? What other rates do to both, from the tries of the
search (seed 0).

A rate that changes alone also changes how far a run gets: half the rate needs more epochs. So a
rate is compared at the chosen length, and at the length that suits it best. And held-out losses
decide between settings only as far as they differ: `alike_of` shows what the choice leaves open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from claims import Line
from search import STEP

ALIKE = 0.001
"""Settings whose held-out losses are within this share of the lowest one are about equally good;
the search doubles its epochs only for more.
"""
FACTORS = {"half": 1 / STEP, "twice": STEP}


def knob_of(tries: Sequence[Line], rare: str = "tail") -> list[Line]:
    """What half and twice the chosen rate do to held-out loss, head and tail.

    Args:
        tries: all lines of one data set, as `Evidence.tries` makes them.
        rare: the rarest slice that the test set has.
    """
    lines = []
    for picked in tries:
        if picked["chosen"] != "yes":
            continue
        own = _went_well(tries, picked["scheme"])
        for name, factor in FACTORS.items():
            others = [line for line in own if _is_rate(line, factor * float(picked["lr"]))]
            for length, other in _by_length(others, picked["epochs"]).items():
                about = {key: picked[key] for key in ("dataset", "scheme", "lr", "epochs")}
                about |= {"rate": name, "length": length, "other epochs": other["epochs"]}
                lines.append(about | _changes(other, picked, rare))
    return lines


def _by_length(others: Sequence[Line], chosen: str) -> dict[str, Line]:
    """Tries of one rate: at the chosen length, and at the best length of that rate."""
    found = {}
    for line in others:
        if line["epochs"] == chosen:
            found["same"] = line
    if others:
        found["own"] = min(others, key=_loss)
    return found


def _changes(other: Line, picked: Line, rare: str) -> Line:
    loss = (_loss(other) - _loss(picked)) / abs(_loss(picked))
    head, tail = (float(other[name]) - float(picked[name]) for name in ("head", rare))
    return {"loss": f"{loss:.6f}", "head": f"{head:.6f}", "tail": f"{tail:.6f}"}


def alike_of(tries: Sequence[Line], rare: str = "tail") -> list[Line]:
    """Settings of each scheme that are about as good as the best one by held-out loss, and between
    which values of head and tail they leave the choice.
    """
    lines = []
    for picked in tries:
        if picked["chosen"] != "yes":
            continue
        own = _went_well(tries, picked["scheme"])
        lowest = min(_loss(line) for line in own)
        alike = [line for line in own if _loss(line) <= lowest + ALIKE * abs(lowest)]
        if picked not in alike:
            alike.append(picked)
        about = {name: picked[name] for name in ("dataset", "scheme", "lr", "epochs")}
        settings = " ".join(f"{line['lr']}/{line['epochs']}" for line in alike)
        about |= {"settings": settings, "number": str(len(alike))}
        for name, slice_ in (("head", "head"), ("tail", rare)):
            values = [float(line[slice_]) for line in alike]
            about |= {f"{name} low": f"{min(values):.6f}", f"{name} high": f"{max(values):.6f}"}
        lines.append(about)
    return lines


def _went_well(tries: Sequence[Line], scheme: str) -> list[Line]:
    return [line for line in tries if line["scheme"] == scheme and math.isfinite(_loss(line))]


def _is_rate(line: Line, rate: float) -> bool:
    return math.isclose(float(line["lr"]), rate, rel_tol=1e-6)


def _loss(line: Line) -> float:
    return float(line["held_out_loss"])
