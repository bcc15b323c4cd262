"""Where the samples come from: storage, cache, loader workers; and co-located jobs that read the same data.

pipeline/   one job's loader: is it the limit, and what would hide it (loader.py; cache.py, first_epoch.py, formats.py)
model/      how jobs that share a node run beside each other: rates.py, fluid.py and its parts, curve.py, offsets.py
stagger/    such jobs for real: the jobs file, calibration in short windows, the advice, the run
storage/    real storage: pictures, a server of limited rate, a cache of files, readers, probes
progress.py how a job tells how far it is
"""
