"""Speech recognition, vocoders, recommendation and tabular time series."""

from __future__ import annotations

from precision_time.zoo.workload import BATCH, Symbol, ZooEntry

# The first convolution has stride 2, and batches are padded to 16 frames.
FRAMES = Symbol("audio_frames", (256, 384), 640, multiple_of=16)
# Batches are padded to their longest clip: up to 16.7 s played at 0.85 to 1.15 times the speed (NVIDIA's configurations
# of both models in DeepLearningExamples), 12.3 s on average over LibriSpeech. `tests/test_ranks.py` draws such batches.
CLIPS_VARY = ("audio_frames", 0.34)

# Rows of the 26 Criteo tables at frequency limit 15 (NVIDIA DeepLearningExamples, DLRM).
CRITEO_T15 = (
    7912889, 33823, 17139, 7339, 20046, 4, 7105, 1382, 63, 5554114, 582469, 245828, 11,
    2209, 10667, 104, 4, 968, 15, 8165896, 2675940, 7156453, 302516, 12022, 97, 35,
)  # fmt: skip

ENTRIES: tuple[ZooEntry, ...] = (
    *(
        ZooEntry(
            name=name,
            builder="models.jasper:build",
            family="jasper",
            input={"audio_frames": 1664, "n_mels": 64},
            optimizer="novograd",
            optimizer_impl=kernels,
            dataset="librispeech",
            batch_size=batch,
            config={"variant": variant, "symbols": 29, "target_len": 200},
            symbols=(BATCH, FRAMES),
            parameters=parameters,
            parameters_source=source,
            varies=CLIPS_VARY,
        )
        for name, variant, batch, parameters, source, kernels in (
            ("jasper-10x5dr", "jasper", 32, 333_000_000, "arXiv:1904.03288 (rounded to a million)", "torch1"),
            ("quartznet-15x5", "quartznet", 144, 18_900_000, "arXiv:1910.10261 (rounded to 0.1 million)", "fused"),
        )
    ),
    *(
        ZooEntry(
            name=f"whisper-{size}",
            builder="models.transformers_models:build_whisper",
            family="whisper",
            input={"audio_frames": 3000, "n_mels": bands, "target_len": 448},
            optimizer="adamw",
            dataset="librispeech",
            batch_size=batch,
            config={
                "layers": layers,
                "decoder_layers": decoder,
                "hidden": hidden,
                "heads": hidden // 64,
                "ffn": 4 * hidden,
                "vocab": vocab,
            },
            clip_norm=1.0,
            attention=True,
            ships_math=False,
            ships=size in ("small", "large-v3"),
            parameters=count,
            parameters_source=f"transformers WhisperForConditionalGeneration, whisper-{size}",
        )
        for size, layers, decoder, hidden, vocab, bands, batch, count in (
            ("tiny", 4, 4, 384, 51865, 80, 64, 37_760_640),
            ("base", 6, 6, 512, 51865, 80, 64, 72_593_920),
            ("small", 12, 12, 768, 51865, 80, 32, 241_734_912),
            ("medium", 24, 24, 1024, 51865, 80, 16, 763_857_920),
            ("large-v3", 32, 32, 1280, 51866, 128, 8, 1_543_490_560),
            ("large-v3-turbo", 32, 4, 1280, 51866, 128, 16, 808_878_080),
        )
    ),
    *(
        ZooEntry(
            name=f"wav2vec2-{size}",
            builder="models.transformers_models:build_wav2vec2",
            family="wav2vec2",
            input={"audio_samples": 160000, "target_len": 200},
            optimizer="adamw",
            dataset="librispeech",
            batch_size=8,
            config={
                "variant": size,
                "layers": layers,
                "hidden": hidden,
                "heads": heads,
                "ffn": 4 * hidden,
                "vocab": 32,
            },
            attention=True,
            ships_math=False,
            parameters=count - hidden,
            parameters_source=f"transformers Wav2Vec2ForCTC, wav2vec2-{size} ({count:,}), without the mask's vector",
        )
        for size, layers, hidden, heads, count in (
            ("base", 12, 768, 12, 94_396_320),
            ("large", 24, 1024, 16, 315_471_520),
        )
    ),
    ZooEntry(
        name="waveglow",
        builder="models.waveglow:build",
        family="waveglow",
        input={"audio_samples": 8000, "n_mels": 80},
        optimizer="adam",
        dataset="ljspeech",
        batch_size=10,
        config={
            "flows": 12,
            "groups": 8,
            "wn_layers": 8,
            "wn_channels": 512,
            "wn_kernel": 3,
            "early_every": 4,
            "early_size": 2,
        },
        clip_norm=65504.0,
        parameters=268_290_000,
        parameters_source="arXiv:1912.01219, WaveGlow of 512 channels (rounded to 0.01 million, recalled, not re-read)",
    ),
    ZooEntry(
        name="hifigan",
        builder="models.hifigan:build",
        family="hifigan",
        input={"audio_samples": 8192, "n_mels": 80},
        optimizer="adamw",
        dataset="ljspeech",
        batch_size=16,
        config={
            "channels": 512,
            "upsample_rates": (8, 8, 2, 2),
            "upsample_kernels": (16, 16, 4, 4),
            "kernels": (11, 7, 3),
            "dilations": (1, 3, 5),
            "periods": (2, 3, 5, 7, 11),
        },
    ),
    ZooEntry(
        name="ncf",
        builder="models.ncf_dlrm:build_ncf",
        family="ncf",
        input={"fields": 2},
        optimizer="adam",
        dataset="movielens20m",
        batch_size=2**20,
        config={"users": 138493, "items": 26744, "mf_dim": 64, "mlp": (256, 256, 128, 64), "dropout": 0.5},
        parameters=31_832_577,
        parameters_source="stated in public gradient-compression runs of NVIDIA's NCF (ml-20m)",
    ),
    ZooEntry(
        name="dlrm-small",
        builder="models.ncf_dlrm:build_dlrm",
        family="dlrm",
        input={"fields": 26},
        optimizer="sgd",
        optimizer_impl="fused",
        dataset="criteo",
        batch_size=65536,
        config={
            "tables": CRITEO_T15,
            "embedding_dim": 128,
            "numerical": 13,
            "bottom": (512, 256, 128),
            "top": (1024, 1024, 512, 256),
            "sparse": 1,
        },
    ),
    ZooEntry(
        name="tft",
        builder="models.tft:build",
        family="tft",
        input={"encoder_steps": 168, "decoder_steps": 24},
        optimizer="adam",
        optimizer_impl="fused",
        dataset="electricity",
        batch_size=1024,
        config={
            "hidden": 128,
            "heads": 4,
            "static_classes": 369,
            "known_inputs": 3,
            "quantiles": 3,
            "dropout": 0.1,
        },
    ),
)
