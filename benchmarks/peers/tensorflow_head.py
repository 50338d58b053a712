"""The head's step with TensorFlow's `sampled_softmax_loss` under `tf.function`; run by
`head_step.py`, in an interpreter that has TensorFlow and needs no torch.
"""

from __future__ import annotations

import os
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf  # pyright: ignore[reportMissingImports]
from peers.cells import MIB, Cell, Found, memory_mib, reset_peak, serve, times_of

BATCHES = 16
LR = 0.01
TINY = {"labels": 5000, "batch": 8, "negatives": 8, "dim": 8}


def measure(cell: Cell) -> Found:
    """Time and memory of one cell."""
    tf.random.set_seed(0)
    _run(Cell(**{**vars(cell), **TINY}), seconds=0.0)
    loaded = memory_mib("VmRSS")
    found, needed = _run(cell)
    peak = memory_mib() - loaded
    sizes = {
        "peak_mib": round(peak, 1),
        "needed_mib": round(needed, 1),
        "above_mib": round(peak - needed, 1),
    }
    threads = tf.config.threading.get_intra_op_parallelism_threads() or os.cpu_count()
    return {**found, **sizes, "version": f"tensorflow {tf.__version__}", "threads": threads}


def _run(cell: Cell, **options: Any) -> tuple[Found, float]:
    weight = tf.Variable(tf.random.normal((cell.labels, cell.dim), stddev=cell.dim**-0.5))
    bias = tf.constant(0.0, shape=(cell.labels,))  # not trained: headtail's head has none here
    # This optimiser has sparse update kernels; that of Keras uses dense arithmetic.
    train = tf.compat.v1.train
    kind = {"adagrad": train.AdagradOptimizer, "sgd": train.GradientDescentOptimizer}[
        cell.optimiser
    ]
    optimiser = kind(LR)
    hidden = tf.Variable(tf.random.normal((cell.batch, cell.dim)))
    targets = [
        tf.random.uniform((cell.batch, 1), maxval=cell.labels, dtype=tf.int64)
        for _ in range(BATCHES)
    ]

    @tf.function
    def step(target):
        draws = tf.random.uniform_candidate_sampler(target, 1, cell.negatives, False, cell.labels)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.nn.sampled_softmax_loss(
                    weight, bias, target, hidden, cell.negatives, cell.labels, sampled_values=draws
                )
            )
        grad_weight, grad_hidden = tape.gradient(loss, [weight, hidden])
        optimiser.apply_gradients([(grad_weight, weight)])
        return loss, grad_hidden

    done = 0

    def one() -> None:
        nonlocal done
        step(targets[done % BATCHES])[0].numpy()
        done += 1

    one()
    reset_peak()  # initialisation holds the tables twice, which is not part of the step
    found = times_of(one, **options)
    tables = 2 if cell.optimiser == "adagrad" else 1
    return found, (4 * cell.labels * cell.dim * tables + 4 * cell.labels) / MIB


if __name__ == "__main__":
    serve(measure)
