"""The position in time of the host, the compute stream and the data-parallel collectives of one rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from precision_time.layout.segment import Segment
from precision_time.timeline.timeline import COMMUNICATION, COMPUTE, Span
from precision_time.timing.passes import NOTHING, Pass


class Position(NamedTuple):
    """Seconds at which the streams of a rank are, and seconds of communication so far."""

    device: float
    exposed: float
    sent: float
    host: float
    wire: float

    def since(self, before: Position) -> Position:
        """The increments since an earlier position."""
        return Position(*(now - then for now, then in zip(self, before, strict=True)))


@dataclass(frozen=True, slots=True)
class Label:
    """The name of a recorded pass in a trace."""

    name: str
    kind: str
    segment: Segment | None = None


@dataclass(slots=True)
class Rank:
    """Positions in seconds. The host launches ahead of the device; collectives run one at a time on one communicator.

    Compute beside a collective takes `slowdown` times as long. A device that waits for its host makes up for what it
    lost before; the rest of the loss counts as exposed communication. On a `synchronous` device (a CPU) collectives use
    the cores that compute, so nothing overlaps.

    `idle` is how long the device has waited for its host.

    Positions are maxima of sums. `margins` are the differences in seconds that decided these maxima, in order, since
    the list was last cleared (see `accumulation`).
    """

    slowdown: float = 1.0
    synchronous: bool = False
    recording: bool = False
    host: float = 0.0
    device: float = 0.0
    wire: float = 0.0
    exposed: float = 0.0
    sent: float = 0.0
    idle: float = 0.0
    ended: list[float] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)

    def run(self, step: Pass, ready: float = 0.0, label: Label | None = None) -> None:
        """Launch and execute a pass that may not start before `ready` (when its weights have been gathered)."""
        device, slowed, margins = self.device, 0.0, self.margins
        device_s, host_s, launch_bound_s = step[:3]
        if ready:
            margins.append(ready - device)
            if ready > device:
                self.exposed += ready - device
                device = ready
        if self.slowdown != 1.0:
            beside = self.wire - device
            margins += (beside, beside - device_s)
            if beside > 0.0:
                slowed = (beside if beside < device_s else device_s) * (self.slowdown - 1.0)
        ran, launched = device + device_s + slowed, self.host + launch_bound_s
        late = launched - ran
        margins.append(late)
        if late > 0.0:
            self.idle += late
            self.device = launched
        else:
            if slowed:
                self.exposed += min(slowed, -late)
            self.device = ran
        if label is not None and self.recording:
            seconds = self.device - device
            self.spans.append(Span(COMPUTE, label.name, label.kind, device, seconds, self.host, label.segment))
        self.host += host_s
        self.ended.append(self.device)

    def wait(self, until: float) -> None:
        """The compute stream waits for communication."""
        self.run(NOTHING, until)

    def synchronize(self) -> None:
        """The host waits for the device."""
        self.host = max(self.host, self.device)

    def slow(self, seconds: float) -> None:
        """Adds `seconds` that the compute stream lost beside communication."""
        self.device += seconds
        self.exposed += seconds

    def send(self, seconds: float, ready: float, name: str = "", nbytes: int = 0) -> float:
        """The end of a collective of `seconds` that may start at `ready`."""
        if not seconds:
            return ready
        if self.synchronous:
            ready = max(ready, self.device)
        self.margins.append(self.wire - ready)
        start = max(self.wire, ready)
        self.wire = start + seconds
        self.sent += seconds
        if name and self.recording:
            self.spans.append(Span(COMMUNICATION, name, "communication", start, seconds, nbytes=nbytes))
        if self.synchronous:
            self.wait(self.wire)
        return self.wire

    def is_undisturbed(self) -> bool:
        """Whether no collective slows the compute that follows."""
        self.margins.append(self.wire - self.device)
        return self.slowdown == 1.0 or self.wire <= self.device

    def position(self) -> Position:
        return Position(self.device, self.exposed, self.sent, self.host, self.wire)

    def skip(self, increments: Position, times: int) -> None:
        """Adds the increments of one micro-batch so many `times`."""
        after = (now + times * each for now, each in zip(self.position(), increments, strict=True))
        self.device, self.exposed, self.sent, self.host, self.wire = after
