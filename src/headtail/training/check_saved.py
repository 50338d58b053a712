"""What a saved file may hold: every name, shape, dtype and id is checked before it is used.

A run's folder may be damaged, or come from another source. Tensors are never larger than their
file, so a setting is compared with them before anything of its size is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from headtail.core.columns import Names
from headtail.core.names import saved_names
from headtail.core.targets import Ragged
from headtail.device.parts import all_finite
from headtail.errors import HeadtailError
from headtail.samplers import Frequency
from headtail.training.checkpoint import remembering, weights_of

FLOATS = (torch.float32, torch.float64, torch.bfloat16)
"""How numbers are saved: tables on a GPU may be narrow, samplers' are wide."""
WHOLE = (torch.int64, torch.int32)
NOT_SAVED = (TypeError, RuntimeError, OverflowError, MemoryError, ValueError)
"""What sizes beyond any memory, and settings of the wrong kind, raise."""


@dataclass(frozen=True)
class Saved:
    """The content of a file that is not trusted.

    Attributes:
        path: of the file.
        tensors: by name.
        facts: as JSON had them.
        advice: what to do about a file that is refused, in a sentence.
    """

    path: Path
    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    advice: str

    def refuse(self, why: str, error: BaseException | None = None) -> NoReturn:
        """Say what is wrong with the file."""
        why = why if why.endswith("?") else f"{why.rstrip('.')}."
        raise HeadtailError(f"`{self.path}` is damaged: {why} {self.advice}") from error

    @contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Blame the file for what goes wrong meanwhile."""
        try:
            yield
        except torch.OutOfMemoryError:  # a runtime error too, but not the file's fault
            raise
        except RecursionError as error:
            self.refuse(f"{what} are nested too deeply", error)
        except NOT_SAVED as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            self.refuse(f"{what} are invalid ({reason[0].rstrip('.')})", error)

    def fact(self, name: str, *kinds: type) -> Any:
        """A fact of one of these kinds; True is not a number."""
        value = self.facts.get(name)
        wanted = bool in kinds or not isinstance(value, bool)
        if not (wanted and isinstance(value, kinds)):
            self.refuse(f"its `{name}` is {_short(value)}")
        return value

    def whole(self, name: str, low: int, high: int) -> int:
        """A whole number from `low` to `high`."""
        value = self.fact(name, int)
        if not low <= value <= high:
            self.refuse(f"its `{name}` is {_short(value)}, not a number from {low} to {high:,}")
        return value

    def tensor(
        self, name: str, shape: tuple[int | None, ...], dtypes: tuple[torch.dtype, ...]
    ) -> Tensor:
        """A tensor of this shape, None for any size, and one of these dtypes."""
        tensor = self.tensors.get(name)
        if tensor is None:
            self.refuse(f"it has no tensor `{name}`")
        same = len(shape) == tensor.dim() and all(
            wanted in (None, size) for wanted, size in zip(shape, tensor.shape, strict=True)
        )
        if not same:
            sizes = ", ".join("any" if size is None else str(size) for size in shape)
            self.refuse(f"`{name}` has shape {list(tensor.shape)}, but must have [{sizes}]")
        if tensor.dtype not in dtypes:
            self.refuse(f"`{name}` is {tensor.dtype}, but must be {dtypes[0]}")
        return tensor

    def ids(self, name: str, size: int | None, below: int) -> Tensor:
        """Whole numbers from 0 to below this."""
        ids = self.tensor(name, (size,), WHOLE)
        self.check_range(name, ids, below)
        return ids

    def check_range(self, name: str, ids: Tensor, below: int) -> None:
        """Refuse ids that are negative, or not below this."""
        if not ids.numel():
            return
        low, high = (int(bound) for bound in ids.aminmax())
        if low < 0 or high >= below:
            bad = low if low < 0 else high
            self.refuse(f"`{name}` holds {bad}, but its ids are from 0 to {below - 1}")

    def ragged(self, name: str, rows: int, below: int) -> Ragged:
        """Lists of ids: `name`, and where each list begins, `name` + "_offsets"."""
        values = self.ids(name, None, below)
        return Ragged(values, self.offsets(f"{name}_offsets", rows, len(values)))

    def offsets(self, name: str, rows: int, total: int) -> Tensor:
        """Where each of some rows begins: numbers that rise from 0 to the total."""
        offsets = self.tensor(name, (rows + 1,), (torch.int64,))
        rises = bool((offsets.diff() >= 0).all())
        if int(offsets[0]) != 0 or int(offsets[-1]) != total or not rises:
            self.refuse(f"`{name}` does not rise from 0 to {total}")
        return offsets

    def names(self, name: str, number: int) -> Names | None:
        """Names that `as_bytes` wrote; None where there are none."""
        with self.explained(f"`{name}`"):
            return saved_names(self.tensor(name, (None,), (torch.uint8,)), number)

    def name_list(self, fact: str, number: int | None = None) -> None:
        """Refuse a fact that is neither missing nor a list of names."""
        names = self.facts.get(fact)
        if names is None:
            return
        kinds = {type(name) for name in names} if isinstance(names, list) else {object}
        if kinds not in ({str}, {int}) or number not in (None, len(names)):
            self.refuse(f"its `{fact}` is {_short(names)}, not a list of names")

    def check_weights(self, model: nn.Module) -> None:
        """Refuse weights that are not those of this model, one by one, before any is copied."""
        expected = weights_of(model)
        memories = {f"model.{name}.extra" for name, _ in remembering(model)}
        buffers = {f"model.{name}" for name, buffer in model.named_buffers() if not buffer.is_meta}
        for name in self.tensors:
            if name.startswith("model.") and name not in expected:
                self.refuse(f"its `{name}` belongs to another model")
        for name, value in expected.items():
            shape = (None,) if name in memories else tuple(value.shape)
            dtypes = (*FLOATS, value.dtype) if value.is_floating_point() else (value.dtype,)
            saved = self.tensor(name, shape, dtypes)
            if name in buffers and saved.dtype == value.dtype and torch.equal(saved, value.cpu()):
                continue  # such as a mask of −inf, which a user's encoder may have
            if not name.startswith("model.head.loss."):
                self.check_finite(name, saved)
            elif bool(saved.isnan().any()):  # a probability of 0 has a logarithm of −inf
                self.refuse(f"`{name}` holds NaN")
        self._check_samplers(model)

    def check_finite(self, name: str, values: Tensor) -> None:
        """Refuse NaN and infinite values, and count them."""
        if not values.is_floating_point() or all_finite(values):
            return
        number = int((~values.isfinite()).sum())
        raise HeadtailError(
            f"`{self.path}` cannot be used: {number:,} of the {values.numel():,} values of "
            f"`{name}` are NaN or infinite. {self.advice}"
        )

    def check_products(self) -> None:
        """Refuse weights so large that products of two of them overflow: no answer comes of them,
        and whoever multiplies them does not know their file.
        """
        most = torch.finfo(torch.float32).max ** 0.5
        for name, values in self.tensors.items():
            of_model = name.startswith("model.") and not name.startswith("model.head.loss.")
            if not of_model or not values.is_floating_point():
                continue
            number = int((values.isfinite() & (values.abs() > most)).sum())
            if number:
                raise HeadtailError(
                    f"`{self.path}` cannot be used: {number:,} of the {values.numel():,} values of "
                    f"`{name}` are so large that scores overflow. {self.advice}"
                )

    def _check_samplers(self, model: nn.Module) -> None:
        """Refuse ids beyond the labels in the tables of samplers, and tables that contradict the
        counts of the labels.
        """
        for module_name, module in model.named_modules():
            if not module_name.startswith("head.loss"):
                continue
            tables = {
                name: self.tensors[f"model.{module_name}.{name}"]
                for name, _ in module.named_buffers(recurse=False)
            }
            for name, table in tables.items():
                full_name = f"model.{module_name}.{name}"
                if isinstance(module, Frequency):
                    own = module.get_buffer(name)
                    if not torch.allclose(table.double(), own.cpu().double()):
                        self.refuse(f"`{full_name}` contradicts the counts of the labels")
                elif table.dtype in WHOLE:
                    self.check_range(full_name, table, _limit(name, tables, module))
            if {"start", "size"} <= tables.keys():
                ends = tables["start"] + tables["size"]
                self.check_range(f"model.{module_name}.start", ends, len(tables["order"]) + 1)


def _limit(name: str, tables: dict[str, Tensor], module: nn.Module) -> int:
    """What the ids of a sampler's table are below."""
    if name in ("start", "size"):
        return len(tables["order"]) + 1
    if name == "leaf":
        return len(tables["label"])
    labels: Any = module.num_labels
    return labels


def _short(value: Any) -> str:
    """A value as it fits into a sentence."""
    text = repr(value) if not isinstance(value, list | dict) else type(value).__name__
    return "missing" if value is None else text[:60]


def is_number(value: Any, *, finite: bool = True) -> bool:
    """Whether a value is a number, and not NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value) or not (finite or math.isnan(value))
    except OverflowError:
        return False
