"""Attacks in worker processes, so that a crash or a memory limit ends one piece and not the whole."""

from __future__ import annotations

import collections
import contextlib
import multiprocessing
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.attack.corpus import Entry, input_entry
from benchmarks.attack.inputs import random_input
from benchmarks.attack.jobs import TRACED, models, random_job
from benchmarks.attack.judge import ANSWERED, DEFECT, import_libraries, judged, limit_memory
from benchmarks.attack.relations import RELATIONS
from benchmarks.code_digest import code_digest
from precision_time.errors import PrecisionTimeError
from precision_time.journal import Journal, held

PIECE = 100
"""Inputs or jobs of one task of a worker."""
_RELATIONS_OF_A_JOB = 3
_BESIDE_A_STORE = ("-lock", "-wal", "-shm")
"""Ends of the files that lie beside an open store."""
_OF_AN_IMPORT = "__pycache__"
"""What Python leaves beside an own module, unless PYTHONDONTWRITEBYTECODE is set."""
_MODELS_OF_A_PIECE = 5
"""So that a process seldom reads a graph again."""
_TRACED = 0.04
"""Share of jobs whose model torch traces, a fifth of a second for every batch size."""


@dataclass(frozen=True, slots=True)
class Defect:
    """What is wrong with one input or job, as text, and as an entry of the corpus that shows it again."""

    kind: str
    reason: str
    shown: str
    entry: Entry = field(default_factory=dict)

    @property
    def of_class(self) -> str:
        return (
            self.kind
            + ": "
            + re.sub(r"[-+]?[\d,.]+(e[-+]?\d+)?", "N", re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", self.reason))[:90]
        )


@dataclass(slots=True)
class Findings:
    """Counts by kind and outcome, and the defects; `code` is the digest of the code that was attacked."""

    seed: int
    inputs: int
    jobs: int
    outcomes: dict[str, collections.Counter[str]] = field(default_factory=dict)
    defects: list[Defect] = field(default_factory=list)
    slowest_s: float = 0.0
    seconds: float = 0.0
    code: str = ""

    def add(self, kind: str, outcome: str, count: int = 1) -> None:
        self.outcomes.setdefault(kind, collections.Counter())[outcome] += count

    def merge(self, other: Findings) -> None:
        for kind, outcomes in other.outcomes.items():
            for outcome, count in outcomes.items():
                self.add(kind, outcome, count)
        self.defects += other.defects
        self.slowest_s = max(self.slowest_s, other.slowest_s)
        self.seconds += other.seconds

    def to_record(self) -> dict[str, Any]:
        outcomes = {kind: dict(counts) for kind, counts in self.outcomes.items()}
        return {
            "seed": self.seed, "inputs": self.inputs, "jobs": self.jobs, "outcomes": outcomes,
            "defects": [asdict(each) for each in self.defects], "slowest_s": self.slowest_s, "seconds": self.seconds,
        }  # fmt: skip

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Findings:
        found = cls(**{name: record[name] for name in ("seed", "inputs", "jobs", "slowest_s", "seconds")})
        found.outcomes = {kind: collections.Counter(outcomes) for kind, outcomes in record["outcomes"].items()}
        found.defects = [Defect(**each) for each in record["defects"]]
        return found

    def by_class(self) -> dict[str, list[Defect]]:
        """The defects whose reasons differ in numbers only, together."""
        classes: dict[str, list[Defect]] = {}
        for defect in self.defects:
            classes.setdefault(defect.of_class, []).append(defect)
        return classes

    def text(self, examples: int) -> str:
        """Counts, then the classes of defects with examples."""
        lines = [f"seed {self.seed}: {self.inputs:,} inputs, {self.jobs:,} jobs in {self.seconds:.0f} s"]
        for kind, outcomes in sorted(self.outcomes.items()):
            lines.append(
                f"  {kind:28} " + ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items()))
            )
        classes = self.by_class()
        for name, members in sorted(classes.items(), key=lambda item: -len(item[1])):
            lines.append(f"\n{len(members)} x {name}")
            lines += [f"    {each.reason}\n      {each.shown[:700]}" for each in members[:examples]]
        lines.append(f"\n{len(self.defects)} defects in {len(classes)} classes; slowest input {self.slowest_s:.2f} s")
        return "\n".join(lines)


def attack(inputs: int, jobs: int, seed: int, workers: int, journal: Path | None = None) -> Findings:
    """Runs the attacks and returns what they found; progress goes to standard error.

    Pieces that `journal` holds of the same code, seed and counts are taken from there. `seconds` is the time of all
    pieces over the number of workers.
    """
    total = Findings(seed, inputs, jobs, code=code_digest(Path(__file__).parent))
    tasks = [("inputs", seed * 1_000_003 + n, min(PIECE, inputs - n)) for n in range(0, inputs, PIECE)]
    tasks += [("jobs", seed * 1_000_033 + n, min(PIECE, jobs - n)) for n in range(0, jobs, PIECE)]
    random.Random(seed).shuffle(tasks)
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        if journal:
            journal.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(held(journal))
        kept = Journal(journal, {"seed": seed, "inputs": inputs, "jobs": jobs, "code": total.code})
        pool = stack.enter_context(ProcessPoolExecutor(workers, context, _prepare))
        running = {pool.submit(piece, task): _label(task) for task in tasks if _label(task) not in kept}
        for record in list(kept.records.values()):
            total.merge(Findings.of_record(record))
        for number, done in enumerate(as_completed(running), start=len(tasks) - len(running) + 1):
            found = done.result()
            kept.add(running[done], found.to_record())
            total.merge(found)
            for defect in found.defects:
                print(f"\n{defect.of_class}\n{defect.shown[:1000]}", file=sys.stderr)
            progress = f"\r{number} of {len(tasks)} pieces, {len(total.defects)} defects "
            print(progress, end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    total.seconds /= workers
    return total


def _label(task: tuple[str, int, int]) -> str:
    return " ".join(map(str, task))


def _prepare() -> None:
    import_libraries()
    limit_memory(32 << 30)


def piece(task: tuple[str, int, int]) -> Findings:
    kind, seed, count = task
    start = time.perf_counter()
    found = _inputs(seed, count) if kind == "inputs" else _jobs(seed, count)
    found.seconds = time.perf_counter() - start
    return found


def _inputs(seed: int, count: int) -> Findings:
    found = Findings(seed, count, 0)
    home = Path.cwd()
    for number in range(count):
        source = random.Random(f"{seed} {number}")
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            os.chdir(folder)
            try:
                given = random_input(source, folder)
                before = set(os.listdir(folder))
                entry = input_entry(given, folder)
                verdict = judged(given)
                named = given.arguments if verdict.outcome == ANSWERED else ()
                left = {
                    name
                    for name in set(os.listdir(folder)) - before - {"out", _OF_AN_IMPORT}
                    if not any(name in a for a in named) and not name.endswith(_BESIDE_A_STORE)
                }
                shown = f"seed {seed} {number}: {given.show(folder)}"
            finally:
                os.chdir(home)
        found.add(given.kind, verdict.outcome)
        found.slowest_s = max(found.slowest_s, verdict.seconds)
        reason = verdict.reason if verdict.outcome == DEFECT else f"left {sorted(left)}" if left else ""
        if reason:
            found.defects.append(Defect(given.kind, reason, shown, entry))
    return found


def _jobs(seed: int, count: int) -> Findings:
    found = Findings(seed, 0, count)
    pick = random.Random(seed)
    names, traced = pick.sample(models(), _MODELS_OF_A_PIECE), [f"timm:{pick.choice(TRACED)}"]
    for number in range(count):
        source = random.Random(f"{seed} {number}")
        for relation, reason, fields in _relations(source, traced if source.random() < _TRACED else names):
            found.add(relation, "broken" if reason else "holds")
            if reason:
                entry = {"relation": relation, "job": fields}
                found.defects.append(Defect(relation, reason, f"seed {seed} {number}: {fields}", entry))
    return found


def _relations(source: random.Random, names: Sequence[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The relations of one job that is answered: name, what is wrong, and the fields of the job."""
    from precision_time.prediction import predict

    while True:
        job = random_job(source, names)
        try:
            estimate = predict(job)
            break
        except PrecisionTimeError:
            continue
        except Exception as error:
            yield "consistent", f"{type(error).__name__}: {str(error)[:200]}", job.to_dict()
            return
    for relation in (RELATIONS[0], *source.sample(RELATIONS[1:], _RELATIONS_OF_A_JOB)):
        try:
            reason = relation(job, estimate)
        except PrecisionTimeError:
            continue
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error)[:200]}"
        yield relation.__name__, reason, job.to_dict()
