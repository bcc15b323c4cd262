"""`fit`: from tables of measurements to the parameters that ship, stage by stage."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from precision_time.cli.parser import UsageError
from precision_time.errors import DataError, MissingExtraError, nearest


@dataclass(frozen=True, slots=True)
class Stage:
    """One script of `fit/`, the file below the shared folder that it cannot do without, and its arguments."""

    module: str
    needs: str
    arguments: Callable[[Path], list[str]]
    judge: str = ""
    """The flag by which it judges without writing, if it can."""


STAGES: Mapping[str, Stage] = {
    "kernels": Stage("kernels", "data/kernels/aic_gemm.parquet", lambda shared: ["--shared", str(shared)]),
    "collectives": Stage("collectives", "data/kernels/aic_nccl.parquet", lambda shared: ["--shared", str(shared)]),
    "steps": Stage("steps", "data/published/measurements.csv", lambda shared: ["--shared", str(shared)], "--report"),
    "anchors": Stage(
        "anchors", "data/published/measurements.csv", lambda shared: ["--shared", str(shared)], "--report"
    ),
    "layouts": Stage(
        "layouts", "data/published/measurements_llm.csv", lambda shared: ["--shared", str(shared)], "--judge"
    ),
}
"""In the order in which they build on each other."""


def fit(given: Namespace) -> str:
    """Run the stages; each prints its table of errors. Returns what to do next."""
    able = [name for name, stage in STAGES.items() if stage.judge]
    names = given.stage or (able if given.report else list(STAGES))
    for name in names:
        if name not in STAGES:
            raise UsageError(f"stage {name!r} is unknown; nearest: {nearest(name, STAGES, 1)}; use {', '.join(STAGES)}")
        if given.report and name not in able:
            raise UsageError(f"stage {name} cannot judge without writing; --report goes with {', '.join(able)}")
    measured = given.measured or []
    if measured and "kernels" not in names:
        raise UsageError(f"--measured goes with stage kernels, which is not among {', '.join(names)}; add it")
    if not given.shared:
        raise UsageError("fit needs the folder with the tables of measurements; give it with --shared DIR")
    shared = Path(given.shared)
    for name in names:
        if not (shared / STAGES[name].needs).is_file():
            needs = STAGES[name].needs
            raise DataError(f"shared {given.shared!r} has no {needs}, which stage {name} reads; check --shared")
    for module in ("scipy", "pandas", "pyarrow"):
        if find_spec(module) is None:
            raise MissingExtraError(f"fit needs {module}: pip install 'precision-time[fit]'")
    if "kernels" in names:
        _check_measured(measured)
    for name in names:
        print(f"{name} ...", file=sys.stderr)
        # a process of its own: parameters are read once a process, and each stage must see what the one before wrote
        words = [*STAGES[name].arguments(shared), *([STAGES[name].judge] if given.report else [])]
        if name == "kernels":
            words += [word for folder in measured for word in ("--measured", folder)]
        command = [sys.executable, "-m", f"precision_time.fit.{STAGES[name].module}", *words]
        if subprocess.run(command, stdout=sys.stderr if given.json else None).returncode:
            raise DataError(f"stage {name} failed, as said above; later stages were not run")
    if given.report:
        return "judged; nothing was written"
    return (
        f"written: {', '.join(names)}; python -m precision_time.fit.board --shared DIR judges it for docs/accuracy.md"
    )


def _check_measured(folders: Sequence[str]) -> None:
    """Read the measured folders before any stage runs, so that a wrong one is said at once."""
    from precision_time.fit.kernels import OUTPUT, check_kept
    from precision_time.fit.measured_points import read_folders

    check_kept(OUTPUT, read_folders(folders))
