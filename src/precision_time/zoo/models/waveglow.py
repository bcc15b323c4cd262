"""WaveGlow: a flow from audio to noise, conditioned on a mel spectrogram.

Prenger et al. 2018 (arXiv:1811.00002); layer sizes of the NVIDIA DeepLearningExamples version. Weight norm
runs at every convolution of the networks inside the flows.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from precision_time.errors import JobError
from precision_time.zoo.workload import Config, Sizes, Workload

HOP, WINDOW = 256, 1024
MOST_LAYERS = 288
"""Most layers of all flows, three times the published 96: a slow CPU builds and traces one in 15 ms."""


class InvertibleConv(nn.Module):
    """A 1x1 convolution whose log-determinant enters the likelihood."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 1, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        determinant = torch.logdet(self.conv.weight.squeeze(-1).float())
        return self.conv(x), x.shape[0] * x.shape[2] * determinant


class WaveNet(nn.Module):
    """Dilated gated convolutions, non-causal, with skip sums: the network inside a coupling layer."""

    def __init__(self, half: int, mels: int, config: Config) -> None:
        super().__init__()
        channels, layers = int(config["wn_channels"]), int(config["wn_layers"])
        kernel = int(config["wn_kernel"])
        self.channels = channels
        self.start = weight_norm(nn.Conv1d(half, channels, 1))
        self.inner = nn.ModuleList(
            weight_norm(nn.Conv1d(channels, 2 * channels, kernel, dilation=2**i, padding=2**i * (kernel - 1) // 2))
            for i in range(layers)
        )
        self.condition = nn.ModuleList(weight_norm(nn.Conv1d(mels, 2 * channels, 1)) for _ in range(layers))
        self.merge = nn.ModuleList(
            weight_norm(nn.Conv1d(channels, 2 * channels if i < layers - 1 else channels, 1)) for i in range(layers)
        )
        self.end = nn.Conv1d(channels, 2 * half, 1)

    def forward(self, audio: Tensor, mel: Tensor) -> Tensor:
        x = self.start(audio)
        skip: Tensor | None = None
        last = len(self.inner) - 1
        for index, (inner, condition, merge) in enumerate(zip(self.inner, self.condition, self.merge, strict=True)):
            gates = inner(x) + condition(mel)
            y = merge(torch.tanh(gates[:, : self.channels]) * torch.sigmoid(gates[:, self.channels :]))
            if index < last:
                x = x + y[:, : self.channels]
                y = y[:, self.channels :]
            skip = y if skip is None else skip + y
        return self.end(skip)


class WaveGlow(nn.Module):
    """forward returns the negative log-likelihood of the audio per sample."""

    def __init__(self, config: Config, mels: int) -> None:
        super().__init__()
        self.groups, flows = int(config["groups"]), int(config["flows"])
        if (count := flows * int(config["wn_layers"])) > MOST_LAYERS:
            raise JobError(
                f"WaveGlow with flows={flows} and wn_layers={config['wn_layers']} has {count:,} layers; the most are "
                f"{MOST_LAYERS:,}: lower one of them"
            )
        self.every, self.early = int(config["early_every"]), int(config["early_size"])
        self.sigma = 1.0
        self.upsample = nn.ConvTranspose1d(mels, mels, WINDOW, stride=HOP)
        channels = self.groups
        mixers: list[InvertibleConv] = []
        networks: list[WaveNet] = []
        for flow in range(flows):
            if flow > 0 and flow % self.every == 0:
                channels -= self.early
            mixers.append(InvertibleConv(channels))
            networks.append(WaveNet(channels // 2, mels * self.groups, config))
        self.mixers, self.networks = nn.ModuleList(mixers), nn.ModuleList(networks)

    def forward(self, mel: Tensor, audio: Tensor) -> Tensor:
        mel = self.upsample(mel)[:, :, : audio.shape[1]]
        mel = mel.unfold(2, self.groups, self.groups).permute(0, 1, 3, 2).flatten(1, 2)
        x = audio.unfold(1, self.groups, self.groups).permute(0, 2, 1)
        outputs: list[Tensor] = []
        log_scales: list[Tensor] = []
        determinants: list[Tensor] = []
        for flow, (mixer, network) in enumerate(zip(self.mixers, self.networks, strict=True)):
            if flow > 0 and flow % self.every == 0:
                outputs.append(x[:, : self.early])
                x = x[:, self.early :]
            x, determinant = mixer(x)
            half = x.shape[1] // 2
            fixed, moved = x[:, :half], x[:, half:]
            change = network(fixed, mel)
            log_scale = change[:, half:]
            x = torch.cat((fixed, torch.exp(log_scale) * moved + change[:, :half]), dim=1)
            log_scales.append(log_scale)
            determinants.append(determinant)
        z = torch.cat((*outputs, x), dim=1)
        scale = torch.stack([s.sum() for s in log_scales]).sum()
        energy = (z * z).sum() / (2 * self.sigma**2)
        return (energy - scale - torch.stack(determinants).sum()) / z.numel()


def build(config: Config, sizes: Sizes) -> Workload:
    batch, samples, mels = int(sizes["batch_size"]), int(sizes["audio_samples"]), int(sizes["n_mels"])
    return Workload(
        module=WaveGlow(config, mels),
        inputs={"mel": torch.zeros(batch, mels, samples // HOP + 1), "audio": torch.zeros(batch, samples)},
        loss=lambda module, inputs: module(inputs["mel"], inputs["audio"]),
    )
