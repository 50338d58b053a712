"""Tables that change row by row: their gradients, their optimisers and their weight decay.

`gradients.py` turns entries of rows into what autograd, clipping and optimisers take, `link.py` is
what a table shares with its optimiser, `decay.py` applies weight decay when rows are read, and
`rounding.py` writes to bfloat16 tables. Kernels that update rows belong in `kernels`, and what a
gradient is the gradient of in `losses` and `encoders`.
"""
