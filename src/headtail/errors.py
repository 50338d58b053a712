"""The one exception headtail raises: a plain sentence that says what to write instead."""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Iterable
from numbers import Integral, Real
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor


class HeadtailError(ValueError):
    """Bad input, told in one sentence: what was passed, what was found, what to write instead."""


def check_number(
    name: str, value: Any, *, low: float | None = None, high: float | None = None
) -> float:
    """Return `value` as a float if it is a finite number inside [low, high]."""
    if (
        isinstance(value, bool)
        or not isinstance(value, Real)
        or not math.isfinite(number := float(value))
    ):
        raise HeadtailError(f"`{name}` must be a finite number, but got {value!r}.")
    if (low is not None and number < low) or (high is not None and number > high):
        bounds = (
            f"at least {low}"
            if high is None
            else f"at most {high}"
            if low is None
            else f"between {low} and {high}"
        )
        raise HeadtailError(f"`{name}` must be {bounds}, but got {value!r}.")
    return number


def check_rate(lr: Any) -> None:
    """Refuse what is not a learning rate: a number of at least 0, or a tensor with one such number."""
    if isinstance(lr, Tensor):
        if lr.dim() or not lr.is_floating_point():
            got = f"{lr.dtype} of shape {list(lr.shape)}"
            raise HeadtailError(
                f"`lr` must be a number or a tensor without dimensions, but got {got}. Write for "
                "example `torch.tensor(0.1)`."
            )
        if lr.device.type != "cpu":
            return  # to see it, the host would wait
        lr = float(lr)
    check_number("lr", lr, low=0)


def check_count(name: str, value: Any) -> int:
    """Return `value` as an int if it is a whole number of at least one."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise HeadtailError(f"`{name}` must be a whole number of at least 1, but got {value!r}.")
    return int(value)


def check_kind(name: str, value: Any, kind: type, example: str) -> None:
    """Refuse what is not of this kind, and show how to write one."""
    if not isinstance(value, kind):
        got = (
            f"the class {value.__name__} itself"
            if isinstance(value, type)
            else type(value).__name__
        )
        got = repr(value) if isinstance(value, str) else got
        raise HeadtailError(
            f"`{name}` must be a {kind.__name__}, but got {got}. Write for example `{example}`."
        )


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuse what is not one of `choices`."""
    if value not in choices:
        raise HeadtailError(
            f"`{name}` must be one of {', '.join(map(repr, choices))}, but got {value!r}."
        )


def check_ids(name: str, ids: Any, num_labels: int | None) -> None:
    """Refuse label ids that are no integers or lie outside 0 … num_labels − 1.

    Values are looked at on the CPU only: on a GPU the look would make the host wait, and indexing
        asserts there anyway.
    """
    check_kind(name, ids, Tensor, "torch.tensor([3, 1, 4])")
    if ids.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8):
        raise HeadtailError(
            f"`{name}` must hold integer label ids, but got {ids.dtype}. Floats lose ids above "
            f"16,777,216: use `{name}.long()` "
            "on the original integers."
        )
    if (
        num_labels is None
        or torch.compiler.is_compiling()
        or ids.device.type != "cpu"
        or ids.numel() == 0
    ):
        return
    low, high = (int(v) for v in ids.aminmax())
    if low < 0 or high >= num_labels:
        bad = low if low < 0 else high
        raise HeadtailError(
            f"`{name}` must hold label ids from 0 to {num_labels - 1}, but got {bad}."
        )


def check_num_labels(name: str, size: int | None, other: str, num_labels: int | None) -> None:
    """Refuse two things over different numbers of labels; None fits any number."""
    if size is not None and num_labels is not None and size != num_labels:
        raise HeadtailError(
            f"`{name}` has {size} labels, but {other} {num_labels}. Make them equal."
        )


def check_same_device(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Refuse two tensors on different devices."""
    if tensor.device != other.device:
        raise HeadtailError(
            f"`{name}` is on {tensor.device} but `{other_name}` is on {other.device}. "
            f"Move one of them, for example `{name}.to({str(other.device)!r})`."
        )


def check_exists(path: Path, otherwise: str = "") -> Path:
    """Refuse a path where nothing is, and name the nearest neighbour, or else say `otherwise`."""
    if not path.exists():
        near = (
            nearest(path.name, (one.name for one in path.parent.iterdir()))
            if path.parent.is_dir()
            else ""
        )
        raise HeadtailError(f"`{path}` does not exist.{near or otherwise}")
    return path


def nearest(name: str, names: Iterable[str]) -> str:
    """A question that names the nearest of `names`, or nothing where none is near."""
    close = difflib.get_close_matches(name, list(names), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(f'`{n}`' for n in close)}?" if close else ""


def need(package: str, *, extra: str, to: str, module: str | None = None) -> ModuleType:
    """Import an optional package; where it is missing, name the extra that installs it.

    Args:
        package: the name that pip knows, for example "pyarrow".
        extra: which of headtail's extras has it.
        to: what it is needed for, for example "Reading Parquet files".
        module: the name to import, where it differs from the package's.

    >>> need("math", extra="report", to="Counting").pi > 3
    True
    >>> need("no_such_package", extra="data", to="Reading Parquet files")
    Traceback (most recent call last):
    headtail.errors.HeadtailError: Reading Parquet files needs no_such_package, which is not...
    """
    name = module or package
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != name.partition(".")[0]:
            raise
        raise HeadtailError(
            f"{to} needs {package}, which is not installed. Run `pip install 'headtail[{extra}]'`."
        ) from error
