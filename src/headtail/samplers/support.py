"""Whether a sampler can draw every label that a weighting needs."""

from __future__ import annotations

import math
import warnings

import torch

from headtail.core.margins import Separable
from headtail.core.weightings import FromMargin, Weighting, check_marginal
from headtail.errors import HeadtailError, PythonName, Sentence, Setting, check_num_labels
from headtail.samplers.sampler import Sampler


def check_support(sampler: Sampler, weighting: Weighting) -> int:
    """Count the labels that the weighting's margin needs and the sampler never draws.

    A sampler that follows the data (within-batch, queue) gets a warning: labels without examples
    are never in a batch, and nothing can be done. Any other is refused, because smoothing or
    mixing would fix it.
    """
    check_num_labels("sampler", sampler.num_labels, "`weighting`", weighting.num_labels)
    if not isinstance(weighting, FromMargin):
        check_marginal(weighting, sampler.claims.marginal)
        return 0
    margin = weighting.margin
    if not sampler.claims.may_miss:
        return 0
    ids = torch.arange(sampler.num_labels)
    missing = sampler.log_support(ids) == -math.inf
    if isinstance(margin, Separable):
        missing &= margin.log_negative(ids) > -math.inf
    number = int(missing.sum())
    if number:
        first = int(missing.int().argmax())
        uniform = PythonName("Uniform")
        fix = Sentence("Count with ", Setting("smoothing", 1), ", or mix in ", uniform, ".")
        if sampler.claims.source is not None:
            fix = Sentence("Mix in ", uniform, " if they matter.")
        sentence = Sentence(
            PythonName(sampler.name),
            f" never draws {number} of {len(ids)} labels (the first is {first}), so no weights "
            "make it optimise this margin for them. ",
            fix,
        )
        if sampler.claims.source is None:
            raise HeadtailError(sentence)
        warnings.warn(sentence, stacklevel=3)
    return number
