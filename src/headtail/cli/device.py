"""Which device a command runs on."""

from __future__ import annotations

from typing import Literal

import torch

from headtail.errors import HeadtailError

Device = Literal["auto", "cpu", "cuda"]


def choose(device: Device) -> str:
    """The device of this name; for "auto" the GPU if there is one."""
    if device == "cuda" and not torch.cuda.is_available():
        raise HeadtailError(
            "`--device cuda` needs a GPU that torch can use, and there is none. Write `--device "
            "cpu`."
        )
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"
