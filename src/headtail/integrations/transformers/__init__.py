"""headtail in Hugging Face transformers: models with a label head, and a trainer for sparse rows.

Models and trainer here call public names of headtail and of transformers; what they compute is in
the rooms below.
"""

from __future__ import annotations

from headtail.errors import need

for _package in ("transformers", "accelerate"):
    need(_package, extra="transformers", to="`headtail.integrations.transformers`")

from headtail.integrations.transformers.causal_lm import HeadtailForCausalLM  # noqa: E402
from headtail.integrations.transformers.classification import (  # noqa: E402
    HeadtailForSequenceClassification,
)
from headtail.integrations.transformers.trainer import (  # noqa: E402
    HeadtailTrainer,
    HeadtailTrainerMixin,
)
from headtail.integrations.transformers.with_head import (  # noqa: E402
    HeadtailConfig,
    HeadtailOutput,
)

__all__ = [
    "HeadtailConfig",
    "HeadtailForCausalLM",
    "HeadtailForSequenceClassification",
    "HeadtailOutput",
    "HeadtailTrainer",
    "HeadtailTrainerMixin",
]
