"""Training scripts, read as text and never run: `read_script` gives a `Script`, `facts_of` what it says of a job."""

from precision_time.job.scripts.facts import Facts
from precision_time.job.scripts.of_script import facts_of
from precision_time.job.scripts.script import Script, read_script

__all__ = ["Facts", "Script", "facts_of", "read_script"]
