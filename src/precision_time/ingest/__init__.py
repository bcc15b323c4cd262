"""Data loading: storage, cache and loader workers of one job, and co-located jobs that read the same data.

pipeline/     the loader of one job: whether training waits for it, and what would hide it
model/        jobs that share a node: makespan over start offsets, from rates (fluid.py, same_order.py, curve.py)
stagger/      real co-located jobs: jobs file, calibration in short windows, advice, run
storage/      real storage: readers, probes, a file cache, a generated data set
progress.py   how a running job reports its progress
"""
