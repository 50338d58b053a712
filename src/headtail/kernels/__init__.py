"""Fast twins of plain PyTorch functions, chosen by device. Imported where used: compilers are slow
to load.
"""
