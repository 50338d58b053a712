"""What the studies conclude from their rows: intervals, tests and verdicts, as pure functions.

Everything is float64 on a CPU and depends on nothing but its arguments.
"""
