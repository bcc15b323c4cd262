"""The outcome of a run: a JSON file with the job, what was predicted, what was measured and how it ended."""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from precision_time.integrations.live import LiveRun
from precision_time.integrations.preview import Preview
from precision_time.integrations.probe import DeviceProbe
from precision_time.reading import to_json
from precision_time.report.write import write_whole

FORMAT = 1
FILE = "precision_time_outcome.json"
"""Usual name of the file, in the folder where a framework writes its results."""
_MOST = 10_000
"""Step times that are kept; of a longer run every second, fourth ... step."""


class Outcome:
    """Step times as they come, and the file that they are written to with everything else; None: no file."""

    def __init__(self, path: Path | None, framework: str, probe: DeviceProbe) -> None:
        self.path, self.framework, self.probe = path, framework, probe
        self._run, self._began_at = uuid.uuid4().hex, time.time()
        self.every = 1
        self._seen = 0
        self._steps_s: list[float] = []
        self._waits_s: list[float] = []

    def add_step(self, period_s: float, wait_s: float) -> None:
        """A step; where there are too many, every second one is dropped and so are those to come."""
        if self._seen % self.every == 0:
            self._steps_s.append(period_s)
            self._waits_s.append(wait_s)
        self._seen += 1
        if len(self._steps_s) > _MOST:
            self._steps_s, self._waits_s, self.every = self._steps_s[::2], self._waits_s[::2], 2 * self.every

    def content(
        self, live: LiveRun, preview: Preview | None, notes: Sequence[str], run_s: float, ended: str, cost_s: float
    ) -> dict[str, Any]:
        """Plain JSON values. Seconds and bytes; `finished` is false until all steps are done."""
        measured = self._steps_s[-(-live.warmup // self.every) :]
        return {
            "format": FORMAT,
            "run": self._run,
            "began_at": self._began_at,
            "framework": {"name": self.framework, "version": _version(self.framework)},
            "precision_time": _version("precision-time"),
            "job": preview.estimate.job.to_dict() if preview else None,
            "prediction": preview.estimate.to_dict() if preview else None,
            "predicted_for_this_device": preview.here if preview else None,
            "measured": {
                **self.probe.machine(),
                "run_s": run_s,
                "step_s": statistics.median(measured) if measured else None,
                "steps_s": self._steps_s,
                "waits_s": self._waits_s,
                "one_step_in": self.every,
                "warmup_steps": live.warmup,
                "evaluations_s": live.evaluations.measured_s,
                "checkpoints_s": live.checkpoints.measured_s,
                "peak_memory": self.probe.peak_memory(),
                "own_cost_s": cost_s,
            },
            "steps": {"done": live.done, "planned": live.steps},
            "finished": live.steps is not None and live.done >= live.steps,
            "ended": ended or None,
            "notes": [*(preview.notes if preview else ()), *notes],
        }

    def write(
        self, live: LiveRun, preview: Preview | None, notes: Sequence[str], run_s: float, ended: str, cost_s: float
    ) -> None:
        """Replace the file. Raises `DataError` where it cannot be written."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, to_json(self.content(live, preview, notes, run_s, ended, cost_s), indent=1) + "\n")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
