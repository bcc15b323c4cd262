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
        symbols=(BATCH, LATENT), attention=True, ships_math=False, clip_norm=1.0, parameters=865_910_724,
        parameters_source="diffusers UNet2DConditionModel, stable-diffusion-2",
    ),
    # 1024 x 1024 images; both text models' results are cached.
    ZooEntry(
        "sdxl", "models.diffusion_unet:build", "diffusion-unet", {"latent_size": 128, "text_tokens": 77}, "adamw",
        "laion", 4,
        config={
            "channels": 320, "multipliers": "1-2-4", "depths": "0-2-10", "blocks": 2, "head": 64, "context": 2048,
            "pooled": 2816, "latent_channels": 4, "text_encoder": 0,
        },
        attention=True, ships=False, parameters=2_567_463_684,
        parameters_source="diffusers UNet2DConditionModel, stable-diffusion-xl-base-1.0",
    ),
    ZooEntry(
        "flux1-dev", "models.diffusion_transformer:build_flux", "diffusion-transformer",
        {"latent_size": 128, "text_tokens": 512}, "adamw", "cc12m", 1,
        config={
            "hidden": 3072, "heads": 24, "ffn": 12288, "double_blocks": 19, "single_blocks": 38, "context": 4096,
            "pooled": 768, "latent_channels": 16, "guidance": 1,
        },
        attention=True, ships=False, parameters=11_901_408_320,
        parameters_source="diffusers FluxTransformer2DModel, FLUX.1-dev",
    ),
    *(
        ZooEntry(
            name, "models.video_transformer:build", "video-transformer",
            {"frames": 81, "image_size": (480, 832), "text_tokens": 512}, "adamw", "", 1,
            config={
                "hidden": hidden, "layers": layers, "heads": heads, "ffn": ffn, "patch": 2, "latent_channels": 16,
                "context": 4096,
            },
            attention=True, ships_math=False, ships=ships, parameters=count,
            parameters_source="Wan-Video/Wan2.1, published configuration (recalled)",
        )
        for name, hidden, layers, heads, ffn, count, ships in (
            ("wan2.1-1.3b", 1536, 30, 12, 8960, 1_418_996_800, True),
            ("wan2.1-14b", 5120, 40, 40, 13824, 14_288_491_584, False),
        )
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
    # 1024 x 1024 images; 77 tokens of the CLIP models and 256 of T5, whose results are cached.
    *(
        ZooEntry(
            name, "models.diffusion_transformer:build_sd3", "diffusion-transformer",
            {"latent_size": 128, "text_tokens": 333}, "adamw", "cc12m", 4,
            config={
                "hidden": hidden, "layers": layers, "heads": layers, "patch": 2, "latent_channels": 16, "context": 4096,
                "pooled": 2048, "qk_norm": norms,
            },
            attention=True, ships_math=False, ships=ships, parameters=count,
            parameters_source=f"diffusers 0.42 SD3Transformer2DModel, {title}",
        )
        for name, hidden, layers, norms, ships, count, title in (
            ("sd3-medium", 1536, 24, 0, True, 2_028_328_000, "stable-diffusion-3-medium"),
            ("sd3.5-large", 2432, 38, 1, False, 8_056_627_520, "stable-diffusion-3.5-large"),
        )
    ),
    ZooEntry(
        "dit-xl-2", "models.diffusion_transformer:build_dit", "diffusion-transformer",
        {"latent_size": 32}, "adamw", "imagenet", 32,
        config={"hidden": 1152, "layers": 28, "heads": 16, "patch": 2, "latent_channels": 4, "classes": 1000},
        attention=True, ships_math=False, parameters=675_000_000,
        parameters_source="arXiv:2212.09748 table 1 (rounded to a million)",
    ),
)  # fmt: skip
