"""What a scheme really does: explain and audit."""

from headtail.implicit.audit import Audit, audit
from headtail.implicit.examples import Example
from headtail.implicit.explain import Explanation, explain, optimal_q
from headtail.implicit.implied import implied_margin, lean_of
from headtail.implicit.names import recognise
from headtail.implicit.quality import OnModel, on_model

__all__ = [
    "Audit",
    "Example",
    "Explanation",
    "OnModel",
    "audit",
    "explain",
    "implied_margin",
    "lean_of",
    "on_model",
    "optimal_q",
    "recognise",
]
