"""Mixed precision as frameworks run it: what they ask for and how the model is wrapped decide the precision of a job.

    asked    wrapped in         weights of the step, gradients          precision
    bf16     DDP, one GPU       fp32, cast by autocast; fp32            amp-bf16
    bf16     FSDP               gathered in bf16 (MixedPrecision)       bf16-master
    bf16     DeepSpeed          bf16, fp32 copy in the optimizer        bf16-master
    fp16     the same three     the same, with loss scaling             amp-fp16, fp16-master, fp16-master
    none     any                as loaded                               torch-fp32, or bf16, fp16

Sources: accelerate's FullyShardedDataParallelPlugin.set_mixed_precision and DeepSpeedPlugin.set_mixed_precision,
Lightning's FSDPPrecision.mixed_precision_config.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

DDP, FSDP, DEEPSPEED, MEGATRON = "DDP", "FSDP", "DeepSpeed", "Megatron-LM"
FULL_PRECISION = "torch-fp32"
"""What PyTorch does without a setting of precision."""


@dataclass(frozen=True, slots=True)
class Numerics:
    """What a file says about precision.

    asked    dtype of mixed precision: bf16, fp16, fp8, tf32 (of products in fp32) or no
    key      the setting that asks for it, with its value
    stated   whether the file says so; else it is the program's default, which another file may replace
    wrapper  what holds the model: DDP, FSDP, DeepSpeed or Megatron-LM; None: the file does not say
    weights  dtype in which the model is loaded: bf16, fp16 or fp32; anything else is not certain
    reduce   dtype of reduced gradients, where it is not that of the precision
    """

    asked: str = "no"
    key: str = ""
    stated: bool = False
    wrapper: str | None = None
    weights: str = "fp32"
    reduce: str | None = None

    def job_fields(self) -> dict[str, Any]:
        """`precision`, and `communication_dtype` where it departs from it; {} where the combination is not certain."""
        precision = self._precision()
        if precision is None:
            return {}
        reduce = self.reduce
        if precision == "fp8" and self.wrapper in (None, DDP):
            reduce = reduce or "float32"  # autocast: weights and gradients are fp32
        return {"precision": precision, **({"communication_dtype": reduce} if reduce else {})}

    def _precision(self) -> str | None:
        sharded = self.wrapper in (FSDP, DEEPSPEED, MEGATRON)
        if self.asked == "fp8":
            return "fp8"
        if self.asked in ("bf16", "fp16"):
            if sharded:
                return f"{self.asked}-master"
            if self.weights == "fp32":
                return f"amp-{self.asked}"
            return "bf16" if self.asked == self.weights == "bf16" else None
        if self.weights != "fp32":
            known = self.weights in ("bf16", "fp16") and self.wrapper not in (DEEPSPEED, MEGATRON)
            return self.weights if known else None
        return "tf32" if self.asked == "tf32" else FULL_PRECISION

    @property
    def doubt(self) -> str:
        """Why there is no precision."""
        wrapper = self.wrapper or DDP
        return f"{self.key or 'no mixed precision'} with weights in {self.weights} under {wrapper} is not certain"


def combined(first: Numerics, second: Numerics) -> tuple[Numerics, str]:
    """What two files say together, and the contradiction between them or ""."""
    main, other = (second, first) if second.stated and not first.stated else (first, second)
    if not first.stated and not second.stated and first.asked == "no":
        main, other = second, first
    fault = ""
    if first.stated and second.stated and first.asked != second.asked:
        fault = f"{first.key} and {second.key}"
    if first.wrapper and second.wrapper and first.wrapper != second.wrapper:
        fault = f"{first.wrapper} and {second.wrapper}"
    return (
        replace(
            main,
            wrapper=main.wrapper or other.wrapper,
            weights=main.weights if main.weights != "fp32" else other.weights,
            reduce=main.reduce or other.reduce,
        ),
        fault,
    )
