"""Vision workloads: inputs and optimizers of the runs behind the published rows.

`parameters` is 0 where nobody published a count for exactly this head. The builders of such detectors are
checked in another way: with 91 classes R-CNN and RetinaNet have the counts of torchvision's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precision_time.zoo.workload import BATCH, Symbol, ZooEntry

PAIRS = Symbol("batch_size", (4, 6, 8), 10, degree=2, apart=1)
"""Of a contrastive loss, which compares every image with every text."""
IMAGE = Symbol("image_size", (128, 160, 224), 288, degree=2, multiple_of=32, apart=32)

TORCHVISION = "torchvision model documentation"
PADDED_COCO = {"image_size": (832, 1344)}
NNUNET = {"kernel": 3, "norm": "instance", "classes": 4, "inplace": 0}
SMOOTH = {"classes": 1000, "label_smoothing": 0.1}

_CNNS = (
    *(
        ZooEntry(
            f"resnet{depth}", "models.resnet:build", "resnet", {"image_size": 224}, "sgd", "imagenet", 256,
            config={"depth": depth, "variant": "v1.5", **SMOOTH}, symbols=(BATCH, IMAGE),
            parameters=count, parameters_source=TORCHVISION,
        )
        for depth, count in ((18, 11_689_512), (34, 21_797_672), (101, 44_549_160), (152, 60_192_808))
    ),
    ZooEntry(
        "resnet50", "models.resnet:build", "resnet", {"image_size": 224}, "sgd", "imagenet", 256,
        config={"depth": 50, "variant": "v1.5", **SMOOTH}, symbols=(BATCH, IMAGE),
        parameters=25_557_032, parameters_source=TORCHVISION,
    ),
    ZooEntry(
        "resnext101-32x4d", "models.resnet:build", "resnet", {"image_size": 224}, "sgd", "imagenet", 128,
        config={"depth": 101, "groups": 32, "group_width": 4, **SMOOTH}, symbols=(BATCH, IMAGE),
        parameters=44_177_704, parameters_source="timm resnext101_32x4d",
    ),
    ZooEntry(
        "se-resnext101-32x4d", "models.resnet:build", "resnet", {"image_size": 224}, "sgd", "imagenet", 128,
        config={"depth": 101, "groups": 32, "group_width": 4, "squeeze_excite": 1, **SMOOTH},
        symbols=(BATCH, IMAGE),
        parameters=48_955_416, parameters_source="timm seresnext101_32x4d",
    ),
    ZooEntry(
        "efficientnet-b0", "models.efficientnet:build", "efficientnet", {"image_size": 224}, "rmsprop",
        "imagenet", 256,
        config={"variant": "b0", "dropout": 0.2, "inplace": 1, **SMOOTH}, symbols=(BATCH, IMAGE),
        parameters=5_288_548, parameters_source=TORCHVISION,
    ),
    ZooEntry(
        "efficientnet-b4", "models.efficientnet:build", "efficientnet", {"image_size": 380}, "rmsprop",
        "imagenet", 128,
        config={"variant": "b4", "dropout": 0.4, "survival": 0.8, "inplace": 1, **SMOOTH},
        parameters=19_341_616, parameters_source=TORCHVISION,
    ),
    ZooEntry(
        "efficientnet-widese-b0", "models.efficientnet:build", "efficientnet", {"image_size": 224}, "rmsprop",
        "imagenet", 256,
        config={"variant": "b0", "wide_squeeze": 1, "inplace": 1, "dropout": 0.2, **SMOOTH},
        symbols=(BATCH, IMAGE),
    ),
    ZooEntry(
        "efficientnet-widese-b4", "models.efficientnet:build", "efficientnet", {"image_size": 380}, "rmsprop",
        "imagenet", 128,
        config={"variant": "b4", "wide_squeeze": 1, "inplace": 1, "dropout": 0.4, "survival": 0.8, **SMOOTH},
    ),
    ZooEntry(
        "efficientnetv2-s", "models.efficientnet:build", "efficientnet", {"image_size": 300}, "rmsprop",
        "imagenet", 128,
        config={"variant": "v2-s", "dropout": 0.2, "survival": 0.8, **SMOOTH},
        parameters=21_458_488, parameters_source=TORCHVISION,
    ),
    *(
        ZooEntry(
            f"gpunet-{variant}", "models.gpunet:build", "gpunet", {"image_size": side}, "rmsprop",
            "imagenet", 192,
            config={"variant": variant, "drop_path": 0.2, "dropout": 0.2, **SMOOTH}, symbols=(BATCH, IMAGE),
            ema="single", parameters=count,
            parameters_source="rounded to 0.1 M, GPUNet paper (arXiv:2205.00841), recalled, not re-read",
        )
        for variant, side, count in (("0", 320, 11_900_000), ("1", 288, 12_700_000), ("2", 384, 25_800_000))
    ),
)  # fmt: skip

_DETECTORS = (
    ZooEntry(
        "efficientdet-d0", "models.efficientdet:build", "efficientdet", {"image_size": 512}, "sgd",
        "coco", 60,
        config={"classes": 90}, clip_norm=10.0, optimizer_impl="fused", ema="foreach",
        parameters=3_880_000,
        parameters_source="rounded to 0.01 M, README of rwightman/efficientdet-pytorch, recalled, not re-read",
    ),
    ZooEntry(
        "ssd300-resnet50", "models.ssd:build", "ssd", {"image_size": 300}, "sgd", "coco", 128,
        config={"backbone": "resnet50", "classes": 81, "anchors": 8732},
    ),
    ZooEntry(
        "ssd300-resnet34", "models.ssd:build", "ssd", {"image_size": 300}, "sgd", "coco", 32,
        config={"backbone": "resnet34", "classes": 81, "anchors": 8732},
    ),
    *(
        ZooEntry(
            f"yolov8{size}", "models.yolo:build", "yolo", {"image_size": 640}, "sgd", "coco", 16,
            config={
                "depth_multiple": depth, "width_multiple": width, "max_channels": widest, "classes": 80, "objects": 32,
            },
            symbols=(BATCH, IMAGE), clip_norm=10.0, parameters=count,
            parameters_source=f"ultralytics yolov8.yaml ({count + 16:,} with the 16 constants of its distances)",
        )
        for size, depth, width, widest, count in (
            ("n", 0.33, 0.25, 1024, 3_157_184), ("s", 0.33, 0.5, 1024, 11_166_544), ("m", 0.67, 0.75, 768, 25_902_624),
            ("l", 1.0, 1.0, 512, 43_691_504), ("x", 1.0, 1.25, 512, 68_229_632),
        )
    ),
    ZooEntry(
        "retinanet-resnext50", "models.retinanet:build", "retinanet", {"image_size": 800}, "adam",
        "openimages", 16,
        config={"groups": 32, "group_width": 4, "classes": 264, "objects": 8},
        scripted=True,
    ),
    *(
        ZooEntry(
            f"{kind}-{backbone}-fpn", "models.rcnn:build", "rcnn", PADDED_COCO, "sgd", "coco", batch,
            config={"masks": masks, "classes": 81, "objects": 8, **body},
            optimizer_impl="fused",
            scripted=True,  # assumed of MLPerf's runs, which have kernels for frozen norms with their ReLU
        )
        for kind, masks in (("maskrcnn", 1), ("fasterrcnn", 0))
        for backbone, batch, body in (
            ("r50", 4, {"depth": 50}),
            ("r101", 2, {"depth": 101}),
            ("x101-32x8d", 1, {"depth": 101, "groups": 32, "group_width": 8}),
        )
    ),
)  # fmt: skip

_SEGMENTERS = (
    ZooEntry(
        "nnunet-2d", "models.unet:build", "unet", {"image_size": (192, 160), "channels": 4}, "adam",
        "brats", 64,
        config={"dims": 2, "filters": (32, 64, 128, 256, 512, 512), **NNUNET}, optimizer_impl="fused",
    ),
    ZooEntry(
        "nnunet-3d", "models.unet:build", "unet", {"volume": 128, "channels": 4}, "adam", "brats", 2,
        config={"dims": 3, "filters": (32, 64, 128, 256, 320, 320), "fused_norm": 1, **NNUNET},
        optimizer_impl="fused",
    ),
    ZooEntry(
        "unet2d-medical", "models.unet_classic:build_medical", "unet", {"image_size": 572, "channels": 1},
        "adam",
        "isbi-em", 8,
        config={"classes": 2},
    ),
    ZooEntry(
        "unet3d-medical", "models.unet:build", "unet", {"volume": 128, "channels": 4}, "adam", "brats", 2,
        config={
            "dims": 3, "filters": (32, 64, 128, 256, 320, 320), "kernel": 3, "norm": "instance", "classes": 4,
            "out_kernel": 3, "dice_over_batch": 0,
        },
    ),
    ZooEntry(
        "unet3d", "models.unet:build", "unet", {"volume": 128, "channels": 1}, "sgd", "kits19", 2,
        config={
            "dims": 3, "filters": (32, 64, 128, 256, 320, 320), "kernel": 3, "norm": "instance", "classes": 3,
            "slope": 0.0, "dice_over_batch": 0,
        },
    ),
    ZooEntry(
        # A comment in the repository says 1,824,945 parameters; its layers, built here, have 1,850,305.
        "unet-industrial", "models.unet_classic:build_industrial", "unet", {"image_size": 512,
        "channels": 1}, "rmsprop",
        "dagm2007", 16,
        config={"filters": (32, 32, 64, 128, 256)},
    ),
    *(
        ZooEntry(
            name, f"models.unet_variants:build_{kind}", "unet", {"image_size": side}, "adam", "", batch,
            config={"classes": classes, "filters": filters, **more}, symbols=(BATCH, IMAGE), parameters=count,
            parameters_source=source,
        )
        for name, kind, side, batch, classes, filters, more, count, source in (
            ("unet-2d", "padded", 512, 8, 2, (64, 128, 256, 512, 1024), {}, 31_037_698,
             "milesial/Pytorch-UNet with 3 channels and 2 classes, as projects that train it state"),
            ("attention-unet", "attention", 512, 8, 1, (64, 128, 256, 512, 1024), {}, 34_878_573,
             "LeeJunHyun/Image_Segmentation AttU_Net, as projects that train it state"),
            ("resunet", "residual", 224, 8, 1, (64, 128, 256, 512), {}, 0, ""),
            ("unet-resnet34", "encoder", 512, 16, 1, (256, 128, 64, 32, 16), {"depth": 34}, 24_436_369,
             "segmentation_models_pytorch 0.6.0, Unet with resnet34"),
            ("unet-resnet50", "encoder", 512, 16, 1, (256, 128, 64, 32, 16), {"depth": 50}, 32_521_105,
             "segmentation_models_pytorch 0.6.0, Unet with resnet50"),
        )
    ),
    ZooEntry(
        "vnet", "models.vnet:build", "unet", {"volume": 32, "channels": 1}, "rmsprop", "msd-hippocampus", 32,
        config={"filters": 16, "down": (3, 3, 3), "up": (3, 3), "kernel": 3, "classes": 3},
    ),
)  # fmt: skip


def _torchvision(
    name: str, model: str, family: str, optimizer: str, batch: int, count: int, side: int = 224, **more: Any
) -> ZooEntry:
    smoothing = float(more.pop("label_smoothing", 0.0))
    config: Mapping[str, Any] = {"name": model, "classes": 1000, "label_smoothing": smoothing}
    return ZooEntry(
        name,
        "models.torchvision_models:build_torchvision",
        family,
        {"image_size": side},
        optimizer,
        "imagenet",
        batch,
        config=config,
        parameters=count,
        parameters_source=TORCHVISION,
        **more,
    )


_TORCHVISION = (
    _torchvision("vit-b-16", "vit_b_16", "vit", "adamw", 128, 86_567_656, label_smoothing=0.11, clip_norm=1.0,
                 attention=True),
    _torchvision("vit-l-16", "vit_l_16", "vit", "adamw", 64, 304_326_632, label_smoothing=0.11, clip_norm=1.0,
                 attention=True),
    _torchvision("vit-h-14", "vit_h_14", "vit", "adamw", 32, 632_045_800, label_smoothing=0.11, clip_norm=1.0,
                 attention=True),
    _torchvision("swin-t", "swin_t", "swin", "adamw", 128, 28_288_354, label_smoothing=0.1, clip_norm=5.0),
    _torchvision("swin-s", "swin_s", "swin", "adamw", 128, 49_606_258, label_smoothing=0.1, clip_norm=5.0),
    _torchvision("swin-b", "swin_b", "swin", "adamw", 64, 87_768_224, label_smoothing=0.1, clip_norm=5.0),
    _torchvision("convnext-t", "convnext_tiny", "convnext", "adamw", 128, 28_589_128, label_smoothing=0.1,
                 symbols=(BATCH, IMAGE)),
    _torchvision("convnext-s", "convnext_small", "convnext", "adamw", 64, 50_223_688, label_smoothing=0.1,
                 symbols=(BATCH, IMAGE), ships=False),
    _torchvision("convnext-b", "convnext_base", "convnext", "adamw", 64, 88_591_464, label_smoothing=0.1,
                 symbols=(BATCH, IMAGE)),
    _torchvision("convnext-l", "convnext_large", "convnext", "adamw", 64, 197_767_336, label_smoothing=0.1,
                 symbols=(BATCH, IMAGE), ships=False),
    _torchvision("vgg16", "vgg16", "vgg", "sgd", 64, 138_357_544, symbols=(BATCH, IMAGE)),
    _torchvision("inception-v3", "inception_v3", "inception", "sgd", 128, 27_161_264, side=299),
    _torchvision("densenet121", "densenet121", "densenet", "sgd", 128, 7_978_856, symbols=(BATCH, IMAGE)),
    _torchvision("mobilenet-v3-large", "mobilenet_v3_large", "mobilenet", "rmsprop", 256, 5_483_032,
                 symbols=(BATCH, IMAGE)),
)  # fmt: skip

_BACKBONES = (
    *(
        ZooEntry(
            f"dinov2-{size}-14", "models.torchvision_models:build_timm", "vit", {"image_size": 224}, "adamw",
            "imagenet", batch,
            config={"name": model, "classes": 1000, "label_smoothing": 0.1}, clip_norm=1.0, attention=True,
            ships_math=False, parameters=count - (37**2 - 16**2) * hidden + hidden * 1000 + 1000,
            parameters_source=f"timm {model} ({count:,} at 518 pixels) at 224, with a head of 1,000 classes",
        )
        for size, model, batch, hidden, count in (
            ("s", "vit_small_patch14_dinov2", 256, 384, 22_056_192),
            ("b", "vit_base_patch14_dinov2", 128, 768, 86_579_712),
            ("l", "vit_large_patch14_dinov2", 64, 1024, 304_367_616),
        )
    ),
    *(
        ZooEntry(
            f"sam-{size}", "models.transformers_models:build_sam", "sam", {"image_size": 1024}, "adamw", "", 4,
            config={"layers": layers, "hidden": hidden, "heads": heads, "ffn": 4 * hidden}, attention=True,
            ships_math=False, ships=ships, parameters=count, parameters_source=f"transformers SamModel, sam-vit-{name}",
        )
        for size, name, layers, hidden, heads, count, ships in (
            ("b", "base", 12, 768, 12, 93_735_728, True),
            ("h", "huge", 32, 1280, 16, 641_090_864, False),
        )
    ),
    *(
        ZooEntry(
            name, "models.transformers_models:build_clip", "clip", {"image_size": side, "text_tokens": length}, "adamw",
            "", batch,
            config={
                "variant": variant, "layers": layers, "hidden": hidden, "heads": heads, "ffn": 4 * hidden,
                "patch": patch, "text_hidden": text, "text_heads": text // 64, "vocab": vocab,
            },
            symbols=(PAIRS,), attention=True, ships_math=False, parameters=count,
            parameters_source=f"transformers {source}",
        )
        for name, variant, side, length, batch, layers, hidden, heads, patch, text, vocab, count, source in (
            ("clip-b-32", "clip", 224, 77, 256, 12, 768, 12, 32, 512, 49408, 151_277_313,
             "CLIPModel, clip-vit-base-patch32"),
            ("clip-l-14", "clip", 224, 77, 64, 24, 1024, 16, 14, 768, 49408, 427_616_513,
             "CLIPModel, clip-vit-large-patch14"),
            ("siglip-b-16", "siglip", 224, 64, 128, 12, 768, 12, 16, 768, 32000, 203_155_970,
             "SiglipModel, siglip-base-patch16-224"),
        )
    ),
)  # fmt: skip

ENTRIES: tuple[ZooEntry, ...] = (*_CNNS, *_DETECTORS, *_SEGMENTERS, *_TORCHVISION, *_BACKBONES)
