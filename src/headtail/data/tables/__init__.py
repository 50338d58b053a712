"""Tables: anything with named columns that can be read in record batches more than once.

`table` is the one notion of them; `open` makes one of a file, of a folder of shards or of an object
in memory; `dialects` recognises delimited text; `roles` decides what columns are for, `columns`
reads them, and `formats` decides which reader they go to.
"""
