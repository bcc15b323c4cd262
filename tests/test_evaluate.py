"""evaluate: metrics worked out by hand, the order of precisions, the table and its mistakes, the command and reports.

Every table here is written in the test; its times are invented. Predictions are real ones of shipped models, or fakes
with round numbers.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fakes import fake
from precision_time import processes
from precision_time.cli.main import main
from precision_time.errors import DataError, JobError, MissingPeakError
from precision_time.estimate.interval import Interval
from precision_time.evaluation import Evaluation, evaluate
from precision_time.evaluation import forecast as forecasting
from precision_time.evaluation.csv_table import COLUMNS
from precision_time.evaluation.evaluation import Unpredicted
from precision_time.evaluation.fitted_rows import LAYOUTS, STEPS, fitted, seen_by
from precision_time.evaluation.forecast import forecast_all
from precision_time.evaluation.order import precision_order
from precision_time.evaluation.rows import JudgedRow, statistics
from precision_time.fit.traced_rows import waits_for_others
from precision_time.job import Job
from precision_time.job.choices import FRAMEWORK_ALIASES, FRAMEWORKS
from precision_time.measurements.digest import digests_of
from precision_time.measurements.repository import LARGE_TABLES
from precision_time.measurements.row import Row, row_of
from precision_time.measurements.table import OPTIONAL, REQUIRED, read_table
from precision_time.report.errors import percent

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "data" / "published"
EXAMPLE = ROOT / "docs" / "examples" / "measured.csv"
STATS = ["n", "mape", "median_ape", "signed_mean", "p90_ape", "max_ape", "coverage_p10_p90", "geo_mean_ratio"]

HEAD = "id,source,trust,framework,model,input,batch_size,grad_accum,gpus,gpu,precision,step_time_s"
ROWS = (
    "r-tf32,lab/bench@1:a.md#L1,A,pytorch,resnet50,image_size=224,64,1,1,a100-80gb-sxm,tf32,0.05",
    "r-amp,lab/bench@1:a.md#L2,A,pytorch,resnet50,image_size=224,64,1,1,a100-80gb-sxm,amp-fp16,0.03",
    "b-fp32,lab/bench@1:b.md#L1,B,tensorflow2,bert-base,seq_len=128,16,2,8,v100-16gb-sxm,fp32,0.3",
    "b-amp,lab/bench@1:b.md#L1,B,tensorflow2,bert-base,seq_len=128,32,2,8,v100-16gb-sxm,mixed,0.2",
    "b-bf16,lab/bench@1:b.md#L1,C,tensorflow2,bert-base,seq_len=128,32,2,8,v100-16gb-sxm,amp-bf16,0.2",
    "nobody,elsewhere,C,,resnet5O,,64,,,a100-80gb-sxm,fp32,0.1",
    "untimed,elsewhere,C,,resnet50,,64,,,a100-80gb-sxm,fp32,",
)


def write(path: Path, *rows: str, head: str = HEAD, encoding: str = "utf-8") -> Path:
    path.write_text("\n".join([head, *rows]) + "\n", encoding=encoding)
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "jobs.csv", *ROWS)


@pytest.fixture
def fake_predict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fixed 0.1 s for every job (P10 0.09, P90 0.12), 0.05 s in amp-fp16; a V100 without bf16; fp64 is a bug."""

    def predict(job: Job, **_: Any) -> Any:
        if job.precision == "amp-bf16" and job.gpu.startswith("v100"):
            raise MissingPeakError("v100 has no bf16 peak; use amp-fp16.")
        if job.precision == "fp64":
            raise ZeroDivisionError("division\nby zero")
        return fake(job, forward=0.0, backward=0.03) if job.precision == "amp-fp16" else fake(job)

    monkeypatch.setattr("precision_time.prediction.predict", predict)


def cells(**changes: str) -> dict[str, str]:
    usual = {"id": "x", "model": "resnet50", "gpu": "a100-80gb-sxm", "precision": "fp32", "step_time_s": "1"}
    return dict.fromkeys((*OPTIONAL, *REQUIRED), "") | usual | {"batch_size": "64"} | changes


def judged(measured: float, predicted: float, low: float = 0.5, high: float = 2.0, **changes: str) -> JudgedRow:
    """A row that took `measured` s, predicted `predicted` s with P10 and P90 at `low` and `high` times that."""
    row = replace(row_of(2, cells(**changes)), measured_s=measured)
    terms = {"forward": 0.25 * predicted, "backward": 0.75 * predicted, "casts": 0.0, "host_gaps": 1e-15}
    return JudgedRow(row, Interval(low * predicted, predicted, high * predicted), terms, True, False)


# --- accuracy


def test_error_statistics_of_rows_by_hand() -> None:
    rows = [judged(1.0, 1.1), judged(1.0, 0.8), judged(2.0, 2.0), judged(2.0, 3.0, low=0.9)]
    errors = statistics(rows)
    assert errors.n == 4
    assert errors.mape == pytest.approx((0.1 + 0.2 + 0.0 + 0.5) / 4)
    assert errors.median_ape == pytest.approx(0.15)
    assert errors.signed_mean == pytest.approx((0.1 - 0.2 + 0.0 + 0.5) / 4)
    assert errors.p90_ape == pytest.approx(0.2 + 0.7 * (0.5 - 0.2))  # 90 % of the way from first to fourth
    assert errors.max_ape == pytest.approx(0.5)
    assert errors.coverage_p10_p90 == pytest.approx(0.75)  # the last P10 is 2.7 s, above its 2 s
    assert errors.geo_mean_ratio == pytest.approx((1.1 * 0.8 * 1.0 * 1.5) ** 0.25)


def test_the_interval_includes_its_ends() -> None:
    assert judged(1.0, 2.0, low=0.5).inside
    assert judged(1.0, 0.5, high=2.0).inside
    assert not judged(1.0, 0.49, high=2.0).inside


def test_no_rows_have_no_statistics() -> None:
    assert statistics([]).to_dict() == {"n": 0, **dict.fromkeys(STATS[1:])}


def test_top_terms_omit_zero_terms() -> None:
    assert judged(1.0, 2.0).top_terms() == {"backward": 1.5, "forward": 0.5}


def test_rows_that_ran_without_fitting_are_named() -> None:
    rows = [replace(judged(1.0, 1.0, id=f"row-{i}"), fits=i >= 12) for i in range(14)]
    evaluation = Evaluation("t.csv", tuple(rows), ())
    assert evaluation.to_dict()["ran_without_fitting"] == [f"row-{i}" for i in range(12)]
    (note,) = (note for note in evaluation.notes() if "memory" in note)
    assert note.startswith("12 of the predicted rows ran")
    assert note.endswith("row-0, row-1, row-2, row-3, row-4, row-5, row-6, row-7, row-8, row-9 and 2 more.")
    assert not any("memory" in note for note in Evaluation("t.csv", tuple(rows[12:]), ()).notes())


# --- order of precisions


def test_a_job_in_the_right_and_in_the_wrong_order() -> None:
    right = [judged(3.0, 2.0, precision="fp32"), judged(1.0, 1.5, precision="amp-fp16")]
    assert precision_order(right).to_dict() == {"n_jobs": 1, "kendall_tau": 1.0, "pairs_right": 1.0, "n_pairs": 1}
    wrong = [judged(3.0, 2.0, precision="fp32"), judged(1.0, 2.5, precision="amp-fp16")]
    assert (precision_order(wrong).kendall_tau, precision_order(wrong).pairs_right) == (-1.0, 0.0)


def test_a_tie_of_predictions_is_wrong_and_counts_neither_way() -> None:
    order = precision_order([judged(3.0, 2.0), judged(1.0, 2.0 + 1e-12, precision="amp-fp16")])
    assert (order.n_pairs, order.kendall_tau, order.pairs_right) == (1, 0.0, 0.0)


def test_a_tie_of_measurements_has_no_order() -> None:
    order = precision_order([judged(2.0, 2.0), judged(2.0, 1.0, precision="amp-fp16")])
    assert order.to_dict() == {"n_jobs": 0, "kendall_tau": None, "pairs_right": None, "n_pairs": 0}


def test_three_precisions_and_the_mean_over_jobs() -> None:
    # measured fp32 > tf32 > amp; predicted tf32 > fp32 > amp: two of three pairs right, tau (2 - 1) / 3
    three = [judged(3.0, 2.0), judged(2.0, 2.5, precision="tf32"), judged(1.0, 1.0, precision="amp-fp16")]
    other = [judged(3.0, 2.0, gpus="8"), judged(1.0, 1.0, gpus="8", precision="amp-fp16")]
    order = precision_order([*three, *other])
    assert (order.n_jobs, order.n_pairs) == (2, 4)
    assert order.kendall_tau == pytest.approx((1 / 3 + 1) / 2)
    assert order.pairs_right == pytest.approx(3 / 4)
    only = precision_order([*three, *other], "tf32")
    assert (only.n_jobs, only.n_pairs, only.pairs_right) == (1, 2, 0.5)


def test_rows_of_other_batches_are_compared_per_sample() -> None:
    """Mixed is measured to take longer a step, but less a sample."""
    order = precision_order(
        [
            judged(1.0, 1.0, batch_size="64", grad_accum="2"),
            judged(1.5, 0.9, batch_size="256", precision="amp-fp16", memory_format="nhwc", optimizer="adam"),
        ]
    )
    assert (order.n_pairs, order.pairs_right) == (1, 1.0)


def test_a_partner_of_the_same_batch_is_preferred() -> None:
    rows = [
        judged(1.0, 1.0, batch_size="64"),
        judged(0.5, 0.5, batch_size="64", precision="amp-fp16"),
        judged(3.0, 0.1, batch_size="128", precision="amp-fp16"),  # alone: fp32 has its partner
    ]
    assert precision_order(rows).n_pairs == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"framework": "mxnet"}, {"gpu": "v100-16gb-sxm"}, {"gpus": "8"}, {"nodes": "2"}, {"system": "DGX-2"},
        {"input": "image_size=256"}, {"model_config": "classes=10"}, {"model": "vgg16"}, {"precision": "fp32"},
    ],
    ids=str,
)  # fmt: skip
def test_different_jobs_are_not_compared(changed: dict[str, str]) -> None:
    one = {"source": "lab/bench@1:a.md#L1", "framework": "pytorch", "gpus": "4"}
    other = {**one, "precision": "amp-fp16", "source": "other/repo@1:b.csv#L9", "execution": "xla", "attention": "math"}
    assert precision_order([judged(2.0, 2.0, **one), judged(1.0, 1.0, **other)]).n_pairs == 1
    assert precision_order([judged(2.0, 2.0, **one), judged(1.0, 1.0, **other | changed)]).n_pairs == 0


# --- the table


def test_a_row_becomes_a_job_and_lists_its_assumptions(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "resnet50,a100-80gb-sxm,mixed,0.1", head=",".join(REQUIRED), encoding="utf-8-sig")
    (row,) = read_table(path).rows
    assert (row.id, row.line, row.family, row.precision, row.gpus) == ("line-2", 2, "resnet", "amp-fp16", 1)
    assert row.job == Job(
        "resnet50", gpu="a100-80gb-sxm", precision="amp-fp16", optimizer_impl="fused", execution="eager"
    )
    assumed = " ".join(row.assumed)
    assert all(
        word in assumed for word in ("batch_size 256", "gpus 1", "optimizer sgd", "memory_format nchw", "system")
    )
    assert "attention" not in assumed  # a ResNet has none


def test_cells_of_a_row_replace_the_defaults() -> None:
    row = row_of(2, cells(framework="tensorflow1", grad_accum="4", gpus="8", nodes="2", notes="all-reduce no no_sync",
                          model="bert-base", input="seq_len=128", attention="math", optimizer="adam"))  # fmt: skip
    assert row.job == Job(
        "bert-base", input={"seq_len": 128}, gpu="a100-80gb-sxm", gpus=8, nodes=2, batch_size=64, grad_accum=4,
        attention="math", optimizer="adam", optimizer_impl="fused", execution="static_graph", no_sync=False,
        framework="tensorflow1",
    )  # fmt: skip
    assert "execution static_graph" in row.assumed
    assert not any(word.startswith(("attention", "grad_accum", "optimizer a")) for word in row.assumed)


@pytest.mark.parametrize(
    ("changes", "memory_format"),
    [
        ({}, "nhwc"),
        ({"framework": "pytorch"}, "nchw"),
        ({"framework": "tensorflow"}, "nhwc"),
        ({"framework": "mxnet"}, "nchw"),
        ({"precision": "tf32"}, "nchw"),
        ({"precision": "amp-bf16"}, "nchw"),
        ({"model": "vnet", "optimizer": "adam"}, "nchw"),
        ({"memory_format": "nchw"}, "nchw"),
    ],
)
def test_tensorflow_lays_images_in_float16_channels_last(changes: dict[str, str], memory_format: str) -> None:
    row = row_of(2, cells(**{"framework": "tensorflow2", "precision": "amp-fp16"} | changes))
    assert row.job is not None
    assert row.job.memory_format == memory_format
    assert (f"memory_format {memory_format}" in row.assumed) == ("memory_format" not in changes)


@pytest.mark.parametrize(
    ("notes", "execution"),
    [
        ("partial CUDA graphs (transformer_engine: ['attn', 'moe_router'])", "eager"),
        ("partial CUDA graphs (local: layer)", "cuda_graphs"),
        ("", "cuda_graphs"),
    ],
)
def test_graphs_without_the_experts_leave_their_launches(notes: str, execution: str) -> None:
    row = row_of(2, cells(framework="megatron-bridge", execution="cuda_graphs", notes=notes))
    assert row.job is not None
    assert row.job.execution == execution
    assert ("execution eager" in row.assumed) == (execution == "eager")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"precision": "fp17"}, "precision 'fp17' is unknown"),
        ({"gpu": ""}, "the row names no gpu"),
        ({"step_time_s": ""}, "no measured time"),
        ({"input": "224"}, "input '224' has no key=value"),
        ({"parallelism": "warp"}, "layout 'warp' is unknown"),
        ({"gpus": "8", "nodes": "3"}, "gpus 8 cannot be shared out evenly"),
    ],
)
def test_a_wrong_job_costs_only_its_row(changed: dict[str, str], reason: str) -> None:
    row = row_of(2, cells(**changed))
    assert row.job is None
    assert reason in row.reason
    assert row.family == "resnet"


def test_cells_as_spreadsheets_write_them(tmp_path: Path) -> None:
    head = "model,GPU, Precision ,batch_size,grad_accum,step_time_s,notes"
    rows = ('resnet50,v100-16gb-sxm,fp32,128.0,2e0,5e-1,"two\nlines, one cell"', "", "resnet50,v100-16gb-sxm,fp32,64")
    first, second = read_table(write(tmp_path / "t.csv", *rows, head=head)).rows
    assert first.job is not None
    assert (first.job.batch_size, first.job.grad_accum, first.measured_s) == (128, 2, 0.5)
    assert (first.line, second.line, second.reason) == (2, 5, "no measured time")


BAD_TABLES: list[tuple[str, list[str], str]] = [
    (HEAD, [ROWS[0].replace("0.05", "fast")], "t.csv line 2 (id 'r-tf32'): step_time_s is 'fast', not a number of"),
    (HEAD, [ROWS[0], ROWS[1].replace("0.03", "-1")], "line 3 (id 'r-amp'): step_time_s is '-1'"),
    (HEAD, [ROWS[0].replace("0.05", "nan")], "step_time_s is 'nan'"),
    (HEAD, [ROWS[0].replace("0.05", "1e99")], "step_time_s is '1e99'"),
    (HEAD, [ROWS[0].replace(",64,", ",6.5,")], "batch_size is '6.5', not a whole number of at least 1; correct it"),
    (HEAD, [ROWS[2].replace(",8,v", ",0,v")], "gpus is '0', not a whole number"),
    (HEAD, [r.replace(",64,", ",many,") for r in ROWS[:2]], "batch_size is 'many', not a whole number of at least 1; "
     "correct it, or leave the cell empty where it is unknown, and 1 more such cells"),
    (HEAD, [ROWS[0] + ",extra"], "line 2 has 13 cells for 12 columns; put quotes around"),
    (HEAD, [], "has column names but no row"),
    ("model,gpu,precision,time", ["a,b,c,1"], "has no column step_time_s; name it in the first line (it has model,"),
    ("id;model;gpu", ["a;b;c"], "separate columns with commas"),
    ("model,gpu,gpu,precision,step_time_s", [], "has the column 'gpu' twice"),
]  # fmt: skip


@pytest.mark.parametrize(("head", "rows", "message"), BAD_TABLES, ids=[message[:40] for _, _, message in BAD_TABLES])
def test_a_table_that_cannot_be_read(head: str, rows: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_table(write(tmp_path / "t.csv", *rows, head=head))
    assert message in str(caught.value)


def test_files_that_are_no_table(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_bytes(b"")
    (tmp_path / "latin.csv").write_bytes(b"model,gpu\nr\xe9sum\xe9,b\n")
    (tmp_path / "nul.csv").write_bytes(b'model,gpu,precision,step_time_s\n"a' + b"b" * 200_000)
    for name, message in (
        ("empty.csv", "is empty"), ("latin.csv", "not UTF-8"), ("nul.csv", "is not valid CSV at line"),
        ("none.csv", "no such file"), ("", "cannot be read"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=message):
            read_table(tmp_path / name)


def test_warnings_name_columns_and_ids(tmp_path: Path) -> None:
    head = HEAD.replace("batch_size", "batchsize") + ",colour"
    jobs = read_table(write(tmp_path / "t.csv", ROWS[0] + ",red", ROWS[0] + ",blue", head=head))
    columns, twice = jobs.warnings
    assert columns == "column(s) ignored: 'batchsize', 'colour'; 'batchsize' looks like 'batch_size', which is missing"
    assert "r-tf32" in twice
    assert len(jobs.rows) == 2
    assert read_table(write(tmp_path / "t.csv", *ROWS)).warnings == ()


# --- evaluating


def test_every_row_is_judged_or_listed_in_order(table: Path) -> None:
    """Real predictions of shipped models: the same as `predict`, whatever the number of processes."""
    from precision_time import predict
    from precision_time.anchoring import Anchoring

    one = evaluate(table)
    assert [j.row.id for j in one.judged] == ["r-tf32", "r-amp", "b-fp32", "b-amp"]
    assert [u.row.id for u in one.unpredicted] == ["b-bf16", "nobody", "untimed"]
    reasons = [u.reason for u in one.unpredicted]
    assert "has no bf16 peak" in reasons[0]
    assert "model 'resnet5O' is unknown" in reasons[1]
    assert reasons[2] == "no measured time"
    job = one.judged[3].row.job
    assert job is not None
    row = one.judged[3].row
    estimate = predict(job, anchoring=Anchoring(without=("key",), framework=row.kernels_of))
    assert one.judged[3].step == estimate.step
    assert dict(one.judged[3].breakdown) == dict(estimate.breakdown)
    assert one.order.to_dict() == {"n_jobs": 2, "kendall_tau": 1.0, "pairs_right": 1.0, "n_pairs": 2}
    two = evaluate(table, workers=2)
    assert two == one


def test_progress_counts_every_job(table: Path, fake_predict: None) -> None:
    seen: list[tuple[int, int]] = []
    evaluate(table, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, 6) for done in range(7)]


def test_an_internal_error_costs_one_row(tmp_path: Path, fake_predict: None) -> None:
    result = evaluate(write(tmp_path / "t.csv", ROWS[0], ROWS[1].replace("amp-fp16", "fp64")))
    assert len(result.judged) == 1
    assert result.unpredicted[0].reason == "internal error: ZeroDivisionError: division by zero"
    assert "please report it" in str(result)


def test_a_prediction_that_is_not_finite_is_an_internal_error(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precision_time.prediction.predict", lambda job, **_: fake(job, forward=math.inf))
    result = evaluate(table)
    assert not result.judged
    assert result.unpredicted[0].reason == "internal error: the predicted step is inf s"
    assert "none of 7 measured jobs could be predicted" in str(result)


@pytest.mark.parametrize("failure", ["no processes", "killed"])
def test_without_a_pool_the_rows_are_predicted_here(
    failure: str, table: Path, fake_predict: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(ProcessPoolExecutor):
        def submit(self, *_: Any, **__: Any) -> Any:
            raise BrokenProcessPool("a worker was killed")

    def none(*_: Any, **__: Any) -> Any:
        raise OSError("no semaphores")

    monkeypatch.setattr(processes, "ProcessPoolExecutor", none if failure == "no processes" else Broken)
    assert evaluate(table, workers=2) == evaluate(table, workers=1)


def test_few_graphs_stay_in_one_process(table: Path, fake_predict: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "ProcessPoolExecutor", lambda *_, **__: pytest.fail("a pool for six rows"))
    jobs = [forecasting.Question(row.job) for row in read_table(table).rows if row.job]
    assert len(forecast_all(jobs, workers=None)) == 6


def test_filters(table: Path, fake_predict: None) -> None:
    def ids(**chosen: Any) -> list[str]:
        result = evaluate(table, **chosen)
        rows = [*(j.row for j in result.judged), *(u.row for u in result.unpredicted)]
        return [row.id for row in sorted(rows, key=lambda row: row.line)]

    assert ids(trust=["A", "b"]) == ["r-tf32", "r-amp", "b-fp32", "b-amp"]
    assert ids(precision=["16-mixed"]) == ["r-amp", "b-amp"]
    assert ids(gpu=["V100_16GB_SXM"], precision=["fp32"]) == ["b-fp32"]
    assert ids(model=["bert-base"]) == ["b-fp32", "b-amp", "b-bf16"]
    assert ids(framework=["tensorflow2"], trust=["C"]) == ["b-bf16"]
    with pytest.raises(DataError, match=r"no row of jobs\.csv has gpu 'a100'; nearest in the table: a100-80gb-sxm"):
        evaluate(table, gpu=["a100"])
    with pytest.raises(DataError, match=r"no row of jobs\.csv has trust A and framework tensorflow2 together"):
        evaluate(table, trust=["A"], framework=["tensorflow2"])


def test_blind_twin(table: Path, fake_predict: None) -> None:
    """Fakes take 0.1 s, in amp-fp16 0.05 s. The row without bf16 units is in neither."""
    result = evaluate(table, blind="16-mixed", trust=["A", "B"])
    assert result.blind == "amp-fp16"
    assert [j.step.p50 for j in result.judged] == pytest.approx([0.05] * 4)
    assert [j.step.p50 for j in result.aware] == pytest.approx([0.1, 0.05, 0.1, 0.05])
    assert [j.row for j in result.aware] == [j.row for j in result.judged]
    data = result.to_dict()
    assert data["overall"]["mape"] == pytest.approx((0.0 + 0.02 / 0.03 + 0.25 / 0.3 + 0.15 / 0.2) / 4)
    assert data["blind"]["precision"] == "amp-fp16"
    assert list(data["blind"]["aware"]) == STATS
    assert data["blind"]["aware"]["mape"] == pytest.approx((1.0 + 0.02 / 0.03 + 0.2 / 0.3 + 0.15 / 0.2) / 4)
    assert data["by"]["precision"]["amp-fp16"] == data["blind"]["aware_by_precision"]["amp-fp16"]
    assert data["precision_order"]["pairs_right"] == 0.5  # a tie; and fewer seconds a sample at the larger batch
    assert data["blind"]["aware_precision_order"]["pairs_right"] == 1.0
    assert "every job taken as amp-fp16" in str(result)
    assert "MAPE aware" in str(result)


def test_rows_that_either_twin_lacks_are_in_neither(table: Path, fake_predict: None) -> None:
    result = evaluate(table, blind="amp-bf16", model=["bert-base", "resnet50"])
    assert [j.row.id for j in result.judged] == [j.row.id for j in result.aware] == ["r-tf32", "r-amp"]
    assert [u.row.id for u in result.unpredicted] == ["b-fp32", "b-amp", "b-bf16", "untimed"]
    other = evaluate(table, blind="fp32", model=["bert-base"])
    assert [j.row.id for j in other.aware] == ["b-fp32", "b-amp"]
    with pytest.raises(JobError, match="blind 'fp17' is unknown"):
        evaluate(table, blind="fp17")


def test_json_is_the_published_schema(table: Path, fake_predict: None) -> None:
    data = json.loads(json.dumps(evaluate(table).to_dict(), allow_nan=False))
    assert (data["n_rows"], data["n_predicted"]) == (7, 5)
    assert list(data["overall"]) == STATS
    assert set(data["by"]) == {"precision", "gpu", "model", "framework", "gpus", "trust", "family"}
    for groups in data["by"].values():
        assert sum(group["n"] for group in groups.values()) == 5
        assert all(list(group) == STATS for group in groups.values())
    assert list(data["by"]["gpus"]) == ["1", "8"]
    assert data["by"]["framework"]["unknown"]["n"] == 1
    assert data["by"]["precision"]["amp-bf16"] == {"n": 0, **dict.fromkeys(STATS[1:])}
    assert set(data["precision_order"]) == {"n_jobs", "kendall_tau", "pairs_right", "n_pairs", "by"}
    assert data["precision_order"]["by"]["model"]["bert-base"]["n_pairs"] == 1
    assert [u["id"] for u in data["unpredicted"]] == ["b-bf16", "untimed"]
    assert all(set(u) == {"id", "reason"} for u in data["unpredicted"])
    first = data["rows"][0]
    assert list(first)[:11] == [
        "id", "measured_s", "p10_s", "p50_s", "p90_s", "error", "gpu", "precision", "model", "gpus", "top_terms",
    ]  # fmt: skip
    assert first["error"] == pytest.approx(0.1 / 0.05 - 1)
    assert (first["p10_s"], first["p90_s"]) == (pytest.approx(0.09), pytest.approx(0.12))
    assert list(first["top_terms"]) == ["backward", "forward", "optimizer", "communication_exposed"]
    assert first["gpus"] == 1
    assert data["seen_by_fit"] == 0
    assert "blind" not in data


def test_the_text_adds_up(table: Path, fake_predict: None) -> None:
    text = str(evaluate(table))
    assert text.startswith("jobs.csv: 5 of 7 measured jobs predicted. They are off by ")
    for title in ("by precision", "by GPU", "by model family", "by framework", "by number of GPUs", "by trust"):
        assert f"\n{title}\n" in text
    assert "Order of precisions: 2 jobs measured in more than one precision, 2 pairs" in text
    assert text.index("r-amp") < text.index("b-fp32: -66.7%")
    assert "measured 300 ms, predicted 100 ms (90-120); fp32, 8 x v100-16gb-sxm, trust B" in text
    assert "no prediction for 2 rows" in text
    assert "1 x no measured time (untimed)" in text
    assert "furthest off" not in evaluate(table).text(worst=0)


@pytest.mark.parametrize(
    ("value", "sign", "text"), [(0.1249, "", "12.5%"), (-0.5, "+", "-50.0%"), (2e6, "+", "+2.0e+08%"), (None, "", "-")]
)
def test_percentages(value: float | None, sign: str, text: str) -> None:
    assert percent(value, sign=sign) == text


def test_reasons_that_differ_only_in_numbers_are_one_group() -> None:
    rows = [Unpredicted(row_of(n, cells(id=f"r{n}")), f"layout tp={n} is not supported") for n in (2, 4, 8)]
    rows.append(Unpredicted(row_of(9, cells(id="r9")), "no measured time"))
    grouped = Evaluation("t.csv", (), tuple(rows)).unpredicted_by_reason()
    assert [(reason, len(group)) for reason, group in grouped] == [
        ("layout tp=2 is not supported (numbers vary)", 3), ("no measured time", 1),
    ]  # fmt: skip


# --- rows that the fit has seen


def test_a_fitted_row_is_recognised_in_any_spelling(
    table: Path, fake_predict: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = row_of(2, cells(input="seq_len=128;a=1", precision="mixed", step_time_s="0.1", grad_accum="1"))
    same = row_of(9, cells(id="y", input="a=1; seq_len=128", precision="amp-fp16", step_time_s="0.10000", source="s"))
    other = row_of(2, cells(input="seq_len=128;a=1", precision="amp-fp16", step_time_s="0.11"))
    assert written.digest == same.digest != other.digest
    assert digests_of(["b", "a", "b"]) == "a b"
    first = read_table(table).rows[0]
    where = "precision_time.evaluation.evaluation.seen_by"
    monkeypatch.setattr(where, lambda digest: STEPS if digest == first.digest else "")
    result = evaluate(table)
    assert result.seen_by_fit == result.to_dict()["seen_by_fit"] == 1
    assert "1 of the 5 predicted rows were used to fit the step factors, so these errors are not held out" in " ".join(
        str(result).split()
    )


def test_the_published_rows_are_those_of_the_fit() -> None:
    rows = read_table(PUBLISHED / "measurements.csv").rows
    assert {row.digest for row in rows if not waits_for_others(row)} == fitted(STEPS)


def test_every_published_language_model_row_is_a_job_or_has_a_reason() -> None:
    rows = [row for table in LARGE_TABLES for row in read_table(PUBLISHED.parent / table).rows]
    assert len(rows) > 500
    assert all((row.job is None) == bool(row.reason) for row in rows)
    assert {row.digest for row in rows if row.trust in "AB"} == fitted(LAYOUTS)
    assert not any(row.digest in fitted(STEPS) for row in rows)
    assert {seen_by(row.digest) for row in rows} == {LAYOUTS, ""}


# --- files and the command


class _Page(HTMLParser):
    """Collects elements, and fails on tags that are not closed in order."""

    VOID = ("meta", "input", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str, name: str) -> list[str]:
        return [str(attrs[name]) for element, attrs in self.seen if element == tag and name in attrs]


def test_the_report_is_one_valid_page(tmp_path: Path, fake_predict: None, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    evil = ROWS[0].replace("r-tf32", "</script><b>&x")
    path = write(tmp_path / "jobs.csv", evil, *ROWS[1:])
    assert main(["evaluate", str(path), "--html", str(tmp_path / "out.html")]) == 0
    assert "report written to" in capsys.readouterr().err
    text = (tmp_path / "out.html").read_text(encoding="utf-8")
    page = _Page(text)
    assert sum(tag == "svg" for tag, _ in page.seen) == 5
    assert not [v for tag, attrs in page.seen for k, v in attrs.items() if k == "src" or (k == "href" and v[0] != "#")]
    ids = [str(attrs["id"]) for _, attrs in page.seen if "id" in attrs]
    assert len(ids) == len(set(ids))
    anchors = set(page.all("tr", "id"))
    assert anchors == {"r2", "r3", "r4", "r5", "r7"}
    assert {link[1:] for link in page.all("a", "href")} == anchors  # every point and every worst row leads to a row
    assert "</script><b>&x\ntf32, 1 x a100-80gb-sxm" in page.text  # a tooltip, as text
    assert text.count("<script>") == 1
    assert "currentColor" in text
    assert "#000000" not in text
    assert "precision-time evaluate" in page.text
    assert "no measured time" in page.text
    assert "grad_accum 1" in page.text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["jobs.csv", "out.html"]


def test_the_report_of_a_blind_twin_and_of_nothing(tmp_path: Path, table: Path, fake_predict: None) -> None:
    pytest.importorskip("matplotlib")
    from precision_time.evaluation.page import page

    blind = _Page(page(evaluate(table, blind="fp32"), "command"))
    assert "all as fp32 (5)" in blind.text
    assert "MAPE aware" in blind.text
    nothing = _Page(page(evaluate(table, precision=["amp-bf16"]), "command"))
    assert "v100 has no bf16 peak; use amp-fp16. (b-bf16)" in nothing.text
    assert not any(tag in ("svg", "table") for tag, _ in nothing.seen)


def test_rows_as_csv(table: Path, tmp_path: Path, fake_predict: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(table), "--csv", str(tmp_path / "out.csv")]) == 0
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [row["id"] for row in lines] == [line.split(",")[0] for line in ROWS]
    assert tuple(lines[0]) == COLUMNS
    assert float(lines[0]["error"]) == pytest.approx(1.0)
    assert float(lines[0]["forward_s"]) == pytest.approx(0.03)
    assert (lines[4]["p50_s"], lines[4]["reason"]) == ("", "v100 has no bf16 peak; use amp-fp16.")
    assert lines[6]["measured_s"] == ""


def test_the_command_prints_text_or_json(table: Path, fake_predict: None, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["evaluate", str(table), "--trust", "A,B", "--precision", "mixed", "--precision", "tf32"]
    assert main([*arguments, "--worst", "1"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("jobs.csv: all 3 measured jobs predicted.")
    assert "furthest off (1)" in out
    assert err == ""
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_rows"] == 3


def test_warnings_go_to_stderr(tmp_path: Path, fake_predict: None, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "t.csv", ROWS[0] + ",red", head=HEAD + ",colour")
    assert main(["evaluate", str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("precision-time: warning: column(s) ignored: 'colour'\n")
    assert "(anchors) corrected the predictions" in err
    assert json.loads(out)["warnings"] == ["column(s) ignored: 'colour'"]


def test_a_table_without_predictions_exits_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(write(tmp_path / "t.csv", ROWS[5], ROWS[6]))]) == 0
    assert "t.csv: none of 2 measured jobs could be predicted." in capsys.readouterr().out


MISTAKES: list[tuple[str, str]] = [
    ("evaluate", "no table is given"),
    ("evaluate none.csv", "table 'none.csv' cannot be read: no such file"),
    ("evaluate jobs.csv other.csv", "argument 'other.csv' is one too many"),
    ("evaluate jobs.csv --trust D", "no row of jobs.csv has trust 'D'; nearest in the table: A, B, C"),
    ("evaluate jobs.csv --precision ,", "flag --precision is empty"),
    ("evaluate jobs.csv --blind fp17", "blind 'fp17' is unknown; nearest: "),
    ("evaluate jobs.csv --worst many", "worst must be a whole number of rows from 0 to 1,000,000, not 'many'"),
    ("evaluate jobs.csv --html out.pdf", "--html 'out.pdf' must end in .html or .htm"),
    ("evaluate jobs.csv --csv none/out.csv", "there is no folder 'none'"),
    ("evaluate jobs.csv --csv jobs.csv", "--csv 'jobs.csv' is an input of this command"),
    ("evaluate jobs.csv --csv folder.csv", "--csv 'folder.csv' is a folder"),
    ("evaluate jobs.csv --htm out.html", "flag '--htm' is unknown; nearest: --html"),
]


@pytest.mark.parametrize(("command", "message"), MISTAKES, ids=[command for command, _ in MISTAKES])
def test_every_user_error_is_one_line_before_any_work(
    command: str, message: str, table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(table.parent)
    monkeypatch.setattr("precision_time.prediction.predict", lambda job, **_: pytest.fail("worked before it checked"))
    (table.parent / "folder.csv").mkdir()
    before = table.read_bytes()
    assert main(command.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("precision-time: error: ")
    assert err.count("\n") == 1
    assert message in err
    assert table.read_bytes() == before


def test_missing_matplotlib_is_reported_before_any_work(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["evaluate", str(table), "--html", str(table.parent / "out.html")]) == 2
    assert "pip install 'precision-time[plot]'" in capsys.readouterr().err


def test_an_interrupt_ends_cleanly(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(job: Job, **_: Any) -> Callable[[], None]:
        raise KeyboardInterrupt

    monkeypatch.setattr("precision_time.prediction.predict", stop)
    assert main(["evaluate", str(table), "--csv", str(table.parent / "out.csv")]) == 130
    assert capsys.readouterr().out == ""
    assert not (table.parent / "out.csv").exists()


def test_the_page_shows_the_example_table() -> None:
    page = (ROOT / "docs" / "evaluate.md").read_text(encoding="utf-8")
    assert f"```csv\n{EXAMPLE.read_text(encoding='utf-8')}```" in page
    notes = [row["notes"] for row in csv.DictReader(EXAMPLE.read_text(encoding="utf-8").splitlines())]
    assert all(note.startswith("ILLUSTRATIVE") for note in notes)


def test_importing_the_room_loads_no_numpy() -> None:
    """The name alone loads nothing; `Row` is the table's row."""
    import subprocess

    code = "import precision_time.evaluation, sys; print('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
    assert isinstance(read_table(EXAMPLE).rows[0], Row)


def test_an_unknown_filter_is_refused(table: Path) -> None:
    with pytest.raises(TypeError, match="evaluate has no filter 'gpu_name'; it has trust, precision, gpu, model"):
        evaluate(table, gpu_name=["a100-80gb-sxm"])


# --- large tables


def test_equal_rows_are_predicted_once_and_count_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report of rows written out five times is that of the same rows with every number of rows times five."""
    asked: list[Job] = []

    def predict(job: Job, **_: Any) -> Any:
        asked.append(job)
        return fake(job, forward=0.0, backward=0.03) if job.precision == "amp-fp16" else fake(job)

    monkeypatch.setattr("precision_time.prediction.predict", predict)
    head = HEAD.removeprefix("id,")
    rows = [row.partition(",")[2] for row in ROWS[:4]]
    once = evaluate(write(tmp_path / "once.csv", *rows, head=head))
    assert len(asked) == 4
    many = evaluate(write(tmp_path / "many.csv", *rows * 5, head=head))
    assert len(asked) == 8
    assert many.overall.n == 5 * once.overall.n == len(many.judged)
    assert many.overall.mape == pytest.approx(once.overall.mape)
    assert many.overall.signed_mean == pytest.approx(once.overall.signed_mean)
    assert [row.row.line for row in many.judged] == list(range(2, 22))
    assert [row.row.id for row in many.judged[:2]] == ["line-2", "line-3"]
    assert many.assumed() == {text: 5 * count for text, count in once.assumed().items()}
    assert many.order.n_pairs == 25 * once.order.n_pairs
    assert many.order.pairs_right == once.order.pairs_right
    by_hand = statistics([replace(each, row=replace(each.row)) for each in many.judged])
    assert many.overall == by_hand


def test_a_table_of_too_many_rows_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("precision_time.measurements.table.MOST_ROWS", 3)
    table = write(tmp_path / "long.csv", *ROWS[:4])
    assert main(["evaluate", str(table)]) == 2
    assert "long.csv' has more than 3 rows, and at most 3 are read; divide it into several" in capsys.readouterr().err
    monkeypatch.setattr("precision_time.measurements.table._SPARE_LINES", 0)
    with pytest.raises(DataError, match="has 4 lines, and at most 3 are read"):
        read_table(table)
    monkeypatch.setattr("precision_time.measurements.table.MOST_ROWS", 10)
    monkeypatch.setattr("precision_time.measurements.table.MOST_DISTINCT", 3)
    with pytest.raises(DataError, match="more than 3 distinct rows"):
        read_table(table)


@pytest.mark.usefixtures("fake_predict")
def test_json_and_html_list_the_first_rows_and_csv_all(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    from precision_time.evaluation import csv_table, page

    evaluation = evaluate(table)
    whole = evaluation.to_dict()
    csv_once = "".join(csv_table.csv_parts(evaluation))
    monkeypatch.setattr("precision_time.evaluation.evaluation.MOST_LISTED", 2)
    monkeypatch.setattr(page, "MOST_LISTED", 2)
    monkeypatch.setattr(csv_table, "_AT_ONCE", 2)
    listed = evaluation.to_dict()
    assert [len(listed["rows"]), len(whole["rows"])] == [2, 5]
    assert {**listed, "rows": 0, "unpredicted": 0, "notes": 0} == {**whole, "rows": 0, "unpredicted": 0, "notes": 0}
    assert "list 2 of them" in listed["notes"][-1]
    assert "".join(csv_table.csv_parts(evaluation)) == csv_once
    assert len(csv_once.splitlines()) == 1 + len(ROWS)
    assert "The first 2 rows of (5)" in page.page(evaluation, "command")


def test_the_order_of_many_distinct_rows_is_that_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [judged(0.1 + 0.001 * i, 0.1 + 0.001 * i, precision=p) for i in range(40) for p in ("fp32", "amp-fp16")]
    assert precision_order(rows).n_pairs == 40 * 39
    monkeypatch.setattr("precision_time.evaluation.order.MOST_COMPARED", 9)
    few = precision_order(rows)
    assert few.n_pairs == 5 * 4
    assert few.pairs_right == 1.0


# --- the same words


def _words(cells: dict[str, str], row: Row) -> Job:
    """The job that `predict` is given by the cells of a row and by what is listed as assumed."""
    assert row.job is not None
    columns = {"parallelism": "layout"}
    same = ("model", "gpu", "precision", "model_config", "input", "system", "parallelism", "optimizer", "memory_format",
            "attention", "recompute", "execution", "torch", "optimizer_impl", "ema")  # fmt: skip
    words: dict[str, Any] = {columns.get(name, name): cells[name] for name in same if cells.get(name)}
    words |= {name: int(cells[name]) for name in ("batch_size", "grad_accum", "gpus", "nodes") if cells.get(name)}
    if cells["framework"] in FRAMEWORKS or cells["framework"] in FRAMEWORK_ALIASES:
        words["framework"] = cells["framework"]
    terms, config = [], [words["model_config"]] if "model_config" in words else []
    for name, _, value in (text.partition(" ") for text in row.assumed):
        if name.startswith("overlap_") or name in ("etp", "dispatcher", "shard", "capacity_factor"):
            terms.append(f"{name}={value}")
        elif name == "dropout":
            config.append(f"dropout={value}")
        elif name == "parallelism":
            words["layout"] = value
        elif not name.endswith(":"):
            words[name] = value == "true" if name == "no_sync" else value
    lora = [part for part in words["layout"].split(",") if part.startswith("lora=")]
    words["layout"] = ",".join([part for part in words["layout"].split(",") if part not in lora] + terms)
    if config + lora:
        words["model_config"] = ";".join(config + lora)
    for name in ("batch_size", "grad_accum", "gpus"):
        if isinstance(words.get(name), str):
            words[name] = int(words[name])
    return Job(**words)


@pytest.mark.parametrize(
    "name", ["measurements", "measurements_more", "measurements_llm", "measurements_llm_more", "internevo"]
)
def test_cells_and_what_is_assumed_are_the_job_of_a_row(name: str) -> None:
    """Of every framework and model a row: nothing that `evaluate` fills is hidden, so `predict` answers the same."""
    path = PUBLISHED / f"{name}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        cells = {line["id"]: line for line in csv.DictReader(file)}
    rows = {(row.framework, row.model): row for row in read_table(path).rows if row.job is not None}
    assert rows
    for row in rows.values():
        assert row.job is not None
        assert _words(cells[row.id], row).to_dict() == row.job.to_dict(), row.id
