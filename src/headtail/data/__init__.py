"""Reading from disk, and nothing else."""
