"""The registry operator -> works, and how a rule is registered. Rules are in `operators`, `scans` and `traffic`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from precision_time.capture.graph import OpSignature, TensorSpec
from precision_time.timing.work import Work

CURRENT = (99,)
"""A version of PyTorch that is older than none."""
CUDNN = ("aten.convolution", "aten._convolution", "aten.cudnn_convolution", "pt.rnn")
"""Beginnings of the names of operators that cuDNN runs."""


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """What the job decides about kernels: TF32 for float32 products and convolutions, channels-last storage, whether
    grouped convolutions of the latter are those of PyTorch before 1.12, TF32 in cuDNN alone (convolutions and recurrent
    layers), whether the product of every expert is a kernel of its own, as in Transformer Engine, whether single
    matrices are decomposed by MAGMA, whether NVIDIA's batch norms for MXNet read their tensors twice in the backward
    pass, as in the forward pass, whether the framework composes what PyTorch has a kernel for (`operators.COMPOSED`),
    the version of PyTorch whose own kernels run, whether modules run as `eval()` has them: batch norms know their
    statistics and nothing is dropped out, and with which masks fused attention in half precision is PyTorch's
    memory-efficient kernel: with none (empty), those that are "learned", or "all".
    """

    tf32: bool = False
    channels_last: bool = False
    grouped_kernels: int = 2
    tf32_convolutions: bool = False
    separate_experts: bool = False
    magma: bool = False
    separate_statistics: bool = False
    composes: bool = False
    torch: tuple[int, ...] = CURRENT
    evaluates: bool = False
    efficient_masks: str = ""

    def of_operator(self, name: str) -> WorkOptions:
        """The same for one operator, which either has TF32 or has not."""
        if not self.tf32_convolutions:
            return self
        return replace(self, tf32=name.startswith(CUDNN), tf32_convolutions=False)


Rule = Callable[[OpSignature, WorkOptions], list[Work]]
REGISTRY: dict[str, Rule] = {}


def register(*names: str) -> Callable[[Rule], Rule]:
    """Enter a rule for operators; a second rule for the same name is an error."""

    def enter(rule: Rule) -> Rule:
        for name in names:
            if name in REGISTRY:
                raise ValueError(f"{name} already has a rule")
            REGISTRY[name] = rule
        return rule

    return enter


def nbytes(specs: tuple[TensorSpec, ...]) -> float:
    return sum([s.nbytes for s in specs])


def float_dtype(kind: OpSignature) -> str:
    """The dtype of an operator's results, or of its arguments where those are integers."""
    for spec in (*kind.outputs, *kind.inputs):
        if spec.dtype.startswith(("float", "bfloat")):
            return spec.dtype
    return "float32"


_MATH = {
    "float64": "fp64", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
}  # fmt: skip


def product_math(dtype: str, options: WorkOptions) -> str:
    """The unit that multiplies matrices of a dtype, as a key of `Gpu.peaks`."""
    if dtype == "float32":
        return "tf32" if options.tf32 else "fp32"
    return _MATH.get(dtype, "fp32")
