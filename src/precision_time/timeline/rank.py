"""The position in time of the host, the compute stream and the data-parallel collectives of one rank."""

from __future__ import annotations

from dataclasses import dataclass, field

from precision_time.layout.segment import Segment
from precision_time.timeline.timeline import COMMUNICATION, COMPUTE, Span
from precision_time.timing.passes import NOTHING, Pass


@dataclass(frozen=True, slots=True)
class Label:
    """The name of a recorded pass in a trace."""

    name: str
    kind: str
    segment: Segment | None = None


@dataclass(slots=True)
class Rank:
    """Positions in seconds. The host launches ahead of the device; collectives run one at a time on one communicator.

    Compute beside a collective takes `slowdown` times as long; the loss counts as exposed communication. On a
    `synchronous` device (a CPU) collectives use the cores that compute, so nothing overlaps.
    """

    slowdown: float = 1.0
    synchronous: bool = False
    recording: bool = False
    host: float = 0.0
    device: float = 0.0
    wire: float = 0.0
    exposed: float = 0.0
    sent: float = 0.0
    ended: list[float] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    def run(self, step: Pass, ready: float = 0.0, label: Label | None = None) -> None:
        """Launch and execute a pass that may not start before `ready` (when its weights have been gathered)."""
        device, slowed = self.device, 0.0
        if ready > device:
            self.exposed += ready - device
            device = ready
        if self.wire > device and self.slowdown != 1.0:
            slowed = min(self.wire - device, step.device_s) * (self.slowdown - 1.0)
            self.exposed += slowed
        self.device = max(device + step.device_s, self.host + step.launch_bound_s) + slowed
        if label is not None and self.recording:
            seconds = self.device - device
            self.spans.append(Span(COMPUTE, label.name, label.kind, device, seconds, self.host, label.segment))
        self.host += step.host_s
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
        start = max(self.wire, ready, self.device if self.synchronous else 0.0)
        self.wire = start + seconds
        self.sent += seconds
        if name and self.recording:
            self.spans.append(Span(COMMUNICATION, name, "communication", start, seconds, nbytes=nbytes))
        if self.synchronous:
            self.wait(self.wire)
        return self.wire

    def mark(self) -> tuple[float, ...]:
        return self.device, self.exposed, self.sent, self.host, self.wire

    def repeat(self, before: tuple[float, ...], times: int) -> None:
        """Repeats everything since `before` this many `times`; a backlog of collectives grows with each."""
        after = (now + times * (now - then) for then, now in zip(before, self.mark(), strict=True))
        self.device, self.exposed, self.sent, self.host, self.wire = after
