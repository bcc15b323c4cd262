"""Images of Hugging Face's models of text and images: inputs of one micro-batch, with placeholders among the tokens.

Sizes of images are known, so they are given as values (tensors on the CPU): patches, grids and windows follow from
them. What a model asks of other data is answered for images that fill their batch.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from precision_time.errors import JobError
from precision_time.zoo.meta_tensors import BesideMeta, everything_selected
from precision_time.zoo.models.text import tokens
from precision_time.zoo.workload import Sizes

SIDE = 448
"""Pixels of a side where neither the job nor the config gives one: models that take images of any size."""
_POOLED = 768
"""The same of Gemma 4, whose images have at most 280 tokens of 48 x 48 pixels: 256 of a square."""
FRAMES = 4
"""Frames of a clip of InstructBLIP: transformers' own comment has this number for all."""
_TOWERS = ("vision_tower", "vision_model", "visual", "vision_encoder", "image_encoder", "vision_embed_tokens")
_LANGUAGE = ("language_model", "text_model", "lm_head", "decoder")
_PROJECTORS = ("merger", "projector", "connector", "qformer")
_SQUARES = frozenset(["image_grid_thw", "spatial_shapes", "target_sizes"])
"""Arguments of models that resize their images to whole squares of patches."""
_WHOLE = frozenset(["kimi_k25_vision", "paddleocr_vl_vision"])
"""Towers that take patches with two sides."""
_IN_ONE_ROW = frozenset(["minicpmv4_6_vision", "minicpmv4_7_vision", "minicpm_ocr_vision"])
"""Towers that take the patches of all images in one row, of which 4 x 4 become a token."""
_OF_VISION = re.compile(r"Vision(Encoder)?Config$")
_SEGMENTED, _IMPLEMENTATION = "flash_attention_2", "_attn_implementation"


@dataclass(frozen=True, slots=True)
class Media:
    """Images or sound of a micro-batch.

    inputs        arguments of the model
    placeholders  tokens of a sample whose place they take
    counted       what the model counts of each image, or of the images of each sample
    note          their number and size
    token         the token that has their place
    """

    inputs: dict[str, Any]
    placeholders: int
    counted: int
    note: str
    token: tuple[str, ...] = ("image_token_id", "image_token_index", "video_token_id")


def images_of(module: nn.Module, config: Any, sizes: Sizes) -> Media:
    """The images of one micro-batch. Raises `JobError` for a size that the model's patches do not divide."""
    batch, images = int(sizes["batch_size"]), int(sizes.get("images", 1))
    names = inspect.signature(module.forward).parameters
    if "pixel_values" not in names:
        raise ValueError(f"{type(module).__name__} takes no pixel_values")
    vision = _vision_of(config)
    height, width = sides_of(sizes, vision)
    if _SQUARES & set(names) and not sizes.get("image_size"):
        height, width = (_rounded(side, _square(vision)) for side in (height, width))
    count = batch * images
    channels = int(_first(vision, ("in_channels", "in_chans", "num_channels"), 3))
    inputs: dict[str, Any]
    if "image_grid_thw" in names:
        inputs = _patches(vision, count, height, width, channels)
        if "image_merge_sizes" in names:
            inputs["image_merge_sizes"] = torch.ones(count, dtype=torch.long, device="cpu")  # of images, not of clips
    elif "spatial_shapes" in names or "target_sizes" in names:
        inputs = _rows_of_patches(vision, count, height, width, channels)
    elif "image_position_ids" in names:
        inputs = _positioned(vision, count, height, width, channels)
    elif "pixel_attention_mask" in names:
        inputs = {"pixel_values": torch.zeros(batch, images, channels, height, width)}
    elif "aspect_ratio_ids" in names:
        inputs = _tiles(config, vision, batch, images, channels, height, width)
    elif "qformer_input_ids" in names:
        return _with_question(module, config, sizes, (channels, height, width))
    else:
        inputs = {"pixel_values": torch.zeros(count, channels, height, width)}
        if "high_res_pixel_values" in names:
            fine = sides_of({}, config.high_res_vision_config)
            inputs["high_res_pixel_values"] = torch.zeros(count, channels, *fine)
        features = _features_of(module)
        if "image_sizes" in names and features and "image_sizes" in inspect.signature(features).parameters:
            inputs["image_sizes"] = torch.tensor([[height, width]] * count, device="cpu")
            if hasattr(config, "image_grid_pinpoints"):
                crops = _crops(config, height, width)
                inputs["pixel_values"] = torch.zeros(count, crops, channels, *sides_of({}, vision))
    counted = (
        images
        if "pixel_attention_mask" in names and "spatial_shapes" not in names
        else _merged(config, vision, height, width)
    )
    placeholders = placeholders_of(_features_of(module), inputs, batch, counted)
    if {"image_grid_thw", "mm_token_type_ids", "position_ids"} <= set(names):
        inputs["position_ids"] = tokens(3, batch, int(sizes["seq_len"]) + placeholders)
    note = f"samples have {images} image{'s' * (images != 1)} of {height} x {width} pixels"
    return Media(inputs, placeholders, counted, f"{note}, {placeholders} tokens, beside seq_len tokens of text")


def _with_question(module: nn.Module, config: Any, sizes: Sizes, image: tuple[int, int, int]) -> Media:
    """Images or clips whose queries are made with the text in sight (InstructBLIP): its processor gives all of it."""
    batch, images = int(sizes["batch_size"]), int(sizes.get("images", 1))
    length = min(int(sizes["seq_len"]), int(config.qformer_config.max_position_embeddings))
    frames = int(sizes.get("frames", FRAMES)) if hasattr(module, "get_video_features") else 0
    inputs = {
        "pixel_values": torch.zeros(batch * images, *([frames] if frames else []), *image),
        "qformer_input_ids": tokens(batch * images, length),
    }
    placeholders = images * max(frames, 1) * int(config.num_query_tokens)
    kind = "video" if frames else "image"
    of_frames = f"{frames} frames of " if frames else ""
    return Media(
        inputs,
        placeholders,
        images,
        f"samples have {images} {kind}{'s' * (images != 1)} of {of_frames}{image[1]} x {image[2]} pixels, "
        f"{placeholders} tokens, beside seq_len tokens of text, of which the Q-Former reads {length} with each {kind}",
    )


def freeze(module: nn.Module, what: str) -> str | None:
    """Take the vision tower, the language model or both out of training; the projector between them always is trained.

    `what`: "none", "vision", "language" or "both". Returns a note. Raises `JobError` where the model lacks that part.
    """
    if what == "none":
        return None
    for name, weight in module.named_parameters():
        parts = name.split(".")
        projects = any(word in part for part in parts for word in _PROJECTORS)
        vision = any(part in _TOWERS for part in parts)
        language = not vision and any(part in _LANGUAGE or part == "embed_tokens" for part in parts)
        if not projects and ((vision and what != "language") or (language and what != "vision")):
            weight.requires_grad_(False)
    part = {"vision": "vision tower", "language": "language model", "both": "vision tower and the language model"}[what]
    if all(weight.requires_grad for weight in module.parameters()):
        raise JobError(
            f"model_config freeze {what!r}: no weights of a {part} were found in this model; write freeze=none"
        )
    return f"the weights of the {part} are frozen"


@contextmanager
def images_filled(counted: int) -> Iterator[None]:
    """While a model runs: images of equal size fill the batch, and attention within images is one kernel for all."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    usual = ALL_ATTENTION_FUNCTIONS[_SEGMENTED]
    ALL_ATTENTION_FUNCTIONS[_SEGMENTED] = _segmented_attention
    try:
        with torch.device("cpu"), everything_selected(), _Counts(counted):  # positions and windows have values
            yield
    finally:
        ALL_ATTENTION_FUNCTIONS[_SEGMENTED] = usual


class _Counts(TorchFunctionMode):
    """Models count the images of every sample that are not padding, or the patches of an image, to split features.

    Places of images keep their values where a model moves them to its device, and nothing leaves the meta device.
    """

    def __init__(self, counted: int) -> None:
        self._counted = counted

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.tolist and args[0].is_meta and args[0].ndim == 1:
            return [self._counted] * args[0].shape[0]
        if func in (Tensor.__bool__, Tensor.item) and not args[0].is_meta and args[0].numel() == 1:
            return torch.flatten(args[0]).tolist()[0]
        if func is Tensor.to and (args[0].is_meta or not args[0].is_floating_point()):
            values = (*args[1:], *(kwargs or {}).values())
            if any(isinstance(each, torch.device) and each != args[0].device for each in values):
                return args[0]
        return func(*args, **(kwargs or {}))


def _segmented_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, cu_seq_lens_q: Any = None, **options: Any
) -> tuple[Tensor, None]:
    """Attention within segments of one row of tokens, as flash attention's kernel for variable lengths computes it:
    one call for all segments of one length."""
    scale, causal = options.get("scaling"), bool(options.get("is_causal", getattr(module, "is_causal", False)))
    if cu_seq_lens_q is None or cu_seq_lens_q.is_meta:
        grouped = query.shape[1] != key.shape[1]
        out = F.scaled_dot_product_attention(query, key, value, scale=scale, is_causal=causal, enable_gqa=grouped)
        return out.transpose(1, 2), None
    lengths = cu_seq_lens_q.diff().tolist()
    of_length = {length: lengths.count(length) for length in dict.fromkeys(lengths)}
    done, start = [], 0
    for length, count in of_length.items():
        end = start + count * length
        q, k, v = (x[0, :, start:end].unflatten(1, (count, length)).transpose(0, 1) for x in (query, key, value))
        out = F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=query.shape[1] != key.shape[1])
        done.append(out.transpose(1, 2).flatten(0, 1))
        start = end
    return (done[0] if len(done) == 1 else torch.cat(done)).unsqueeze(0), None


def with_placeholders(config: Any, batch: int, text: int, placeholders: int, token: tuple[str, ...]) -> Tensor:
    """Tokens of a micro-batch whose values say where images or sound are."""
    ids = torch.zeros(batch, placeholders + text, dtype=torch.long, device="cpu")
    for name in token:
        if placeholders and getattr(config, name, 0) is None:
            setattr(config, name, 0)
    place = int(_first(config, token, 0))
    if place == 0:
        ids += 1
    ids[:, :placeholders] = place
    return ids


def use_segments(module: nn.Module) -> None:
    """Let a vision tower that takes images of any size call the kernel that `images_filled` replaces."""
    if "image_grid_thw" not in inspect.signature(module.forward).parameters:
        return
    for part in module.modules():
        config = getattr(part, "config", None)
        if config is not None and part is not module and _OF_VISION.search(type(config).__name__):
            setattr(config, _IMPLEMENTATION, _SEGMENTED)


def placeholders_of(features: Any, inputs: Mapping[str, Any], batch: int, counted: int) -> int:
    """Tokens of a sample that its images or sound take the place of; 0 where the model reads them in another way."""
    if features is None:
        return 0
    names = inspect.signature(features).parameters
    named = {k: v for k, v in inputs.items() if k in names or "args" in names}
    with torch.no_grad(), images_filled(counted), BesideMeta():
        found = features(**named)
    for name in ("pooler_output", "last_hidden_state"):
        found = getattr(found, name, None) if getattr(found, name, None) is not None else found
    found = found if isinstance(found, (list, tuple)) else [found]
    return int(sum(each.shape[:-1].numel() for each in found) // batch)


def _features_of(module: nn.Module) -> Any:
    owners = [module, getattr(module, "model", None)]
    if "image_merge_sizes" in inspect.signature(module.forward).parameters:  # which the module's own method leaves out
        owners.reverse()
    return next((found for each in owners if (found := getattr(each, "get_image_features", None))), None)


def _vision_of(config: Any) -> Any:
    """The part of a config that describes its vision tower, which an encoder of text may hold (T5Gemma 2)."""
    owners = (config, getattr(config, "encoder", None))
    found = (getattr(owner, name, None) for owner in owners for name in ("vision_config", "vision"))
    return next((each for each in found if each), config)


def sides_of(sizes: Mapping[str, Any], vision: Any) -> tuple[int, int]:
    """Height and width of images: the job's, the tower's, or the usual one of towers that take any."""
    usual = _POOLED if hasattr(vision, "pooling_kernel_size") else SIDE
    side = sizes.get("image_size") or getattr(vision, "image_size", None) or usual
    return (side, side) if isinstance(side, int) else (int(side[0]), int(side[1]))


def _first(config: Any, names: tuple[str, ...], default: Any) -> Any:
    return next((value for value in (getattr(config, name, None) for name in names) if value is not None), default)


def _square(vision: Any) -> int:
    """Pixels of a side of the squares that become one token each."""
    merged = 4 if vision.model_type in _IN_ONE_ROW else _first(vision, ("spatial_merge_size", "merge_kernel_size"), 2)
    return int(vision.patch_size) * int(merged if isinstance(merged, int) else merged[0])


def _rounded(side: int, square: int) -> int:
    return max(round(side / square), 1) * square


def _patches(vision: Any, count: int, height: int, width: int, channels: int) -> dict[str, Any]:
    """Images cut into patches by their processor (Qwen-VL, GLM-V); Kimi's keep the two sides of a patch."""
    patch = int(vision.patch_size)
    _check_grid(_square(vision), height, width)
    rows, columns = height // patch, width // patch
    frames = int(_first(vision, ("temporal_patch_size",), 1))
    of_patch = (channels, patch, patch) if vision.model_type in _WHOLE else (channels * frames * patch * patch,)
    return {
        "pixel_values": torch.zeros(count * rows * columns, *of_patch),
        "image_grid_thw": torch.tensor([[1, rows, columns]] * count, device="cpu"),
    }


def _rows_of_patches(vision: Any, count: int, height: int, width: int, channels: int) -> dict[str, Any]:
    """Images cut into patches, with the number of rows and columns of each (LFM2-VL), or all in one row (MiniCPM-V)."""
    patch = int(vision.patch_size)
    _check_grid(_square(vision), height, width)
    rows, columns = height // patch, width // patch
    shapes = torch.tensor([[rows, columns]] * count, device="cpu")
    if vision.model_type in _IN_ONE_ROW:
        return {"pixel_values": torch.zeros(1, channels, patch, patch * count * rows * columns), "target_sizes": shapes}
    return {
        "pixel_values": torch.zeros(count, rows * columns, channels * patch * patch),
        "pixel_attention_mask": torch.ones(count, rows * columns, dtype=torch.long, device="cpu"),
        "spatial_shapes": shapes,
    }


def _check_grid(grid: int, height: int, width: int) -> None:
    """Raises `JobError` for a size that is no multiple of the squares to which the model resizes its images."""
    if height % grid or width % grid:
        near = f"{_rounded(height, grid)}x{_rounded(width, grid)}"
        raise JobError(
            f"input image_size {height}x{width} does not divide into squares of {grid} pixels, to which this model "
            f"resizes its images; write image_size={near}"
        )


def _positioned(vision: Any, count: int, height: int, width: int, channels: int) -> dict[str, Any]:
    """Images cut into patches by their processor, each with its place (Gemma 4)."""
    patch = int(vision.patch_size)
    _check_grid(patch * int(vision.pooling_kernel_size), height, width)
    rows, columns = height // patch, width // patch
    with torch.device("cpu"):
        places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).flip(-1)
    return {
        "pixel_values": torch.zeros(count, rows * columns, channels * patch * patch),
        "image_position_ids": places.expand(count, -1, -1).contiguous(),
    }


def _merged(config: Any, vision: Any, height: int, width: int) -> int:
    """Patches of an image that are left where squares of them are merged."""
    patch = _first(vision, ("patch_size",), 1)
    side = (patch if isinstance(patch, int) else int(patch[0])) * int(_first(config, ("spatial_merge_size",), 1))
    return (height // side) * (width // side)


def _tiles(config: Any, vision: Any, batch: int, images: int, channels: int, height: int, width: int) -> dict[str, Any]:
    """Images of as many tiles as the model has at most (Llama 3.2)."""
    tiles = int(vision.max_num_tiles)
    return {
        "pixel_values": torch.zeros(batch, images, tiles, channels, height, width),
        "aspect_ratio_ids": tokens(batch, images),
        "aspect_ratio_mask": tokens(batch, images, tiles),
    }


def _crops(config: Any, height: int, width: int) -> int:
    """Parts of an image beside the whole one, by the library's own rule (LLaVA-NeXT)."""
    from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

    side = config.vision_config.image_size
    return int(image_size_to_num_patches([height, width], config.image_grid_pinpoints, side))
