"""Encoders, and the model that puts a label head on one."""

from headtail.models.bottleneck import Bottleneck
from headtail.models.model import Batch, Model
from headtail.models.resnet import ResNet

__all__ = ["Batch", "Bottleneck", "Model", "ResNet"]
