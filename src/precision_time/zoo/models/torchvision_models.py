"""Classifiers (and per-pixel classifiers) of torchvision and timm, by name, without weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from precision_time.errors import CaptureError, JobError, MissingExtraError, nearest
from precision_time.zoo.models.vision_common import image, spatial
from precision_time.zoo.workload import Config, Sizes, Workload

AUXILIARY_WEIGHT = {"InceptionOutputs": 0.4, "GoogLeNetOutputs": 0.3, "OrderedDict": 0.5}
"""Weight of the auxiliary classifiers in torchvision's training scripts, by the type of the output."""
NOT_CLASSIFIERS = ("rcnn", "retinanet", "ssd", "fcos", "raft", "quantized")


def predictions(output: Any) -> list[tuple[float, torch.Tensor]]:
    """The tensors of a model's output that are compared with labels, each with its weight."""
    if isinstance(output, torch.Tensor):
        return [(1.0, output)]
    weight = AUXILIARY_WEIGHT.get(type(output).__name__)
    if weight is None:
        raise CaptureError(f"the model returns {type(output).__name__}, only class scores have a ready loss")
    main, *others = output.values() if isinstance(output, dict) else output
    return [(1.0, main), *((weight, other) for other in others if other is not None)]


def cross_entropy(smoothing: float) -> Callable[[nn.Module, dict[str, torch.Tensor]], torch.Tensor]:
    def loss(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        (_, first), *others = predictions(model(inputs["image"]))
        total = F.cross_entropy(first, inputs["label"], label_smoothing=smoothing)
        for weight, other in others:
            total = total + weight * F.cross_entropy(other, inputs["label"], label_smoothing=smoothing)
        return total

    return loss


def create(make: Callable[[], nn.Module]) -> nn.Module:
    """Construct on the current device; where a constructor reads values, on the CPU, and move the result."""
    try:
        return make()
    except (NotImplementedError, RuntimeError):
        device = torch.empty(0).device
        with torch.device("cpu"):
            return make().to(device)


def labelled(module: nn.Module, picture: torch.Tensor, dense: bool, config: Config) -> Workload:
    shape = (picture.shape[0], *picture.shape[-2:]) if dense else (picture.shape[0],)
    inputs = {"image": picture, "label": torch.zeros(shape, dtype=torch.int64)}
    return Workload(module, inputs, cross_entropy(float(config.get("label_smoothing", 0.0))))


def build_torchvision(config: Config, sizes: Sizes) -> Workload:
    """`config["name"]` names a model of torchvision.models, its `segmentation` models included."""
    try:
        from torchvision import models
    except ImportError as missing:
        raise MissingExtraError("torchvision is not installed; pip install 'precision-time[models]'") from missing
    name = str(config["name"])
    if name not in models.list_models():
        raise JobError(f"torchvision has no model {name}; nearest: {nearest(name, models.list_models())}")
    if any(part in name for part in NOT_CLASSIFIERS):
        raise JobError(f"torchvision:{name} is no classifier; give a file.py:function with its loss instead")
    builder = models.get_model_builder(name)
    dense = ".segmentation." in builder.__module__
    options: dict[str, Any] = {"num_classes": int(config["classes"])} if "classes" in config else {}
    if dense:
        options |= {"weights_backbone": None, "aux_loss": True} if "lraspp" not in name else {"weights_backbone": None}
    accepted = inspect.signature(builder).parameters
    if name in ("inception_v3", "googlenet"):
        options |= {"aux_logits": True, "init_weights": False}
    if name.startswith("vit_"):
        options["image_size"] = spatial(sizes)[0]
    elif "kwargs" not in accepted:
        options = {key: value for key, value in options.items() if key in accepted}
    module = create(lambda: models.get_model(name, weights=None, **options))
    if ".video." in builder.__module__:
        clip = torch.randn(int(sizes["batch_size"]), 3, int(sizes.get("frames", 16)), *spatial(sizes))
        return labelled(module, clip, False, config)
    return labelled(module, image(sizes), dense, config)


_OTHERWISE_SMALLER = {
    "ig_resnext101_32x16d": "resnext101_32x16d.fb_wsl_ig1b_ft_in1k",
    "ig_resnext101_32x32d": "resnext101_32x32d.fb_wsl_ig1b_ft_in1k",
}
"""Old names that timm 1.0.31 takes for resnext101_32x8d, with what they named."""


def build_timm(config: Config, sizes: Sizes) -> Workload:
    """`config["name"]` names a model of timm; models of a fixed input get `image_size` as `img_size`.

    `config["fast_norm"]`: its norms run in the dtype of autocast (`--fast-norm` of timm's scripts, without Apex).
    """
    try:
        import timm
    except ImportError as missing:
        raise MissingExtraError("timm is not installed; pip install 'precision-time[models]'") from missing
    name = str(config["name"])
    if not timm.is_model(name):
        raise JobError(f"timm has no model {name}; nearest: {nearest(name, timm.list_models())}")
    if name == "ig_resnext101_32x48d":
        raise JobError(
            f"timm builds another network under the name {name}, resnext101_32x8d; take ig_resnext101_32x32d"
        )
    options: dict[str, Any] = {"num_classes": int(config["classes"])} if "classes" in config else {}
    # Renamed models keep their old names as aliases of an architecture with a tag, which decides the number of classes.
    name = _OTHERWISE_SMALLER.get(name) or timm.models.get_deprecated_models().get(name) or name
    try:
        expected = timm.get_pretrained_cfg(name)
    except RuntimeError:  # the weights of that tag are gone
        name = name.partition(".")[0]
        expected = timm.get_pretrained_cfg(name)
    resolution = expected.input_size[-2:] if expected is not None else (224, 224)
    sizes = {"image_size": resolution, **sizes}
    if tuple(spatial(sizes)) != tuple(resolution) and (expected is None or expected.fixed_input_size):
        options["img_size"] = spatial(sizes)
    module = create(lambda: _timm_module(name, options, bool(config.get("fast_norm"))))
    return labelled(module, image(sizes), False, config)


def _timm_module(name: str, options: dict[str, Any], fast_norm: bool) -> Any:
    """A model of timm without weights. `img_size` is left out where the model takes images of any size."""
    import timm
    from timm.layers import is_fast_norm, set_fast_norm

    before = is_fast_norm()
    set_fast_norm(fast_norm)  # timm has no argument for it
    try:
        return timm.create_model(name, pretrained=False, **options)
    except TypeError as error:
        if "img_size" not in str(error):
            raise
        rest = {key: value for key, value in options.items() if key != "img_size"}
        return timm.create_model(name, pretrained=False, **rest)
    finally:
        set_fast_norm(before)
