"""Files on disk, whatever they hold.

Writing a file so that readers never see half of it, records as CSV, and where the cache is. Formats
of data sets belong in `data/`, checkpoints in `training/`, and the files of a comparison in
`comparison/`.
"""
