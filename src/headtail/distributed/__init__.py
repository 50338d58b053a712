"""Training on several processes: a head that every rank has a copy of, or one whose rows are spread
over ranks.

`replicate` prepares a model for `DistributedDataParallel`; `ShardedLabelHead` is a label table too
large for one rank; `save_checkpoint` and `load_checkpoint` keep what is trained, for any number of
ranks; `export_table` and `import_table` exchange the table with a `LabelHead`; `gather` puts the
tensors of all ranks together. Launching is torchrun's business.
"""

from headtail.collectives.gather import gather
from headtail.distributed.checkpoint import Saving, load_checkpoint, save_checkpoint
from headtail.distributed.replicate import replicate
from headtail.distributed.sharded_head import ShardedLabelHead
from headtail.distributed.table_file import export_table, import_table

__all__ = [
    "Saving",
    "ShardedLabelHead",
    "export_table",
    "gather",
    "import_table",
    "load_checkpoint",
    "replicate",
    "save_checkpoint",
]
