"""Jasper and QuartzNet: 1-D convolutional speech recognition with CTC.

Jasper: Li et al. 2019 (arXiv:1904.03288), 10x5 with dense residuals. QuartzNet: Kriman et al. 2019
(arXiv:1910.10261), 15x5, time-channel separable convolutions with plain residuals. Layout of the NVIDIA
DeepLearningExamples configurations. Every convolution first zeroes what lies beyond each clip's length. The
CTC loss is a stand-in operator (see `ctc`); `target_len` characters per clip is the padded transcript, a
round number for LibriSpeech utterances.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from precision_time.zoo.models.ctc import ctc_loss
from precision_time.zoo.models.text import dropout, tokens
from precision_time.zoo.workload import Config, Sizes, Workload

BATCH_NORM = {"eps": 1e-3, "momentum": 0.1}


@dataclass(frozen=True, slots=True)
class Stage:
    """A block: `repeat` convolutions to `channels`, and whether a residual joins before its last
    activation.
    """

    channels: int
    kernel: int
    repeat: int = 1
    stride: int = 1
    dilation: int = 1
    drop: float = 0.0
    residual: bool = False
    separable: bool = False


def jasper_stages() -> list[Stage]:
    widths = ((256, 11, 0.2), (384, 13, 0.2), (512, 17, 0.2), (640, 21, 0.3), (768, 25, 0.3))
    blocks = [Stage(c, k, repeat=5, drop=d, residual=True) for c, k, d in widths for _ in range(2)]
    first = Stage(256, 11, stride=2, drop=0.2)
    return [first, *blocks, Stage(896, 29, dilation=2, drop=0.4), Stage(1024, 1, drop=0.4)]


def quartznet_stages() -> list[Stage]:
    widths = ((256, 33), (256, 39), (512, 51), (512, 63), (512, 75))
    blocks = [Stage(c, k, repeat=5, residual=True, separable=True) for c, k in widths for _ in range(3)]
    first = Stage(256, 33, stride=2, separable=True)
    return [first, *blocks, Stage(512, 87, dilation=2, separable=True), Stage(1024, 1)]


class MaskedConv(nn.Conv1d):
    """A convolution over clips of different lengths: frames past a clip's end are zeroed first."""

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        frames = torch.arange(x.shape[2], device=x.device)
        x = x.masked_fill((frames[None, :] >= lengths[:, None]).unsqueeze(1), 0.0)
        reach = self.dilation[0] * (self.kernel_size[0] - 1) + 1
        lengths = (lengths + 2 * self.padding[0] - reach) // self.stride[0] + 1
        return super().forward(x), lengths


class Unit(nn.Module):
    """Convolution (or depthwise + pointwise pair) and batch norm."""

    def __init__(self, channels: int, stage: Stage, stride: int) -> None:
        super().__init__()
        pad = stage.dilation * (stage.kernel - 1) // 2
        separable = stage.separable and stage.kernel > 1
        first = MaskedConv(
            channels,
            channels if separable else stage.channels,
            stage.kernel,
            stride,
            pad,
            stage.dilation,
            groups=channels if separable else 1,
            bias=False,
        )
        pointwise = [MaskedConv(channels, stage.channels, 1, bias=False)] if separable else []
        self.convs = nn.ModuleList([first, *pointwise])
        self.norm = nn.BatchNorm1d(stage.channels, **BATCH_NORM)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        for conv in self.convs:
            x, lengths = conv(x, lengths)
        return self.norm(x), lengths


class Block(nn.Module):
    """Units with ReLU and dropout between; residual inputs pass 1x1 units and join before the last ReLU."""

    def __init__(self, channels: int, stage: Stage, residuals: list[int]) -> None:
        super().__init__()
        inputs = [channels, *[stage.channels] * (stage.repeat - 1)]
        self.units = nn.ModuleList(Unit(c, stage, stage.stride if i == 0 else 1) for i, c in enumerate(inputs))
        self.residuals = nn.ModuleList(Unit(c, Stage(stage.channels, 1), 1) for c in residuals)
        self.act = nn.Sequential(nn.ReLU(inplace=True), dropout(stage.drop))

    def forward(self, x: Tensor, lengths: Tensor, earlier: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        for index, unit in enumerate(self.units):
            x, lengths = unit(x, lengths)
            if index < len(self.units) - 1:
                x = self.act(x)
        for unit, (y, y_lengths) in zip(self.residuals, earlier, strict=True):
            x = x + unit(y, y_lengths)[0]
        return self.act(x), lengths


class ConvSpeech(nn.Module):
    """Spectrogram [batch, mels, frames] to log-probabilities [frames / 2, batch, symbols]."""

    def __init__(self, stages: list[Stage], mels: int, symbols: int, dense: bool) -> None:
        super().__init__()
        self.dense = dense
        blocks: list[Block] = []
        channels, panes = mels, list[int]()
        for stage in stages:
            if stage.residual:
                panes = [*panes, channels] if dense else [channels]
            blocks.append(Block(channels, stage, panes if stage.residual else []))
            channels = stage.channels
        self.blocks = nn.ModuleList(blocks)
        self.decoder = nn.Conv1d(channels, symbols, 1)

    def forward(self, audio: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        x, panes = audio, list[tuple[Tensor, Tensor]]()
        for block in self.blocks:
            if len(block.residuals):
                panes = [*panes, (x, lengths)] if self.dense else [(x, lengths)]
            x, lengths = block(x, lengths, panes if len(block.residuals) else [])
        logits = self.decoder(x).permute(2, 0, 1)
        return F.log_softmax(logits.float(), dim=-1), lengths


def build(config: Config, sizes: Sizes) -> Workload:
    batch, frames, mels = int(sizes["batch_size"]), int(sizes["audio_frames"]), int(sizes["n_mels"])
    variants = {"jasper": jasper_stages, "quartznet": quartznet_stages}
    stages = variants[str(config["variant"])]()
    dense = str(config["variant"]) == "jasper"
    inputs = {
        "audio": torch.zeros(batch, mels, frames),
        "audio_lengths": tokens(batch),
        "targets": tokens(batch, int(config["target_len"])),
        "target_lengths": tokens(batch),
    }

    def loss(module: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        log_probs, lengths = module(inputs["audio"], inputs["audio_lengths"])
        losses, _ = ctc_loss(log_probs, inputs["targets"], lengths, inputs["target_lengths"])
        return losses.sum() / batch

    return Workload(ConvSpeech(stages, mels, int(config["symbols"]), dense), inputs, loss)
