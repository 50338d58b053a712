"""headtail in Hugging Face transformers: models with a label head, and a trainer for sparse rows.

Models and trainer here call public names of headtail and of transformers; what they compute is in
the rooms below.
"""

from __future__ import annotations

from headtail.errors import need

for _package in ("transformers", "accelerate"):
    need(_package, extra="transformers", to="`headtail.integrations.transformers`")

from transformers import (  # noqa: E402
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
)

from headtail.integrations.transformers.causal_lm import HeadtailForCausalLM  # noqa: E402
from headtail.integrations.transformers.classification import (  # noqa: E402
    HeadtailForSequenceClassification,
)
from headtail.integrations.transformers.config import HeadtailConfig  # noqa: E402
from headtail.integrations.transformers.trainer import (  # noqa: E402
    HeadtailTrainer,
    HeadtailTrainerMixin,
)
from headtail.integrations.transformers.with_head import HeadtailOutput  # noqa: E402

# `AutoModelForCausalLM.from_pretrained(folder)` then finds them, once this module is imported.
AutoConfig.register(HeadtailConfig.model_type, HeadtailConfig)
AutoModelForCausalLM.register(HeadtailConfig, HeadtailForCausalLM)
AutoModelForSequenceClassification.register(HeadtailConfig, HeadtailForSequenceClassification)

__all__ = [
    "HeadtailConfig",
    "HeadtailForCausalLM",
    "HeadtailForSequenceClassification",
    "HeadtailOutput",
    "HeadtailTrainer",
    "HeadtailTrainerMixin",
]
