"""Encoders, and the model that puts a label head on one."""

from headtail.encoders.bottleneck import Bottleneck
from headtail.encoders.model import Batch, Model
from headtail.encoders.resnet import ResNet

__all__ = ["Batch", "Bottleneck", "Model", "ResNet"]
