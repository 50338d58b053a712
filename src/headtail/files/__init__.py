"""Files that a reader sees whole or not at all: atomic writes and folders that can be written.

What the files contain belongs to the rooms that write them.
"""
