"""Which device to use."""

from __future__ import annotations

from typing import Literal

import torch

from headtail.errors import HeadtailError, Setting

Device = Literal["auto", "cpu", "cuda"]


def choose_device(device: Device) -> Literal["cpu", "cuda"]:
    """The device itself; for "auto" the GPU if there is one, otherwise the CPU."""
    if device == "cuda" and not torch.cuda.is_available():
        raise HeadtailError(
            Setting("device", "cuda"),
            " needs a GPU that torch can use, and there is none. Write ",
            Setting("device", "cpu"),
            ".",
        )
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device
