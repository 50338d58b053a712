"""The nouns everything else is about: labels, slices, targets, draws, margins ρ and weightings w.

Values and equations only: no randomness (that is `samplers`), no label table and no training.
"""

from headtail.core.margins import Margin, Power, Separable
from headtail.core.score_margins import ScoreMargin
from headtail.core.weightings import Weighting

__all__ = ["Margin", "Power", "ScoreMargin", "Separable", "Weighting"]
