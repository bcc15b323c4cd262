"""The job: the fields that describe one training run.

takes     Python arguments, mappings, YAML or JSON files, settings of other programs (importers/)
gives     a checked `Job` with its `Layout`, `Precision`, `Run` and `Data`
imports   no torch, no numpy, no hardware
"""

from precision_time.job.job import Job
from precision_time.job.layout import Layout
from precision_time.job.precision import PRECISIONS, Precision, parse_precision
from precision_time.job.run import Run
from precision_time.job.schedule import PrecisionFrom

__all__ = ["PRECISIONS", "Job", "Layout", "Precision", "PrecisionFrom", "Run", "parse_precision"]
