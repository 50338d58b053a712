"""How a label table answers: scores, and the exact best labels.

`ScoredTable` is the equation of a score; `topk.py` searches all labels with it, or candidates.
Training belongs in `losses/`, answers of whole data sets in `evaluation/`.
"""
