"""How a job went, from wherever it is known to a store or a server.

Takes the outcome file of a callback (`outcome_file`), a table of measured jobs or of outcomes (`tables`), what Slurm
says of its jobs (`slurm`), or values that are given. Gives `Measured` values, which a `Recorder` keeps in a local store
or sends to a server (`recorder`). Every source gives the same key for the same run, so that it may be recorded again.
"""

from precision_time.serve.recording.outcome_file import record_run, run_of_file
from precision_time.serve.recording.recorder import Recorder, open_recorder
from precision_time.serve.recording.runs import Measured, Run

__all__ = ["Measured", "Recorder", "Run", "open_recorder", "record_run", "run_of_file"]
