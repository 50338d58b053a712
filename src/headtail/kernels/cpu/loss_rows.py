"""What a sampled loss reads of a table and adds to gradients, row by row, on a CPU by numba."""

from __future__ import annotations

# numba takes bare functions, not those that `pytest --shapes` has wrapped
from typing import no_type_check

from numba import njit

from headtail.kernels.compiled import keep_compiled
from headtail.kernels.cpu.inside import refuse_outside
from headtail.kernels.cpu.prefetch import AHEAD, prefetch
from headtail.kernels.cpu.products import product

keep_compiled()


@njit(cache=True)
@no_type_check
def gather(input, table, positive, bias, f_y, negatives, rows, entries):
    """f_y[i] = input[i] · table[positive[i]] + bias; rows[j] = table[negatives[j]]; and the rows
    of the table that were read.
    """
    refuse_outside(negatives, len(table))
    entries[: len(positive)] = positive
    entries[len(positive) :] = negatives
    for j in range(len(negatives)):
        prefetch(table, negatives[min(j + AHEAD, len(negatives) - 1)])
        row = negatives[j]
        for k in range(rows.shape[1]):
            rows[j, k] = table[row, k]
    dot(input, table, positive, bias, f_y)


@njit(cache=True)
@no_type_check
def dot(input, table, rows, bias, out):
    """out[i] = input[i] · table[rows[i]] + bias."""
    refuse_outside(rows, len(table))
    for i in range(len(rows)):
        prefetch(table, rows[min(i + AHEAD, len(rows) - 1)])
        out[i] = product(input[i], table[rows[i]])
        if len(bias):
            out[i] += bias[rows[i]]


@njit(cache=True)
@no_type_check
def dots(input, table, rows, bias, out):
    """out[i, j] = input[i] · table[rows[i, j]] + bias."""
    for i in range(len(rows)):
        _dot_one(input[i], table, bias, rows[i], out[i])


@njit(cache=True)
@no_type_check
def _dot_one(x, table, bias, rows, out):
    refuse_outside(rows, len(table))
    for j in range(len(rows)):
        out[j] = product(x, table[rows[j]])
        if len(bias):
            out[j] += bias[rows[j]]


@njit(cache=True)
@no_type_check
def add_rows(out, table, rows, coefs):
    """out[i] += coefs[i] · table[rows[i]]."""
    for i in range(len(rows)):
        source = table[rows[i]]
        coef = coefs[i]
        for k in range(out.shape[1]):
            out[i, k] += coef * source[k]


@njit(cache=True)
@no_type_check
def add_positives(grad_input, grad_rows, input, table, rows, coefs):
    """grad_input[i] += coefs[i] · table[rows[i]]; grad_rows[i] = coefs[i] · input[i]."""
    for i in range(len(rows)):
        r = rows[i]
        coef = coefs[i]
        for k in range(input.shape[1]):
            grad_input[i, k] += coef * table[r, k]
            grad_rows[i, k] = coef * input[i, k]


@njit(cache=True)
@no_type_check
def add_bags(out, table, rows, coefs):
    """out[i] += Σ_j coefs[i, j] · table[rows[i, j]]."""
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            source = table[rows[i, j]]
            coef = coefs[i, j]
            for k in range(out.shape[1]):
                out[i, k] += coef * source[k]
