"""How first answers are timed, and what equal cost means: by hand, and through a real process."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from benchmarks.papers import predictddl_speed as speed
from benchmarks.papers.first_answer import main
from benchmarks.papers.predictddl_ernest import PER_NETWORK, Protocol, own_runs, with_ernest_runs
from benchmarks.papers.predictddl_held_out import Held
from benchmarks.papers.predictddl_readings import (
    amortised_table,
    readings_claims,
    readings_table,
    readings_text,
)
from precision_time.errors import PredictorError
from precision_time.job.job import Job
from precision_time.job.run import Run
from precision_time.predictors.interface import MeasuredJob
from precision_time.predictors.predictddl.trainer import described


def job(samples: int, precision: str = "fp32", batch: int = 16, gpus: int = 1) -> Job:
    run = Run(samples=samples, dataset="cifar10")
    return Job("resnet50", precision=precision, batch_size=batch, gpus=gpus, gpu="t4", run=run)


def runs() -> list[MeasuredJob]:
    """t = 1 + s/m with s in thousands of samples, half of it in amp-fp16; finding out takes three times as long."""
    rows = []
    for precision, factor in (("fp32", 1.0), ("amp-fp16", 0.5)):
        for samples in (1000, 2000, 4000, 8000):
            for gpus in (1, 2):
                seconds = factor * (1 + samples / 1000 / gpus)
                rows.append(
                    MeasuredJob(f"{precision}{samples}{gpus}", job(samples, precision, gpus=gpus), seconds,
                                "resnet", "cifar-10", 3 * seconds)
                )  # fmt: skip
    return rows


def test_a_spread_has_quartiles() -> None:
    found = speed.Spread.of([4.0, 1.0, 2.0, 3.0, 5.0])
    assert (found.low, found.median, found.high, found.count) == (2.0, 3.0, 4.0, 5)
    assert f"{found:.1f}" == "3.0 (2.0-4.0)"


def ernest_request() -> dict[str, object]:
    made = [row for row in runs() if row.precision == "fp32" and (row.job.run.samples or 0) < 8000]
    return {
        "predictor": "ernest", "by": list(PER_NETWORK), "jobs": [job(8000).to_dict()], "again": 2,
        "rows": [[row.job.to_dict(), row.seconds] for row in made],
    }  # fmt: skip


def test_a_request_has_a_line_of_json_for_each_answer() -> None:
    lines: list[str] = []
    main(json.loads(json.dumps(ernest_request())), lines.append)
    first, last = map(json.loads, lines)
    assert first["seconds"] == pytest.approx(9.0, rel=1e-6)  # the law that made the rows
    assert first["answer_s"] > 0
    assert len(last["call_s"]) == 2


def test_a_process_is_timed_from_its_start_and_its_failure_raises() -> None:
    wall, found = speed._first_line(ernest_request())
    assert found[0]["seconds"] == pytest.approx(9.0, rel=1e-6)
    assert wall > found[0]["ready_s"] + found[0]["answer_s"]
    broken = {"predictor": "predictddl", "folder": "/nowhere", "jobs": [job(1000).to_dict()]}
    with pytest.raises(PredictorError, match=r"resnet50 failed: .*nowhere"):
        speed._first_line(broken)


def test_answering_ernest_needs_no_torch() -> None:
    code = "import json,sys; from benchmarks.papers import first_answer as f; f.main(json.load(sys.stdin), print)"
    code += "; print('torch' in sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(ernest_request()),
        capture_output=True,
        text=True,
        check=True,
        cwd=speed.ROOT,
    )
    assert io.StringIO(said.stdout).readlines()[-1].strip() == "False"


def protocols() -> tuple[list[Protocol], list[Held]]:
    """PredictDDL says twice the time of everything."""
    held = [Held(row, 2 * row.measured.seconds, 1.0, False, "", True) for row in described(runs())]
    itself = own_runs("per network", held, PER_NETWORK, 100.0, 10.0)
    same = Protocol("same runs", itself.beside, 0.0, 100.0, 0.0)
    return [same, same, itself, itself], held


def test_with_ernests_runs_predictddl_loses_the_common_error_of_a_network() -> None:
    (_, _, itself, _), held = protocols()
    both = with_ernest_runs(itself, held, PER_NETWORK, 10.0)
    assert itself.predictddl_mape == pytest.approx(1.0)
    assert both.ernest_mape == itself.ernest_mape
    assert both.predictddl_mape == pytest.approx(0.0, abs=1e-9)  # twice everywhere, so one factor mends all


def test_three_readings_by_hand() -> None:
    found, _ = protocols()
    both = found[2:]
    network = found[2]
    table = readings_table(found, both)
    assert [row[0][:2] for row in table.rows] == ["1.", "1.", "2.", "2.", "2.", "2."]
    assert all(len(row) == len(table.header) for row in table.rows)
    served = {row[0]: row for row in amortised_table(found).rows}
    assert served["10"][1] == "10.0"  # 100 s over 10 networks
    assert served["1,000"][3] == f"{network.ernest_network_s / 0.1:.2f}"
    text = readings_text(found, both)
    assert text.count("missed") == 2
    claims = readings_claims(found, both)
    assert claims[0].met is (found[0].ratio >= 3)
    assert f"{network.even:.0f} networks served" in claims[1].what
