"""benchmarks/other_tools.py: a row in the words of another tool, a checkout that is run, a tool that is not there."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

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
def tools() -> ModuleType:
    path = Path(__file__).parent.parent / "benchmarks" / "other_tools.py"
    spec = importlib.util.spec_from_file_location("other_tools", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["other_tools"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Row, ...]:
    path = tmp_path_factory.mktemp("table") / "measured.csv"
    path.write_text(_TABLE, encoding="utf-8")
    return read_table(path).rows


def test_a_row_in_the_words_of_calculon(tools: ModuleType, rows: tuple[Row, ...]) -> None:
    case = tools.calculon_case(rows[0])
    assert case["system"] == "a100_80g"
    assert case["application"]["attn_size"] == 128
    execution = case["execution"]
    assert len(execution) == 23  # its Execution.fields(); it refuses any other number
    assert (execution["num_procs"], execution["batch_size"], execution["microbatch_size"]) == (16, 64, 4)
    assert (execution["tensor_par_net"], execution["data_par_net"], execution["pipeline_par_net"]) == (0, 0, 1)
    assert (execution["activation_recompute"], execution["tensor_par_comm_type"]) == ("full", "ar")


def test_what_has_no_words_is_said(tools: ModuleType, rows: tuple[Row, ...]) -> None:
    with pytest.raises(tools.ExpressionError, match="FSDP"):
        tools.calculon_case(rows[1])


def test_a_row_in_the_words_of_simumax(tools: ModuleType, rows: tuple[Row, ...]) -> None:
    strategy = tools.simumax_case(rows[0])["strategy"]
    assert (strategy["tp_size"], strategy["pp_size"], strategy["micro_batch_num"]) == (4, 2, 8)
    assert (strategy["recompute_granularity"], strategy["recompute_layer_num"]) == ("full_block", 12)
    assert tools.seconds_of("1500") == tools.seconds_of("1500 ms") == tools.seconds_of("1.5 s") == 1.5
    assert tools.seconds_of("ValueError: no") == "ValueError: no"


def test_a_checkout_is_run(
    tools: ModuleType, rows: tuple[Row, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("bin", "systems", "calculon/llm"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "calculon/llm/llm.py").touch()
    (tmp_path / "bin/calculon").write_text(_FAKE, encoding="utf-8")
    (tmp_path / "systems/a100_80g.json").write_text(json.dumps({"networks": [{}], "mem1": {}}), encoding="utf-8")
    monkeypatch.setattr(tools, "obtain", lambda *_: (Path(sys.executable), "run from a checkout"))
    outcome = tools.ask(tools.TOOLS[0], rows, tmp_path)
    assert outcome.seconds == {"gpt": 64 / 24}
    assert list(outcome.reasons.values()) == [1]


def test_what_is_no_checkout_is_not_run(tools: ModuleType, tmp_path: Path) -> None:
    python, said = tools.obtain(tools.TOOLS[0], tmp_path, tmp_path)
    assert python is None
    assert "no checkout of github.com/calculon-ai/calculon" in said


def test_the_textbook(tools: ModuleType, rows: tuple[Row, ...]) -> None:
    job = rows[0].job
    assert job is not None
    tokens = 4 * 8 * 2 * 1024
    assert tools.textbook_seconds(job, 10**9) == pytest.approx(6e9 * tokens / (0.4 * 312e12 * 16), rel=1e-3)
