"""CherryPick over 50 seeds: what starts, surrogate and stopping rule each do, and the improved setting held out by job.

`python -m benchmarks.papers.cherrypick_seeds` (ten minutes on one core; a call that was interrupted goes on with the
next) writes benchmarks/results/cherrypick.json and fills the markers of docs/cherrypick.md and docs/predictors.md. All
searches are over the five analytics jobs published with CherryPick and, for the improved setting, over the GPU
configurations of published steps, on which nothing was chosen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path as File
from typing import Any

from benchmarks.papers.cherrypick_page import CHOICES, FACTORS, blocks, chosen, summary
from benchmarks.papers.cherrypick_paths import Path, gaps_of, search_path
from benchmarks.papers.cherrypick_searches import Gaps
from benchmarks.papers.cloud_tables import JOBS, cloud_configurations, read_cloud_runs
from benchmarks.papers.training_tables import published_configurations
from benchmarks.speed import RESULTS, machine
from precision_time.cli.progress import Progress
from precision_time.journal import Journal, held
from precision_time.measurements.repository import STEPS, required_data_folder
from precision_time.predictors.cherrypick import IMPROVED, PUBLISHED, Setting
from precision_time.predictors.cloud_search import Configurations
from precision_time.predictors.published import published_jobs
from precision_time.predictors.slice_sampling import Sampled
from precision_time.predictors.surrogate import Averaged, Likelihood
from precision_time.report.page import fill_markers
from precision_time.report.write import make_folder, write_whole

SEEDS = 50
FILE = RESULTS / "cherrypick.json"
PAGE = File(__file__).parents[2] / "docs" / "cherrypick.md"
OVERVIEW = PAGE.with_name("predictors.md")
JOURNAL = File("out") / "cherrypick.jsonl"
SURROGATES: dict[str, Sampled | Likelihood | Averaged] = {
    "sampled": Sampled(),
    "sampled, noise 0.02": Sampled(samples=40, burn_in=0, noise=0.02),
    "greatest likelihood": Likelihood(),
    "averaged (ours)": Averaged(),
}
"""The authors' default chooser, their other one, and two of this project."""
SHORTEST = 6


@dataclass(frozen=True, slots=True)
class Study:
    """Searches of one setting over some tables: a path for each seed; `setting` stops as late as any rule judged."""

    key: str
    setting: Setting
    tables: Mapping[str, Callable[[], Configurations]]


def studies() -> list[Study]:
    """All studies; their tables are made when they are first needed."""
    data = required_data_folder()
    runs = read_cloud_runs(data)
    authors = {job: partial(cloud_configurations, runs, job, as_authors=True) for job in JOBS}
    totals = {job: partial(cloud_configurations, runs, job, encoding="totals", as_authors=True) for job in JOBS}
    found = [
        Study(
            f"{name}, {starts} starts",
            replace(
                PUBLISHED, starts=starts, surrogate=surrogate, stop_below=min(FACTORS["stop"]), least_runs=SHORTEST
            ),
            authors,
        )
        for name, surrogate in SURROGATES.items()
        for starts in FACTORS["starts"]
    ]
    late = replace(IMPROVED, stop_below=min(stop for stop, _ in CHOICES), least_runs=max(least for _, least in CHOICES))
    found.append(Study("improved", late, totals))
    steps = published_configurations(published_jobs(data / STEPS))
    found.append(Study("gpus", late, {name: partial(_given, table) for name, table in steps.items()}))
    return found


def _given(table: Configurations) -> Configurations:
    return table


def paths_of(study: Study, seeds: int, kept: Journal, progress: Callable[[], None]) -> dict[str, list[Path]]:
    """Table -> the path of each seed; those in the journal are not searched again."""
    found: dict[str, list[Path]] = {}
    for name, make in study.tables.items():
        table = make()
        found[name] = []
        for seed in range(seeds):
            label = f"{study.key}/{name}/{seed}"
            record = kept.get(label) or kept.add(label, search_path(table, study.setting, seed).to_dict())
            found[name].append(Path.from_dict(record))
            progress()
    return found


def figures(seeds: int = SEEDS, journal: File | None = None, progress: Callable[[int, int], None] | None = None) -> Any:
    """The content of the file: gaps, runs and costs of every search."""
    all_studies = studies()
    total = seeds * sum(len(study.tables) for study in all_studies)
    kept = Journal(journal, {"studies": repr([(study.key, study.setting) for study in all_studies])})
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    paths = {study.key: paths_of(study, seeds, kept, count) for study in all_studies}
    factorial = {
        f"{name}, {starts} starts, {stop:g}": _judged(
            paths[f"{name}, {starts} starts"], partial(gaps_of, stop_below=stop, least=SHORTEST)
        )
        for name in SURROGATES
        for starts in FACTORS["starts"]
        for stop in FACTORS["stop"]
    }
    choices = {
        f"{stop:g}, {least}": _judged(paths["improved"], partial(gaps_of, stop_below=stop, least=least))
        for stop, least in CHOICES
    }
    shipped = f"{IMPROVED.stop_below:g}, {IMPROVED.least_runs}"
    return {
        "machine": machine(),
        "seeds": seeds,
        "factorial": factorial,
        "choices": choices,
        "shipped": shipped,
        "gpus": _judged(paths["gpus"], partial(gaps_of, stop_below=IMPROVED.stop_below, least=IMPROVED.least_runs)),
    }


def _judged(paths: Mapping[str, Sequence[Path]], judge: Callable[[Sequence[Path]], Gaps]) -> dict[str, Any]:
    """Table -> gap, runs and share of the exhaustive cost of each seed."""
    found = {}
    for name, each in paths.items():
        gaps = judge(each)
        found[name] = {
            "gap": [round(float(value), 5) for value in gaps.gap],
            "runs": [int(value) for value in gaps.runs],
            "cost": [round(float(value), 5) for value in gaps.cost],
        }
    return found


def main() -> None:
    """Search, write the file and fill the page."""
    make_folder(JOURNAL.parent)
    with held(JOURNAL), Progress("searches") as progress:
        content = figures(journal=JOURNAL, progress=progress)
    write_whole(FILE, json.dumps(content) + "\n")
    write_page(content)
    if chosen(content["choices"]) != content["shipped"]:
        print(f"the rule chooses {chosen(content['choices'])}, IMPROVED is {content['shipped']}")


def write_page(content: Mapping[str, Any]) -> None:
    """Fill the markers of the page, and of the overview of all predictors."""
    for path, texts in ((PAGE, blocks(content)), (OVERVIEW, {"cherrypick": summary(content)})):
        whole = path.read_text(encoding="utf-8")
        for mark, text in texts.items():
            whole = fill_markers(whole, mark, text, str(path))
        write_whole(path, whole)


if __name__ == "__main__":
    main()
