"""DeepSpeed's own reading of a config: its class `DeepSpeedConfig`, in a process that is the only rank.

    python -m benchmarks.rigs.deepspeed_config     # answers again the configs of tests/golden/deepspeed_config.json

needs `pip install deepspeed`, which compiles nothing and needs no GPU.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[2] / "tests" / "golden" / "deepspeed_config.json"


def answer(config: Mapping[str, Any]) -> dict[str, Any] | str:
    """What DeepSpeed reads from a config for one rank, or the first line of the sentence that refuses it."""
    from deepspeed.runtime.config import DeepSpeedConfig

    try:
        found = DeepSpeedConfig(dict(config))
    except Exception as error:  # asserts, ValueError and pydantic's
        return next(iter(str(error).splitlines()), type(error).__name__)
    zero = found.zero_config
    devices = [
        None if each is None else str(getattr(each.device, "value", each.device))
        for each in (zero.offload_optimizer, zero.offload_param)
    ]
    return {
        "batch_size": found.train_micro_batch_size_per_gpu,
        "grad_accum": found.gradient_accumulation_steps,
        "global_batch": found.train_batch_size,
        "clip_norm": found.gradient_clipping,
        "optimizer": found.optimizer_name,
        "stage": int(zero.stage),
        "overlap": bool(zero.overlap_comm),
        "offload": {name: device for name, device in zip(("optimizer", "param"), devices, strict=True) if device},
        "half": "fp16" if found.float16_config.enabled else "bf16" if found.bfloat16_config.enabled else "no",
        "static_scale": bool(found.float16_config.enabled and found.float16_config.loss_scale),
    }


def fields() -> dict[str, list[str]]:
    """Section -> the settings that its class has."""
    from deepspeed.runtime.zero import config, offload_config

    classes = {
        "zero_optimization": config.DeepSpeedZeroConfig,
        "zero_optimization.offload_optimizer": offload_config.DeepSpeedZeroOffloadOptimizerConfig,
        "zero_optimization.offload_param": offload_config.DeepSpeedZeroOffloadParamConfig,
    }
    return {
        section: sorted({field.alias or name for name, field in kind.model_fields.items()})
        for section, kind in classes.items()
    }


def main() -> None:
    import deepspeed

    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    rows = [{"config": row["config"], "answer": answer(row["config"])} for row in recorded["rows"]]
    content = {"version": deepspeed.__version__, "fields": fields(), "rows": rows}
    RECORDED.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
