"""What a training step of the label head costs on this machine, measured and predicted.

`bench` measures, `advise` predicts from a measurement which loss to use. What only asks the system,
such as free memory, belongs to `device`; tables for people belong to `cli`.
"""
