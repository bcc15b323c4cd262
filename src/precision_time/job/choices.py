"""The words that fields of a job take, with their aliases, and the values that are written in a form of their own."""

from __future__ import annotations

import re
from typing import Any

from precision_time.checks import show, word
from precision_time.errors import JobError, nearest

OPTIMIZERS = (
    "sgd", "adam", "adamw", "adamw-8bit", "adafactor", "lion", "muon", "soap", "shampoo", "lamb", "lars", "novograd",
    "rmsprop", "adagrad", "none",
)  # fmt: skip
OPTIMIZER_IMPLS = ("foreach", "fused", "single", "torch1", "scripted")
LOSS_SCALES = ("dynamic", "static", "none")
EMAS = ("foreach", "single", "none")
MEMORY_FORMATS = ("nchw", "nhwc")
ATTENTIONS = ("flash", "fused", "flash2", "triton", "math")
OFFLOADS = ("optimizer", "optimizer-nvme", "parameters", "parameters-nvme")
RECOMPUTES = ("none", "selective", "selective-ops", "full")
MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")
"""Parts of a block that may be recomputed by name, as Megatron-LM's --recompute-modules has them."""
RECOMPUTE_METHODS = ("block", "uniform", "every")
FRAMEWORKS = (
    "pytorch", "megatron", "megatron-deepspeed", "megatron-bridge", "deepspeed", "llm-foundry", "torchtitan",
    "internevo", "mxnet", "tensorflow1", "tensorflow2", "paddle",
)  # fmt: skip
AS_PYTORCH = ("tensorflow1", "tensorflow2", "paddle")
"""Frameworks with operators and kernels of their own, for which PyTorch's stand."""
COMPOSING = ("tensorflow1", "tensorflow2")
"""Frameworks that compose layer norms, dropout and softmax of several kernels each."""
NOT_PYTORCH = ("mxnet", *AS_PYTORCH)
"""Frameworks that are not PyTorch."""
FRAMEWORK_ALIASES = {"nemo": "megatron-bridge", "composer": "llm-foundry", "megatron-core": "megatron",
                     "tensorflow": "tensorflow2"}  # fmt: skip
LOSSES = ("fp32", "liger")
PLAIN = ("pytorch", "deepspeed", "torchtitan")
"""Frameworks that leave norms and the cross-entropy of logits to PyTorch, so that its version says how the former
run, and `loss` may say how the latter is computed."""
EXECUTIONS = ("eager", "compile", "cuda_graphs", "torchscript", "static_graph", "xla")
"""`static_graph`: the graph executors of TensorFlow, MXNet and Paddle, which fuse no pointwise operators."""
FUSING = ("compile", "torchscript", "xla")
"""Executions under which pointwise operators are fused."""
LAYOUTS = ("dp", "fsdp", "zero1", "zero2")
DTYPES = ("float32", "float16", "bfloat16", "float64")
DTYPE_ALIASES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
_RECOMPUTE_ALIASES = {"activation_checkpointing": "full", "checkpoint": "full", "core_attn": "selective",
                      "op": "selective-ops"}  # fmt: skip
OFFLOAD_ALIASES = {"cpu": "optimizer", "nvme": "optimizer-nvme", "all": "parameters"}
FORMAT_ALIASES = {"channels_last": "nhwc", "channels_last_3d": "nhwc", "contiguous": "nchw"}


_VERSION = re.compile(r"([1-9])\.([0-9]{1,2})(?:[.+a-z].{0,40})?")


def torch_version(field: str, value: Any) -> str:
    """The first two numbers of a version: "1.12" of "1.12.1+cu113"."""
    found = _VERSION.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise JobError(f'{field} {show(value)} is no version of PyTorch; give text in quotes such as "1.12" or "2.9"')
    return f"{found[1]}.{int(found[2])}"


_word_of_recompute = word(RECOMPUTES, _RECOMPUTE_ALIASES)


def recompute_of(field: str, value: Any) -> str:
    """One of `RECOMPUTES`, or names of `MODULES` joined by commas."""
    names = value.split(",") if isinstance(value, str) and "," in value else value
    if isinstance(names, str) and names.strip().lower() in MODULES:
        names = [names]
    if not isinstance(names, (list, tuple)):
        return str(_word_of_recompute(field, value))
    names = sorted({str(name).strip().lower() for name in names})
    for name in names:
        if name not in MODULES:
            raise JobError(
                f"{field} {show(name)} is no part of a block; nearest: {nearest(name, MODULES)}; "
                f"name some of {', '.join(MODULES)}, or set {field} to one of {', '.join(RECOMPUTES)}"
            )
    return "selective" if names == ["core_attn"] else ",".join(names) or "none"
