"""The eleven precision names, the dtypes that each gives the tensors of a step, and the other spellings in use.

Capture reads the dtypes, layout reads the gradient dtype, and timing reads the key of the peak (`math`). dtypes have
PyTorch's names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from precision_time.checks import show
from precision_time.errors import JobError, nearest


@dataclass(frozen=True, slots=True)
class Precision:
    """The dtypes of one training step.

    compute_dtype   of the forward and backward operators that autocast or half weights put into low precision
    gradient_dtype  of the gradients that data-parallel ranks reduce; under autocast weights are fp32, and so are these
    state_dtype     of the optimizer's moments, and of the master copy of the weights where `master_weights`
    math            key of `Gpu.peaks` that limits matrix multiplies
    tf32            products and convolutions of fp32 tensors in TF32; `tf32_convolutions`: cuDNN's convolutions and
                    recurrent layers alone, where the GPU has TF32
    """

    name: str
    compute_dtype: str
    parameter_dtype: str
    gradient_dtype: str
    state_dtype: str
    math: str
    master_weights: bool = False
    autocast: bool = False
    loss_scaling: bool = False
    tf32: bool = False
    tf32_convolutions: bool = False
    fp8_scaling: str | None = None

    @property
    def label(self) -> str:
        """The name, with the fp8 scaling where it is not tensorwise; this is what a `Job` stores."""
        return f"{self.name}-{self.fp8_scaling}" if self.fp8_scaling in ("rowwise", "block") else self.name


_F64, _F32, _F16, _BF16 = "float64", "float32", "float16", "bfloat16"

PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        # name, compute, parameters, gradients, optimizer state, math
        Precision("fp64", _F64, _F64, _F64, _F64, "fp64"),
        Precision("fp32", _F32, _F32, _F32, _F32, "fp32"),
        # PyTorch's own setting: torch.backends.cudnn.allow_tf32 is True, torch.backends.cuda.matmul.allow_tf32 False.
        Precision("torch-fp32", _F32, _F32, _F32, _F32, "fp32", tf32_convolutions=True),
        Precision("tf32", _F32, _F32, _F32, _F32, "tf32", tf32=True),
        Precision("amp-fp16", _F16, _F32, _F32, _F32, "fp16", autocast=True, loss_scaling=True),
        Precision("amp-bf16", _BF16, _F32, _F32, _F32, "bf16", autocast=True),
        Precision("fp16-master", _F16, _F16, _F16, _F32, "fp16", master_weights=True, loss_scaling=True),
        Precision("bf16-master", _BF16, _BF16, _BF16, _F32, "bf16", master_weights=True),
        # Pure half has no loss scaling: GradScaler refuses to unscale fp16 gradients.
        Precision("fp16", _F16, _F16, _F16, _F16, "fp16"),
        Precision("bf16", _BF16, _BF16, _BF16, _BF16, "bf16"),
        # Everything but the matrix multiplies as in bf16-master: Megatron, Transformer Engine, torchao.
        Precision("fp8", _BF16, _BF16, _BF16, _F32, "fp8", master_weights=True, fp8_scaling="tensorwise"),
    )
}

ALIASES: dict[str, str] = {
    "double": "fp64", "float64": "fp64", "64": "fp64", "64-true": "fp64",
    "single": "fp32", "float32": "fp32", "32": "fp32", "32-true": "fp32",
    "default": "torch-fp32", "torch-default": "torch-fp32",
    "mixed": "amp-fp16", "mixed-fp16-fp32": "amp-fp16", "16-mixed": "amp-fp16",
    "mixed-bf16-fp32": "amp-bf16", "bf16-mixed": "amp-bf16",
    "float16": "fp16", "16-true": "fp16",
    "bfloat16": "bf16", "bf16-true": "bf16",
    "fp8-tensorwise": "fp8",
}  # fmt: skip
"""Other spellings; underscores and capitals are accepted too. HF Trainer's `fp16=True` is amp-fp16."""

_FP8_SCALED = {f"fp8-{way}": replace(PRECISIONS["fp8"], fp8_scaling=way) for way in ("rowwise", "block")}
_AMBIGUOUS = {"16": "16-mixed (autocast, amp-fp16) or 16-true (pure half, fp16)"}


def parse_precision(text: Any, field: str = "precision") -> Precision:
    """The precision of a name or an alias, in any case, with hyphens or underscores."""
    if isinstance(text, Precision):
        return text
    name_text = str(text) if isinstance(text, (str, int)) and not isinstance(text, bool) else ""
    spelling = name_text.strip().lower().replace("_", "-")
    if spelling in _FP8_SCALED:
        return _FP8_SCALED[spelling]
    name = ALIASES.get(spelling, spelling)
    if name in PRECISIONS:
        return PRECISIONS[name]
    if spelling in _AMBIGUOUS:
        raise JobError(f"{field} {show(text)} is ambiguous; write {_AMBIGUOUS[spelling]}")
    choices = nearest(spelling, [*PRECISIONS, *ALIASES, *_FP8_SCALED])
    raise JobError(
        f"{field} {show(text)} is unknown; nearest: {choices}; set {field} to one of {', '.join(PRECISIONS)}"
    )
