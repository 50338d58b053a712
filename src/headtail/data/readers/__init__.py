"""Readers: one file per format, from files on disk to a `DataSet`.

`table.py` has a row per reader; `headtail.data.load` chooses the row. What several readers share
(Parquet columns, vocabularies, parsing lines) is here too. Batches, splits into epochs and anything
that a model does with the data do not belong here.
"""
