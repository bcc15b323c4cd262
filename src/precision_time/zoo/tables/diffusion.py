"""Diffusion models: the noise of latent images, guessed by a U-Net or a transformer."""

from __future__ import annotations

from precision_time.zoo.workload import BATCH, Symbol, ZooEntry

LATENT = Symbol("latent_size", (16, 32, 48), 64, degree=2, multiple_of=16)

ENTRIES: tuple[ZooEntry, ...] = (
    # MLPerf: latents of 512 x 512 images cached; the text model's results too, unless text_encoder=1.
    ZooEntry(
        "stable-diffusion-v2", "models.diffusion_unet:build", "diffusion-unet",
        {"latent_size": 64, "text_tokens": 77}, "adamw", "laion", 16,
        config={
            "channels": 320, "multipliers": "1-2-4-4", "blocks": 2, "head": 64, "context": 1024, "latent_channels": 4,
            "text_encoder": 0,
        },
        symbols=(BATCH, LATENT), attention=True, ships_math=False, parameters=865_910_724,
        parameters_source="diffusers UNet2DConditionModel, stable-diffusion-2",
    ),
    ZooEntry(
        "flux1-schnell", "models.diffusion_transformer:build_flux", "diffusion-transformer",
        {"latent_size": 32, "text_tokens": 256}, "adamw", "cc12m", 16,
        config={
            "hidden": 3072, "heads": 24, "ffn": 12288, "double_blocks": 19, "single_blocks": 38, "context": 4096,
            "pooled": 768, "latent_channels": 16, "guidance": 0,
        },
        attention=True, ships_math=False, parameters=11_891_178_560,
        parameters_source="diffusers FluxTransformer2DModel, FLUX.1-schnell",
    ),
    ZooEntry(
        "dit-xl-2", "models.diffusion_transformer:build_dit", "diffusion-transformer",
        {"latent_size": 32}, "adamw", "imagenet", 32,
        config={"hidden": 1152, "layers": 28, "heads": 16, "patch": 2, "latent_channels": 4, "classes": 1000},
        attention=True, ships_math=False, parameters=675_000_000,
        parameters_source="arXiv:2212.09748 table 1 (rounded to a million)",
    ),
)  # fmt: skip
