"""precision-time: how long a training job takes, what it costs and whether it fits, in any precision, before launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from precision_time.errors import PrecisionTimeError

if TYPE_CHECKING:
    from precision_time.api import predict_time
    from precision_time.client import Client
    from precision_time.comparison import compare
    from precision_time.estimate.estimate import Estimate
    from precision_time.job.job import Job
    from precision_time.prediction import predict

__version__ = "0.1.0"
__all__ = ["Client", "Estimate", "Job", "PrecisionTimeError", "__version__", "compare", "predict", "predict_time"]

_MODULES = {
    "Client": "client",
    "Estimate": "estimate.estimate",
    "Job": "job.job",
    "compare": "comparison",
    "predict": "prediction",
    "predict_time": "api",
}
"""Public name -> the module that defines it."""


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for, so that `import precision_time` stays instant."""
    if name not in _MODULES:
        raise AttributeError(f"module 'precision_time' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"precision_time.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names alone, as completion in an interpreter shows them."""
    return sorted(__all__)
