"""HiFi-GAN V1: a convolutional vocoder trained against period and scale discriminators.

Kong et al. 2020 (arXiv:2010.05646). One step is two updates: the discriminators on real and detached
generated audio, then the generator on mel L1 (x45), feature matching (x2) and adversarial losses. The
generator runs once per step: the second update reuses the first one's output, and freezes the discriminators, as the
training loop of NVIDIA DeepLearningExamples does. With accumulation that loop runs the generator again for every
micro-step, and on an A100 its AMP script keeps the grouped convolutions out of autocast; neither is here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from precision_time.zoo.workload import Config, Sizes, Update, Workload

SLOPE = 0.1
FFT, HOP = 1024, 256


class ResidualBlock(nn.Module):
    """Three pairs of convolutions, the first of each pair dilated, each pair with a skip."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...]) -> None:
        super().__init__()

        def conv(dilation: int) -> nn.Module:
            pad = dilation * (kernel - 1) // 2
            return weight_norm(nn.Conv1d(channels, channels, kernel, dilation=dilation, padding=pad))

        self.dilated = nn.ModuleList(conv(d) for d in dilations)
        self.plain = nn.ModuleList(conv(1) for _ in dilations)

    def forward(self, x: Tensor) -> Tensor:
        for dilated, plain in zip(self.dilated, self.plain, strict=True):
            x = x + plain(F.leaky_relu(dilated(F.leaky_relu(x, SLOPE)), SLOPE))
        return x


class Generator(nn.Module):
    """Mel [batch, mels, frames] to audio [batch, 1, 256 frames]."""

    def __init__(self, config: Config, mels: int) -> None:
        super().__init__()
        rates, kernels = config["upsample_rates"], config["upsample_kernels"]
        channels = int(config["channels"])
        self.first = weight_norm(nn.Conv1d(mels, channels, 7, padding=3))
        ups: list[nn.Module] = []
        blocks: list[nn.ModuleList] = []
        for rate, kernel in zip(rates, kernels, strict=True):
            conv = nn.ConvTranspose1d(channels, channels // 2, kernel, rate, padding=(kernel - rate) // 2)
            ups.append(weight_norm(conv))
            channels //= 2
            dilations = tuple(config["dilations"])
            blocks.append(nn.ModuleList(ResidualBlock(channels, k, dilations) for k in config["kernels"]))
        self.ups, self.blocks = nn.ModuleList(ups), nn.ModuleList(blocks)
        self.last = weight_norm(nn.Conv1d(channels, 1, 7, padding=3))

    def forward(self, mel: Tensor) -> Tensor:
        x = self.first(mel)
        for up, blocks in zip(self.ups, self.blocks, strict=True):
            x = up(F.leaky_relu(x, SLOPE))
            outputs = [block(x) for block in blocks]
            total = outputs[0]
            for output in outputs[1:]:
                total = total + output
            x = total / len(outputs)
        return torch.tanh(self.last(F.leaky_relu(x)))


class PeriodDiscriminator(nn.Module):
    """2-D convolutions over audio folded into columns of one period."""

    def __init__(self, period: int) -> None:
        super().__init__()
        self.period = period
        widths = (1, 32, 128, 512, 1024, 1024)
        self.convs = nn.ModuleList(
            weight_norm(nn.Conv2d(a, b, (5, 1), (3 if i < 4 else 1, 1), padding=(2, 0)))
            for i, (a, b) in enumerate(itertools.pairwise(widths))
        )
        self.last = weight_norm(nn.Conv2d(1024, 1, (3, 1), padding=(1, 0)))

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        short = -x.shape[2] % self.period
        if short:
            x = F.pad(x, (0, short), mode="reflect")
        x = x.unflatten(2, (-1, self.period))
        features: list[Tensor] = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), SLOPE)
            features.append(x)
        x = self.last(x)
        return x.flatten(1), [*features, x]


class ScaleDiscriminator(nn.Module):
    """Grouped 1-D convolutions at one resolution."""

    def __init__(self, normalise: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        shapes = (
            (1, 128, 15, 1, 1),
            (128, 128, 41, 2, 4),
            (128, 256, 41, 2, 16),
            (256, 512, 41, 4, 16),
            (512, 1024, 41, 4, 16),
            (1024, 1024, 41, 1, 16),
            (1024, 1024, 5, 1, 1),
        )
        self.convs = nn.ModuleList(
            normalise(nn.Conv1d(a, b, k, s, padding=k // 2, groups=g)) for a, b, k, s, g in shapes
        )
        self.last = normalise(nn.Conv1d(1024, 1, 3, padding=1))

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        features: list[Tensor] = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), SLOPE)
            features.append(x)
        x = self.last(x)
        return x.flatten(1), [*features, x]


class Discriminators(nn.Module):
    def __init__(self, periods: tuple[int, ...]) -> None:
        super().__init__()
        self.periods = nn.ModuleList(PeriodDiscriminator(p) for p in periods)
        norms = (spectral_norm, weight_norm, weight_norm)
        self.scales = nn.ModuleList(ScaleDiscriminator(norm) for norm in norms)
        self.pool = nn.AvgPool1d(4, 2, padding=1)

    def forward(self, x: Tensor) -> list[tuple[Tensor, list[Tensor]]]:
        results = [period(x) for period in self.periods]
        for index, scale in enumerate(self.scales):
            x = self.pool(x) if index else x
            results.append(scale(x))
        return results


class HifiGan(nn.Module):
    """Both networks and the mel transform of generated audio."""

    window: Tensor
    basis: Tensor

    def __init__(self, config: Config, mels: int) -> None:
        super().__init__()
        self.generator = Generator(config, mels)
        self.discriminators = Discriminators(tuple(config["periods"]))
        self.register_buffer("window", torch.zeros(FFT), persistent=False)
        self.register_buffer("basis", torch.zeros(mels, FFT // 2 + 1), persistent=False)

    def mel(self, audio: Tensor) -> Tensor:
        padded = F.pad(audio, ((FFT - HOP) // 2, (FFT - HOP) // 2), mode="reflect").squeeze(1).float()
        spectrum = torch.stft(padded, FFT, HOP, FFT, self.window.float(), center=False, return_complex=True)
        parts = torch.view_as_real(spectrum)
        magnitude = torch.sqrt(parts.pow(2).sum(-1) + 1e-9)
        return torch.log(torch.clamp(self.basis.float() @ magnitude, min=1e-5))

    def discriminator_loss(self, audio: Tensor, fake: Tensor) -> Tensor:
        real_scores, fake_scores = self.discriminators(audio), self.discriminators(fake.detach())
        terms = [
            torch.mean((1 - real) ** 2) + torch.mean(made**2)
            for (real, _), (made, _) in zip(real_scores, fake_scores, strict=True)
        ]
        return torch.stack(terms).sum()

    def generator_loss(self, audio: Tensor, mel: Tensor, fake: Tensor) -> Tensor:
        mel_loss = F.l1_loss(self.mel(fake), mel.float()) * 45
        real_scores, fake_scores = self.discriminators(audio), self.discriminators(fake)
        adversarial = [torch.mean((1 - made) ** 2) for made, _ in fake_scores]
        matching = [
            torch.mean(torch.abs(a - b))
            for (_, real), (_, made) in zip(real_scores, fake_scores, strict=True)
            for a, b in zip(real, made, strict=True)
        ]
        return mel_loss + torch.stack(adversarial).sum() + 2 * torch.stack(matching).sum()


def joint_loss(module: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Both losses at once, for a reader that ignores the separate updates."""
    fake = module.generator(inputs["mel"])
    adversary = module.discriminator_loss(inputs["audio"], fake)
    return adversary + module.generator_loss(inputs["audio"], inputs["mel"], fake)


def build(config: Config, sizes: Sizes) -> Workload:
    batch, samples, mels = int(sizes["batch_size"]), int(sizes["audio_samples"]), int(sizes["n_mels"])
    module = HifiGan(config, mels)
    tensors = {"mel": torch.zeros(batch, mels, samples // HOP), "audio": torch.zeros(batch, 1, samples)}
    workload = Workload(module, tensors, joint_loss)
    shared: dict[str, Tensor] = {}

    def discriminator_update() -> Tensor:
        shared["fake"] = module.generator(workload.inputs["mel"])
        return module.discriminator_loss(workload.inputs["audio"], shared["fake"])

    def generator_update() -> Tensor:
        inputs = workload.inputs
        fake = shared.pop("fake") if shared else module.generator(inputs["mel"])
        return module.generator_loss(inputs["audio"], inputs["mel"], fake)

    workload.updates = [
        Update(discriminator_update),
        Update(generator_update, frozen=list(module.discriminators.parameters())),
    ]
    return workload
