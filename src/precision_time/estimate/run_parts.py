"""Start-up and evaluations of a run, as fitted to MLPerf's training logs (`precision-time fit run_parts`)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from precision_time.estimate.interval import Interval
from precision_time.shipped import shipped_file

PARAMETERS = "estimate/data/run_parts.json"
BENCHMARKS: Mapping[str, str] = {
    "resnet50": "resnet",
    "bert-large": "bert",
    "maskrcnn-r50-fpn": "maskrcnn",
    "retinanet-resnext50": "ssd",
    "ssd300-resnet34": "ssd",
    "unet3d": "unet3d",
    "dlrm-small": "dlrm",
    "gpt3-175b": "gpt3",
    "stable-diffusion-v2": "stable_diffusion",
}
"""Model of the zoo -> the benchmark of MLPerf whose runs start as its runs do."""
DETECTORS = frozenset({"rcnn", "retinanet", "ssd"})
"""Families whose evaluation ends on the CPU: boxes of all images are compared with the annotations."""


@dataclass(frozen=True, slots=True)
class StartUp:
    """Seconds from launch to the first step: log-normal, the logarithm linear in that of the number of nodes.

    log_s         logarithm of the median on one node
    per_log_node  what each unit of log(nodes) adds
    benchmarks    what a benchmark of MLPerf adds, drawn towards zero, and the spread that is left of it
    between       standard deviations of the log: of kinds of work, of sites, of runs
    """

    log_s: float
    per_log_node: float
    benchmarks: Mapping[str, tuple[float, float]]
    between: tuple[float, float, float]
    runs: int

    def interval(self, model: str, nodes: int) -> Interval:
        """For a model of MLPerf by its own runs, for others by all of them."""
        kind, site, run = self.between
        effect, unsure = self.benchmarks.get(BENCHMARKS.get(model, ""), (0.0, kind))
        middle = self.log_s + self.per_log_node * math.log(nodes) + effect
        return Interval.around(math.exp(middle), math.sqrt(unsure**2 + site**2 + run**2))


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Seconds of an evaluation: `factor` times the forward passes, and what the CPU takes for every sample."""

    factor: float
    host_s_per_sample: float
    log_spread: float

    def interval(self, forward_s: float, samples: int) -> Interval:
        """`forward_s`: of the forward passes of all batches of a rank."""
        return Interval.around(self.factor * forward_s + self.host_s_per_sample * samples, self.log_spread)


@dataclass(frozen=True, slots=True)
class RunParts:
    """All fitted parameters of the parts around the steps."""

    start_up: StartUp
    evaluation: Evaluation
    detection: Evaluation

    def evaluation_of(self, family: str) -> Evaluation:
        """That of the model's family."""
        return self.detection if family in DETECTORS else self.evaluation

    def to_dict(self) -> dict[str, Any]:
        start = self.start_up
        return {
            "start_up": {
                "log_s": start.log_s,
                "per_log_node": start.per_log_node,
                "benchmarks": {name: list(pair) for name, pair in start.benchmarks.items()},
                "between": list(start.between),
                "runs": start.runs,
            },
            **{
                name: {field: getattr(part, field) for field in Evaluation.__slots__}
                for name, part in (("evaluation", self.evaluation), ("detection", self.detection))
            },
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunParts:
        start = dict(values["start_up"])
        benchmarks = {name: (float(pair[0]), float(pair[1])) for name, pair in start.pop("benchmarks").items()}
        kind, site, run = start.pop("between")
        return cls(
            StartUp(benchmarks=benchmarks, between=(kind, site, run), **start),
            Evaluation(**values["evaluation"]),
            Evaluation(**values["detection"]),
        )


@cache
def run_parts() -> RunParts:
    """The parameters as shipped. Raises `DataError` where the file is not the one that was shipped."""
    return RunParts.from_dict(json.loads(shipped_file(PARAMETERS).read_bytes()))
