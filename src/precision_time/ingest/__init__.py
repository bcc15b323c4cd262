"""Where the samples come from: storage, cache, loader workers; and co-located jobs that read the same data.

loader.py     one job: is the loader the limit, and what would hide it
cache.py      how often a job alone finds a sample in a cache, after its first epochs
first_epoch.py  the same in the first, of a cache that held some before
formats.py    what a worker spends on a sample, by format
job_loader.py from a job's `data` section to its loader
predicted.py  rates of jobs that share a node, from their loaders
rates.py      what is known of jobs that share a node: their rates alone and together
fluid.py      how such jobs run beside each other, from these rates (parts.py, misses.py, order.py, contention.py)
cache.py      how often one job alone finds a sample in a cache that is too small
curve.py      the makespan of two jobs over the stagger; offsets.py: the best offsets of several; alternatives.py
staggering.py the whole answer (staggering_text.py, staggering_plot.py); staggered_run.py: really launch the jobs so
calibration.py  rates of jobs that are measured: jobs_file.py, cache_state.py, host.py, processes.py, windows_plan.py,
              journal.py launch and keep windows; windows.py, inversion.py read parameters out of them
"""
