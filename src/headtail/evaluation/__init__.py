"""What a trained model answers, and how good that is.

The best labels over all labels, metrics by slice with bootstrap intervals, validation during
training, and predictions on disk. The metrics themselves are in `headtail.metrics`; loops over
several models and their tables belong in `comparison/`.
"""
