"""Training one model: settings and recipes, the loop, its steps, checkpoints and events.

`trainer` is the loop; `eager`, `resident`, `captured` and `streamed` are ways to take a step, and
`choose_step` picks one. Running many trainings and comparing them belongs to `comparison`, and what
knows only the machine, such as capturing CUDA graphs, to `device`.
"""
