"""The JSON files of runs and comparisons, read with a check of what they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headtail.errors import HeadtailError
from headtail.files.regular import regular

NUMBER = (int, float)
TIMES = {"*": {"*": NUMBER, "training_seconds": NUMBER, "step_seconds": NUMBER}}
ANSWERS = {"*": [{"point": object, "slice": object, "right": [str], "answers": [str]}]}
SLICES = {
    "rule?": str,
    **{f"{name}?": {"*": NUMBER} for name in ("sizes", "last_rank", "rarest", "pairs")},
    "examples?": {"*": [[(str, *NUMBER)]]},
}
SHAPES: dict[str, Any] = {
    "data.json": {"name?": str, "slices?": SLICES, "notes?": [str], "curve?": [[NUMBER]]},
    "schemes.json": {"*": {"name?": (str, type(None)), "leans?": str, "notes?": [str]}},
    "made_by.json": {"command?": (str, type(None)), "versions?": {"*": str}, "times?": TIMES},
    "failures.json": {"*": str},
    "unfinished.json": {"*": str},
    "answers.json": ANSWERS,
    "times.json": TIMES,
}
"""What files must hold: a type, a list of something, or an object with keys; `*` is any other key,
and a key with `?` may be missing. Other keys and other files may hold anything.
"""


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; one that holds something else is refused by its name."""
    text = regular(path).read_bytes()
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"it is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise _damaged(path, "it holds no JSON object")
    if wrong := _misfit(content, SHAPES.get(path.name, {})):
        raise _damaged(path, wrong)
    return content


def _damaged(path: Path, why: str) -> HeadtailError:
    return HeadtailError(
        f"`{path}` is damaged: {why}. Delete it and run the same command again; "
        "finished runs are kept."
    )


def _misfit(value: Any, shape: Any, where: str = "it") -> str | None:
    """What is wrong with a value, or None."""
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{where} is not a list"
        parts = [(inner, shape[0], f"{where}[{i}]") for i, inner in enumerate(value)]
    elif isinstance(shape, dict):
        if not isinstance(value, dict):
            return f"{where} is not an object"
        required = [key for key in shape if key != "*" and not key.endswith("?")]
        if missing := [key for key in required if key not in value]:
            return f"{where} lacks `{missing[0]}`"
        known = {key.removesuffix("?"): inner for key, inner in shape.items()}
        other = known.pop("*", object)
        parts = [(inner, known.get(key, other), f"`{key}`") for key, inner in value.items()]
    else:
        return None if isinstance(value, shape) else f"{where} is a {type(value).__name__}"
    found = (_misfit(*part) for part in parts)
    return next((wrong for wrong in found if wrong), None)
