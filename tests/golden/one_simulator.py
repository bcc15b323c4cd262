"""Plain data-parallel jobs of the zoo, against the former simulator of these jobs alone.

Two simulators existed until November 2026: of data-parallel jobs, and of all layouts. `one_simulator.json` holds,
by job, the seconds of one step that the former predicted, and the ratio of a later prediction to these.

python tests/golden/one_simulator.py             median, range and the jobs that differ most
python tests/golden/one_simulator.py --update    record the ratios
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path

from precision_time.errors import PrecisionTimeError
from precision_time.job import Job
from precision_time.prediction import predict
from precision_time.zoo.catalog import ENTRIES

FILE = Path(__file__).with_name("one_simulator.json")
SETTINGS: Mapping[str, Mapping[str, object]] = {
    "fp32 1 x V100": {"precision": "fp32", "gpu": "v100-16gb-sxm", "gpus": 1},
    "amp-fp16 8 x V100": {"precision": "amp-fp16", "gpu": "v100-16gb-sxm", "gpus": 8},
    "tf32 8 x A100, 4 micro-steps": {"precision": "tf32", "gpus": 8, "grad_accum": 4},
    "amp-bf16 1 x A100": {"precision": "amp-bf16", "gpus": 1},
    "amp-bf16 16 x A100": {"precision": "amp-bf16", "gpus": 16},
    "bf16-master 1 x H100": {"precision": "bf16-master", "gpu": "h100-80gb-sxm", "gpus": 1},
    "bf16 64 x H100": {"precision": "bf16", "gpu": "h100-80gb-sxm", "gpus": 64},
}


def jobs() -> Iterator[tuple[str, Job]]:
    """Every zoo model but the small networks, in every setting."""
    for name, entry in ENTRIES.items():
        if not entry.builder.startswith("models.small"):
            for setting, fields in SETTINGS.items():
                yield f"{name} {setting}", Job(name, anchors=("none",), **fields)  # type: ignore[arg-type]


def on_file() -> dict[str, tuple[float, float | None]]:
    """By job: seconds of the former data-parallel simulator, and the other's as a ratio of these (None: refused)."""
    content: dict[str, tuple[float, float | None]] = json.loads(FILE.read_text(encoding="utf-8"))
    return content


def seconds(job: Job) -> float | None:
    """The P50 step; None where it cannot take the job."""
    try:
        return predict(job).step.p50
    except PrecisionTimeError:
        return None


def summary(ratios: Mapping[str, float]) -> str:
    """Median, range and how many are near one, then the jobs that differ most."""
    values = sorted(ratios.values())
    near = [sum(abs(value - 1) < limit for value in values) for limit in (0.01, 0.05)]
    lines = [
        f"{len(values)} jobs: median {statistics.median(values):.4f}, range {values[0]:.3f} to {values[-1]:.3f}, "
        f"{near[0]} within 1 %, {near[1]} within 5 %"
    ]
    lines += [f"{job}: {ratios[job]:.3f}" for job in sorted(ratios, key=lambda job: -abs(ratios[job] - 1))[:12]]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help=f"record the ratios in {FILE.name}")
    update = parser.parse_args().update
    known = on_file()
    ratios = {}
    for name, job in jobs():
        now = seconds(job)
        if name in known and now is not None:
            ratios[name] = now / known[name][0]
    print(summary(ratios))
    if update:
        lines = [f"{json.dumps(name)}: [{known[name][0]}, {ratios[name]:.4f}]" for name in ratios]
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
