"""Groups of kernels that share a factor between kernel tables and whole steps, and the uncertainty of each factor.

A factor belongs to a group of families, with deviations by dtype class and architecture. `fit.steps` fits them to whole
training steps and stores their posterior covariance. A group that no measured step spends much time in keeps its prior
spread and widens the interval of jobs that do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from precision_time.bounded_cache import bounded
from precision_time.timing.parameters import read_data
from precision_time.timing.signature_times import TimedSignatures
from precision_time.timing.work import HELPERS, MEMORY_FAMILIES

Array = NDArray[np.float64]
Key = tuple[str, str, str]
"""Group, architecture, dtype class."""

_NORMS = ("batch_norm", "layer_norm", "group_norm", "softmax")
_INDEXED = ("embedding", "gather", "scatter", "sort")
GROUPS: dict[str, tuple[str, ...]] = {
    "conv.nchw": ("conv.nchw", "conv_few.nchw"),
    "conv.nhwc": ("conv.nhwc", "conv_few.nhwc"),
    "conv_1d": ("conv_1d",),
    "conv_dilated": ("conv_dilated",),
    "helpers": (HELPERS,),
    "depthwise": ("conv_depthwise",),
    "grouped": ("conv_grouped", "conv_direct", "conv_uneven"),
    "matmul": ("matmul", "rnn"),
    "norm": _NORMS,
    "indexed": _INDEXED,
    "traffic": tuple(sorted(MEMORY_FAMILIES - {*_NORMS, *_INDEXED, "optimizer"})),
}
"""Families (with the layout where it matters) that share a factor. Attention and optimizer have none."""
_GROUP_OF = {family: group for group, families in GROUPS.items() for family in families}
GROUP_PRIOR = {
    "matmul": 0.05, "traffic": 0.08, "norm": 0.15, "conv": 0.80, "conv_1d": 0.35, "conv_dilated": 0.35, "helpers": 0.70,
    "depthwise": 0.35, "grouped": 0.35, "indexed": 0.35,
}  # fmt: skip
"""Prior standard deviations of the log factors, chosen by what the kernel tables cover: matrix products and pointwise
traffic are measured to 5-10 %, half-precision convolutions not at all. The deviations by dtype class and architecture
have 0.7 and 0.5 of the group's standard deviation."""


DEPARTS = {"conv_1d": "conv", "conv_dilated": "conv"}
"""Groups whose factor multiplies that of another group."""


@bounded()
def parts(key: Key) -> Mapping[str, float]:
    """The factors that add up (in log) to that of a key, with their prior standard deviations."""
    group, arch, kind = key
    family = group.partition(".")[0]
    width = GROUP_PRIOR[family]
    widths = {family: width}
    if group != family:
        widths[group] = 0.7 * width
    if group in DEPARTS:
        widths[DEPARTS[group]] = GROUP_PRIOR[DEPARTS[group]]
    return {**widths, f"{group}|{kind}": 0.7 * width, f"{group}|{arch}|{kind}": 0.5 * width}


def group_seconds(timed: TimedSignatures, arch: str) -> dict[Key, float]:
    """Seconds of kernels in a step by group, architecture and dtype class."""
    table = timed.works.table
    seconds = timed.work_s * timed.calls_per_kind[timed.works.owner]
    count = len(table.classes)
    per_class, helping = (
        np.asarray(np.bincount(table.class_of, weights=each, minlength=count), dtype=np.float64)
        for each in (seconds, seconds * timed.work_helpers)
    )
    return seconds_by_group(table.classes, per_class, helping, arch)


def seconds_by_group(classes: Sequence[tuple[str, ...]], seconds: Array, helping: Array, arch: str) -> dict[Key, float]:
    """Seconds of classes of works, and of helper kernels among them, by group, architecture and dtype class."""
    seconds_of: dict[Key, float] = {}
    for (family, variant, _, kind), spent, helped in zip(classes, seconds.tolist(), helping.tolist(), strict=True):
        group = _GROUP_OF.get(family) or _GROUP_OF.get(f"{family}.{variant.rpartition('.')[2]}")
        for name, part in ((group, spent - helped), (HELPERS, helped)):
            if name is not None and part:
                seconds_of[name, arch, kind] = seconds_of.get((name, arch, kind), 0.0) + part
    return seconds_of


@dataclass(frozen=True, eq=False)
class Openness:
    """Posterior covariance of the factors by name. Factors that are not named keep their prior, whose standard
    deviations are `width` times those of `GROUP_PRIOR`."""

    names: Sequence[str]
    covariance: Array
    width: float = 1.0

    def log_spread(self, seconds: Mapping[Key, float], step_s: float) -> float:
        """Standard deviation of log(step time) from the factors; `seconds` of kernels by group, architecture, dtype
        class."""
        index = self._places
        slopes = np.zeros(len(self.names))
        unseen: dict[str, tuple[float, float]] = {}
        for key, spent in seconds.items():
            for name, width in parts(key).items():
                if name in index:
                    slopes[index[name]] += spent / step_s
                else:
                    unseen[name] = (unseen.get(name, (0.0, 0.0))[0] + spent / step_s, width)
        variance = float(slopes @ self.covariance @ slopes)
        prior = sum((share * self.width * width) ** 2 for share, width in unseen.values())
        return float(np.sqrt(max(variance, 0.0) + prior))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}


@cache
def shipped_openness() -> Openness:
    """The covariance that ships with the package."""
    openness = read_data("step_scales.json").get("openness", {"names": [], "half": [], "width": 1.0})
    half = np.array(openness["half"], dtype=np.float64).reshape(len(openness["names"]), -1 if openness["names"] else 0)
    return Openness(openness["names"], half @ half.T, openness["width"])
