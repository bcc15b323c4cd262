"""Where the samples come from: storage, cache, loader workers; and co-located jobs that read the same data.

loader.py     one job: is the loader the limit, and what would hide it
cache.py      how often a job alone finds a sample in a cache, after its first epochs
first_epoch.py  the same in the first, of a cache that held some before
formats.py    what a worker spends on a sample, by format
job_loader.py from a job's `data` section to its loader
predicted.py  rates of jobs that share a node, from their loaders
rates.py      what is known of jobs that share a node: their rates alone and together
fluid.py      how such jobs run beside each other, from these rates
"""
