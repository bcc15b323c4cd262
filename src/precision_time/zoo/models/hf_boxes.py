"""Detectors of Hugging Face: images with boxes, and the loss of predictions that the host matches to them.

The cost of all pairs is computed and the assignment is not: the loss is that of as many pairs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from precision_time.errors import JobError
from precision_time.zoo.meta_tensors import everything_selected
from precision_time.zoo.models.hf_batch import Batch, image, own_loss
from precision_time.zoo.models.text import tokens
from precision_time.zoo.workload import Sizes

BOXES = 7
"""Boxes of an image: COCO has 7.3 in the mean (Lin et al. 2014, arXiv:1405.0312, figure 5)."""


def detection(config: Any, sizes: Sizes) -> Batch:
    if config.model_type.startswith("pp_"):
        raise JobError(
            f"model_type {config.model_type} has no loss in transformers, which only runs its trained weights; give "
            "your own module (FILE.py:FUNCTION) and a loss"
        )
    side = sizes.get("image_size", getattr(config, "image_size", None)) or _DETECTED.get(config.model_type, (800, 1066))
    inputs = image(config, {**sizes, "image_size": side})
    batch, _, height, width = inputs["pixel_values"].shape
    with torch.device("cpu"):  # how many there are is known
        labels = [{"class_labels": tokens(BOXES), "boxes": torch.zeros(BOXES, 4)} for _ in range(batch)]

    def loss(module: nn.Module, inputs: dict[str, Any]) -> Tensor:
        with _matched():
            return own_loss(module, {**inputs, "labels": labels})

    note = (
        f"images have {height} x {width} pixels and {BOXES} boxes; predictions are matched to boxes on the host, which "
        "takes its own time: the step has the costs of all pairs and the loss of the matched ones"
    )
    return Batch(inputs, loss, (note,))


_DETECTED = {
    **dict.fromkeys(("d_fine", "deimv2", "lw_detr", "rt_detr", "rt_detr_v2", "yolos"), 640),
    "rf_detr": 560,
}
"""Side of the images of detectors that take one size; the others take 800 pixels and the image's own ratio, of COCO's
640 x 480."""


_SOLVER = "linear_sum_assignment"
"""SciPy's solver of assignments, as transformers' modules name it."""
_DENSE_LOSS, _UNION = "Deimv2Loss", "_get_dense_o2o_indices"
"""The loss whose boxes are those that any layer matched, and what finds them on the host: here all match the same."""


@contextmanager
def _matched() -> Iterator[None]:
    """While a detector's loss runs: assignments as solvers return them, which is what the host would compute."""
    import numpy as np

    def assigned(costs: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        first = np.arange(min(costs.shape))
        return first, first

    def of_all_layers(_: Any, indices: Any, __: Any) -> Any:
        return indices

    modules = [each for name, each in sys.modules.items() if name.startswith("transformers.")]
    replaced: list[tuple[Any, str, Any, Any]]
    replaced = [(each, _SOLVER, vars(each)[_SOLVER], assigned) for each in modules if _SOLVER in vars(each)]
    losses = [vars(each)[_DENSE_LOSS] for each in modules if _DENSE_LOSS in vars(each)]
    replaced += [(each, _UNION, vars(each)[_UNION], of_all_layers) for each in dict.fromkeys(losses)]
    for owner, name, _, stand_in in replaced:
        setattr(owner, name, stand_in)
    try:
        with everything_selected(), _OnHost():
            yield
    finally:
        for owner, name, usual, _ in replaced:
            setattr(owner, name, usual)


class _OnHost(TorchFunctionMode):
    """Copies to the host keep their shape, and the number of boxes, which only divides the loss, is one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.cpu and args[0].is_meta:
            return args[0]
        if func is Tensor.item and args[0].is_meta and args[0].dtype != torch.bool:
            return 1
        if func is torch.equal and args[0].is_meta:  # a layer's own prediction, or that of the last one (D-FINE)
            return args[0] is args[1]
        return func(*args, **(kwargs or {}))
