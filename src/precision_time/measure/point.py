"""One measured operator: what ran, in the terms of the graph, and how long it took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from precision_time.capture.graph import AttrValue, OpSignature, TensorSpec
from precision_time.errors import CaptureError
from precision_time.measure.clock import Timed
from precision_time.timing.operators import WorkOptions, works
from precision_time.timing.work import CONVOLUTION_FEATURES, Work

COLUMNS = (
    "operator", "family", "variant", "math", "dtype", "batch", "m", "n", "k", *CONVOLUTION_FEATURES, "flops", "bytes",
    "launches", "seconds", "spread",
)  # fmt: skip
"""Of the kernel table in a device file (docs/hardware.md)."""
OUTLIER = 2.0
"""A sample so many times the median marks its point: something else ran then. The median stays as it is."""


def largest_work(kind: OpSignature, options: WorkOptions) -> Work:
    """The work that dominates an operator (a convolution also adds its bias)."""
    found = works(kind, options)
    if not found:
        raise CaptureError(f"{kind.name} has no rule in the timing registry")
    return max(found, key=lambda w: (w.flops, w.bytes))


@dataclass(frozen=True, slots=True)
class Point:
    """An operator in its shapes with its time; `work` is what the timing model makes of it."""

    kind: OpSignature
    options: WorkOptions
    time: Timed

    @property
    def work(self) -> Work:
        return largest_work(self.kind, self.options)

    @property
    def operator(self) -> str:
        """Its name in tables: a sweep over parameters is told from others by its label."""
        label = self.kind.attr("label") if self.kind.name == "pt.sweep" else None
        return f"{self.kind.name}:{label}" if label else self.kind.name

    def row(self) -> list[Any]:
        """As the device file keeps it (`COLUMNS`)."""
        work = self.work
        features = dict(work.features)
        return [
            self.operator, work.family, work.variant, work.math, work.dtype, *work.shape,
            *(float(features.get(name, 1.0)) for name in CONVOLUTION_FEATURES), work.flops, work.bytes,
            work.launches, float(f"{self.time.seconds:.5g}"), round(self.time.spread, 4),
        ]  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """As a journal keeps it: everything that is needed to make of it whatever a later model wants."""
        return {
            "operator": self.kind.name,
            "inputs": [_spec(s) for s in self.kind.inputs],
            "outputs": [_spec(s) for s in self.kind.outputs],
            "attrs": dict(self.kind.attrs),
            "tf32": self.options.tf32,
            "nhwc": self.options.channels_last,
            **asdict(self.time),
            "outlier": self.time.slowest > OUTLIER * self.time.seconds,
        }

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> Point:
        kind = OpSignature(
            said["operator"],
            tuple(TensorSpec(tuple(shape), dtype) for shape, dtype in said["inputs"]),
            tuple(TensorSpec(tuple(shape), dtype) for shape, dtype in said["outputs"]),
            tuple((key, _attr(value)) for key, value in said["attrs"].items()),
        )
        time = Timed(said["seconds"], said["spread"], said["samples"], said["slowest"])
        return cls(kind, WorkOptions(said["tf32"], said["nhwc"]), time)


def _spec(spec: TensorSpec) -> Sequence[Any]:
    return [list(spec.shape), spec.dtype]


def _attr(value: Any) -> AttrValue:
    return tuple(_attr(v) for v in value) if isinstance(value, list) else value
