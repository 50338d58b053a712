"""What a training step of the label head costs on this machine, and what to train with.

`bench` and `step_cost` measure, `gap_law` says how far sampling is expected to end from its target,
`advise` decides. What only asks the system, such as free memory, belongs to `device`; tables for
people belong to `cli`.
"""
