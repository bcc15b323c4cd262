"""The named models.

takes     the name of a model, its `model_config` and input sizes
gives     a `ZooEntry` (no torch needed) or the `Workload` built from it: module, inputs, loss
imports   no jobs and no hardware

catalog.py, tables/       the entries
models/                   the modules (torch)
data/, ship.py            stored graphs of the entries, and the command that makes them
templates.py, shallow.py  decoders of any shape and depth
parallel.py               how models are split over ranks
"""
