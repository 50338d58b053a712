"""headtail inside other libraries: one thin file each, an optional extra, an example.

What belongs here adapts: it translates another library's loop, file or interface, and calls public
names. Mathematics, kernels and file formats of our own belong to the rooms below.
"""
