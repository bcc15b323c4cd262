"""Small networks: well-known architectures that one core trains over a few hundred images in seconds.

Images have 32 pixels and ten classes (CIFAR-10) by default; Tiny ImageNet is `image_size=64` with `classes=200`. Their
graphs are traced when needed. Most are narrower than in their papers, so no parameter count is published;
tests build them at the papers' sizes.
"""

from __future__ import annotations

from typing import Any

from precision_time.zoo.workload import ZooEntry


def _small(name: str, builder: str, family: str, optimizer: str = "sgd", /, **config: Any) -> ZooEntry:
    return ZooEntry(
        f"small-{name}",
        f"models.{builder}",
        family,
        {"image_size": 32},
        optimizer,
        "cifar10",
        32,
        config={**config, "classes": 10},
        ships=False,
    )


def _torchvision(name: str, family: str, optimizer: str = "sgd") -> ZooEntry:
    return _small(name, "small_compact:build_torchvision", family, optimizer, name=name)


_CNNS = (
    _small("lenet5", "small_residual:build_lenet", "lenet"),
    _small("alexnet", "small_residual:build_alexnet", "alexnet", width=24, hidden=256),
    _small("nin", "small_residual:build_network_in_network", "network-in-network", width=24),
    _small("vgg11", "small_residual:build_vgg", "vgg", depth=11, width=16),
    _small("resnet20", "small_residual:build_resnet", "resnet", depth=20, width=8, squeeze_excite=0),
    _small("se-resnet20", "small_residual:build_resnet", "resnet", depth=20, width=8, squeeze_excite=1),
    _small("wide-resnet10", "small_residual:build_wide_resnet", "resnet", depth=10, width=8, widen=2),
    _small("resnext20", "small_residual:build_resnext", "resnet", depth=20, width=16, groups=4),
    _small("densenet16", "small_compact:build_densenet", "densenet", depth=16, growth=8),
    _small("mobilenet-v1", "small_compact:build_mobilenet_v1", "mobilenet", width=8),
    _small("inception", "small_compact:build_inception", "inception", divide=8),
    _small("convmixer", "small_compact:build_convmixer", "convmixer", "adamw", width=64, layers=6, patch=4, kernel=5),
    _torchvision("mobilenet-v2", "mobilenet"),
    _torchvision("mobilenet-v3-small", "mobilenet"),
    _torchvision("shufflenet-v2-x0.5", "shufflenet"),
    _torchvision("squeezenet-1.1", "squeezenet"),
    _torchvision("efficientnet", "efficientnet"),
    _torchvision("regnet-x-200mf", "regnet"),
    _torchvision("convnext", "convnext", "adamw"),
)

_TRANSFORMERS = (
    _small("vit-p4", "small_tokens:build_vit", "vit", "adamw", hidden=64, heads=4, layers=3, patch=4, class_tokens=1),
    _small("vit-p8", "small_tokens:build_vit", "vit", "adamw", hidden=128, heads=4, layers=4, patch=8, class_tokens=1),
    _small("deit-p8", "small_tokens:build_vit", "vit", "adamw", hidden=96, heads=3, layers=6, patch=8, class_tokens=2),
    _small("cct", "small_tokens:build_cct", "cct", "adamw", hidden=64, heads=4, layers=2),
    _small("swin", "small_tokens:build_swin", "swin", "adamw", hidden=24, layers=4, patch=4),
    _small("poolformer", "small_tokens:build_poolformer", "poolformer", "adamw", hidden=32, layers=4),
)  # fmt: skip

_MIXERS = (
    _small("mixer-p4", "small_tokens:build_mixer", "mixer", "adamw", hidden=64, layers=4, patch=4, mixing="mlp"),
    _small("mixer-p8", "small_tokens:build_mixer", "mixer", "adamw", hidden=128, layers=6, patch=8, mixing="mlp"),
    _small("resmlp", "small_tokens:build_mixer", "mixer", "adamw", hidden=64, layers=6, patch=4, mixing="linear"),
    _small("gmlp", "small_tokens:build_mixer", "mixer", "adamw", hidden=64, layers=3, patch=4, mixing="gated"),
    _small("mlp", "small_tokens:build_mlp", "mlp", hidden=256, layers=3),
)

_SEQUENCES = (
    _small("lstm", "small_sequences:build_recurrent", "recurrent", "adamw", cell="lstm", hidden=128, layers=1,
           bidirectional=0),
    _small("gru", "small_sequences:build_recurrent", "recurrent", "adamw", cell="gru", hidden=96, layers=2,
           bidirectional=0),
    _small("bi-lstm", "small_sequences:build_recurrent", "recurrent", "adamw", cell="lstm", hidden=64, layers=1,
           bidirectional=1),
    _small("gcn", "small_sequences:build_graph", "graph", "adamw", hidden=96, layers=6, patch=4, edges="grid",
           neighbours=9),
    _small("vig", "small_sequences:build_graph", "graph", "adamw", hidden=64, layers=2, patch=4, edges="nearest",
           neighbours=9),
)  # fmt: skip

ENTRIES: tuple[ZooEntry, ...] = (*_CNNS, *_TRANSFORMERS, *_MIXERS, *_SEQUENCES)
