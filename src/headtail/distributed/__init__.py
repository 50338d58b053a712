"""Training on several processes: a head that every rank has a copy of, or one whose rows are spread
over ranks.

`replicate` prepares a model for `DistributedDataParallel`; `ShardedLabelHead` is a label table too
large for one rank; `gather` puts the tensors of all ranks together. Launching is torchrun's
business.
"""

from headtail.collectives.gather import gather
from headtail.distributed.as_one import as_one
from headtail.distributed.counting import count_labels
from headtail.distributed.replicate import replicate
from headtail.distributed.sharded_head import ShardedLabelHead

__all__ = ["ShardedLabelHead", "as_one", "count_labels", "gather", "replicate"]
