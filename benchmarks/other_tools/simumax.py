"""SimuMax (github.com/MooreThreads/SimuMax): jobs as its configurations, and its runs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.other_tools.tool import (
    SECONDS_PER_ROW,
    Answers,
    Case,
    ExpressionError,
    Tool,
    dense_half,
    last_line,
    tool_environment,
)
from precision_time.measurements.row import Row

_SIMUMAX_SYSTEMS = {"a100-80gb-sxm": ("a100_bf16", "a100_nvlink"), "h100-80gb-sxm": ("h100_nvlink",)}
_SIMUMAX_DRIVER = '''
"""Answers every case of argv[1] in argv[2], inside SimuMax's own environment; argv[3] is its checkout."""
import dataclasses, json, pathlib, sys
from simumax.core.config import ModelConfig, StrategyConfig, SystemConfig
from simumax.core.perf_llm import PerfLLM

def known_fields(cls, fields):
    known = {f.name for f in dataclasses.fields(cls)}
    return {k: v for k, v in fields.items() if k in known}

answers = {}
for name, case in json.loads(pathlib.Path(sys.argv[1]).read_text()):
    try:
        files = [pathlib.Path(sys.argv[3], "configs", "system", s + ".json") for s in case["systems"]]
        system = next(f for f in files if f.exists())
        perf = PerfLLM()
        perf.configure(
            strategy_config=StrategyConfig(**known_fields(StrategyConfig, case["strategy"])),
            model_config=ModelConfig(**known_fields(ModelConfig, case["model"])),
            system_config=SystemConfig.init_from_config_file(str(system)),
        )
        perf.run_estimate()
        cost = perf.analysis_cost()
        answers[name] = str(getattr(cost, "data", cost)["duration_time_per_iter"])
    except Exception as error:
        answers[name] = f"{type(error).__name__}: {error}"
    pathlib.Path(sys.argv[2]).write_text(json.dumps(answers))
'''


def simumax_case(row: Row) -> dict[str, Any]:
    """A row as SimuMax's model and strategy, and the system files that may describe its GPU."""
    job, config = dense_half(row)
    layout = job.layout_spec
    if job.gpu not in _SIMUMAX_SYSTEMS:
        raise ExpressionError(f"no system description for {job.gpu}")
    full = job.recompute == "full"
    return {
        "systems": _SIMUMAX_SYSTEMS[job.gpu],
        "model": {
            "model_name": row.id, "model_type": "dense", "hidden_size": config["hidden"], "head_num": config["heads"],
            "kv_head_num": config["kv_heads"], "intermediate_size": config["ffn"], "layer_num": config["layers"],
            "head_size": config.get("head_dim") or config["hidden"] // config["heads"],
            "vocab_size": config["vocab"], "use_swiglu": config["act"] == "swiglu",
        },
        "strategy": {
            "seq_len": job.input["seq_len"], "micro_batch_size": job.batch_size, "micro_batch_num": job.grad_accum,
            "dtype": "bf16", "world_size": layout.gpus, "tp_size": layout.tp, "pp_size": layout.pp,
            "interleaving_size": layout.vpp, "enable_sequence_parallel": layout.sp, "zero_state": layout.zero,
            "enable_dropout": bool(config.get("dropout")), "use_fp32_accum_grad": False,
            "use_math_sdp": job.attention == "math", "use_flash_sdp": job.attention != "math",
            "enable_recompute": job.recompute != "none",
            "recompute_granularity": {"none": None, "full": "full_block", "selective": "selective_recompute"}[
                job.recompute
            ],
            "attn_recompute": job.recompute == "selective",
            "recompute_layer_num": 0 if job.recompute == "none" else int(config["layers"]) // layout.pp,
            "use_fused_norm": True, "mem_factor": 1.0 if full else 0.94,
        },
    }  # fmt: skip


def run_simumax(checkout: Path, python: Path, work: Path, cases: Sequence[Case]) -> Answers:
    """Run all rows in one process."""
    questions, output, driver = work / "cases.json", work / "answers.json", work / "driver.py"
    questions.write_text(json.dumps(list(cases)), encoding="utf-8")
    driver.write_text(_SIMUMAX_DRIVER, encoding="utf-8")
    output.unlink(missing_ok=True)
    limit_s = SECONDS_PER_ROW * max(len(cases), 1)
    command = [str(python), str(driver), str(questions), str(output), str(checkout)]
    line = last_line(command, work, tool_environment(checkout), limit_s)
    answers: dict[str, str] = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {}
    return {name: seconds_of(answers.get(name, line)) for name, _ in cases}


def seconds_of(answer: str) -> float | str:
    """Seconds of a duration of SimuMax (milliseconds, or a number with a unit); any other text is returned as it is."""
    match = re.fullmatch(r"\s*([0-9.eE+-]+)\s*(us|ms|s|min|h)?\s*", answer)
    if match is None:
        return answer
    return float(match[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}[match[2] or "ms"]


SIMUMAX = Tool("SimuMax", "github.com/MooreThreads/SimuMax", "simumax/core/perf_llm.py", simumax_case, run_simumax)
