"""`python -m benchmarks.attack`: mutated inputs and related jobs with fresh seeds; exit code 1 where a defect shows."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks.attack.corpus import CORPUS, add_to_corpus
from benchmarks.attack.report import write_report
from benchmarks.attack.workers import attack

RESULTS = Path(__file__).parents[1] / "results"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attack", description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000, help="mutated inputs (default 20,000)")
    parser.add_argument("--jobs", type=int, default=5_000, help="jobs whose relations are checked (default 5,000)")
    parser.add_argument("--seed", type=int, default=None, help="first seed (default: the time)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--show", type=int, default=3, help="examples of each class of defect (default 3)")
    parser.add_argument("--journal", type=Path, help="file that keeps what is done, so that the same call goes on")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/attack.json and .md")
    parser.add_argument("--corpus", action="store_true", help="add an example of each class of defect to the corpus")
    options = parser.parse_args()
    seed = int(time.time()) if options.seed is None else options.seed
    found = attack(options.inputs, options.jobs, seed, options.workers, options.journal)
    print(found.text(options.show))
    if options.corpus:
        print(f"{add_to_corpus(found.by_class())} new entries in {CORPUS}")
    if options.write:
        write_report(found, RESULTS)
    return 1 if found.defects else 0


if __name__ == "__main__":
    sys.exit(main())
