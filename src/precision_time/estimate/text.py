"""An estimate as text: the job, times, breakdown of a step, memory, sources. Every column adds up as printed."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from precision_time.estimate.goodput import LABELS, Goodput
from precision_time.estimate.interval import Interval
from precision_time.estimate.quantile import further, label, peak_bytes, quantile_of
from precision_time.units import (
    byte_unit_for,
    digits_for,
    human_bytes,
    human_count,
    human_seconds,
    rounded_parts,
    unit_for,
)

if TYPE_CHECKING:
    from precision_time.estimate.estimate import Estimate
    from precision_time.estimate.utilisation import Utilisation

TERM_LABELS = {
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "loss_scaling": "loss scaling",
    "recompute": "recomputed forward",
    "casts": "casts",
    "host_gaps": "waiting for the host",
    "communication_exposed": "exposed communication",
    "bubble": "pipeline bubble",
    "straggler_wait": "waiting for the slowest GPU",
    "loader_stall": "waiting for data",
}
"""Terms of the breakdown as people read them."""
_NAME, _NUMBER, _BAR = 30, 12, 30
"""Widths of the columns: names, numbers, and the bar of 100 %."""
WIDTH = 110
"""Width of wrapped prose."""


def text(estimate: Estimate) -> str:
    """Headline, times, breakdown of a step, memory of a GPU, and what the estimate is based on."""
    run = [_run(estimate.goodput)] if estimate.goodput else []
    parts = [headline(estimate), _times(estimate), *run, _breakdown(estimate), _memory(estimate), _basis(estimate)]
    return "\n\n".join(parts)


def interval_text(interval: Interval) -> str:
    """ "104.9 ms (96.1-114.0)": P50 with P10 and P90 in the same unit."""
    scale, unit = unit_for(interval.p50)
    low, middle, high = (value / scale for value in (interval.p10, interval.p50, interval.p90))
    digits = digits_for(middle)
    return f"{middle:.{digits}f} {unit} ({low:.{digits}f}-{high:.{digits}f})"


def headline(estimate: Estimate) -> str:
    """The job in one line, with the batch size that the estimate is for."""
    job = estimate.job
    if job.batch_size is None:
        per_step = estimate.samples_per_s * estimate.step.p50
        job = job.replace(batch_size=max(1, round(per_step / job.layout_spec.dp / job.grad_accum)))
    return job.signature()


def _times(estimate: Estimate) -> str:
    sure = estimate.quantile
    lines = [_row("", ["P50", "P10", "P90", *([] if sure is None else [label(sure)])])]
    at = further(estimate)
    loading = estimate.loading
    first = loading.first_epoch if loading is not None and loading.steady == "later" else None
    if first is not None and sure is not None:
        at["first epoch"] = quantile_of(first, sure)
    for name, interval in (
        ("step", estimate.step),
        ("first epoch", first),
        ("epoch", estimate.epoch),
        ("run", estimate.run),
    ):
        if interval is not None:
            lines.append(_row(_length(estimate, name), _in_unit(interval, *unit_for(interval.p50), at.get(name))))
    if estimate.cost_usd is not None:
        lines.append(_row("cost", [f"${v:,.2f}" for v in _order(estimate.cost_usd, at.get("cost"))]))
    if estimate.rental is not None:
        lines += _wrapped(f"{estimate.rental}")
        if estimate.cost_usd is None:
            lines.append("  no cost of a run: give --epochs, --steps or --samples")
    if estimate.energy_j is not None:
        joules, unit = (3.6e6, "kWh") if estimate.energy_j.p50 >= 3.6e5 else (3600.0, "Wh")
        lines.append(_row("energy of the GPUs", _in_unit(estimate.energy_j, joules, unit, at.get("energy"))))
    lines.append(_row(f"{estimate.samples_unit} per second", [human_count(estimate.samples_per_s)]))
    if estimate.utilisation is not None:
        lines += _utilisation(estimate.utilisation)
    if loading is not None:
        lines.append(textwrap.fill(loading.verdict, WIDTH, subsequent_indent="  ", break_on_hyphens=False))
    if estimate.epoch is None:
        lines.append("no epoch: give --dataset or --dataset-size")
    return "\n".join(lines)


def _utilisation(achieved: Utilisation) -> list[str]:
    lines = []
    if achieved.tokens_per_s is not None:
        lines.append(_row("tokens per second", [human_count(achieved.tokens_per_s)]))
    if achieved.model_flops:
        shares = ""
        if achieved.mfu is not None and achieved.hfu is not None:
            shares = f"  MFU {achieved.mfu:.1%} of the {achieved.peak} peak"
            shares += f", HFU {achieved.hfu:.1%}" if achieved.repeated_flops else ""
        lines.append(_row("model TFLOP/s of a GPU", [f"{achieved.tflops_per_gpu:,.1f}"]) + shares)
    return lines


def achieved_parts(achieved: Utilisation) -> list[str]:
    """What a GPU achieves, for a picture: "410 TFLOP/s a GPU", "MFU 41%" and, with recomputation, "HFU 51%"."""
    if not achieved.model_flops:
        return []
    shares = {"MFU": achieved.mfu, "HFU": achieved.hfu if achieved.repeated_flops else None}
    known = [f"{name} {share:.{0 if share >= 0.1 else 1}%}" for name, share in shares.items() if share is not None]
    return [f"{achieved.tflops_per_gpu:,.{min(1, digits_for(achieved.tflops_per_gpu))}f} TFLOP/s a GPU", *known]


def _order(interval: Interval, at: float | None = None) -> tuple[float, ...]:
    """P50, P10, P90, and a further quantile where there is one."""
    return (interval.p50, interval.p10, interval.p90, *(() if at is None else (at,)))


def _in_unit(interval: Interval, scale: float, unit: str, at: float | None = None) -> list[str]:
    """P50, P10, P90 and the further quantile with the decimals that P50 needs."""
    digits = digits_for(interval.p50 / scale)
    return [f"{v / scale:,.{digits}f} {unit}" for v in _order(interval, at)]


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:{_NAME}}" + "".join(f"{cell:>{_NUMBER}}" for cell in cells)


def _length(estimate: Estimate, name: str) -> str:
    per_epoch = estimate.steps_per_epoch
    steps = {"epoch": per_epoch, "first epoch": per_epoch, "run": estimate.steps}.get(name)
    if name == "epoch" and estimate.loading is not None:
        name = "first epoch" if estimate.loading.steady == "first" else "later epoch"
    return f"{name} of {steps:,} steps" if steps else name


def _breakdown(estimate: Estimate) -> str:
    total = estimate.step.p50
    scale, unit = unit_for(total)
    digits = digits_for(total / scale) + 1
    names = [TERM_LABELS[term] for term in estimate.breakdown]
    numbers = rounded_parts([seconds / scale for seconds in estimate.breakdown.values()], digits)
    shares = rounded_parts([100 * seconds / total for seconds in estimate.breakdown.values()], 1)
    lines = ["where a step goes"]
    for name, number, share in zip(names, numbers, shares, strict=True):
        if number or share:
            bar = "█" * round(_BAR * share / 100)
            lines.append(_row(f"  {name}", [f"{number:,.{digits}f} {unit}"]) + f"{share:>8.1f}%  {bar}".rstrip())
    lines.append(_row("  step", [f"{sum(numbers):,.{digits}f} {unit}"]) + f"{sum(shares):>8.1f}%")
    if estimate.communication:
        lines.append("communication")
        lines += [
            _row(f"  between {group} ranks", [human_seconds(seconds["exposed_s"])])
            + f"  exposed, {human_seconds(seconds['hidden_s'])} behind compute"
            for group, seconds in estimate.communication.items()
        ]
    elif estimate.communication_hidden_s:
        lines.append(
            f"  and {human_seconds(estimate.communication_hidden_s)} of communication behind the backward pass"
        )
    return "\n".join(lines)


def _run(goodput: Goodput) -> str:
    """The parts of the run; medians add up, and P10 and P90 are each part's own."""
    total = goodput.from_submission().interval
    scale, unit = unit_for(total.p50)
    digits = digits_for(total.p50 / scale) + 1
    names = [LABELS[part] for part in goodput.parts]
    numbers = rounded_parts([part.p50 / scale for part in goodput.parts.values()], digits)
    shares = rounded_parts([100 * part.p50 / total.p50 for part in goodput.parts.values()], 1)
    lines = ["where the run goes"]
    for name, number, share, part in zip(names, numbers, shares, goodput.parts.values(), strict=True):
        cells = [f"{v:,.{digits}f} {unit}" for v in (number, part.p10 / scale, part.p90 / scale)]
        lines.append(_row(f"  {name}", cells) + f"{share:>8.1f}%")
    name = "  from submission to the end" if goodput.queue_s else "  run"
    cells = [f"{v:,.{digits}f} {unit}" for v in (sum(numbers), total.p10 / scale, total.p90 / scale)]
    lines.append(_row(name, cells) + f"{sum(shares):>8.1f}%")
    for sentence in goodput.notes:
        lines += _wrapped(sentence)
    return "\n".join(lines)


def _memory(estimate: Estimate) -> str:
    memory = estimate.memory
    scale, unit = byte_unit_for(memory.peak_bytes)
    digits = max(1, digits_for(memory.peak_bytes / scale))
    numbers = rounded_parts([size / scale for size in memory.by_category.values()], digits)
    verdict = (
        f"fits with {human_bytes(memory.capacity_bytes - memory.peak_bytes)} to spare"
        if memory.fits
        else f"DOES NOT FIT by {human_bytes(memory.missing_bytes)}: take a smaller batch or precision, or a larger GPU"
    )
    low, _, high = memory.peak_interval
    lines = [f"memory of a GPU, {human_bytes(memory.capacity_bytes)}: {verdict}"]
    rows = [(name, number) for name, number in zip(memory.by_category, numbers, strict=True) if number]
    lines += [_row(f"  {name}", [f"{number:,.{digits}f} {unit}"]) for name, number in rows]
    lines.append(_row("  peak", [f"{sum(numbers):,.{digits}f} {unit}"]))
    if memory.log_scale:
        lines.append(
            f"  peak P10-P90 {human_bytes(low)} to {human_bytes(high)}, fits with a probability of "
            f"{memory.fit_probability:.0%}"
        )
    if estimate.quantile is not None:
        at = human_bytes(peak_bytes(memory, estimate.quantile))
        lines.append(f"  peak {label(estimate.quantile)} {at}")
    if memory.stages:
        lines += _wrapped(_stages(memory.stage_peaks))
    if memory.largest_batch is not None:
        lines.append(f"largest micro-batch that fits: {memory.largest_batch or 'none'}")
    return "\n".join(lines)


def _stages(peaks: Sequence[int]) -> str:
    """Neighbouring stages with equal peaks together: "stage 0 71.2 GiB, stages 1-6 66.0 GiB, stage 7 69.9 GiB"."""
    shown = [human_bytes(peak) for peak in peaks]
    parts = []
    start = 0
    for place in range(1, len(shown) + 1):
        if place == len(shown) or shown[place] != shown[start]:
            name = f"stage {start}" if place == start + 1 else f"stages {start}-{place - 1}"
            parts.append(f"{name} {shown[start]}")
            start = place
    return ", ".join(parts)


def _basis(estimate: Estimate) -> str:
    known = [(name, share) for name, share in estimate.sources.items() if share > 0]
    shares = rounded_parts([100 * share for _, share in known], 0)
    sources = ", ".join(f"{name} {v:.0f}%" for (name, _), v in zip(known, shares, strict=True) if v)
    lines = [
        f"sources of the kernel and communication times: {sources or 'none'}",
        f"physical floor of the kernels: {human_seconds(estimate.floor_s)}",
    ]
    if estimate.anchors.count:
        lines += _anchors(estimate)
    if estimate.learned is not None:
        lines += textwrap.wrap(f"{estimate.learned}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    if estimate.unsupported:
        names = ", ".join(estimate.unsupported)
        lines.append(
            f"no model for: {names} ({estimate.unsupported_bytes_share:.2%} of the bytes, timed as memory traffic)"
        )
    if estimate.assumptions:
        lines.append("assumed:")
        lines += [line for assumption in estimate.assumptions for line in _wrapped(assumption)]
    return "\n".join(lines)


def _wrapped(sentence: str) -> list[str]:
    return textwrap.wrap(sentence, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def _anchors(estimate: Estimate) -> list[str]:
    """By how much measured jobs (anchors) changed the step, and the most similar of them with their sources."""
    anchors = estimate.anchors
    stall_s = estimate.breakdown.get("loader_stall", 0.0)
    step, before = sum(estimate.breakdown.values()) - stall_s, anchors.uncorrected_s or 1.0
    if estimate.learned is not None and estimate.learned.uncorrected_s is not None:
        step = estimate.learned.uncorrected_s
    jobs = "1 measured job" if anchors.count == 1 else f"{anchors.count} measured jobs"
    lines = [f"corrected by {jobs} of this family (anchors), step {step / before - 1:+.1%}; most similar:"]
    for use in anchors.nearest:
        lines.append(f"  {human_seconds(use.measured_s):>8}, similarity {use.likeness:.0%}: {use.id}")
        lines.append(f"            {use.source}")
    return lines
