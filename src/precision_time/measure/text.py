"""Calibrations and verifications as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from precision_time.estimate.text import interval_text
from precision_time.hardware.fields import MOST_NOISE
from precision_time.measure.calibrate import NOISY
from precision_time.report.table import Table
from precision_time.units import human_seconds

if TYPE_CHECKING:
    from precision_time.measure.verify import Verification


def verification_text(verification: Verification) -> str:
    """A headline, one line per job, and a warning if the machine was noisy."""
    rows = [
        [
            _name(row.job),
            row.job.precision,
            str(row.job.gpus),
            interval_text(row.estimate.step),
            human_seconds(row.measured_s),
            f"{row.run_spread:.0%}",
            f"{row.error:+.1%}",
            "yes" if row.inside else "no",
        ]
        for row in verification.rows
    ]
    table = Table(
        ["job", "precision", "ranks", "predicted (P10-P90)", "measured", "runs differ", "error", "inside"], rows, left=2
    ).text()
    worst = max(verification.rows, key=lambda row: abs(row.error))
    runs = len(verification.rows[0].runs_s)
    lines = [
        f"{verification.machine}: predicted against {runs} real runs of {len(verification.rows)} jobs, "
        f"mean error {verification.mape:.1%}, largest {abs(worst.error):.1%}",
        "",
        table,
        "",
        "error: predicted over measured, minus one; measured: median over runs of the median step",
    ]
    if verification.noisy:
        spread = max(row.run_spread for row in verification.rows)
        lines.append(
            f"This machine is noisy: equal measurements differ by {verification.noise:.0%} during calibration, runs by "
            f"up to {spread:.0%}; errors below that mean nothing. Stop other programs here."
        )
    return "\n".join(lines)


def _noise(noise: float) -> str:
    """The noise of a calibration, and what to do about it."""
    if noise >= MOST_NOISE:
        return (
            f"{MOST_NOISE:.0%} or more between equal measurements - this machine is too noisy, and predictions from "
            "this file mean nothing: stop other programs here and calibrate again with --fresh"
        )
    advice = " - a noisy machine: stop other programs here and calibrate again" if noise > NOISY else ""
    return f"{noise:.1%} between equal measurements{advice}"


def calibration_text(content: Mapping[str, Any], left_out: Sequence[str], path: str | None, continued: int = 0) -> str:
    """A summary of a device file in a few lines, and the command that uses it."""
    (name, entry), *_ = content["gpus"].items()
    calibration = entry["calibration"]
    peaks = ", ".join(
        f"{key.removesuffix('_tflops')} {_rate(value)}" for key, value in entry.items() if key.endswith("_tflops")
    )
    lines = [
        f"{calibration['machine']}, {calibration['threads']} thread(s) a rank",
        f"best rates    {peaks or 'as in the catalog'}",
        *([f"best traffic  {entry['mem_bw_gbs']:,.0f} GB/s (caches included)"] if "mem_bw_gbs" in entry else []),
        f"points        {len(calibration['kernels']['rows']):,}"
        + (f", {len(left_out)} left out ({left_out[0]})" if left_out else ""),
        f"noise         {_noise(calibration['noise'])}",
    ]
    for ranks, factors in calibration["contention"].items():
        lines.append(
            f"{ranks} ranks busy  arithmetic {factors['compute']:.2f} x, traffic {factors['memory']:.2f} x as long"
        )
    for ranks, points in calibration["collectives"].get("all_reduce", {}).items():
        size, seconds = min(points, key=lambda point: abs(point[0] - (25 << 20)))
        lines.append(f"all-reduce    {size / 2**20:.0f} MiB among {ranks} ranks in {human_seconds(seconds)}")
    if continued:
        lines.append(f"continued     {continued:,} points were measured before (--fresh measures all again)")
    if any(text.endswith("no time left") for text in left_out):
        lines.append("unfinished    the same command again goes on with the points that found no time")
    if path:
        lines += ["", f"use it: precision-time predict MODEL --device {path} --gpu {name}"]
    return "\n".join(lines)


def _rate(tflops: float) -> str:
    return f"{tflops * 1e3:,.0f} GFLOP/s" if tflops < 1 else f"{tflops:,.1f} TFLOP/s"


def _name(job: Any) -> str:
    sizes = " ".join(f"{k}={v}" for k, v in {**job.model_config, **job.input}.items())
    batch = f" batch {job.batch_size}" if job.batch_size else ""
    return f"{job.model}{' ' + sizes if sizes else ''}{batch}"
