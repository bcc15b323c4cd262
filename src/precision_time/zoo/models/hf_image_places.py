"""Images of models that are told more of them than pixels: where they are, who attends to them, which patches to pool.

Molmo 2 pools patches of overlapping crops, Kosmos has a mask of places, and Idefics attends to images from every text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from precision_time.errors import JobError
from precision_time.zoo.models.hf_images import Media, sides_of
from precision_time.zoo.models.text import tokens
from precision_time.zoo.workload import Sizes


def images_by(names: Collection[str]) -> Callable[..., Media] | None:
    """What makes the images of a model whose forward takes the arguments `names`; None for a model of `images_of`."""
    return next((made for name, made in _BY_ARGUMENT.items() if name in names), None)


def _pooled_crops(module: nn.Module, config: Any, sizes: Sizes) -> Media:
    """The whole image and overlapping crops of it, by the library's own rules (Molmo 2); squares of patches become
    tokens."""
    from transformers.models.molmo2 import image_processing_molmo2 as rules

    vision, processor = config.vision_config, rules.Molmo2ImageProcessor
    height, width = sides_of(sizes, vision)
    patch, side = int(vision.patch_size), int(vision.image_size[0])
    with torch.device("cpu"):
        *crops, canvas_height, canvas_width = rules.compute_crop_geometry(
            height, width, processor.max_crops, processor.overlap_margins, side, patch
        )
        views = (side // patch, side // patch), (canvas_height // patch, canvas_width // patch)
        grids, pooled = [], []
        for rows, columns in views:
            places = torch.arange(rows * columns).view(rows, columns)
            window, *grid = rules.arange_for_pooling(places, *processor.pooling_size)
            pooled.append(window)
            grids += grid
        batch, images = int(sizes["batch_size"]), int(sizes.get("images", 1))
        count = batch * images
        pooling = torch.cat(pooled).repeat(count, 1)
        image_grids = torch.tensor([grids] * count)
    cropped = 1 + crops[0] * crops[1]
    placeholders = pooling.shape[0] // batch
    inputs = {
        "pixel_values": torch.zeros(count * cropped, (side // patch) ** 2, patch * patch * int(vision.num_channels)),
        "image_token_pooling": pooling,
        "image_grids": image_grids,
        "mm_token_type_ids": tokens(batch, placeholders + int(sizes["seq_len"])),
    }
    note = f"samples have {images} image{'s' * (images != 1)} of {height} x {width} pixels in {cropped} crops"
    return Media(inputs, placeholders, images, f"{note}, {placeholders} tokens, beside seq_len tokens of text")


def _masked_places(module: nn.Module, config: Any, sizes: Sizes) -> Media:
    """One image, whose tokens are as many as a projection has queries, and a mask of their places (Kosmos)."""
    batch, length = int(sizes["batch_size"]), int(sizes["seq_len"])
    if int(sizes.get("images", 1)) != 1:
        raise JobError(f"input images {sizes['images']}: a text of {config.model_type} has one image; leave images out")
    vision, queries = config.vision_config, int(config.latent_query_num)
    inputs: dict[str, Any]
    if hasattr(vision, "max_num_patches"):
        patches = int(vision.max_num_patches)  # to which its processor pads, two more values say where a patch is
        inputs = {"flattened_patches": torch.zeros(batch, patches, 2 + int(vision.patch_embed_hidden_size))}
        size = f"{patches} patches"
    else:
        height, width = sides_of(sizes, vision)
        inputs = {"pixel_values": torch.zeros(batch, int(vision.num_channels), height, width)}
        size = f"{height} x {width} pixels"
    with torch.device("cpu"):
        inputs["image_embeds_position_mask"] = (torch.arange(queries + length) < queries).expand(batch, -1).long()
    return Media(inputs, queries, 1, f"samples have 1 image of {size}, {queries} tokens, beside seq_len tokens of text")


def _attended(module: nn.Module, config: Any, sizes: Sizes) -> Media:
    """Images to which cross-attention of every text leads (Idefics): they take the place of no token."""
    batch, images = int(sizes["batch_size"]), int(sizes.get("images", 1))
    vision = config.vision_config
    height, width = sides_of(sizes, vision)
    inputs = {
        "pixel_values": torch.zeros(batch, images, int(vision.num_channels), height, width),
        "image_attention_mask": tokens(batch, int(sizes["seq_len"]), images),
    }
    note = f"samples have {images} image{'s' * (images != 1)} of {height} x {width} pixels"
    return Media(inputs, 0, images, f"{note}, to which seq_len tokens of text attend")


_BY_ARGUMENT: dict[str, Callable[..., Media]] = {
    "image_token_pooling": _pooled_crops,
    "image_embeds_position_mask": _masked_places,
    "image_attention_mask": _attended,
}
"""Argument of a model's forward -> what makes its images."""
