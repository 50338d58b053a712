"""Samplers with a q that does not depend on the model: one file per sampler.

`inverse` is shared by those that invert a cumulative distribution. `Mixture` is here too, although
its parts may follow the model. To add a sampler, write one file and add one row to
`schemes/table.py`.
"""
