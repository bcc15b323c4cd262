"""Limits of a model as a whole: what is legal key by key may still be too long to trace, or absurdly large."""

from __future__ import annotations

from precision_time.capture.graph import OpGraph
from precision_time.errors import CaptureError, JobError

MOST_DISPATCHED = 20_000
"""Most operators and views of a traced micro-step: three to five seconds. FLUX.1, the longest of the zoo, has 15,000;
decoders and encoders of any depth are traced with few layers."""
MOST_BUILT = 15_000
"""Most tensors that building a model makes or fills: about two seconds."""
MOST_BUILT_BY_NAME = 150_000
"""The same of networks that a library fixes by name: MaxViT of timm makes 100,000, which takes ten seconds."""
MOST_TENSOR_BYTES = 2**50
"""Most bytes of one tensor."""
MOST_PARAMETERS = 10**15
"""Most parameters of a model."""


def check_size(graph: OpGraph, parameters: int) -> None:
    """Raise `JobError` if a model has more than `MOST_PARAMETERS`, or a tensor of more than `MOST_TENSOR_BYTES`."""
    if parameters > MOST_PARAMETERS:
        raise JobError(
            f"model {graph.name} has {parameters:.3g} parameters at this model_config; the most are "
            f"{MOST_PARAMETERS:.0e}, so lower its sizes"
        )
    largest = int(graph.storage_bytes.max(initial=0))
    if largest > MOST_TENSOR_BYTES:
        raise JobError(
            f"model {graph.name} has a tensor of {largest:.3g} bytes at this model_config, input and batch_size; the "
            f"most are {MOST_TENSOR_BYTES:.3g}, so lower them"
        )


def most_built(model: str) -> int:
    """Most tensors that building the model makes; `model` is the word of the job."""
    return MOST_BUILT_BY_NAME if model.startswith(("timm:", "torchvision:")) else MOST_BUILT


class OperatorBudget:
    """Counts the operators of a model, and ends the trace or the construction of one that has too many."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most

    def spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise CaptureError(
                f"the model has more than {self._most:,} operators, the most that are built or traced; lower its "
                "layers, or other keys that repeat a part of it"
            )
