"""What a scheme really does: the loss it implies (`explain`), whether its sampler draws what it
claims (`audit`), and how well it approximates the exact loss on given hidden states (`on_model`).
Nothing here reads data, trains or prints.
"""

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
