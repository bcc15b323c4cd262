"""Speech, protein and image-text models of Hugging Face's transformers, built from their shape without weights.

Whisper: Radford et al. 2022 (arXiv:2212.04356); wav2vec 2.0: Baevski et al. 2020 (arXiv:2006.11477); ESM-2: Lin et al.
2022; CLIP: Radford et al. 2021 (arXiv:2103.00020); SigLIP: Zhai et al. 2023 (arXiv:2303.15343). Attention goes through
SDPA; dropout and the masking of spectrograms are left out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from precision_time.errors import MissingExtraError
from precision_time.zoo.models.text import tokens
from precision_time.zoo.workload import Config, Sizes, Workload


def _library() -> Any:
    try:
        import transformers
    except ImportError as missing:
        raise MissingExtraError("transformers is not installed; pip install 'precision-time[models]'") from missing
    return transformers


def _module(name: str, config: Any) -> nn.Module:
    config.use_cache = False
    module: nn.Module = getattr(_library(), name)(config)
    return module.to(torch.empty(0).device)  # some tensors are made on the CPU


def _own_loss(module: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    loss: Tensor = module(**inputs).loss
    return loss


def _contrastive_loss(module: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    loss: Tensor = module(**inputs, return_loss=True).loss
    return loss


def _shape(config: Config) -> dict[str, int]:
    return {
        "hidden_size": int(config["hidden"]),
        "num_hidden_layers": int(config["layers"]),
        "num_attention_heads": int(config["heads"]),
        "intermediate_size": int(config["ffn"]),
    }


def build_whisper(config: Config, sizes: Sizes) -> Workload:
    """30 s of log-mel spectrogram to text tokens."""
    hidden, heads, ffn = (int(config[key]) for key in ("hidden", "heads", "ffn"))
    bands, batch, length = int(sizes["n_mels"]), int(sizes["batch_size"]), int(sizes["target_len"])
    shape = _library().WhisperConfig(
        vocab_size=int(config["vocab"]),
        num_mel_bins=bands,
        d_model=hidden,
        encoder_layers=int(config["layers"]),
        decoder_layers=int(config["decoder_layers"]),
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=ffn,
        decoder_ffn_dim=ffn,
        max_source_positions=int(sizes["audio_frames"]) // 2,
    )
    inputs = {"input_features": torch.zeros(batch, bands, int(sizes["audio_frames"])), "labels": tokens(batch, length)}
    inputs["decoder_input_ids"] = tokens(batch, length)
    return Workload(_module("WhisperForConditionalGeneration", shape), inputs, _own_loss)


def build_esm(config: Config, sizes: Sizes) -> Workload:
    """Masked amino acids; 33 tokens."""
    shape = _library().EsmConfig(
        **_shape(config),
        vocab_size=int(config["vocab"]),
        mask_token_id=32,
        pad_token_id=1,
        position_embedding_type="rotary",
        token_dropout=False,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=1026,
    )
    batch, length = int(sizes["batch_size"]), int(sizes["seq_len"])
    inputs = {name: tokens(batch, length) for name in ("input_ids", "attention_mask", "labels")}
    return Workload(_module("EsmForMaskedLM", shape), inputs, _own_loss)


def build_clip(config: Config, sizes: Sizes) -> Workload:
    """Images and their texts; the contrastive loss of the batch of one rank."""
    library = _library()
    text = {
        "hidden_size": int(config["text_hidden"]),
        "num_attention_heads": int(config["text_heads"]),
        "intermediate_size": 4 * int(config["text_hidden"]),
        "vocab_size": int(config["vocab"]),
    }
    vision = {**_shape(config), "patch_size": int(config["patch"]), "image_size": int(sizes["image_size"])}
    batch, side = int(sizes["batch_size"]), int(sizes["image_size"])
    inputs = {"pixel_values": torch.zeros(batch, 3, side, side), "input_ids": tokens(batch, int(sizes["text_tokens"]))}
    if config["variant"] == "siglip":
        shape = library.SiglipConfig(text_config=text, vision_config=vision)
        return Workload(_module("SiglipModel", shape), inputs, _contrastive_loss)
    shape = library.CLIPConfig(
        text_config={**text, "eos_token_id": 2, "bos_token_id": 0}, vision_config=vision,
        projection_dim=int(config["text_hidden"]),
    )  # fmt: skip
    return Workload(_module("CLIPModel", shape), inputs, _contrastive_loss)


def build_wav2vec2(config: Config, sizes: Sizes) -> Workload:
    """Sound waves to characters (CTC); `variant=large` normalises in every layer and before each part."""
    from precision_time.zoo.models.ctc import ctc_loss

    large = config["variant"] == "large"
    shape = _library().Wav2Vec2Config(
        **_shape(config),
        vocab_size=int(config["vocab"]),
        feat_extract_norm="layer" if large else "group",
        do_stable_layer_norm=large,
        conv_bias=large,
        mask_time_prob=0.0,
        mask_feature_prob=0.0,
        layerdrop=0.0,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        feat_proj_dropout=0.0,
        final_dropout=0.0,
    )
    batch = int(sizes["batch_size"])

    def loss(module: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        chances = module(inputs["input_values"]).logits.float().log_softmax(-1).transpose(0, 1)
        losses, _ = ctc_loss(chances, inputs["labels"], inputs["input_lengths"], inputs["label_lengths"])
        return losses.mean()

    inputs = {
        "input_values": torch.zeros(batch, int(sizes["audio_samples"])),
        "labels": tokens(batch, int(sizes["target_len"])),
        "input_lengths": tokens(batch),
        "label_lengths": tokens(batch),
    }
    return Workload(_module("Wav2Vec2ForCTC", shape), inputs, loss)


def build_sam(config: Config, sizes: Sizes) -> Workload:
    """Images of 1024 pixels and one box each to a mask of a quarter of the side; all weights are trained."""
    batch, side, layers = int(sizes["batch_size"]), int(sizes["image_size"]), int(config["layers"])
    shape = _library().SamConfig(
        vision_config={
            "hidden_size": int(config["hidden"]),
            "num_hidden_layers": layers,
            "num_attention_heads": int(config["heads"]),
            "mlp_dim": int(config["ffn"]),
            "global_attn_indexes": [layers // 4 * part - 1 for part in (1, 2, 3, 4)],
            "image_size": side,
        },
        prompt_encoder_config={"image_size": side, "image_embedding_size": side // 16},
    )

    def loss(module: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        found = module(pixel_values=inputs["image"], input_boxes=inputs["boxes"], multimask_output=False).pred_masks
        return F.binary_cross_entropy_with_logits(found.flatten(0, 2).float(), inputs["masks"])

    inputs = {
        "image": torch.zeros(batch, 3, side, side),
        "boxes": torch.zeros(batch, 1, 4),
        "masks": torch.zeros(batch, side // 4, side // 4),
    }
    return Workload(_module("SamModel", shape), inputs, loss)
