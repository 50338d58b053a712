"""Training on several processes: a head that every rank has a copy of.

`replicate` prepares a model for `DistributedDataParallel`; `gather` puts the tensors of all ranks
together. Launching is torchrun's business.
"""

from headtail.collectives.gather import gather
from headtail.distributed.replicate import replicate

__all__ = ["gather", "replicate"]
