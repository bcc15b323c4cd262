"""Kernels that PyTorch lacks on some devices, detected by running each once in a tiny size."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from precision_time.errors import MeasureError
from precision_time.job.job import Job

_UNITS = {"bfloat16": "AVX-512", "float16": "AVX-512-FP16 or AMX-FP16"}
"""Instructions that oneDNN's recurrent primitives need in each dtype (oneDNN documentation, RNN, "Data Types")."""


class UnsupportedError(MeasureError):
    """The device lacks a kernel of the job. Every rank raises it alike, before any communication."""


def check_kernels(module: nn.Module, job: Job, device: torch.device) -> None:
    """Raise `UnsupportedError` if a layer of the module does not run on this device in the job's precision.

    Known case: under autocast on a CPU, PyTorch runs an LSTM with oneDNN in bfloat16 or float16, and oneDNN has these
    primitives only for some CPUs.
    """
    precision = job.precision_spec
    if device.type != "cpu" or not precision.autocast or not any(isinstance(m, nn.LSTM) for m in module.modules()):
        return
    if reason := autocast_lstm_error(precision.compute_dtype):
        raise UnsupportedError(
            f"{job.model} cannot be trained in {job.precision} on this CPU: PyTorch has no LSTM in "
            f"{precision.compute_dtype} here, which needs {_UNITS[precision.compute_dtype]} ({reason}); use fp32"
        )


@cache
def autocast_lstm_error(dtype: str) -> str | None:
    """First sentence of the error that a tiny LSTM raises on the CPU under autocast; None if it runs."""
    lstm = nn.LSTM(8, 8, batch_first=True)
    try:
        with torch.autocast("cpu", dtype=getattr(torch, dtype)):
            out = lstm(torch.ones(1, 2, 8, requires_grad=True))[0]
        out.float().sum().backward()
    except RuntimeError as error:
        return str(error).splitlines()[0].split(". ")[0]
    return None
