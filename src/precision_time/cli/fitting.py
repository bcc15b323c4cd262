"""`fit`: from tables of measurements to the parameters that ship, stage by stage."""

from __future__ import annotations

import contextlib
import os
import subprocess
from argparse import Namespace
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from precision_time.cli.parser import UsageError
from precision_time.cli.streams import emit, note
from precision_time.errors import DataError, MissingExtraError, nearest
from precision_time.processes import end_process, start_module
from precision_time.shipped import HOLDER, writing


def fit(given: Namespace) -> str:
    """Run the stages, each in a process of its own; each prints its errors. Returns what to do next."""
    from precision_time.fit import STAGES
    from precision_time.measurements.repository import required_data_folder

    judging = [name for name, stage in STAGES.items() if stage.judges]
    names = given.stage or (judging if given.report else [name for name, stage in STAGES.items() if stage.usual])
    for name in names:
        if name not in STAGES:
            raise UsageError(f"stage {name!r} is unknown; nearest: {nearest(name, STAGES, 1)}; use {', '.join(STAGES)}")
        if given.report and name not in judging:
            raise UsageError(
                f"stage {name} cannot judge without writing; --report goes with {', '.join(judging)} (python -m "
                "benchmarks.accuracy judges all in a clone of the repository)"
            )
    measured = given.measured or []
    if measured and "kernels" not in names:
        raise UsageError(f"--measured goes with stage kernels, which is not among {', '.join(names)}; add it")
    tables = required_data_folder(given.tables)
    for name in names:
        if not (tables / STAGES[name].table).is_file():
            raise DataError(f"folder {str(tables)!r} has no {STAGES[name].table}, which stage {name} reads")
    for module in ("scipy", "pandas", "pyarrow"):
        if find_spec(module) is None:
            raise MissingExtraError(f"fit needs {module}: pip install 'precision-time[fit]'")
    if "kernels" in names:
        _check_measured(measured)
    options = ["--tables", str(tables), *(["--report"] if given.report else [])]
    show = note if given.json else emit
    with contextlib.nullcontext() if given.report else writing():
        for name in names:
            note(f"{name} ...")
            further = [each for folder in measured for each in ("--measured", folder)] if name == "kernels" else []
            _run([name, *options, *further], show)
    if given.report:
        return "judged; nothing was written"
    return f"written: {', '.join(names)}; in a clone of the repository, make board judges them held out"


def _run(arguments: Sequence[str], show: Callable[[str], None]) -> None:
    """Run a stage and show what it prints. It is a process of its own, since parameters are read once a process and
    each stage must see what the one before wrote."""
    holder = {HOLDER: str(os.getpid())}
    stage = start_module("precision_time.fit", *arguments, environment=holder, stdout=subprocess.PIPE)
    try:
        output = stage.communicate()[0].decode(errors="replace")
    finally:
        end_process(stage)
    if output:
        show(output.removesuffix("\n"))
    if stage.returncode:
        raise DataError(f"stage {arguments[0]} failed, as said above; later stages were not run")


def _check_measured(folders: Sequence[str]) -> None:
    """Read the measured folders before any stage runs, so that a wrong one is reported at once."""
    from precision_time.fit.kernels import OUTPUT, check_kept
    from precision_time.fit.measured_points import read_folders

    check_kept(OUTPUT, read_folders(folders))
