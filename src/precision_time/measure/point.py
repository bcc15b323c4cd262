"""One measured operator: its signature in a graph and its time."""

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
"""Columns of the kernel table in a device file (docs/hardware.md)."""
OUTLIER = 2.0
"""A point whose slowest sample exceeds this multiple of the median is marked as an outlier; its median is kept."""


def largest_work(kind: OpSignature, options: WorkOptions) -> Work:
    """The largest work of an operator (a convolution also adds its bias).

    Raises `CaptureError` for an operator without a rule in the timing registry.
    """
    candidates = works(kind, options)
    if not candidates:
        raise CaptureError(f"{kind.name} has no rule in the timing registry")
    return max(candidates, key=lambda w: (w.flops, w.bytes))


@dataclass(frozen=True, slots=True)
class Point:
    """An operator with its shapes and its time; `work` is its work in the timing model."""

    kind: OpSignature
    options: WorkOptions
    time: Timed

    @property
    def work(self) -> Work:
        return largest_work(self.kind, self.options)

    @property
    def operator(self) -> str:
        """Name in tables: a sweep over parameters is followed by its label."""
        label = self.kind.attr("label") if self.kind.name == "pt.sweep" else None
        return f"{self.kind.name}:{label}" if label else self.kind.name

    def row(self) -> list[Any]:
        """Values of `COLUMNS`, as in a device file."""
        work = self.work
        features = dict(work.features)
        return [
            self.operator,
            work.family,
            work.variant,
            work.math,
            work.dtype,
            *work.shape,
            *(float(features.get(name, 1.0)) for name in CONVOLUTION_FEATURES),
            work.flops,
            work.bytes,
            work.launches,
            float(f"{self.time.seconds:.5g}"),
            round(self.time.spread, 4),
        ]

    def to_json(self) -> dict[str, Any]:
        """All fields, as in a journal: enough to compute the work anew with another version of the timing model."""
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
    def from_json(cls, fields: dict[str, Any]) -> Point:
        kind = OpSignature(
            fields["operator"],
            tuple(TensorSpec(tuple(shape), dtype) for shape, dtype in fields["inputs"]),
            tuple(TensorSpec(tuple(shape), dtype) for shape, dtype in fields["outputs"]),
            tuple((key, _attr(value)) for key, value in fields["attrs"].items()),
        )
        time = Timed(fields["seconds"], fields["spread"], fields["samples"], fields["slowest"])
        return cls(kind, WorkOptions(fields["tf32"], fields["nhwc"]), time)


def _spec(spec: TensorSpec) -> Sequence[Any]:
    return [list(spec.shape), spec.dtype]


def _attr(value: Any) -> AttrValue:
    return tuple(_attr(v) for v in value) if isinstance(value, list) else value
