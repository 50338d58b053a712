"""What a scheme really does: explain and audit."""

from headtail.implicit.audit import Audit, audit
from headtail.implicit.explain import Example, Explanation, explain, optimal_q
from headtail.implicit.implied import implied_margin, lean_of
from headtail.implicit.names import recognise

__all__ = ["Audit", "Example", "Explanation", "audit", "explain", "implied_margin", "lean_of", "optimal_q", "recognise"]
