"""The small networks of the zoo: sizes against published counts, FLOPs against torch's counter, real training steps."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from precision_time.errors import JobError
from precision_time.job import Job
from precision_time.prediction import predict
from precision_time.zoo.catalog import ENTRIES as EVERYTHING
from precision_time.zoo.ship import DATA
from precision_time.zoo.tables.small import ENTRIES
from precision_time.zoo.workload import Workload

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from networks import rows, trace  # noqa: E402
from precision_time.capture.graph import Phase  # noqa: E402
from precision_time.measure.kernel_support import UnsupportedError, autocast_lstm_error  # noqa: E402
from precision_time.measure.train import Trainer  # noqa: E402
from precision_time.timing.operators import WorkOptions, works  # noqa: E402

BY_NAME = {entry.name: entry for entry in ENTRIES}
FUSED_RECURRENT = {"small-lstm", "small-bi-lstm"}
"""torch's counter does not see inside oneDNN's LSTM."""


def build(name: str, sizes: dict[str, Any] | None = None, device: str = "meta", **config: Any) -> Workload:
    entry = BY_NAME[name]
    module, _, function = entry.builder.partition(":")
    builder = getattr(importlib.import_module(f"precision_time.zoo.{module}"), function)
    with torch.device(device):
        return builder({**entry.config, **config}, {**entry.input, "batch_size": 2, **(sizes or {})})


def parameters(workload: Workload) -> int:
    return sum(p.numel() for p in workload.module.parameters())


def test_there_are_enough_of_every_kind() -> None:
    assert len(ENTRIES) >= 26
    families = {entry.family for entry in ENTRIES}
    assert {"resnet", "vit", "mixer", "recurrent", "graph"} <= families
    assert len(families) >= 15
    assert all(EVERYTHING[name] is entry for name, entry in BY_NAME.items())
    assert not any(entry.ships or (DATA / f"{entry.name}.zip").exists() for entry in ENTRIES)


VIT = {"hidden": 192, "heads": 3, "layers": 12, "patch": 16, "classes": 1000}
MIXER = {"hidden": 512, "layers": 8, "patch": 16, "classes": 1000}
GMLP = {"hidden": 256, "layers": 30, "patch": 16, "classes": 1000}


@pytest.mark.parametrize(
    ("name", "side", "config", "published", "digits"),
    [
        # He et al. 2016, table 6: 0.27 M and 0.85 M
        ("small-resnet20", 32, {"width": 16}, 270_000, -4),
        ("small-resnet20", 32, {"width": 16, "depth": 56}, 850_000, -4),
        # Zagoruyko and Komodakis 2016, tables 2 and 4: WRN-28-10 36.5 M, WRN-16-8 11.0 M
        ("small-wide-resnet10", 32, {"width": 16, "depth": 28, "widen": 10}, 36_500_000, -5),
        ("small-wide-resnet10", 32, {"width": 16, "depth": 16, "widen": 8}, 11_000_000, -5),
        # Huang et al. 2017, table 2: DenseNet-BC 100 of growth 12 has 0.8 M
        ("small-densenet16", 32, {"depth": 100, "growth": 12}, 800_000, -5),
        ("small-lenet5", 32, {}, 62_006, 0),  # PyTorch's CIFAR-10 tutorial
        # torchvision's documentation and timm's table of results, 1,000 classes
        ("small-mobilenet-v3-small", 224, {"classes": 1000}, 2_542_856, 0),
        ("small-shufflenet-v2-x0.5", 224, {"classes": 1000}, 1_366_792, 0),
        ("small-squeezenet-1.1", 224, {"classes": 1000}, 1_235_496, 0),
        ("small-regnet-x-200mf", 224, {"classes": 1000}, 2_700_000, -5),
        ("small-mobilenet-v2", 224, {"classes": 1000}, 1_970_000, -4),
        ("small-vit-p4", 224, VIT, 5_717_416, 0),  # vit_tiny_patch16_224
        ("small-deit-p8", 224, VIT, 5_910_800, 0),  # deit_tiny_distilled_patch16_224
        ("small-mixer-p4", 224, MIXER, 18_500_000, -5),  # mixer_s16_224: 18.5 M
        ("small-gmlp", 224, GMLP, 19_400_000, -5),  # gmlp_s16_224: 19.4 M
    ],
)
def test_at_the_papers_size_the_count_is_the_published_one(
    name: str, side: int, config: dict[str, Any], published: int, digits: int
) -> None:
    found = parameters(build(name, {"image_size": side}, **config))
    assert round(found, digits) == published


def test_vgg_has_the_convolutions_of_torchvision() -> None:
    from torchvision import models

    with torch.device("meta"):
        whole = models.vgg11_bn()
    body = sum(p.numel() for p in whole.features.parameters())
    assert parameters(build("small-vgg11", width=64)) == body + 512 * 10 + 10


def test_recurrent_and_graph_networks_have_the_count_of_their_formula() -> None:
    # LSTM: four gates over input and state, two biases; 32 pixels of 3 channels are a row
    assert parameters(build("small-lstm")) == 4 * 128 * (96 + 128 + 2) + 128 * 10 + 10
    assert parameters(build("small-bi-lstm")) == 2 * 4 * 64 * (96 + 64 + 2) + 128 * 10 + 10
    assert parameters(build("small-gru")) == 3 * 96 * (96 + 96 + 2) * 2 + 96 * 10 + 10
    layer = 2 * 96 + 96 * 96 + 96
    assert parameters(build("small-gcn")) == 3 * 16 * 96 + 96 + 64 * 96 + 6 * layer + 2 * 96 + 96 * 10 + 10


def test_the_grid_of_a_graph_network_is_normalised() -> None:
    from precision_time.zoo.models.small_sequences import neighbours

    found = neighbours(2, 3)  # corners touch four cells of the six (themselves included), the middle column all
    assert torch.equal(found, found.T)
    assert found[0].tolist() == pytest.approx([1 / 4, 1 / 24**0.5, 0.0, 1 / 4, 1 / 24**0.5, 0.0])
    assert float(found[1, 4]) == pytest.approx(1 / 6)


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_forward_flops_are_those_of_torchs_counter(name: str) -> None:
    graph = trace(lambda: build(name))
    found = sum(
        w.flops
        for _, kind in rows(graph, Phase.FORWARD)
        for w in works(kind, WorkOptions()) or []
        if w.math != "vector"
    )
    per_image = found / 2
    assert 0.5e6 < per_image < 60e6
    if name in FUSED_RECURRENT:
        width, ways = (128, 1) if name == "small-lstm" else (64, 2)
        assert per_image == 32 * ways * 2 * 4 * width * (96 + width) + 2 * 128 * 10
        return
    workload = build(name, device="cpu")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        workload.module(workload.inputs["image"])
    assert found == counter.get_total_flops()


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_trains_for_real(name: str, precision: str) -> None:
    job, cpu = Job(name, precision=precision, batch_size=2), torch.device("cpu")
    if precision == "amp-bf16" and name in FUSED_RECURRENT and autocast_lstm_error("bfloat16"):  # no AVX-512
        with pytest.raises(UnsupportedError, match="no LSTM in bfloat16 here"):
            Trainer(job, cpu)
        return
    trainer = Trainer(job, cpu)
    before = [p.detach().clone() for p in trainer._parameters]
    trainer.step()
    assert all(bool(torch.isfinite(p).all()) for p in trainer._parameters)
    assert all(p.grad is not None for p in trainer._parameters)
    moved = sum(not torch.equal(a, b) for a, b in zip(before, trainer._parameters, strict=True))
    assert moved > 0.8 * len(before)  # some biases before a norm have gradients that round to nothing


@pytest.mark.parametrize("name", ["small-resnet20", "small-vit-p8", "small-mixer-p8", "small-gru", "small-vig"])
def test_is_predicted_like_any_other_model(name: str) -> None:
    for side, classes in ((32, 10), (64, 200)):
        words = {"input": {"image_size": side}, "model_config": {"classes": classes}, "batch_size": 16}
        for precision in ("fp32", "amp-bf16"):
            estimate = predict(Job(name, precision=precision, gpus=2, **words))
            assert estimate.unsupported_bytes_share < 0.01
            assert estimate.step.p50 >= estimate.floor_s > 0


@pytest.mark.parametrize(
    ("name", "words", "sentence"),
    [
        ("small-resnet20", {"model_config": {"depth": 21}}, "depth=21 is no ResNet for CIFAR; use 6n"),
        ("small-wide-resnet10", {"model_config": {"depth": 11}}, "depth=11 is no wide ResNet"),
        ("small-resnext20", {"model_config": {"groups": 3}}, "is no ResNeXt; take depth 9n"),
        ("small-densenet16", {"model_config": {"depth": 17}}, "depth=17 is no DenseNet-BC"),
        ("small-vit-p8", {"input": {"image_size": 36}}, "image_size 36x36 is no multiple of patch=8"),
        (
            "small-mixer-p4",
            {"model_config": {"mixing": "none"}},
            r"mixing 'none' is unknown; .* set mixing to one of mlp",
        ),
        ("small-vit", {}, "nearest: small-vi"),
    ],
)
def test_what_cannot_be_is_one_sentence(name: str, words: dict[str, Any], sentence: str) -> None:
    with pytest.raises(JobError, match=sentence):
        predict(Job(name, **words))
