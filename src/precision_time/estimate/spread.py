"""The spread of log(step time) of an estimate, from the residuals on published jobs and from the job itself.

The base spread is the residual on held-out published jobs (written by `fit.steps` and `fit.layouts`); on a calibrated
device it is a chosen value and the machine's noise. The job only widens it: by the spread of its kernel models and
factors, by launch-bound time, by exposed communication, by operators without a model, and by what no fitted step shares
with it: its family, GPU, architecture, precision, framework or scale. How far a prediction is off when one of these is
new comes from fits without the rows that have it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from precision_time.estimate.interval import Z90
from precision_time.job.choices import AS_PYTORCH
from precision_time.job.job import Job
from precision_time.timing.parameters import read_data
from precision_time.zoo.catalog import ENTRIES
from precision_time.zoo.hf_families import DECODER

_UNFITTED = {"log_spread": 0.25, "seen": {}, "novelty": {"architecture": 0.15}}
"""Where no fit of whole steps ships: chosen, the error of utilisation models without factors from whole steps."""


EXPOSED_SPREAD = 0.35
"""Spread of log(exposed communication): chosen, wider than that of collectives on unmeasured networks (0.24)."""
MEASURED_EXPOSED_SPREAD = 0.15
"""The same where `calibrate` timed the collective among these ranks, without a job: chosen."""
NEW_FRAMEWORK_HOST_SPREAD = 0.5
"""What is added to the spread of log(launch costs) in a framework of which no fitted step tells them: the prior of the
one framework that was fitted apart (`fit.layouts`), which came out 0.23 below the middle of it."""
GROUPED_SPREAD = 0.7
"""Spread of log(gradients of grouped convolutions) under versions of PyTorch that no such step was measured in: chosen,
since forward passes became up to three times as fast from 1.13 to 2.4."""
CALIBRATED_SPREAD = 0.10
"""Base spread of whole steps on a calibrated device, besides its kernels and its noise: chosen, not fitted."""


@dataclass(frozen=True, slots=True)
class SpreadTerms:
    """The contributions of a job to its spread: shares of the step time, and spreads."""

    kernel: float
    """Spread of the step that follows from the spreads of its kernel models."""
    factors: float
    """Spread of the step from the uncertainty of the factors on its kernels (`timing.step_factors`)."""
    host_share: float
    host_spread: float
    exposed_share: float
    unsupported_share: float
    exposed_spread: float = EXPOSED_SPREAD
    host_busy: float = 0.0
    """Share of the step in which the host launches, beside the device or not; up to 1 where launches take all of it."""
    grouped_share: float = 0.0
    """Share of the kernels' time of gradients of grouped convolutions as no newer PyTorch was measured in."""

    @property
    def host(self) -> float:
        """What the launches' unknown cost adds: their exposed share of it, and, where launches at their P90 take longer
        than the step, what puts the P90 of the step there. A step that launches fill follows their costs, however
        little it waits."""
        longer = math.log(self.host_busy) / Z90 + self.host_spread if self.host_busy > 0.0 else 0.0
        return max(self.host_share * self.host_spread, longer)


STEPS, LAYOUTS = "step_scales.json", "layout_scales.json"
"""Data files with the base spreads: of data-parallel steps, and of decoders in any layout."""


@cache
def _fitted(source: str) -> Mapping[str, Any]:
    return {**_UNFITTED, **read_data(source).get("interval", {})}


KERNEL_SHARE = 0.5
"""Share of the kernel models' spread that remains after factors from whole steps: chosen, not fitted."""


def widening(terms: SpreadTerms) -> float:
    """Spread that the job itself adds."""
    return _widening(terms, KERNEL_SHARE * terms.kernel, terms.factors)


def _widening(terms: SpreadTerms, *kernels: float) -> float:
    parts = (
        *kernels,
        terms.host,
        terms.exposed_share * terms.exposed_spread,
        min(terms.unsupported_share, 1.0),
        terms.grouped_share * GROUPED_SPREAD,
    )
    return math.sqrt(sum(p * p for p in parts))


def in_new_framework(terms: SpreadTerms) -> SpreadTerms:
    """The terms where no fitted step tells what launches cost."""
    return replace(terms, host_spread=math.hypot(terms.host_spread, NEW_FRAMEWORK_HOST_SPREAD))


def calibrated_log_spread(terms: SpreadTerms, noise: float) -> float:
    """Standard deviation of log(step time) on a calibrated device: kernels at full weight, since no whole step scaled
    them."""
    return math.sqrt(CALIBRATED_SPREAD**2 + noise**2 + _widening(terms, terms.kernel) ** 2)


@cache
def _decoder_families() -> frozenset[str]:
    """Families of the decoders, which published rows cover in all layouts."""
    return frozenset([DECODER, *(e.family for e in ENTRIES.values() if e.builder.startswith("models.decoder"))])


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What a job may share with the steps that the factors were fitted to."""

    family: str
    gpu: str
    architecture: str
    precision: str
    framework: str
    gpus: int
    kind: str = ""
    """As `kind_of` has it."""


OTHER_FRAMEWORK = "other-framework"
"""The kind of the steps of frameworks for which PyTorch's operators and kernels stand."""
TIMM, TIMM_GPU = "timm", "rtx-3090"
"""The family of timm's models, and the kind of the steps in their large table, with the GPU that it is of."""
_KIND_OF_PRECISION = {
    "fp64": "double", "fp32": "single", "tf32": "tf32", "torch-fp32": "single",
    "fp16": "pure-half", "bf16": "pure-half",
}  # fmt: skip
"""The kind of a step by its precision; "half" in all others, which mix 16-bit kernels with others."""


_DECODER_KINDS = ("fp8", "divided", "whole")


def _source(kind: str) -> str:
    return LAYOUTS if kind in _DECODER_KINDS else STEPS


def kind_of(family: str, precision: str, job: Job, gpu: str) -> str:
    """The kind of a step on a GPU of the catalog, by which the size of its error differs.

    Of any model in a framework for which PyTorch stands: "other-framework". Of a decoder: in fp8, of ranks that share
    the layers of a replica ("divided"), or neither ("whole"). Of other models: image networks of timm where and as
    their large table has them, on one GPU under PyTorch 1, and steps in "half", "tf32", "single" (fp32) or "double"
    precision or in "pure-half".
    """
    if job.framework in AS_PYTORCH:
        return OTHER_FRAMEWORK
    layout = job.layout_spec
    if family in _decoder_families():
        if precision.startswith("fp8"):
            return "fp8"
        return "divided" if layout.tp * layout.pp * layout.cp * layout.ep > 1 else "whole"
    if family == TIMM and gpu == TIMM_GPU and job.older_than(2):
        return TIMM
    return _KIND_OF_PRECISION.get(precision, "half")


def novel(facts: JobFacts, seen: Mapping[str, Any]) -> list[str]:
    """Names of the facts that no fitted step has. A GPU of a new architecture counts once, as the architecture."""
    names = [
        name
        for name in ("family", "gpu", "architecture", "precision", "framework")
        if getattr(facts, name) not in seen.get(name, ())
    ]
    if "architecture" in names:
        names = [name for name in names if name != "gpu"]
    return [*names, *(["scale"] if facts.gpus > seen.get("gpus", math.inf) else [])]


def base_spread(kind: str) -> float:
    """The base spread of a kind of steps."""
    fitted = _fitted(_source(kind))
    return float(fitted.get(f"log_spread:{kind}", fitted["log_spread"]))


def added_spread(what: str, kind: str) -> float:
    """What it adds to the spread of a kind of steps that the `what` of a job is new; 0 where nothing tells."""
    added = _fitted(_source(kind))["novelty"]
    return float(added.get(f"{what}:{kind}", added.get(what, 0.0)))


def log_spread(terms: SpreadTerms, facts: JobFacts) -> float:
    """Standard deviation of log(step time) of a job."""
    news = novel(facts, _fitted(_source(facts.kind))["seen"])
    if "framework" in news:
        terms = in_new_framework(terms)
    added = [added_spread(what, facts.kind) for what in news]
    return math.hypot(base_spread(facts.kind), widening(terms), *added)
