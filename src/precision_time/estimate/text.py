"""An estimate as text for people: what, how long, why, does it fit, how sure."""

from __future__ import annotations

from precision_time.estimate.estimate import Estimate
from precision_time.estimate.interval import Interval
from precision_time.units import human_bytes, human_count, human_seconds

_LABELS = {
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "loss_scaling": "loss scaling",
    "casts": "casts",
    "host_gaps": "waiting for the host",
    "communication_exposed": "communication, exposed",
}


def text(estimate: Estimate) -> str:
    """Tables that add up, in human units."""
    parts = [
        estimate.job.signature(),
        _times(estimate),
        _breakdown(estimate),
        _memory(estimate),
        _trust(estimate),
    ]
    return "\n\n".join(part for part in parts if part)


def _times(estimate: Estimate) -> str:
    rows = [("step", estimate.step), ("epoch", estimate.epoch), ("run", estimate.run)]
    lines = [f"{'':18}{'P50':>12}{'P10':>12}{'P90':>12}"]
    for name, interval in rows:
        if interval is not None:
            lines.append(f"{_length(estimate, name):18}{_triple(interval)}")
    if estimate.epoch is None:
        lines.append("no epoch: give --dataset or --dataset-size")
    lines.append(f"{human_count(estimate.samples_per_s)} {estimate.samples_unit}/s on {estimate.job.gpus} GPU(s)")
    if estimate.cost_usd is not None:
        cost = estimate.cost_usd
        lines.append(f"cost ${cost.p50:,.2f} (${cost.p10:,.2f} to ${cost.p90:,.2f})")
    if estimate.energy_j is not None:
        lines.append(f"energy about {estimate.energy_j.p50 / 3.6e6:,.1f} kWh for the GPUs alone (assumed power)")
    return "\n".join(lines)


def _length(estimate: Estimate, name: str) -> str:
    if name == "epoch" and estimate.steps_per_epoch:
        return f"epoch ({estimate.steps_per_epoch:,})"
    if name == "run" and estimate.steps:
        return f"run ({estimate.steps:,})"
    return name


def _triple(interval: Interval) -> str:
    return "".join(f"{human_seconds(v):>12}" for v in (interval.p50, interval.p10, interval.p90))


def _breakdown(estimate: Estimate) -> str:
    total = estimate.step.p50
    lines = ["where a step goes"]
    for term, seconds in estimate.breakdown.items():
        bar = "█" * round(30 * seconds / total)
        lines.append(f"  {_LABELS[term]:24}{human_seconds(seconds):>10}{seconds / total:>7.1%}  {bar}")
    lines.append(f"  {'step':24}{human_seconds(total):>10}{1:>7.1%}")
    if estimate.communication_hidden_s:
        lines.append(f"  communication hidden behind compute: {human_seconds(estimate.communication_hidden_s)}")
    return "\n".join(lines)


def _memory(estimate: Estimate) -> str:
    memory = estimate.memory
    verdict = (
        f"fits, {human_bytes(memory.capacity_bytes - memory.peak_bytes)} free"
        if memory.fits
        else f"DOES NOT FIT by {human_bytes(memory.missing_bytes)}: smaller batch, lower precision or more memory"
    )
    lines = [f"memory per GPU: {human_bytes(memory.peak_bytes)} of {human_bytes(memory.capacity_bytes)}, {verdict}"]
    shown = [(name, size) for name, size in memory.by_category.items() if size]
    lines.append("  " + ", ".join(f"{name} {human_bytes(size)}" for name, size in shown))
    return "\n".join(lines)


def _trust(estimate: Estimate) -> str:
    sources = ", ".join(f"{name} {share:.0%}" for name, share in estimate.sources.items() if share >= 0.005)
    lines = [f"rests on: {sources}; no kernel below its floor, {human_seconds(estimate.floor_s)} in all"]
    if estimate.unsupported:
        names = ", ".join(estimate.unsupported)
        lines.append(f"no model for {names} ({estimate.unsupported_bytes_share:.2%} of the bytes, priced as traffic)")
    lines += [f"assumed: {note}" for note in estimate.assumptions]
    return "\n".join(lines)
