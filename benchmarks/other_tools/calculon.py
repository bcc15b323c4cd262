"""Calculon (github.com/calculon-ai/calculon): jobs as its input files, and its runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.other_tools.tool import Answers, Case, ExpressionError, Tool, dense_half, last_line, tool_environment
from precision_time.cli.progress import Progress
from precision_time.hardware.catalog import default_catalog
from precision_time.measurements.row import Row

_CALCULON_SYSTEMS = {"a100-80gb-sxm": "a100_80g", "a100-40gb-sxm": "a100_80g", "h100-80gb-sxm": "h100_80g_nvl8"}
"""GPU -> system description of Calculon; 40 GB cards use that of 80 GB with the memory of the catalog."""
_RECOMPUTE = {"none": "none", "selective": "attn_only", "full": "full"}


def calculon_case(row: Row) -> dict[str, Any]:
    """A row as the content of Calculon's files: application, execution, and a system with its changed fields."""
    job, config = dense_half(row)
    layout = job.layout_spec
    if config["act"] == "swiglu" or config["kv_heads"] != config["heads"]:
        raise ExpressionError("gated feed-forward or grouped queries")
    if job.gpu not in _CALCULON_SYSTEMS:
        raise ExpressionError(f"no system description for {job.gpu}")
    gpu = default_catalog().gpus[job.gpu]
    inner = 8

    def net(ranks_within: int) -> int:
        return 0 if ranks_within <= inner else 1

    changed: dict[str, Any] = {"must_be_filled": False}  # otherwise it refuses jobs on part of a node
    if job.gpu == "a100-40gb-sxm":
        changed["mem1"] = {"GiB": round(gpu.memory_bytes / 2**30), "GBps": gpu.memory_bytes_per_s / 1e9}
    return {
        "system": _CALCULON_SYSTEMS[job.gpu],
        "changed": changed,
        "application": {
            "name": row.id, "hidden": config["hidden"], "feedforward": config["ffn"], "attn_heads": config["heads"],
            "attn_size": config.get("head_dim") or config["hidden"] // config["heads"],
            "seq_size": job.input["seq_len"], "num_blocks": config["layers"],
        },
        "execution": {
            "num_procs": layout.gpus, "tensor_par": layout.tp, "pipeline_par": layout.pp, "data_par": layout.dp,
            "tensor_par_net": net(layout.tp), "pipeline_par_net": net(layout.tp * layout.pp * layout.dp),
            "data_par_net": net(layout.tp * layout.dp),
            "batch_size": (job.batch_size or 1) * job.grad_accum * layout.dp, "microbatch_size": job.batch_size,
            "datatype": "float16", "fused_activation": True, "attention_type": "multihead",
            "activation_recompute": _RECOMPUTE[job.recompute], "pipeline_interleaving": layout.vpp,
            "optimizer_sharding": bool(layout.zero) and layout.dp > 1,
            "tensor_par_comm_type": "rs_ag" if layout.sp else "ar", "tensor_par_overlap": "none",
            "seq_par_ag_redo": layout.sp and job.recompute != "full",
            "data_par_overlap": layout.overlap_grad_reduce and layout.dp > 1,
            "weight_offload": False, "activations_offload": False, "optimizer_offload": False, "training": True,
        },
    }  # fmt: skip


def run_calculon(checkout: Path, python: Path, work: Path, cases: Sequence[Case]) -> Answers:
    """Run `calculon llm application execution system stats`, one process per row."""
    answers: Answers = {}
    command, environment = checkout / "bin" / "calculon", tool_environment(checkout)
    with Progress("rows of Calculon") as progress:
        for done, (name, case) in enumerate(cases):
            progress(done, len(cases))
            system = json.loads((checkout / "systems" / f"{case['system']}.json").read_text(encoding="utf-8"))
            system["networks"][0]["must_be_filled"] = case["changed"]["must_be_filled"]
            system["mem1"].update(case["changed"].get("mem1", {}))
            files = []
            for name_of_file, content in (("app", case["application"]), ("exe", case["execution"]), ("sys", system)):
                files.append(work / f"{name_of_file}.json")
                files[-1].write_text(json.dumps(content), encoding="utf-8")
            stats = work / "stats.json"
            stats.unlink(missing_ok=True)
            line = last_line([str(python), str(command), "llm", *map(str, files), str(stats)], work, environment)
            if not stats.exists():
                answers[name] = line
                continue
            answers[name] = float(json.loads(stats.read_text(encoding="utf-8"))["total_time"])
    return answers


CALCULON = Tool("Calculon", "github.com/calculon-ai/calculon", "calculon/llm/llm.py", calculon_case, run_calculon)
