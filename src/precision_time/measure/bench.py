"""One micro-benchmark: an operator on real tensors, and the work that the model believes it to be.

The same closure runs twice: once on the meta device under the tracer, which names the operator and its shapes as a
captured step would, and then on the device, where it is timed. So a measured point and a predicted operator can never
disagree about what was run.
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
    """`operator` is the one operator of the call whose time counts (the largest, where helpers run beside it).

    `written` is that operator where capture does not trace it but writes it (fp8 products and casts).
    """

    operator: str
    label: str
    make: Make
    tf32: bool = False
    channels_last: bool = False
    written: OpSignature | None = None

    @property
    def options(self) -> WorkOptions:
        return WorkOptions(self.tf32, self.channels_last)

    def kind(self, device_type: str) -> OpSignature:
        """The operator as a captured step would name it; `CaptureError` if the call holds no such operator."""
        if self.written is not None:
            return self.written
        meta = torch.device("meta")
        with meta, region(None, "flash", device_type), torch.no_grad():
            call = self.make(meta)
            with Tracer(layouts=device_type == "cpu") as tracer:
                call()
        kinds: list[OpSignature] = [kind for kind in tracer.kinds if kind.name == self.operator]
        if not kinds:
            found = ", ".join(sorted({kind.name for kind in tracer.kinds})) or "none"
            raise CaptureError(f"benchmark {self.label} runs no {self.operator} (it runs {found})")
        return kinds[0]

    def work(self, device_type: str) -> Work:
        """What the timing model makes of the call; `CaptureError` if it holds no such operator."""
        return largest_work(self.kind(device_type), self.options)

    def measured(self, device: torch.device, budget_s: float) -> Point:
        """The operator with its time."""
        return Point(self.kind(device.type), self.options, self.time(device, budget_s))

    def time(self, device: torch.device, budget_s: float) -> Timed:
        """Seconds of one call on the device, its tensors not in the cache."""
        with torch.no_grad(), tf32_allowed(device, self.tf32):
            call = taking_turns(lambda: self.make(device), self.work(device.type).bytes, device)
            return timed(call, device, budget_s, warm=True)


@contextmanager
def tf32_allowed(device: torch.device, allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in products and convolutions on a GPU, for a while."""
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
