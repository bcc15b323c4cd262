"""The time limit to ask a scheduler for, in its own clock and grain.

| format | what it limits | written as |
|---|---|---|
| `seconds` | the run | whole seconds |
| `slurm` | the run: `--time`; with checkpoints the median as `--time-min` | `D-HH:MM:SS`, whole minutes |
| `kueue` | the run, summed over evictions: a label | whole seconds |
| `trainjob` | from the creation of the TrainJob: the time in the queue counts | whole seconds |
| `job` | from the start of the Job: time in its queue counts where nothing suspends it | whole seconds |

Slurm's manual: --time, --time-min. Kueue: label kueue.x-k8s.io/max-exec-time-seconds. Kubeflow Trainer: TrainJob's
activeDeadlineSeconds starts at creation. Kubernetes: Job's activeDeadlineSeconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from precision_time.errors import JobError
from precision_time.estimate.estimate import Estimate
from precision_time.field_types import choice, number

FORMATS = ("seconds", "slurm", "kueue", "trainjob", "job")
FORMAT = choice(FORMATS)
CONFIDENCE = number(0.5, 0.999)
MINUTE = 60


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """Seconds that a run stays below with a probability, and the median, as text for a scheduler."""

    format: str
    confidence: float
    seconds: int
    median_s: int
    queue_s: float
    resumes: bool
    """Whether the run writes checkpoints, so that a scheduler may shorten it."""

    @property
    def text(self) -> str:
        """The lines to paste."""
        if self.format == "slurm":
            least = f"\n#SBATCH --time-min={slurm_time(self.median_s)}" if self.resumes else ""
            return f"#SBATCH --time={slurm_time(self.seconds)}{least}"
        if self.format == "kueue":
            return f'metadata:\n  labels:\n    kueue.x-k8s.io/max-exec-time-seconds: "{self.seconds}"'
        if self.format in ("trainjob", "job"):
            return f"spec:\n  activeDeadlineSeconds: {self.seconds}"
        return str(self.seconds)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "format": self.format,
            "confidence": self.confidence,
            "seconds": self.seconds,
            "median_s": self.median_s,
            "queue_s": self.queue_s,
            "text": self.text,
        }


def time_limit(estimate: Estimate, confidence: float = 0.95, form: str = "seconds") -> TimeLimit:
    """The limit of a run with a length. Raises `JobError` for a run without one."""
    form, sure = FORMAT("format", form), CONFIDENCE("confidence", confidence)
    run = estimate.goodput
    if run is None:
        raise JobError("a time limit needs the length of the run: give epochs (with a dataset), steps or samples")
    queued = form in ("trainjob", "job")
    whole = run.from_submission() if queued else run.wall
    grain = MINUTE if form == "slurm" else 1
    seconds, median = (ceil(round(whole.quantile(q) / grain, 6)) * grain for q in (sure, 0.5))
    told = estimate.job.run
    resumes = bool(told.checkpoint_every_steps or told.checkpoint_every_s or "checkpoints" in run.parts)
    return TimeLimit(form, sure, max(seconds, grain), max(median, grain), run.queue_s if queued else 0.0, resumes)


def slurm_time(seconds: int) -> str:
    """D-HH:MM:SS, or HH:MM:SS below a day."""
    days, rest = divmod(seconds, 86_400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock
