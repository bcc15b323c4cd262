"""`preview` for plain PyTorch loops, and `predict_module`: the estimate of a module and a batch."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from precision_time.capture.given_module import GivenModule
from precision_time.capture.trace import require_torch
from precision_time.errors import JobError
from precision_time.estimate.estimate import Estimate
from precision_time.estimate.interval import Interval
from precision_time.integrations.batch_size import suggest_batch_size
from precision_time.integrations.live import WARMUP_STEPS
from precision_time.integrations.preview import Preview, check_fields, node_fields, predict_given
from precision_time.integrations.session import ETA_EVERY_S, Report, Session, Settings, Target, print_line, rank_of
from precision_time.integrations.torch_calls import call_of
from precision_time.integrations.torch_facts import device_type_of, memory_format, optimizer_fields, precision_name

__all__ = ["TrainingRun", "predict_module", "preview", "suggest_batch_size"]
Batch = TypeVar("Batch")


def predict_module(
    model: Any,
    batch: Any,
    *,
    loss: Callable[..., Any] | None = None,
    optimizer: Any = None,
    **fields: Any,
) -> Estimate:
    """The estimate of a training step of a module that is at hand, without moving or copying its weights.

    model      a `torch.nn.Module`: an instance, also compiled, wrapped in DDP, sharded by FSDP or on a GPU, or
               a class without arguments
    batch      one batch as the loader returns it: (inputs, targets) with `loss`, else what the model takes
    loss       function of (output, targets); None where the model returns its loss
    optimizer  a `torch.optim` optimizer; default: sgd
    fields     job fields (docs/job.md): gpu, precision, gpus, layout, steps ...; batch_size scales the batch

    The estimate's assumptions begin with what was taken off the model (compilation, wrappers).

    Raises `CaptureError` for a module that cannot be traced, and `JobError` for a field that is wrong or, on a machine
    whose device is not in the catalog, missing.
    """
    found = _predicted(model, batch, loss, optimizer, fields)
    notes = found.notes if found.here else found.notes[:-1]  # the last is about a run that it would correct
    return dataclasses.replace(found.estimate, assumptions=(*notes, *found.estimate.assumptions))


def _predicted(model: Any, batch: Any, loss: Any, optimizer: Any, fields: dict[str, Any]) -> Preview:
    require_torch("a module")
    check_fields(fields)
    given = GivenModule(model, batch, call_of(model, batch, loss))
    instance = hasattr(model, "parameters") and not isinstance(model, type)
    kind = device_type_of(model) if instance else "cpu"
    words, notes = optimizer_fields(optimizer, kind)
    layout = fields.get("layout") or "dp"
    settings = {
        "precision": precision_name(None, given.module, layout if isinstance(layout, str) else "dp", kind),
        "memory_format": memory_format(given.module),
        "execution": "compile" if type(model).__name__ == "OptimizedModule" else None,
        "gpus": _world_size(),
        **words,
        **(node_fields() if "gpus" not in fields else {}),
    }
    return predict_given(given, settings, fields, kind, notes)


def _world_size() -> int:
    text = os.environ.get("WORLD_SIZE", "")
    return int(text) if text.isdigit() and int(text) else 1


def preview(
    model: Any,
    optimizer: Any,
    batch: Any,
    *,
    loss: Callable[..., Any] | None = None,
    output: str | Path | None = None,
    report: Report = print_line,
    eta_every_s: float = ETA_EVERY_S,
    record: Target = None,
    **fields: Any,
) -> TrainingRun:
    """Print what a plain loop will take, and return the run, which measures the loop and corrects the time left.

        with preview(model, optimizer, (images, labels), loss=F.cross_entropy, steps=1000) as run:
            for images, labels in run.watch(loader):
                ...

    model, optimizer, batch, loss   as in `predict_module`
    output        file of the outcome, written when the run ends and while it trains; None: none
    report        called with each text; default: prints
    eta_every_s   seconds between two lines about the time left; 0: none
    record        where the outcome is recorded at the end: the path of a store, postgresql://..., the http://... of a
                  server, or a pair of one of these and the name of the cluster; a failure is a note in the outcome
    fields        job fields (docs/job.md): steps, or epochs and dataset_size; precision where the loop uses autocast;
                  gpu, grad_accum, evaluation_samples, price_per_gpu_hour ...

    Raises `PrecisionTimeError` for a field that is wrong. Where the model cannot be traced or the device is not known,
    one warning says so, and the run measures without a prediction.
    """
    if not hasattr(model, "parameters"):
        raise JobError(f"model is {type(model).__name__}, not a torch.nn.Module; give the module that trains")
    settings = Settings({"start_up_s": 0.0, **fields}, output or False, report, eta_every_s, WARMUP_STEPS, record)
    run = TrainingRun(Session(settings, "torch"), int(fields.get("grad_accum") or 1))
    if rank_of(os.environ):
        run.session.off = True
        return run
    steps = fields.get("steps")
    run.session.begin(steps if isinstance(steps, int) else None, device_type_of(model), None)
    run.session.predict(lambda: _predicted(model, batch, loss, optimizer, dict(settings.fields)))
    return run


class TrainingRun:
    """A plain loop as it trains; a context manager, which ends the run.

    session   the prediction (`session.preview`), the measured steps (`session.live`)
    """

    def __init__(self, session: Session, grad_accum: int = 1) -> None:
        self.session, self._grad_accum = session, grad_accum
        self._left_s: float | None = None

    @property
    def estimate(self) -> Estimate | None:
        """What was predicted before the first step; None where it could not be."""
        return self.session.preview.estimate if self.session.preview else None

    @property
    def left(self) -> Interval | None:
        """Seconds left as P10, P50 and P90; None without a length."""
        return self.session.live.left()

    def watch(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of a loader; what passes between two of them is one micro-step. Call it once for each epoch."""
        self._settle()
        for index, batch in enumerate(loader, 1):
            if index % self._grad_accum == 1 or self._grad_accum == 1:
                self.session.step_begins()
            last = index % self._grad_accum == 0
            try:
                yield batch
            except GeneratorExit:  # the loop was left: by `break`, after its step, or by an exception, which `end` gets
                self._left_s = self.session.settings.clock() if last else None
                raise
            if last:
                self.session.step_ends()

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Around an evaluation between two steps, which is then no part of a step."""
        yield from self._pause("evaluation")

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Around the writing of a checkpoint between two steps."""
        yield from self._pause("checkpoint")

    def _settle(self) -> None:
        """Count the step in which a loop was left by `break`."""
        if self._left_s is not None and self.session.live.done != self.session.live.steps:
            self.session.step_ends(self._left_s)
        self._left_s = None

    def _pause(self, what: str) -> Iterator[None]:
        self._settle()
        clock = self.session.settings.clock
        began = clock()
        yield
        self.session.paused(what, clock() - began)

    def end(self, stopped: str = "") -> None:
        """The run is over: prints its time and writes the outcome. `stopped`: why, where it is not done."""
        if not stopped:
            self._settle()
        self.session.end(stopped)

    def __enter__(self) -> TrainingRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end(f"{kind.__name__}: {error}"[:500] if kind else "")
