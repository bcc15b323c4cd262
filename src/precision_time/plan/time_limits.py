"""Whether the time limit of an sbatch script or a manifest of Kubernetes is long enough, and the file with one that is.

The job in the file is read by `job.importers`, and the limit that it needs is that of `plan.walltime`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_time.checks import show
from precision_time.errors import DataError, JobError
from precision_time.estimate.estimate import Estimate
from precision_time.job.importers.manifest import Manifest, read_manifest
from precision_time.job.importers.sbatch_options import DIRECTIVE, directives, options
from precision_time.plan.manifest_text import with_deadline
from precision_time.plan.walltime import TimeLimit, slurm_time, time_limit
from precision_time.reading import read_mapping, read_text
from precision_time.report.write import write_whole
from precision_time.units import human_seconds

SLURM, KUBERNETES = "slurm", "kubernetes"
_UNLIMITED = ("infinite", "unlimited", "-1", "0")
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+|(?<=-))(?::(?P<second>\d+))?(?::(?P<third>\d+))?")
_PLACES = {
    "PyTorchJob": "spec:\n  runPolicy:\n    activeDeadlineSeconds: {}",
    "JobSet": "spec:\n  replicatedJobs:\n    - template:\n        spec:\n          activeDeadlineSeconds: {}",
}
"""Where a deadline stands in a manifest, where it is not spec.activeDeadlineSeconds."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A time limit that a file asks for, beside the one that its run needs.

    asked_s   seconds; None where the file has no limit, or one without end
    chance    of the run ending within it
    lines     what to write into the file
    """

    estimate: Estimate
    needed: TimeLimit
    asked_s: int | None
    chance: float | None
    lines: str

    @property
    def long_enough(self) -> bool:
        return self.chance is None or self.chance >= self.needed.confidence

    def __str__(self) -> str:
        run = self.estimate.goodput
        assert run is not None
        whole = run.wall.interval
        lines = [
            self.estimate.job.signature(),
            f"  step           {human_seconds(self.estimate.step.p50)}",
            f"  run            {human_seconds(whole.p50)} ({human_seconds(whole.p10)} to {human_seconds(whole.p90)})",
            f"  time limit     {_text(self.asked_s, self.needed)}",
        ]
        if self.chance is not None:
            verdict = "long enough" if self.long_enough else "TOO SHORT"
            lines.append(f"                 {verdict}: the run ends within it with {self.chance:.0%}")
        lines.append(f"  for {self.needed.confidence:.0%}        {human_seconds(self.needed.seconds)}:")
        lines += [f"    {line}" for line in self.lines.splitlines()]
        if not self.estimate.memory.fits:
            lines.append("  it does not fit in memory: see precision-time predict")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "asked_s": self.asked_s,
            "chance": self.chance,
            "long_enough": self.long_enough,
            "needed": {**self.needed.to_dict(), "text": self.lines},
            "estimate": self.estimate.to_dict(),
        }


def _text(asked_s: int | None, needed: TimeLimit) -> str:
    if asked_s is None:
        return "none is asked for"
    return slurm_time(asked_s) if needed.format == SLURM else f"{asked_s:,} s, {human_seconds(asked_s)}"


def check_slurm(path: str | Path, estimate: Estimate, confidence: float = 0.95) -> Checked:
    """The `--time` of an sbatch script against the run. Raises `DataError` for a file without #SBATCH lines."""
    asked_s = slurm_seconds(directives(_script(path)).get("time"))
    needed = time_limit(estimate, confidence, "slurm")
    return _checked(estimate, needed, asked_s, needed.text)


def check_manifest(path: str | Path, estimate: Estimate, confidence: float = 0.95) -> Checked:
    """The deadline of a manifest against the run; raises `DataError` for another file.

    Kueue's label counts the run alone; the deadlines of Job, JobSet, PyTorchJob and TrainJob also time in the queue.
    """
    manifest = manifest_of(path)
    form = "kueue" if manifest.limit_field != "activeDeadlineSeconds" else "trainjob"
    needed = time_limit(estimate, confidence, form)
    lines = _PLACES.get(manifest.kind, "{}").format(needed.seconds) if form == "trainjob" else ""
    return _checked(estimate, needed, manifest.limit_s, lines if "activeDeadline" in lines else needed.text)


def _checked(estimate: Estimate, needed: TimeLimit, asked_s: int | None, lines: str) -> Checked:
    run = estimate.goodput
    assert run is not None  # `time_limit` has refused a run without a length
    whole = run.from_submission() if needed.format == "trainjob" else run.wall
    return Checked(estimate, needed, asked_s, None if asked_s is None else whole.probability(float(asked_s)), lines)


def manifest_of(path: str | Path) -> Manifest:
    """The manifest in a file. Raises `DataError` naming the file."""
    content = read_mapping(path, "manifest")
    try:
        return read_manifest({"kind": "", **content})
    except JobError as error:
        raise DataError(f"manifest {show(str(path))}: {error}") from error


def slurm_seconds(text: str | None) -> int | None:
    """Seconds of a time as Slurm writes it: M, M:S, H:M:S, D-, D-H, D-H:M or D-H:M:S; None without a limit.

    Raises `DataError` for other text.
    """
    if text is None or text.lower() in _UNLIMITED:
        return None
    match = _TIME.fullmatch(text)
    if match is None:
        raise DataError(f"--time {show(text)} is no time of Slurm; write minutes, H:M:S or D-H:M:S")
    parts = [int(match[name] or 0) for name in ("first", "second", "third")]
    if match["days"] is not None:
        return 86_400 * int(match["days"]) + 3600 * parts[0] + 60 * parts[1] + parts[2]
    if match["third"] is not None:
        return 3600 * parts[0] + 60 * parts[1] + parts[2]
    return 60 * parts[0] + parts[1]


def rewrite_slurm(path: str | Path, needed: TimeLimit) -> None:
    """Write the limit into the script: in place of the --time that counts, else after its first #SBATCH line."""
    text, wanted = _script(path), slurm_time(needed.seconds)
    times = [option for option in options(text) if option.name == "time"]
    if times:
        start, end = times[-1].start, times[-1].end
        write_whole(path, f"{text[:start]}{wanted}{text[end:]}")
        return
    lines = text.splitlines(keepends=True)
    place = 1 if lines[0].startswith("#!") else 0
    for at, line in enumerate(lines):
        if DIRECTIVE.match(line.rstrip("\r\n")):
            place = at + 1
            break
        if line.strip() and not line.lstrip().startswith("#"):
            break
    lines.insert(place, f"#SBATCH --time={wanted}\n")
    write_whole(path, "".join(lines))


def rewrite_manifest(path: str | Path, needed: TimeLimit) -> None:
    """Write the limit into the manifest: in place of the one that it has, else where its kind has one."""
    manifest, text = manifest_of(path), read_text(path)
    pattern = re.compile(rf"(?<![\w/.#-])([\"']?{re.escape(manifest.limit_field)}[\"']?[ \t]*:[ \t]*)([\"']?)\d+\2")
    changed, count = pattern.subn(lambda found: f"{found[1]}{found[2]}{needed.seconds}{found[2]}", text)
    write_whole(path, changed if count else with_deadline(text, manifest.kind, needed.seconds))


def _script(path: str | Path) -> str:
    text = read_text(path)
    if DIRECTIVE.search(text) is None:
        raise DataError(f"file {show(str(path))} has no #SBATCH line, so it is no sbatch script; give one")
    return text


def gpu_of(kind: str, path: str | Path, given: str | None = None) -> str | None:
    """The GPU of the job in a file: the one that is `given`, else the one that a manifest's node selector names.

    Raises `DataError` for a file of another kind, `CatalogError` for a selector that names no GPU of the catalog.
    """
    if kind == SLURM:
        _script(path)
        return given
    product = manifest_of(path).product
    if given is not None or not product:
        return given
    from precision_time.hardware.cluster_nodes import NodeResources

    return NodeResources(name="selector", cores=1, memory_bytes=0, gpu=product).catalog_gpu()
