"""Kernel times in the arithmetic that is faster, and in the order of devices: what is better in every figure is not
slower.

Curves are fitted device by device and arithmetic by arithmetic and may contradict each other. `predict` and the fit of
the factors on kernels both time works here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from precision_time.hardware.catalog import after_fit, stronger_gpus, weaker_gpus
from precision_time.hardware.gpu import Gpu
from precision_time.timing.kernels import KernelModel, KernelTimes
from precision_time.timing.work import CONV_FEW, CONV_GROUPED, CONV_UNEVEN, VECTOR_CONVOLUTIONS
from precision_time.timing.work_table import WorkTable

_HALF = ("fp16", "bf16")
_OWN_KERNELS = VECTOR_CONVOLUTIONS | {CONV_FEW, CONV_GROUPED, CONV_UNEVEN}
TimesOf = Callable[[tuple[Gpu, ...]], Mapping[Gpu, KernelTimes]]
"""The times of works on several GPUs."""


def times_on(
    kernels: KernelModel, with_rivals: WorkTable, rival_of: NDArray[np.intp], gpus: tuple[Gpu, ...]
) -> dict[Gpu, KernelTimes]:
    """On each GPU as its curves give them, in the arithmetic that is faster there.

    `with_rivals`: the works, and after them rivals in wider arithmetic of the works `rival_of`; on GPUs that do not run
    the arithmetic of all rivals they take no part.
    """
    own, classes = len(with_rivals) - len(rival_of), with_rivals.classes
    wider = {classes[number][2] for number in set(with_rivals.class_of[own:].tolist())}
    narrow = [classes[number] for number in set(with_rivals.class_of[rival_of].tolist())]
    able = tuple([g for g in gpus if wider <= g.peaks.keys() and any(may_widen(key, g) for key in narrow)])
    known: dict[Gpu, KernelTimes] = {}
    if able:
        may_be = np.array([[may_widen(key, gpu) for key in classes] for gpu in able])
        may = may_be[:, with_rivals.class_of[rival_of]]
        times = _fastest(kernels.seconds_on(with_rivals, able), rival_of, may)
        known |= {gpu: times.of(row) for row, gpu in enumerate(able)}
    if others := tuple([gpu for gpu in gpus if gpu not in known]):
        times = kernels.seconds_on(with_rivals.first(own), others)
        known |= {gpu: times.of(row) for row, gpu in enumerate(others)}
    return known


def may_widen(key: tuple[str, str, str, str], gpu: Gpu) -> bool:
    """Whether a library runs works of a class (family, variant, arithmetic, dtype class) in wider arithmetic where that
    is faster.

    TF32 and fp8 are ways to compute that kernels are free not to use, and there are kernels for halves without matrix
    units. Convolutions of groups or few channels in half precision keep theirs even where they are slow (in NHWC some
    take several times as long): published and profiled steps say so.
    """
    family, _, math, _ = key
    return family not in _OWN_KERNELS or math not in _HALF or math not in gpu.peaks


def in_order(gpu: Gpu, times_of: TimesOf) -> KernelTimes:
    """The times on one GPU, of which none is above that on a GPU that is nowhere better, nor below that of a fitted one
    on a GPU that is nowhere worse."""
    near = (gpu, *stronger_gpus(gpu))
    related = {*near, *(weaker for each in near for weaker in weaker_gpus(each))}
    # in one order, so that all of them find the same parameters
    known = times_of(tuple(sorted(related, key=attrgetter("name"))))
    times = _not_above_weaker(gpu, known)
    for stronger in near[1:]:
        other = _not_above_weaker(stronger, known)
        # a device added after the fit lowers no other (`weaker_gpus`), so it gives way also to lent curves
        slower = (other.seconds > times.seconds) & (other.of_device | after_fit(gpu)) & ~times.of_device
        times = _replaced(times, np.flatnonzero(slower), other)
    # copies, since a view holds the arrays of all devices
    return KernelTimes(*(getattr(times, name).copy() for name in KernelTimes.__slots__))


def _not_above_weaker(gpu: Gpu, known: Mapping[Gpu, KernelTimes]) -> KernelTimes:
    """Kernel times of which none is above that on a device that is nowhere better.

    Where only one of the two was measured, the other gives way: a lent curve lowers no measured time (`in_order` raises
    it instead).
    """
    times = known[gpu]
    for weaker in weaker_gpus(gpu):
        other = known[weaker]
        faster = (other.seconds < times.seconds) & (other.of_device | ~times.of_device)
        times = _replaced(times, np.flatnonzero(faster), other)
    return times


def _fastest(times: KernelTimes, rival_of: NDArray[np.intp], may: NDArray[np.bool_]) -> KernelTimes:
    """Of works with their rivals after them, each in the time of its rival where that is faster and `may` be; changes
    `times`."""
    count = times.seconds.shape[1] - len(rival_of)
    own, rivals = times.of((slice(None), slice(count))), times.of((slice(None), slice(count, None)))
    faster = may & (rivals.seconds < own.seconds[:, rival_of])
    for name in KernelTimes.__slots__ if faster.any() else ():
        column, other = getattr(own, name), getattr(rivals, name)
        before = column[:, rival_of]
        if name in ("floor_seconds", "least_seconds"):
            other = np.where(may, np.minimum(before, other), before)
        column[:, rival_of] = np.where(faster, other, before)
    return own


def _replaced(times: KernelTimes, at: NDArray[np.intp], other: KernelTimes) -> KernelTimes:
    """`times` with the works at positions `at` timed as those of `other`, but for the floors."""
    if not len(at):
        return times
    seconds, source = times.seconds.copy(), times.source.copy()
    spread, helpers, of_device = times.log_spread.copy(), times.helper_seconds.copy(), times.of_device.copy()
    seconds[at], source[at] = other.seconds[at], other.source[at]
    spread[at], helpers[at] = other.log_spread[at], other.helper_seconds[at]
    of_device[at] = other.of_device[at]
    return KernelTimes(seconds, times.floor_seconds, times.least_seconds, source, spread, helpers, of_device)
