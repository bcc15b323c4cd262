"""The parameters of a class of work on a device: fitted sets and hand-set priors, each with its source.

`data/kernels.json` holds the fit of `precision_time.fit.kernels` to kernel tables: one set per curve, dtype class and
device or architecture. `data/kernel_priors.json` holds the numbers set by hand, each with its source: how a family
without measurements differs from a curve that has them. Measurements of this project (`own` in kernels.json, from
`precision_time.fit.measured_parameters`) take precedence over both.
`data/step_scales.json`, when present, holds factors fitted on whole training steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from precision_time.bounded_cache import STRUCTURES, bounded
from precision_time.shipped import shipped_file
from precision_time.timing.corrections import Correction
from precision_time.timing.curves import INDEX, PARAMETERS, Array
from precision_time.timing.kernel_factors import NO_FACTORS, SIZE, KernelClass, KernelFactors
from precision_time.timing.work import (
    ATTENTION,
    CONV,
    CONV_1D,
    CONV_DILATED,
    CONV_FEW,
    CONV_GROUPED,
    CONV_UNEVEN,
    HELPERS,
    MATMUL,
    RNN,
    WINOGRAD,
)

SOURCES = ("measured", "interpolated", "learned", "roofline", "assumed")
LEARNED, ASSUMED = SOURCES.index("learned"), SOURCES.index("assumed")

# Architectures to borrow from where one was never measured, nearest first; all others come after
# these.
_NEAREST = {
    "pascal": ("volta", "turing"), "volta": ("ampere", "turing", "pascal"), "turing": ("volta", "ampere"),
    "ampere": ("hopper", "ada"), "ampere-ga10x": ("ampere", "ada"), "ada": ("ampere", "hopper"),
    "hopper": ("ampere", "blackwell"), "blackwell": ("hopper", "ampere"),
    "blackwell-gb20x": ("ampere", "ada"), "cdna1": ("cdna2",),
    "cdna2": ("cdna1",), "cdna3": ("cdna2", "hopper"), "cdna4": ("cdna3", "cdna2", "hopper"),
}  # fmt: skip
_EVERY_ARCH = ("ampere", "hopper", "blackwell", "ada", "volta", "turing", "pascal", "cdna2", "cdna1")
# A dtype class without data borrows the shape of its curve from these, at its own peak.
_NEAREST_CLASS = {
    "tf32": ("half", "fp32"),
    "half": ("fp32", "fp8"),  # fp8 rows hold the cost of quantising; fp32 products have the plain mechanics
    "fp8": ("half",),
    "fp64": ("fp32",),
    "fp32": ("half",),
}

# The curves that a family uses, in order of preference, before its prior adjusts them.
_CURVES = {
    MATMUL: ("matmul",), CONV: ("conv", "matmul"), CONV_1D: ("conv", "matmul"), CONV_DILATED: ("conv", "matmul"),
    CONV_GROUPED: ("matmul",),
    CONV_FEW: ("matmul",),
    CONV_UNEVEN: ("matmul",),
    RNN: ("matmul",), WINOGRAD: ("winograd", "matmul"), ATTENTION: ("attention",), "softmax": ("softmax", "pointwise"),
    "layer_norm": ("layer_norm", "pointwise"), "pointwise": ("pointwise",),
}  # fmt: skip
_COMPUTE_CURVES = frozenset({"matmul", "conv", "winograd", "attention"})


# Added to the spread of log(time) where another architecture or dtype is borrowed: the size of the held-out errors
# (benchmarks/results/kernels.md).
_TRANSFER_SPREAD = 0.15
# The same for another device of the architecture of a measured set: half of it, since errors held out within Hopper and
# Blackwell are hardly above the fitted ones.
_SIBLING_SPREAD = 0.075

# A device that never was measured and packs more FLOP/s into a watt than those it borrows from sustains less of them:
# power grows about with the square of the clock, so the rate falls with the root. Held out, 0.5 did better than 0 or 1.
_POWER_EXPONENT = 0.5


NO_FACTOR = np.zeros(SIZE)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The parameters of one class of work on one device, their source and the spread of log(time)."""

    values: Array
    source: int
    log_spread: float
    scale: float = 1.0
    helper_scale: float = 1.0
    """The factor on helper kernels (`Work.serial_bytes`)."""
    correction: Correction | None = None
    """The correction of this family and dtype class, where it was measured."""
    of_device: bool = False
    """Whether they were fitted on the very device, and not on another one."""
    ecc_share: float = 1.0
    """`Gpu.ecc_share` of the devices that the share of bandwidth was fitted on."""
    factors: Array = field(default_factory=lambda: NO_FACTOR)
    """`KernelFactors.vector` of the class."""

    def held_bytes(self) -> int:
        """Bytes of memory, without the correction, which others share."""
        return 400 + self.factors.nbytes


@cache
def read_data(name: str) -> dict[str, Any]:
    """A JSON file of `timing/data`. Raises `DataError` where it is not the one that was shipped."""
    content: dict[str, Any] = json.loads(shipped_file(f"timing/data/{name}").read_bytes())
    return content


def shipped_scales() -> Mapping[str, float]:
    """Whole-step factors "family|arch|dtype_class" -> multiplier of kernel time, as shipped."""
    content = read_data("step_scales.json")
    return {str(key): float(value) for key, value in content.get("scales", {}).items()}


def _patterns(family: str, variant: str, arch: str, dtype_class: str) -> Iterator[str]:
    """Keys that may describe a class of work, the most specific first."""
    parts = variant.split(".") if variant else []
    names = [".".join([family, *parts[:i]]) for i in range(len(parts), -1, -1)]
    if len(parts) > 1:  # "conv.nhwc" without the pass
        names.insert(-1, f"{family}.{parts[-1]}")
    for name in names:
        for kind in (dtype_class, "*"):
            for chip in (arch, "*"):
                yield f"{name}|{chip}|{kind}"
    if family in (CONV_1D, CONV_DILATED):  # without factors of its own it takes those of convolutions
        yield from _patterns(CONV, variant, arch, dtype_class)


def _kinds(curve: str, dtype_class: str) -> tuple[str, ...]:
    """The dtype classes whose sets may serve: a library picks other algorithms by dtype, traffic is only
    bytes.
    """
    if curve in ("conv", "winograd"):
        return (dtype_class,)
    if curve in _COMPUTE_CURVES:
        return (dtype_class, *_NEAREST_CLASS[dtype_class])
    return (dtype_class, "fp32")


@bounded(budget=STRUCTURES)
def _resolved(
    book: ParameterBook, family: str, variant: str, dtype_class: str, kernel_name: str, arch: str, flops_per_w: float
) -> Resolved:
    return book.find(family, variant, dtype_class, kernel_name, arch, flops_per_w)


class _Shared(NamedTuple):
    """Of a class of work on an architecture: its curve, the pattern of the rule that adjusts it or the key of its
    corrections (empty: none), and `_scales_of`."""

    curve: str
    rule: str
    corrected: str
    scales: tuple[float, float, bool]


@bounded(budget=STRUCTURES)
def _shared(book: ParameterBook, family: str, variant: str, dtype_class: str, arch: str) -> _Shared:
    return book.shared(family, variant, dtype_class, arch)


@bounded(budget=STRUCTURES)
def _based(
    book: ParameterBook, curve: str, rule: str, dtype_class: str, kernel_name: str, arch: str, flops_per_w: float
) -> Resolved:
    return book.based(curve, rule, dtype_class, kernel_name, arch, flops_per_w)


class ParameterBook:
    """Answers: which parameters for this (family, variant, dtype class) on this (device, architecture)?"""

    def __init__(
        self,
        fitted: Mapping[str, Any] | None = None,
        priors: Mapping[str, Any] | None = None,
        scales: Mapping[str, float] | None = None,
        factors: KernelFactors | None = None,
    ) -> None:
        if factors is None:
            factors = KernelFactors.shipped() if scales is None else NO_FACTORS
        self._factors = factors
        self._sets: Mapping[str, Any] = (read_data("kernels.json") if fitted is None else fitted).get("sets", {})
        self._corrections: Mapping[str, Any] = (read_data("kernels.json") if fitted is None else fitted).get(
            "corrections", {}
        )
        self._own: Mapping[str, Any] = (read_data("kernels.json") if fitted is None else fitted).get("own", {})
        self._priors: Mapping[str, Any] = read_data("kernel_priors.json") if priors is None else priors
        self._scales = shipped_scales() if scales is None else scales
        self._found: dict[tuple[str, str], Correction | None] = {}

    def tables(self, kernel_name: str, arch: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Classes of kernels ("matmul|half") in the kernel tables: of this device, and of others of its kind."""
        of_device = {name for name, devices in self._sets.items() if kernel_name in devices}
        of_device |= {name for name, devices in self._own.items() if kernel_name in devices}
        pooled = {name for name, devices in self._sets.items() if f"arch:{arch}" in devices}
        return tuple(sorted(of_device)), tuple(sorted(pooled - of_device))

    def gpus(self) -> tuple[str, ...]:
        """Devices of the kernel tables."""
        return tuple(
            sorted({name for devices in self._sets.values() for name in devices if not name.startswith("arch:")})
        )

    def resolve(
        self, family: str, variant: str, dtype_class: str, kernel_name: str, arch: str, flops_per_w: float = 0.0
    ) -> Resolved:
        """`flops_per_w`: the device's dense peak over its power limit; 0 where unknown."""
        return _resolved(self, family, variant, dtype_class, kernel_name, arch, flops_per_w)

    def find(
        self, family: str, variant: str, dtype_class: str, kernel_name: str, arch: str, flops_per_w: float
    ) -> Resolved:
        """As `resolve`, without looking for what was found before."""
        shared = _shared(self, family, variant, dtype_class, arch)
        base = _based(self, shared.curve, shared.rule, dtype_class, kernel_name, arch, flops_per_w)
        correction = self._correction(shared.corrected, kernel_name) if shared.corrected else None
        own = self._measured(base, family, variant, dtype_class, kernel_name, arch) if self._own else None
        (scale, helpers, learned), factors = shared.scales, NO_FACTOR
        if own is not None:
            scale, helpers, learned = self._scales_of(family, variant, arch, dtype_class, arch)
            base, correction = own, None
        else:  # factors were learned where kernels are not measured by this project
            factors = self._factors.vector(KernelClass(family, variant, dtype_class, arch, kernel_name))
        assumed = own is None and not shared.rule and family not in _CURVES
        return Resolved(
            base.values,
            LEARNED if learned else ASSUMED if assumed else base.source,
            max(base.log_spread, 0.35) if assumed else base.log_spread,
            scale,
            helpers,
            correction,
            base.of_device,
            base.ecc_share,
            factors,
        )

    def shared(self, family: str, variant: str, dtype_class: str, arch: str) -> _Shared:
        """What all devices of an architecture have in common for a class of work."""
        curves = _CURVES.get(family, ("pointwise",))
        curve = next((c for c in curves if any(f"{c}|{k}" in self._sets for k in _kinds(c, dtype_class))), curves[-1])
        rules = self._priors.get("rules", {})
        found = (pattern for pattern in _patterns(family, variant, arch, dtype_class) if pattern in rules)
        rule = next((each for each in found if not (curve == family and rules[each].get("unless_fitted"))), "")
        fitted = not rule and curve == family and f"{curve}|{dtype_class}" in self._sets
        scales = self._scales_of(family, variant, arch, dtype_class)
        return _Shared(curve, rule, f"{curve}|{dtype_class}" if fitted else "", scales)

    def based(
        self, curve: str, rule: str, dtype_class: str, kernel_name: str, arch: str, flops_per_w: float
    ) -> Resolved:
        """A curve on a device, adjusted by a rule of the prior (its pattern; empty: none)."""
        base = self._curve(curve, dtype_class, kernel_name, arch, flops_per_w)
        return _apply(base, self._priors["rules"][rule]) if rule else base

    def _scales_of(
        self, family: str, variant: str, arch: str, dtype_class: str, only: str = ""
    ) -> tuple[float, float, bool]:
        """Factors on the class and on helper kernels; whether the former was learned on this very architecture from
        whole steps (a "*" one is carried over)."""
        helpers, _ = self._scale(HELPERS, "", arch, dtype_class, only)
        scale, pattern = self._scale(family, variant, arch, dtype_class, only)
        return scale, helpers, f"|{arch}|" in pattern

    def _correction(self, key: str, kernel_name: str) -> Correction | None:
        """The correction of a device, or the one that all devices without their own share."""
        own = kernel_name in self._corrections.get(key, {}).get("devices", {})
        place = key, kernel_name if own else ""
        if place not in self._found:
            known = next((c for (of, _), c in self._found.items() if of == key and c is not None), None)
            grid = None if known is None else known.grid
            self._found[place] = Correction.find(self._corrections, key, kernel_name, grid)
        return self._found[place]

    def _scale(self, family: str, variant: str, arch: str, dtype_class: str, only: str = "") -> tuple[float, str]:
        """The whole-step factor of a class of work, and the key it has it from (empty: it has none).

        `only` this architecture's, where its kernels are measured: others' were fitted where these were guesses. A
        factor on all kernels of an architecture ("*|arch|*") multiplies.
        """
        every = float(self._scales.get(f"*|{arch}|*", 1.0))
        for pattern in _patterns(family, variant, arch, dtype_class):
            if pattern in self._scales and (not only or f"|{only}|" in pattern):
                return every * float(self._scales[pattern]), pattern
        return every, ""

    def _measured(
        self, base: Resolved, family: str, variant: str, dtype_class: str, kernel_name: str, arch: str
    ) -> Resolved | None:
        """Parameters that this project measured for the class of work: on the device, or on its architecture with a
        wider spread. The latter are not used where a published table has the device, or its chip is of another kind
        (`relatives`). None where nothing was measured.
        """
        apart = base.source == LEARNED and kernel_name in self._sets.get(f"{family}|{dtype_class}", {})
        if _CURVES.get(family, ("pointwise",))[-1] in _COMPUTE_CURVES:
            apart = apart or f"{kernel_name}|{dtype_class}" in self._priors.get("relatives", {})
        names = (f"{family}.{variant}", f"{family}.{variant.partition('.')[0]}", family)
        for chip in (kernel_name,) if apart else (kernel_name, f"arch:{arch}"):
            for name in names if variant else (family, f"{family}.fwd"):
                measured = self._own.get(f"{name}|{dtype_class}", {}).get(chip)
                if measured is not None and (variant in measured["variants"] or not variant):
                    wider = 0.0 if chip == kernel_name else _SIBLING_SPREAD
                    spread = float(np.hypot(measured["log_spread"], wider))
                    return Resolved(_vector(measured["values"], {}), LEARNED, spread, of_device=chip == kernel_name)
        return None

    def _curve(self, curve: str, dtype_class: str, kernel_name: str, arch: str, flops_per_w: float) -> Resolved:
        """The fitted set nearest to the device: its own, a relative's, its architecture's, a near one."""
        relatives = self._priors.get("relatives", {})
        relative = relatives.get(f"{kernel_name}|{dtype_class}") or relatives.get(f"{arch}|{dtype_class}", {})
        transfer = self._priors.get("transfer", {}).get(f"{curve}|{arch}|{dtype_class}")
        names = [kernel_name]
        if curve in _COMPUTE_CURVES and relative:
            names.append(relative["like"])
        names += [f"arch:{chip}" for chip in (arch, *_NEAREST.get(arch, ()), *_EVERY_ARCH)]
        for kind in _kinds(curve, dtype_class):
            sets = self._sets.get(f"{curve}|{kind}", {})
            for name in names:
                if name not in sets:
                    continue
                values = _vector(sets[name]["values"], self._default(curve))
                spread, ecc = float(sets[name]["log_spread"]), float(sets[name].get("ecc_share", 1.0))
                judged = transfer is not None or (name == relative.get("like") and not relative.get("power"))
                lent = name != kernel_name and kind == dtype_class and not judged
                if lent and (source := float(sets[name].get("flops_per_w", 0.0))) < flops_per_w and source:
                    values[:5] *= (source / flops_per_w) ** _POWER_EXPONENT
                if kind == dtype_class and name in (kernel_name, f"arch:{arch}"):
                    return Resolved(values, LEARNED, spread, of_device=name == kernel_name, ecc_share=ecc)
                far = Resolved(values, ASSUMED, (spread**2 + _TRANSFER_SPREAD**2) ** 0.5, ecc_share=ecc)
                if relative and name == relative["like"]:
                    return _apply(far, relative)
                return far if transfer is None else _apply(far, transfer)
        return Resolved(_vector({}, self._default(curve)), ASSUMED, 0.4)

    def _default(self, curve: str) -> Mapping[str, float]:
        defaults: Mapping[str, float] = self._priors.get("defaults", {}).get(curve, {})
        return defaults


def _vector(values: Mapping[str, float], defaults: Mapping[str, float]) -> Array:
    vector = np.array([0.85, 0.8, 0.7, 0.5, 0.3, 200.0, 0.7, 0.9, 0.3, 0.8, 3e-6, 4.0, 0.0])
    for name in PARAMETERS:
        if name in values or name in defaults:
            vector[INDEX[name]] = values.get(name, defaults.get(name))
    return vector


def _apply(base: Resolved, rule: Mapping[str, Any]) -> Resolved:
    """Applies a hand-set rule; `about` in kernel_priors.json defines its fields."""
    values = base.values.copy()
    values[:5] = np.clip(values[:5] * float(rule.get("compute", 1.0)), 1e-4, 1.0)
    if "traffic" in rule:  # share of bandwidth itself, in place of the curve's
        values[INDEX["memory"]] = float(rule["traffic"])
    values[INDEX["memory"]] = min(1.0, values[INDEX["memory"]] * float(rule.get("memory", 1.0)))
    for name, value in rule.get("set", {}).items():
        values[INDEX[name]] = float(value)
    spread = float(rule.get("log_spread", 0.3))
    ecc = 1.0 if "traffic" in rule else base.ecc_share
    return Resolved(values, ASSUMED, (base.log_spread**2 + spread**2) ** 0.5, base.scale, ecc_share=ecc)
