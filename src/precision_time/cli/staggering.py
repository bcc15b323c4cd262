"""The command `stagger`: calibrate, predict, advise, and with --run really launch."""

from __future__ import annotations

import math
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_time.checks import small_number
from precision_time.cli.parser import UsageError
from precision_time.cli.progress import Progress
from precision_time.cli.streams import emit, note
from precision_time.errors import nearest

if TYPE_CHECKING:
    from precision_time.ingest.stagger.staggered_run import Measured
    from precision_time.ingest.stagger.staggering import Staggering

DEFAULT_FOLDER = "out/stagger"
ORDERS = ("both", "given", "reversed")
MOST_POINTS = 10_000


def stagger(args: Namespace) -> tuple[dict[str, Any], str]:
    """For JSON, and as text."""
    from precision_time.ingest.stagger.calibration import calibrate, check_start
    from precision_time.ingest.stagger.jobs_file import read_jobs
    from precision_time.ingest.stagger.staggered_run import earlier_runs
    from precision_time.ingest.stagger.staggering import stagger as predict
    from precision_time.ingest.stagger.staggering_plot import check_picture, plot
    from precision_time.ingest.stagger.staggering_text import measured_text, text
    from precision_time.ingest.stagger.windows_journal import held_folder

    if args.jobs is None:
        raise UsageError("no jobs file is given; name one, for example precision-time stagger jobs.yaml")
    points, offset_s = _points(args.points), _offset(args.offset)
    if args.order not in ORDERS:
        raise UsageError(
            f"flag --order {args.order!r} is unknown; nearest: {nearest(args.order, ORDERS)}; "
            f"use one of {', '.join(ORDERS)}"
        )
    if args.plot:
        check_picture(args.plot)
    file = read_jobs(args.jobs, allow_code=args.allow_code or args.run, empty_cache=args.empty_cache)
    folder = Path(args.folder)
    if len(file.jobs) < 2:
        raise UsageError(f"jobs file {args.jobs!r} has one job, and staggering needs two; list at least two")
    output_folder = folder.resolve()
    if "folder" in file.cache.reset and output_folder.is_relative_to(
        (file.folder / file.cache.reset["folder"]).resolve()
    ):
        raise UsageError(f"--folder {str(folder)!r} lies in cache.reset.folder, which is emptied; name another one")
    if len(file.jobs) > 2 and (args.plot or offset_s is not None):
        raise UsageError("--plot and --offset are for two jobs; leave them out for more")
    check_start(file, folder)
    with held_folder(folder):  # from the first window to the end of the run
        note(f"calibrating {len(file.jobs)} jobs into {folder}")
        with Progress("windows") as bar:
            calibration = calibrate(file, folder, args.fresh, lambda _, done, total: bar(done, total))
        answer = predict(calibration, points, args.order, offset_s)
        output = text(answer)
        content = answer.to_dict()
        if args.run:
            if not args.json:
                emit(output + "\n")
                output = ""
            measured = _launch(file, folder, answer)
            content["run"] = measured.to_dict()
            output += measured_text(answer, measured)
    if args.plot:
        plot(answer, args.plot, earlier_runs(file, folder))
        note(f"picture written to {args.plot}")
    return content, output


def _launch(file: Any, folder: Path, answer: Staggering) -> Measured:
    """Launch as advised, with a bar over all samples of all jobs."""
    from precision_time.ingest.stagger.staggered_run import run_jobs
    from precision_time.ingest.stagger.staggering_text import describe_start

    note(f"launching: {describe_start(answer, answer.launch)}")
    total = sum(job.samples * int(job.epochs) for job in answer.calibration.jobs)
    with Progress("samples") as bar:
        return run_jobs(file, answer.launch.offsets_s, folder, lambda _, samples: bar(sum(samples), total))


def _points(text: str) -> int:
    if small_number(text) not in range(2, MOST_POINTS + 1):
        raise UsageError(f"flag --points is {text!r}; give a whole number from 2 to {MOST_POINTS}")
    return int(text)


def _offset(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise UsageError(f"flag --offset is {text!r}; give seconds of at least 0, for example 12.5")
    return seconds
