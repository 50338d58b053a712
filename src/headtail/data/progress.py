"""How readers report how far they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, float], None]
"""Called by readers with what they are doing and the share of it that is done."""
