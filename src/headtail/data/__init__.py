"""Data: from files, or a generator, to points with features and labels, and to batches of them.

`load` is the door. Behind it, `find` recognises files, `readers` has a file per format, `synthetic`
generates, `cache` keeps what was parsed, and `points`, `bag` and `image_files` are the values that
come out. Encoders, losses and training do not belong here.
"""
