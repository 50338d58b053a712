"""Encoders: modules from features to hidden states, and the model that puts a label head on one.

The paper's bottleneck for sparse and dense features, SASRec and GRU4Rec for sequences, ResNets for
images, and the layers they are built from belong here, each with its plain PyTorch code; compiled
twins are in `kernels`. Reading data does not belong here, nor do losses, optimisers and training
loops.
"""

from headtail.encoders.bottleneck import Bottleneck
from headtail.encoders.gru import GRU4Rec
from headtail.encoders.items import ItemHead
from headtail.encoders.model import Model
from headtail.encoders.resnet import ResNet
from headtail.encoders.sasrec import SASRec
from headtail.encoders.sequence import SequenceEncoder

__all__ = ["Bottleneck", "GRU4Rec", "ItemHead", "Model", "ResNet", "SASRec", "SequenceEncoder"]
