"""Samplers that follow the scores of the model: one file per sampler.

`by_score` is shared by those that pass over all labels for each draw; `schedule`, `clusters`,
`summary`, `blocks` and `tree` by those that keep a summary of the table and refresh it from time to
time. To add a sampler, write one file and add one row to `schemes/table.py`.
"""
