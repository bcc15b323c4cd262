"""What another predictor must provide, and how its process is run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_time.job.job import Job
from precision_time.measurements.row import Row

SECONDS_PER_ROW = 120
Case = tuple[str, dict[str, Any]]
"""Id of a row and its job in the terms of a tool."""
Answers = dict[str, float | str]
"""Id of a row -> seconds of a step, or the reason why there are none."""


@dataclass(frozen=True)
class Tool:
    """Another predictor."""

    name: str
    home: str
    proof: str
    """A file that every checkout has."""
    express: Callable[[Row], dict[str, Any]]
    """The job of a row in the tool's terms; raises `ExpressionError` if it has none."""
    run: Callable[[Path, Path, Path, Sequence[Case]], Answers]
    """Called with the checkout, a Python interpreter, a working folder and the cases."""


class ExpressionError(Exception):
    """The reason why a tool cannot express a job."""


def model_config(job: Job) -> dict[str, Any]:
    """The model configuration with defaults for the fields that the tools need."""
    config = dict(job.model_config)
    return {"kv_heads": config.get("heads"), "act": "", **config}


def dense_half(row: Row) -> tuple[Job, dict[str, Any]]:
    """The job and its model configuration. Raises `ExpressionError` unless it is a dense decoder in half precision with
    a layout of tp, pp and dp."""
    job = row.job
    if job is None:
        raise ExpressionError("the row is not a readable job")
    config, layout = model_config(job), job.layout_spec
    if config.get("experts") or config.get("attn") == "mla":
        raise ExpressionError("mixture of experts or latent attention")
    if not {"layers", "hidden", "heads", "ffn", "vocab"} <= set(config):
        raise ExpressionError("model is not given by its shape")
    if job.precision not in ("fp16-master", "bf16-master"):
        raise ExpressionError(f"precision {job.precision}")
    if layout.zero > 1:
        raise ExpressionError("weights or gradients sharded (FSDP, ZeRO 2 and 3)")
    if layout.cp > 1:
        raise ExpressionError("context parallelism")
    if job.batch_size is None or "seq_len" not in job.input:
        raise ExpressionError("no batch or sequence length")
    if int(config["layers"]) % (layout.pp * layout.vpp):
        raise ExpressionError("layers do not divide over the stages")
    return job, config


def tool_environment(checkout: Path) -> dict[str, str]:
    """Environment variables for another tool: a few of this process, and the checkout as its packages."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return {**kept, "PYTHONPATH": str(checkout)}


def last_line(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None, limit_s: float = SECONDS_PER_ROW
) -> str:
    """The last line that a command prints, which names its error if it failed."""
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {limit_s:.0f} s"
    lines = [line for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"exit code {done.returncode}"
