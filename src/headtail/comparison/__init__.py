"""Comparing schemes: a grid of runs over schemes and seeds, in one folder.

The grid and its folders, training and testing one cell of it, processes that work on cells at the
same time, and the rows and files that a comparison leaves. How a single model is trained belongs in
`training/`, what is measured in `evaluation/`, and what the results look like in `report/`.
"""
