"""One run from its first step to its outcome: what the callbacks of all frameworks share.

A `Session` is told what happens (a step begins, a step ends, an evaluation took so long) and does the rest: it prints
the preview, the time left and why measurement and prediction part, and writes the outcome. It imports no framework, and
nothing that it does can stop training: its first failure is logged, and it does nothing more.
"""

from __future__ import annotations

import atexit
import functools
import logging
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from precision_time.errors import JobError, PrecisionTimeError
from precision_time.estimate.estimate import Estimate
from precision_time.integrations.live import LiveRun, Pauses
from precision_time.integrations.outcome import Outcome
from precision_time.integrations.preview import Fields, Preview, check_fields
from precision_time.integrations.probe import DeviceProbe
from precision_time.units import human_seconds

Report = Callable[[str], None]
Target = str | Path | tuple[str | Path, str] | None
ETA_EVERY_S = 60.0
"""Seconds between two lines about the time left."""
FIRST_ETA = 10
"""Measured steps after which the first such line comes, and a warning where measurement and prediction part."""
OUTCOME_EVERY_S = 60.0
"""Seconds between two writings of the outcome, so that a run that is killed leaves one."""
_LOADER_SHARE = 0.2
"""Share of a step that passes before it begins from which the loader is named as a reason."""
_IDLE_SHARE = 0.5
"""Share of steps that the device had finished before the host had launched them from which the host is named."""
_log = logging.getLogger("precision_time")
P = ParamSpec("P")


def print_line(text: str) -> None:
    """Print without tearing a progress bar of tqdm."""
    bar = sys.modules.get("tqdm")
    if bar is not None and hasattr(bar, "tqdm"):
        bar.tqdm.write(text, file=sys.stdout)
    else:
        print(text, flush=True)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user may set in every framework; checked when it is made, which is before training.

    fields        fields of the job that override what the framework has: gpu, device, price_per_gpu_hour ...
    output        file of the outcome; None: the framework's usual folder; False: none
    report        is called with each text
    eta_every_s   seconds between two lines about the time left; 0: none
    warmup        first steps that are not counted
    record        where the outcome is recorded at the end: a store's path, postgresql://..., a server's http://..., or
                  a pair of one of these and the name of the cluster
    clock         returns seconds; replaced in tests
    """

    fields: Fields = field(default_factory=dict)
    output: str | Path | bool | None = None
    report: Report = print_line
    eta_every_s: float = ETA_EVERY_S
    warmup: int = 3
    record: Target = None
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        check_fields(self.fields)
        if isinstance(self.record, tuple) and len(self.record) != 2:
            raise JobError(f"record has {len(self.record)} entries; give a store or server, and the name of a cluster")


def _guarded(method: Callable[Concatenate[Any, P], None]) -> Callable[Concatenate[Any, P], None]:
    """A method that never raises: its failure is logged once, after which the session is off; its time is counted."""

    @functools.wraps(method)
    def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.off:
            return
        if self._guarding:  # by the method that called this one
            method(self, *args, **kwargs)
            return
        self._guarding = True
        began = time.perf_counter()
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.off = True
            _log.warning("precision-time: %s; training goes on without its prediction", _reason(error))
        finally:
            self._guarding = False
            self.cost_s += time.perf_counter() - began

    return run


class Session:
    """A run that trains. Every method may be called at any time and returns without an error.

    live      the measured steps and the time left
    preview   what was predicted; None where it could not be
    cost_s    seconds that this session itself took of the run
    """

    def __init__(self, settings: Settings, framework: str) -> None:
        self.settings, self.framework = settings, framework
        self.live = LiveRun(warmup=settings.warmup)
        self.preview: Preview | None = None
        self.notes: list[str] = []
        self.off = self._guarding = False
        self.cost_s = 0.0
        self._outcome: Outcome | None = None
        self._probe = DeviceProbe("cpu")
        self._began_s: float | None = None
        self._mark_s: float | None = None
        self._step_began_s: float | None = None
        self._paused_s = self._paused_inside_s = 0.0
        self._told_s = self._written_s = 0.0
        self._compared = False

    @_guarded
    def attempt(self, work: Callable[[], None]) -> None:
        """Run code of an integration that may fail."""
        work()

    # --- before the first step

    @_guarded
    def begin(
        self,
        steps: int | None,
        device_type: str,
        output: Path | None,
        evaluation_every: int | None = None,
        checkpoint_every: int | None = None,
    ) -> None:
        """Training begins: `steps` are to be done; evaluations and checkpoints come after every so many steps."""
        self.live.steps = steps
        self.live.evaluations = Pauses(evaluation_every)
        self.live.checkpoints = Pauses(checkpoint_every)
        self._probe = DeviceProbe(device_type)
        path = self.settings.output
        if path is not False:
            target = output if path is None or path is True else Path(path)
            self._outcome = Outcome(target, self.framework, self._probe)
        elif self.settings.record is not None:
            self._outcome = Outcome(None, self.framework, self._probe)
        self._began_s = self._mark_s = self._told_s = self._written_s = self.settings.clock()
        atexit.register(self.end, "the process ended")

    @_guarded
    def predict(self, make: Callable[[], Preview]) -> None:
        """Make the preview and print it; what cannot be predicted is said in one sentence."""
        if self.preview is not None or self.notes:
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.preview = make()
        except Exception as error:
            self.notes.append(f"not predicted: {_reason(error)}")
            _log.warning("precision-time: %s", self.notes[-1])
            return
        estimate, live = self.preview.estimate, self.live
        live.predicted, live.here = estimate.step, self.preview.here
        self._expect_evaluations(estimate)
        parts = estimate.goodput.parts if estimate.goodput else {}
        for name, pauses in (("evaluation", live.evaluations), ("checkpoints", live.checkpoints)):
            count = (estimate.steps or 0) // pauses.every_steps if pauses.every_steps else 0
            if count and name in parts:
                pauses.predicted_s = parts[name].p50 / count
        self.settings.report(str(self.preview))
        for name, pauses in (("evaluations", live.evaluations), ("checkpoints", live.checkpoints)):
            if pauses.unknown:
                self.notes.append(f"{name} are not in the time left before the first of them was measured")

    def _expect_evaluations(self, estimate: Estimate) -> None:
        """Take the length of the run and the steps between evaluations from the job, where the framework has none."""
        run, live = estimate.job.run, self.live
        live.steps = estimate.steps if live.steps is None else live.steps
        if live.evaluations.every_steps is None:
            epochs, per_epoch = run.evaluation_every_epochs, estimate.steps_per_epoch
            by_epoch = max(round(epochs * per_epoch), 1) if epochs and per_epoch else None
            live.evaluations.every_steps = run.evaluation_every_steps or by_epoch
        if live.checkpoints.every_steps is None:
            live.checkpoints.every_steps = run.checkpoint_every_steps

    # --- while it trains

    @_guarded
    def step_begins(self) -> None:
        """The batch of a step is there."""
        self._step_began_s = self.settings.clock()
        self._probe.step_begins()

    @_guarded
    def step_ends(self, at_s: float | None = None) -> None:
        """A step is done, now or at an earlier time of the clock."""
        now = self.settings.clock() if at_s is None else at_s
        began, mark = self._step_began_s, self._mark_s
        if began is None or mark is None or self._began_s is None:
            return
        wait_s = max(began - mark - self._paused_s, 0.0)
        period_s = max(now - began - self._paused_inside_s, 0.0) + wait_s
        self._probe.step_ends()
        self.live.add(period_s, wait_s)
        if self._outcome is not None:
            self._outcome.add_step(period_s, wait_s)
        self._mark_s, self._step_began_s = now, None
        self._paused_s = self._paused_inside_s = 0.0
        if self.live.measured >= FIRST_ETA and not self._compared:
            self._compared = True
            self._compare()
            self._tell(now)
        elif self.settings.eta_every_s and self._compared and now - self._told_s >= self.settings.eta_every_s:
            self._tell(now)
        if now - self._written_s >= OUTCOME_EVERY_S:
            self._write("", now)

    @_guarded
    def paused(self, what: str, seconds: float) -> None:
        """An "evaluation" or a "checkpoint" took so many seconds; they are no part of a step."""
        pauses = self.live.evaluations if what == "evaluation" else self.live.checkpoints
        pauses.measured_s.append(seconds)
        if self._step_began_s is None:
            self._paused_s += seconds
        else:
            self._paused_inside_s += seconds

    @property
    def idle_s(self) -> float:
        """Seconds since the last step ended that no pause accounts for."""
        return 0.0 if self._mark_s is None else self.settings.clock() - self._mark_s - self._paused_s

    # --- after it

    @_guarded
    def end(self, stopped: str = "") -> None:
        """Training ended; `stopped`: why, where it is not because all steps are done."""
        if self._began_s is None:
            return
        atexit.unregister(self.end)
        now = self.settings.clock()
        done = self.live.steps is None or self.live.done >= self.live.steps
        ended = stopped or ("all steps are done" if done else "stopped early")
        if self.live.done:
            self.settings.report(_ended_text(self.live, now - self._began_s))
        self._record(ended, now)
        self._write(ended, now)
        self._began_s = None

    # --- texts and files

    def _compare(self) -> None:
        """Say where measured and predicted steps part, with what was measured about the reason."""
        live = self.live
        if not live.parted() or live.pace_s is None or live.predicted is None:
            return
        text = (
            f"steps take {human_seconds(live.pace_s)}, {live.pace_s / live.predicted.p50:.2f} times the predicted "
            f"{human_seconds(live.predicted.p50)} and outside of its P10 to P90"
        )
        reasons = self._reasons(live.pace_s, live.wait_s)
        text += f"; {'; '.join(reasons)}" if reasons else "; nothing that was measured beside them says why"
        self.notes.append(text)
        _log.warning("precision-time: %s", text)

    def _reasons(self, pace_s: float, wait_s: float) -> list[str]:
        reasons = []
        slower = self.live.predicted is not None and pace_s > self.live.predicted.p50
        if slower and wait_s > _LOADER_SHARE * pace_s:
            reasons.append(
                f"{human_seconds(wait_s)} of a step pass before it begins, in the data loader and in other callbacks: "
                "more workers or faster storage shorten that"
            )
        elif slower:
            reasons.append(f"only {human_seconds(wait_s)} of a step pass before it begins, so the loader is not why")
        reasons += self._probe.reasons(_IDLE_SHARE) if slower else []
        return reasons

    def _tell(self, now: float) -> None:
        left = self.live.left()
        self._told_s = now
        if left is None:
            return
        text = f"precision-time: step {self.live.done:,}"
        text += f" of {self.live.steps:,}: {human_seconds(left.p50)} left" if self.live.steps else ""
        text += f" ({human_seconds(left.p10)} to {human_seconds(left.p90)}), until {_until(left.p50)}"
        if self.live.ratio is not None:
            text += f"; a step takes {self.live.ratio:.2f} times the predicted"
        self.settings.report(text)

    def _record(self, ended: str, now: float) -> None:
        """Record the outcome where the settings say; what prevents it is a note and one warning."""
        if self.settings.record is None or self._outcome is None or self._began_s is None:
            return
        try:
            from precision_time.serve.recording import record_run

            content = self._outcome.content(
                self.live, self.preview, self.notes, now - self._began_s, ended, self.cost_s
            )
            where = self.settings.record
            target, cluster = where if isinstance(where, tuple) else (where, None)
            recorded = record_run(content, target, cluster, self.preview.estimate if self.preview else None)
        except Exception as error:
            self.notes.append(f"not recorded: {_reason(error)}")
            _log.warning("precision-time: %s", self.notes[-1])
            return
        self.settings.report(f"precision-time: recorded as prediction {recorded}")

    def _write(self, ended: str, now: float) -> None:
        self._written_s = now
        if self._outcome is not None and self._outcome.path is not None and self._began_s is not None:
            run_s = now - self._began_s
            try:
                self._outcome.write(self.live, self.preview, self.notes, run_s, ended, self.cost_s)
            except PrecisionTimeError as error:
                self._outcome = None
                _log.warning("precision-time: %s; no outcome is written", error)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, PrecisionTimeError) else f"{type(error).__name__}: {error}"


def _until(seconds: float) -> str:
    """The time of day, with the date where it is another day."""
    now = datetime.now()
    try:
        end = now + timedelta(seconds=seconds)
    except OverflowError:
        return "no date of this calendar"
    return end.strftime("%H:%M" if end.date() == now.date() else "%Y-%m-%d %H:%M")


def _ended_text(live: LiveRun, run_s: float) -> str:
    text = f"precision-time: {live.done:,} steps in {human_seconds(run_s)}"
    if live.ratio is not None and live.pace_s is not None and live.predicted is not None:
        text += f"; a step took {human_seconds(live.pace_s)}, predicted were {human_seconds(live.predicted.p50)}"
    return text


def rank_of(environment: Any) -> int:
    """Rank of this process as a launcher sets it in the environment; 0 without one."""
    text = str(environment.get("RANK", "0"))
    return int(text) if text.isdigit() else 0
