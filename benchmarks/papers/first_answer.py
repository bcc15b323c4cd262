"""A process that answers for a network it has never seen, and says when: what the study of PredictDDL times.

    python -m benchmarks.papers.first_answer < request.json

The request is one JSON object: `predictor`, `jobs` (each a mapping for `Job.from_dict`), `again` (how often the known
jobs are asked about again), and what the predictor needs: `folder` of a saved PredictDDL, or `rows` ([job, seconds] of
the runs that Ernest is fitted to). Every job is answered in turn, a line of JSON each, then a line with the seconds of
one answer to a job that is known by then. Whoever starts the process can so time it from outside, imports included.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from precision_time.job.job import Job


def main(request: Mapping[str, Any], say: Callable[[str], object]) -> None:
    """Answer the request; `say` takes each line."""
    start = time.perf_counter()
    ask = {"predictddl": _predictddl, "ernest": _ernest}[request["predictor"]](request)
    ready_s = time.perf_counter() - start
    jobs = [Job.from_dict(each) for each in request["jobs"]]
    for job in jobs:
        begin = time.perf_counter()
        seconds = ask(job)
        answered = time.perf_counter() - begin
        say(json.dumps({"model": job.model, "seconds": seconds, "answer_s": answered, "ready_s": ready_s}))
    calls = []
    for _ in range(request.get("again", 0)):
        for job in jobs:
            begin = time.perf_counter()
            ask(job)
            calls.append(time.perf_counter() - begin)
    say(json.dumps({"call_s": calls}))


def _predictddl(request: Mapping[str, Any]) -> Callable[[Job], float]:
    from precision_time.predictors.predictddl.predictor import PredictDDL

    predictor = PredictDDL.load(Path(request["folder"]))
    return lambda job: predictor.predict(job).seconds


def _ernest(request: Mapping[str, Any]) -> Callable[[Job], float]:
    from precision_time.predictors.ernest import Ernest
    from precision_time.predictors.interface import MeasuredJob

    made = Ernest(by=request["by"], relative=True)
    made.fit([MeasuredJob(str(i), Job.from_dict(job), s, "") for i, (job, s) in enumerate(request["rows"])])
    return lambda job: made.predict(job).seconds


if __name__ == "__main__":
    main(json.load(sys.stdin), lambda line: print(line, flush=True))
