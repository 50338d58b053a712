"""Tensors and facts in one safetensors file, whole or absent; nothing is unpickled."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headtail.errors import HeadtailError
from headtail.files.atomic import replace_file


def save_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write tensors and facts (as JSON) atomically."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    def write(temporary: Path) -> None:
        contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        try:
            save_file(contiguous, temporary, {"facts": json.dumps(facts)})
        except SafetensorError as error:  # it reports a full disk in its own way
            raise OSError(str(error)) from error
        with temporary.open("rb") as file:
            os.fsync(file.fileno())

    replace_file(path, write)


def load_tensors(
    path: Path, what: str, advice: str, only_facts: bool = False
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts of a file.

    Args:
        path: the file.
        what: it should be, for the error: "a checkpoint".
        advice: what to do if it cannot be read, in a sentence.
        only_facts: read no tensor.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {}).get("facts", "null"))
            if not isinstance(facts, dict):
                raise ValueError("it was not written by headtail")
            names = [] if only_facts else file.keys()
            return {name: file.get_tensor(name) for name in names}, facts
    except (OSError, SafetensorError, ValueError) as error:
        raise HeadtailError(f"`{path}` cannot be read as {what}: {error}. {advice}") from error


def as_bytes(value: Any) -> Tensor:
    """A JSON value as a tensor, for what is too large for the facts, such as names of labels.

    >>> from_bytes(as_bytes(["cat", "dog"]))
    ['cat', 'dog']
    """
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def from_bytes(tensor: Tensor) -> Any:
    """The inverse of `as_bytes`."""
    return json.loads(tensor.numpy().tobytes())
