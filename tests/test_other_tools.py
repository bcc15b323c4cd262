"""benchmarks/other_tools: rows in the terms of other tools, a checkout that is run, tools that are absent."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.other_tools import comparison
from benchmarks.other_tools.calculon import CALCULON, calculon_case
from benchmarks.other_tools.simumax import seconds_of, simumax_case
from benchmarks.other_tools.tool import ExpressionError
from precision_time.measurements.row import Row
from precision_time.measurements.table import read_table

_TABLE = """id,source,trust,framework,model,model_config,input,batch_size,grad_accum,gpus,gpu,precision,parallelism,\
recompute,optimizer,attention,step_time_s,notes
gpt,own,A,megatron,gpt,layers=24;hidden=2048;heads=16;ffn=8192;vocab=51200,seq_len=1024,4,8,16,a100-80gb-sxm,fp16-master,\
"tp=4,pp=2,dp=2",full,adam,math,1.0,
fsdp,own,A,megatron,gpt,layers=24;hidden=2048;heads=16;ffn=8192;vocab=51200,seq_len=1024,4,8,16,a100-80gb-sxm,fp16-master,\
fsdp,full,adam,math,1.0,
"""
_FAKE = """
import json, sys
app, exe, system = (json.load(open(path)) for path in sys.argv[2:5])
assert sys.argv[1] == "llm" and system["networks"][0]["must_be_filled"] is False
json.dump({"total_time": exe["batch_size"] / app["num_blocks"]}, open(sys.argv[5], "w"))
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Row, ...]:
    path = tmp_path_factory.mktemp("table") / "measured.csv"
    path.write_text(_TABLE, encoding="utf-8")
    return read_table(path).rows


def test_a_row_in_the_terms_of_calculon(rows: tuple[Row, ...]) -> None:
    case = calculon_case(rows[0])
    assert case["system"] == "a100_80g"
    assert case["application"]["attn_size"] == 128
    execution = case["execution"]
    assert len(execution) == 23  # its Execution.fields(); it refuses any other number
    assert (execution["num_procs"], execution["batch_size"], execution["microbatch_size"]) == (16, 64, 4)
    assert (execution["tensor_par_net"], execution["data_par_net"], execution["pipeline_par_net"]) == (0, 0, 1)
    assert (execution["activation_recompute"], execution["tensor_par_comm_type"]) == ("full", "ar")


def test_a_row_that_cannot_be_expressed_is_an_error(rows: tuple[Row, ...]) -> None:
    with pytest.raises(ExpressionError, match="FSDP"):
        calculon_case(rows[1])


def test_a_row_in_the_terms_of_simumax(rows: tuple[Row, ...]) -> None:
    strategy = simumax_case(rows[0])["strategy"]
    assert (strategy["tp_size"], strategy["pp_size"], strategy["micro_batch_num"]) == (4, 2, 8)
    assert (strategy["recompute_granularity"], strategy["recompute_layer_num"]) == ("full_block", 12)
    assert seconds_of("1500") == seconds_of("1500 ms") == seconds_of("1.5 s") == 1.5
    assert seconds_of("ValueError: no") == "ValueError: no"


def test_a_checkout_is_run(rows: tuple[Row, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("bin", "systems", "calculon/llm"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "calculon/llm/llm.py").touch()
    (tmp_path / "bin/calculon").write_text(_FAKE, encoding="utf-8")
    (tmp_path / "systems/a100_80g.json").write_text(json.dumps({"networks": [{}], "mem1": {}}), encoding="utf-8")
    monkeypatch.setattr(comparison, "prepare", lambda *_: (Path(sys.executable), "run from a checkout"))
    outcome = comparison.ask(CALCULON, rows, tmp_path)
    assert outcome.seconds == {"gpt": 64 / 24}
    assert list(outcome.reasons.values()) == [1]


def test_a_folder_that_is_no_checkout_is_not_run(tmp_path: Path) -> None:
    python, said = comparison.prepare(CALCULON, tmp_path, tmp_path)
    assert python is None
    assert "no checkout of github.com/calculon-ai/calculon" in said


def test_the_textbook(rows: tuple[Row, ...]) -> None:
    job = rows[0].job
    assert job is not None
    tokens = 4 * 8 * 2 * 1024
    assert comparison.textbook_seconds(job, 10**9) == pytest.approx(6e9 * tokens / (0.4 * 312e12 * 16), rel=1e-3)
