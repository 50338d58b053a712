"""Scheme names: `within-batch:tail@256` and what it means.

`grammar.py` reads names with arguments, `table.py` has one row per sampler, weighting, margin and
loss, `parse.py` reads a whole scheme, `build.py` makes its loss and `words.py` writes errors as
schemes are written. No other room compares the name
of a sampler; what a scheme needs to be asked for is a property of `Scheme`.
"""

from headtail.schemes.build import build_sampler, check_batch, scheme
from headtail.schemes.parse import Scheme, parse
from headtail.schemes.table import LOSSES, MARGINS, PAPER, SAMPLERS, WEIGHTINGS
from headtail.schemes.words import in_scheme_words, write_name

__all__ = [
    "LOSSES",
    "MARGINS",
    "PAPER",
    "SAMPLERS",
    "WEIGHTINGS",
    "Scheme",
    "build_sampler",
    "check_batch",
    "in_scheme_words",
    "parse",
    "scheme",
    "write_name",
]
