"""A staggering as text: calibration, curves, best start and its gain, measured run."""

from __future__ import annotations

import textwrap

import numpy as np

from precision_time.ingest.model.rates import Array
from precision_time.ingest.stagger.staggered_run import Measured
from precision_time.ingest.stagger.staggering import SMALL, Curve, Staggering, Way
from precision_time.report.table import Table
from precision_time.units import digits_for, unit_for

WIDTH = 100
_BLOCKS = "▁▂▃▄▅▆▇█"
_ROWS = 9


def text(answer: Staggering) -> str:
    """The whole answer."""
    return "\n\n".join(
        filter(None, [_calibration(answer), _curves(answer), _advice(answer), _ways(answer), _notes(answer)])
    )


class Clock:
    """Formats seconds in one unit with a fixed number of digits."""

    def __init__(self, longest_s: float) -> None:
        self._scale, self.unit = unit_for(longest_s)
        self._digits = digits_for(longest_s / self._scale) + 1

    def __call__(self, seconds: float) -> str:
        return f"{seconds / self._scale:,.{self._digits}f} {self.unit}"


def _clock(answer: Staggering) -> Clock:
    return Clock(max(way.makespan_s for way in answer.others))


def _calibration(answer: Staggering) -> str:
    calibration, clock = answer.calibration, _clock(answer)
    share = calibration.cost_s / answer.together.makespan_s
    earlier = f" ({clock(calibration.reused_s)} of it earlier)" if calibration.reused_s else ""
    rows = []
    for job, rates in zip(calibration.jobs, calibration.solo, strict=True):
        rate = 1000.0
        rows.append(
            [
                job.name,
                f"{job.epochs:g} x {job.samples:,}",
                f"{rates.cold.seconds * rate:.3g} ± {rates.cold.error * rate:.1g}",
                f"{rates.hot.seconds * rate:.3g} ± {rates.hot.error * rate:.1g}",
                f"{job.storage_s * rate:.3g}",
                f"{job.overlap:.2f}",
                clock(job.start_up_s),
            ]
        )
    heads = ["job", "epochs x samples", "cold ms/sample", "hot ms/sample", "storage", "overlap", "start-up"]
    return (
        f"calibration took {clock(calibration.cost_s)}{earlier}, {share:.0%} of one makespan\n\n"
        f"{Table(heads, rows).text()}\n\n"
        + "\n".join(
            _pair(answer, i, j) for i in range(len(calibration.jobs)) for j in range(i + 1, len(calibration.jobs))
        )
    )


def _pair(answer: Staggering, i: int, j: int) -> str:
    names, effect = answer.names, answer.calibration.slowdowns
    return (
        f"{names[i]} beside {names[j]}: reads take {effect.storage[i][j]:.2f} and {effect.storage[j][i]:.2f} times as "
        f"long, hot samples {effect.hot[i][j]:.2f} and {effect.hot[j][i]:.2f} times"
    )


def sparkline(values: Array, width: int = 60) -> str:
    """The curve as one line of block characters."""
    some = np.interp(np.linspace(0, len(values) - 1, min(width, len(values))), np.arange(len(values)), values)
    low, high = float(some.min()), float(some.max())
    step = (high - low) or 1.0
    return "".join(_BLOCKS[min(len(_BLOCKS) - 1, int((v - low) / step * len(_BLOCKS)))] for v in some)


def _curves(answer: Staggering) -> str:
    return "\n\n".join(_curve(answer, curve) for curve in answer.curves)


def _curve(answer: Staggering, curve: Curve) -> str:
    clock, names = _clock(answer), answer.names
    first, second = (names[job] for job in curve.order)
    epoch = answer.calibration.jobs[curve.order[0]]
    cold = epoch.start_up_s + epoch.cold_epoch_s
    at = sorted({*np.linspace(0, len(curve.offsets_s) - 1, _ROWS).round().astype(int).tolist(), curve.best})
    rows = [
        [
            clock(float(curve.offsets_s[k])),
            f"{curve.offsets_s[k] / cold:.2f}",
            clock(float(curve.makespan_s[k])),
            f"{clock(float(curve.low_s[k]))} - {clock(float(curve.high_s[k]))}",
            "best" if k == curve.best else "",
        ]
        for k in at
    ]
    ends = f"{clock(float(curve.makespan_s.min()))} to {clock(float(curve.makespan_s.max()))}"
    return (
        f"{first} first, {second} later: {sparkline(curve.makespan_s)} {ends}\n\n"
        + Table([f"{second} starts after", "cold epochs", "makespan", "P10 - P90", ""], rows, left=0).text()
    )


def describe_start(answer: Staggering, way: Way) -> str:
    """For example "vit first, resnet 12.3 s later"."""
    if not any(way.offsets_s):
        return "all together"
    clock = _clock(answer)
    order = sorted(range(len(way.offsets_s)), key=lambda job: way.offsets_s[job])
    names = answer.names
    return f"{names[order[0]]} first" + "".join(f", {names[j]} {clock(way.offsets_s[j])} later" for j in order[1:])


def _advice(answer: Staggering) -> str:
    clock = _clock(answer)
    best, together = answer.best, answer.together
    share = answer.gain_s / together.makespan_s
    line = f"best: {describe_start(answer, best)}: {clock(best.makespan_s)}"
    if answer.sure:
        line += f", {share:.1%} less than together ({clock(together.makespan_s)})"
    elif answer.gain_s <= 0:
        line += "; no stagger gains anything"
    else:
        line += (
            f", but its gain of {share:.1%} over starting together is within the uncertainty "
            f"(± {clock(2 * answer.gain_error_s)} measured, {SMALL:.0%} of the model); start them together"
        )
    if answer.chosen:
        line += f"\nasked for: {describe_start(answer, answer.chosen)}: {clock(answer.chosen.makespan_s)}"
    return line


def _ways(answer: Staggering) -> str:
    clock = _clock(answer)
    best = answer.best.makespan_s
    rows = []
    for way in (answer.best, *answer.others, *answer.alternatives):
        gain = (way.makespan_s - best) / way.makespan_s
        name = way.name if way is not answer.best else "staggered, at the best offset"
        rows.append(
            [
                name,
                describe_start(answer, way) if way.offsets_s else "one loader",
                clock(way.makespan_s),
                "" if way is answer.best else f"{gain:.1%}",
            ]
        )
    return Table(["way", "start", "makespan", "best gains"], rows, left=2).text()


def _notes(answer: Staggering) -> str:
    return "\n".join(
        textwrap.fill(f"note: {note}", WIDTH, subsequent_indent="  ", break_long_words=False)
        for note in answer.calibration.notes
    )


def measured_text(answer: Staggering, calibration: Measured) -> str:
    """Measured against predicted times."""
    clock, way = _clock(answer), answer.launch

    def row(name: str, predicted: float, measured: float) -> list[str]:
        return [name, clock(predicted), clock(measured), f"{predicted / measured - 1:+.1%}"]

    rows = [
        row(f"{name} ends", p, m) for name, p, m in zip(answer.names, way.finish_s, calibration.finish_s, strict=True)
    ]
    rows.append(row("makespan", way.makespan_s, calibration.makespan_s))
    return f"run: {describe_start(answer, way)}\n\n" + Table(["", "predicted", "measured", "error"], rows).text()
