"""Settings of other programs as fields of a job: Megatron arguments, DeepSpeed and torchtitan configs."""

from precision_time.job.importers.deepspeed import from_deepspeed
from precision_time.job.importers.imported import Imported
from precision_time.job.importers.megatron import from_megatron
from precision_time.job.importers.recognise import read_import
from precision_time.job.importers.torchtitan import from_torchtitan

__all__ = ["Imported", "from_deepspeed", "from_megatron", "from_torchtitan", "read_import"]
