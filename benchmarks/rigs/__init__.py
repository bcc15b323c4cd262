"""Rigs that judge data loading and staggering: a storage server of limited rate, and the studies that use it.

local_server    nginx on the loopback with a limited request rate
fluid           the model of co-located jobs against a simulation of every sample
ingest          speed of that model
loader          epochs of loader-bound training, predicted and measured
stagger         makespans of staggered jobs, predicted and measured; stagger_report writes its page

Each study runs from the repository's folder, for example `python -m benchmarks.rigs.fluid`, and writes to
benchmarks/results/. The package is tested but not installed.
"""
