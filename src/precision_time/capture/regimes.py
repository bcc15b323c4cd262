"""How a precision changes a traced step: the dtype regime it is traced in, and what is done to that trace afterwards.

A step is traced in one of three regimes, with bfloat16 as the low precision; float16, float64, fp8 and fusing
compilers are transformations of that trace.
"""

from __future__ import annotations

from precision_time.capture.fp8 import to_fp8
from precision_time.capture.fusion import fuse_pointwise
from precision_time.capture.graph import OpGraph
from precision_time.capture.half_softmax import merge_half_softmax
from precision_time.job.choices import FUSING
from precision_time.job.precision import Precision


def regime_of(precision: Precision) -> str:
    """The regime of a precision, as `capture.step.Regime` names it: full, autocast or half."""
    if precision.autocast:
        return "autocast"
    return "half" if precision.parameter_dtype in ("float16", "bfloat16") else "full"


def channels_last(memory_format: str, precision: Precision) -> bool:
    """Whether convolutions work on images stored channels last; cuDNN has rows alone for float64 (ConvUtils.h,
    cudnn_conv_suggest_memory_format)."""
    return memory_format == "nhwc" and precision.compute_dtype != "float64"


def dtype_renames(precision: Precision) -> dict[str, str]:
    """dtype of the traced graph -> dtype of the step, where they differ."""
    if precision.compute_dtype == "float16":
        return {"bfloat16": "float16"}
    return {"float32": "float64"} if precision.compute_dtype == "float64" else {}


def transform(graph: OpGraph, precision: Precision, execution: str, device_rules: str = "cuda") -> OpGraph:
    """A traced graph as `precision` and `execution` run it: softmax kernels of float16, fp8 products, fused chains.

    `device_rules` is the device whose autocast rules the trace follows, "cuda" or "cpu".
    """
    if merges_softmax(precision) and device_rules == "cuda":
        graph = merge_half_softmax(graph)
    if precision.fp8_scaling:
        graph = to_fp8(graph, precision.fp8_scaling)
    return compiled(graph, execution)


def merges_softmax(precision: Precision) -> bool:
    """Whether a GPU runs softmax with its casts as one kernel."""
    return precision.autocast and precision.compute_dtype == "float16"


def compiled(graph: OpGraph, execution: str) -> OpGraph:
    """A graph in its precision as `execution` runs it."""
    return fuse_pointwise(graph) if execution in FUSING else graph
