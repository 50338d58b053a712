"""Scheme names: `within-batch:tail@256` and what it means.

`grammar.py` reads names with arguments, `table.py` has one row per sampler, weighting, margin and
loss, `parse.py` reads a whole scheme and `build.py` makes its loss. No other room compares the name
of a sampler; what a scheme needs to be asked for is a property of `Scheme`.
"""

from headtail.schemes.build import build_sampler, check_batch, scheme
from headtail.schemes.parse import Scheme, parse
from headtail.schemes.table import LOSSES, MARGINS, PAPER, SAMPLERS, WEIGHTINGS

__all__ = [
    "LOSSES",
    "MARGINS",
    "PAPER",
    "SAMPLERS",
    "WEIGHTINGS",
    "Scheme",
    "build_sampler",
    "check_batch",
    "parse",
    "scheme",
]
