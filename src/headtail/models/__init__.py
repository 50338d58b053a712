"""Encoders, and the model that puts a label head on one."""

from headtail.models.bottleneck import Bottleneck
from headtail.models.model import Batch, Model

__all__ = ["Batch", "Bottleneck", "Model"]
