"""Why a Hugging Face model is refused, in one sentence that names its class, the reason and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from precision_time.errors import CaptureError, JobError, PrecisionTimeError, nearest

_OWN = "give your own module (FILE.py:FUNCTION)"
_LIBRARY = re.compile(r"requires the (\S+) library")
_MIXED = re.compile(r"same dtype|expected scalar type")


def check_type(model_type: str, transformers: Any) -> None:
    """Raise `JobError` for a type that the installed transformers has not."""
    known, release = transformers.CONFIG_MAPPING, transformers.__version__
    if model_type not in known:
        raise JobError(
            f"model_type {model_type!r} is not among the {len(known.keys())} of transformers {release}; "
            "its code may come with its weights (trust_remote_code), which is never run here; nearest: "
            f"{nearest(model_type, known)}; name one of those, install a release that has it, or {_OWN}"
        )


def from_config(name: str, model_type: str, build: Callable[[], Any]) -> Any:
    """What `build` makes; `CaptureError` where transformers cannot build it."""
    try:
        return build()
    except PrecisionTimeError:
        raise
    except ImportError as error:
        library = _LIBRARY.search(str(error))
        raise CaptureError(
            f"{name} (model_type {model_type}) needs {library[1] if library else 'a library'}, which is not installed "
            f"({_line(error)}); install it, or {_OWN}"
        ) from error
    except Exception as error:  # also those that config classes raise from their own base
        raise CaptureError(
            f"transformers cannot build {name} (model_type {model_type}) from this config ({type(error).__name__}: "
            f"{_line(error)}); complete the file, for example from the config.json of the model that is fine-tuned"
        ) from error


def refusal(module: nn.Module, inputs: Mapping[str, Any], error: Exception) -> CaptureError:
    """The sentence for a step that does not run without data, or not at all."""
    name = f"{type(module).__name__} (model_type {getattr(getattr(module, 'config', None), 'model_type', 'unknown')})"
    if _MIXED.search(str(error)):
        if all(weight.dtype == torch.float32 for weight in module.parameters()):
            return CaptureError(
                f"{name} mixes tensors of fp32 and 16 bits under autocast; write precision fp32 or tf32"
            )
        return CaptureError(
            f"{name} multiplies tensors of fp32 with weights of 16 bits in pure half precision, which PyTorch refuses "
            "in a real step too; write precision amp-bf16, amp-fp16, tf32 or fp32"
        )
    if isinstance(error, NotImplementedError) or "meta tensor" in str(error):
        return CaptureError(
            f"{name} decides by values of its data what it computes, and a config has none; {_OWN} in which "
            "that is fixed"
        )
    return CaptureError(
        f"{name} does not run on the inputs that are made for its head, {_names(inputs)} ({type(error).__name__}: "
        f"{_line(error)}); correct its config or the job's input sizes, or {_OWN}"
    )


def without_loss(module: nn.Module, inputs: Mapping[str, Any]) -> CaptureError:
    """The sentence for a model that returns no loss for its labels."""
    return CaptureError(
        f"{type(module).__name__} returns no loss for {_names(inputs)}, the inputs that are made for its head; {_OWN} "
        "and a loss"
    )


def _names(inputs: Iterable[str]) -> str:
    return ", ".join(inputs)


def _line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:200].rstrip(".")
