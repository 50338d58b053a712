"""Values of all processes that train together: gathered and summed, with exact gradients.

`ranks.py` is a process group that can be copied and saved, and `gather.py` puts the tensors of all
ranks together. What travels is decided by those who call: row gradients in `rows`, labels in
`samplers`. Nothing here knows of tables, losses or models.
"""
