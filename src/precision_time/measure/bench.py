"""One micro-benchmark: an operator on real tensors, and its work in the timing model.

The same closure runs twice: on the meta device under the tracer, which gives the operator and shapes that a captured
step would have, and on the device, where it is timed. A measured point therefore names exactly the operator that ran.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from precision_time.capture.graph import OpSignature
from precision_time.capture.intercept import region
from precision_time.capture.tracer import Tracer
from precision_time.errors import CaptureError
from precision_time.measure.clock import Timed, timed
from precision_time.measure.point import Point, largest_work
from precision_time.measure.tensors import taking_turns
from precision_time.timing.operators import WorkOptions
from precision_time.timing.work import Work

Make = Callable[[torch.device], Callable[[], Any]]
"""Allocates the tensors on a device and returns the call to time."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A call to time and the operator that it measures."""

    operator: str
    """Name of the measured operator; the largest one if the call runs several."""
    label: str
    make: Make
    tf32: bool = False
    channels_last: bool = False
    written: OpSignature | None = None
    """Signature of an operator that capture inserts without tracing it (fp8 products and casts)."""

    @property
    def options(self) -> WorkOptions:
        return WorkOptions(self.tf32, self.channels_last)

    def kind(self, device_type: str) -> OpSignature:
        """The operator's signature in a captured step. Raises `CaptureError` if the call does not run the operator."""
        if self.written is not None:
            return self.written
        meta = torch.device("meta")
        with meta, region(None, "flash", device_type), torch.no_grad():
            call = self.make(meta)
            with Tracer(layouts=device_type == "cpu") as tracer:
                call()
        kinds: list[OpSignature] = [kind for kind in tracer.kinds if kind.name == self.operator]
        if not kinds:
            names = ", ".join(sorted({kind.name for kind in tracer.kinds})) or "none"
            raise CaptureError(f"benchmark {self.label} runs no {self.operator} (it runs {names})")
        return kinds[0]

    def work(self, device_type: str) -> Work:
        """The work of the call in the timing model. Raises `CaptureError` if the call does not run the operator."""
        return largest_work(self.kind(device_type), self.options)

    def measured(self, device: torch.device, budget_s: float) -> Point:
        """The operator with its measured time."""
        return Point(self.kind(device.type), self.options, self.time(device, budget_s))

    def time(self, device: torch.device, budget_s: float) -> Timed:
        """Seconds of one call on the device with tensors that are not in the cache."""
        with torch.no_grad(), tf32_allowed(device, self.tf32):
            call = taking_turns(lambda: self.make(device), self.work(device.type).bytes, device)
            return timed(call, device, budget_s, warm=True)


@contextmanager
def tf32_allowed(device: torch.device, allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in products and convolutions on a GPU inside the context."""
    if device.type != "cuda":
        yield
        return
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    try:
        for switch in switches:
            switch.allow_tf32 = allowed
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.allow_tf32 = value
