"""The keys of `model_config` and of `input` of all models: unit, range and meaning.

Sizes are whole numbers. Each limit is ten or more times what is known to have been trained. What is legal key by key
but absurd as a product is refused by `capture.limits`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from precision_time.checks import on_off, show
from precision_time.errors import JobError
from precision_time.field_types import NAME, SHARE, FieldType, choice, number, structured, whole


@dataclass(frozen=True, slots=True)
class ShapeField:
    """One key with its type and meaning."""

    type: FieldType
    meaning: str


def _flag(field: str, value: Any) -> int:
    """0 or 1, also as true and false."""
    return int(on_off(field, value))


def _bias(field: str, value: Any) -> int | str:
    """0, 1, or qkv."""
    return "qkv" if isinstance(value, str) and value.strip().lower() == "qkv" else _flag(field, value)


def _window(field: str, value: Any) -> int | str:
    """0, a number of tokens, or one in part of the layers: "128_every_second_layer", "1024_five_of_six"."""
    width, _, which = str(value).strip().partition("_") if isinstance(value, (int, float, str)) else ("", "", "")
    tokens = TOKENS_OR_ZERO(field, width if which else value)
    if which and which not in ("every_second_layer", "five_of_six"):
        raise JobError(
            f"{field} is {show(value)}; write a number of tokens, or as in 128_every_second_layer or 128_five_of_six"
        )
    return f"{tokens}_{which}" if which else int(tokens)


def _pattern(field: str, value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[ME*]{0,10000}", value):
        raise JobError(
            f"{field} is {show(value)}; write one letter for each layer: M (Mamba), E (experts), * (attention)"
        )
    return value


def _multipliers(field: str, value: Any) -> str:
    parts = str(value).split("-") if isinstance(value, (int, str)) and not isinstance(value, bool) else []
    if not 2 <= len(parts) <= 10 or not all(re.fullmatch(r"[0-9]{1,2}", part) and int(part) for part in parts):
        raise JobError(f"{field} is {show(value)}; write the widths of two or more levels, as in 1-2-4-4")
    return "-".join(parts)


def _depths(field: str, value: Any) -> str:
    text = value if isinstance(value, str) else ""
    if not re.fullmatch(r"[0-9]{1,3}(-[0-9]{1,3}){1,9}", text):
        raise JobError(f"{field} is {show(value)}; write the layers of two or more levels, as in 0-2-10")
    return text


FLAG = structured("switch", _flag, ("0", "1"))
WIDTH = whole(1, 10**6, "features")
WIDTH_OR_ZERO = whole(0, 10**6, "features")
WIDTHS = whole(1, 10**6, "features", items=64)
DEPTH = whole(1, 10**4, "layers")
DEPTH_OR_ZERO = whole(0, 10**4, "layers")
HEADS = whole(1, 10**5, "heads")
CLASSES = whole(1, 10**7, "classes")
VOCABULARY = whole(1, 10**8, "tokens")
EXPERTS_OR_ZERO = whole(0, 10**5, "experts")
TOKENS = whole(1, 10**8, "tokens")
TOKENS_OR_ZERO = whole(0, 10**8, "tokens")
KERNEL = whole(1, 10**3, "pixels")
DROPOUT = number(1e-6, 1 - 1e-6, zero=True)
CAP = number(1e-3, 1e6, zero=True)
ROWS = whole(1, 10**11, "rows")
_ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "relu2")

MODEL_CONFIG: Mapping[str, ShapeField] = {
    # transformers
    "layers": ShapeField(DEPTH, "layers, of each stack where there are two"),
    "hidden": ShapeField(WIDTH, "width"),
    "heads": ShapeField(HEADS, "attention heads; they divide hidden unless head_dim is given"),
    "kv_heads": ShapeField(HEADS, "key and value heads; they divide heads"),
    "head_dim": ShapeField(WIDTH, "width of one head"),
    "ffn": ShapeField(whole(1, 10**7, "features"), "width of the feed-forward layer"),
    "vocab": ShapeField(VOCABULARY, "vocabulary"),
    "max_positions": ShapeField(TOKENS, "learned positions"),
    "segments": ShapeField(whole(1, 10**3), "kinds of segments"),
    "labels": ShapeField(CLASSES, "classes of the head"),
    "max_predictions": ShapeField(whole(1, 10**6, "tokens"), "masked tokens of a sequence"),
    "act": ShapeField(choice((*_ACTIVATIONS, "swiglu", "geglu", "clamped_quick_geglu")), "activation"),
    "norm": ShapeField(choice(("layernorm", "rmsnorm")), "normalisation"),
    "pos": ShapeField(choice(("learned", "rope", "yarn_rope", "alibi", "none")), "positions"),
    "bias": ShapeField(
        structured("switch", _bias, ("0", "1", "qkv")),
        "biases in linear layers; qkv: in those of queries, keys, values",
    ),
    "tied_embeddings": ShapeField(FLAG, "the head shares the embedding's weights"),
    "fast_norm": ShapeField(FLAG, "norms of timm run in the dtype of autocast"),
    "qk_norm": ShapeField(FLAG, "queries and keys are normalised"),
    "decoder_layers": ShapeField(DEPTH, "layers of the decoder, where it has another number"),
    "text_hidden": ShapeField(WIDTH, "width of the text's stack"),
    "text_heads": ShapeField(HEADS, "attention heads of the text's stack"),
    "fused_qkv": ShapeField(FLAG, "one projection for query, key and value"),
    "post_norm": ShapeField(FLAG, "normalisation also after each part, before the sum"),
    "pre_norm": ShapeField(FLAG, "normalisation before each part"),
    "rope_theta": ShapeField(number(1, 1e12), "base of the rotary positions"),
    "rotary_percent": ShapeField(number(0.01, 1), "share of a head with rotary positions"),
    "attn": ShapeField(choice(("heads", "mla")), "kind of attention"),
    "attn_sink": ShapeField(choice(("none", "learned")), "logit that takes no value"),
    "attn_softcap": ShapeField(CAP, "cap of attention's scores, by tanh; 0: none"),
    "logit_softcap": ShapeField(CAP, "cap of the logits, by tanh; 0: none"),
    "sliding_window": ShapeField(structured("text", _window), "tokens that attention sees; 0: all"),
    "q_lora": ShapeField(WIDTH_OR_ZERO, "latent width of queries (mla)"),
    "kv_lora": ShapeField(WIDTH_OR_ZERO, "latent width of keys and values (mla)"),
    "qk_nope": ShapeField(WIDTH_OR_ZERO, "width of a head without positions (mla)"),
    "qk_rope": ShapeField(WIDTH_OR_ZERO, "width of a head with positions (mla)"),
    "v_head": ShapeField(WIDTH_OR_ZERO, "width of a value head (mla)"),
    "experts": ShapeField(EXPERTS_OR_ZERO, "experts of a layer; 0: dense"),
    "local_experts": ShapeField(EXPERTS_OR_ZERO, "experts that this rank holds; 0: all"),
    "topk": ShapeField(EXPERTS_OR_ZERO, "experts of a token"),
    "moe_ffn": ShapeField(WIDTH_OR_ZERO, "width of one expert"),
    "shared_ffn": ShapeField(WIDTH_OR_ZERO, "width of the expert that all tokens pass"),
    "dense_layers": ShapeField(DEPTH_OR_ZERO, "first layers without experts"),
    "expert_groups": ShapeField(EXPERTS_OR_ZERO, "groups of experts; 0: none"),
    "topk_groups": ShapeField(EXPERTS_OR_ZERO, "groups that the experts of a token are of; 0: all"),
    "router": ShapeField(choice(("softmax", "sigmoid")), "router of tokens"),
    "pattern": ShapeField(structured("text", _pattern), "letters of a hybrid's layers"),
    "mamba_heads": ShapeField(whole(0, 10**5, "heads"), "heads of a Mamba layer"),
    "mamba_head_dim": ShapeField(WIDTH_OR_ZERO, "width of one of them"),
    "mamba_groups": ShapeField(whole(0, 10**5, "groups"), "groups of a Mamba layer"),
    "mamba_state": ShapeField(WIDTH_OR_ZERO, "state of a Mamba layer"),
    "mamba_taps": ShapeField(whole(1, 1000, "taps"), "taps of its convolution"),
    "mtp_layers": ShapeField(whole(0, 100, "layers"), "layers that predict further tokens"),
    "lora": ShapeField(WIDTH_OR_ZERO, "rank of adapters; 0: none"),
    "lora_dropout": ShapeField(DROPOUT, "dropout of adapters"),
    "dropout": ShapeField(DROPOUT, "dropout"),
    "attention_dropout": ShapeField(DROPOUT, "dropout of attention weights"),
    "head": ShapeField(choice(("pretrain", "mlm", "squad", "ner", "classify")), "head of an encoder"),
    "generator_hidden": ShapeField(WIDTH, "width of ELECTRA's generator"),
    "generator_heads": ShapeField(HEADS, "heads of ELECTRA's generator"),
    "generator_head_dim": ShapeField(WIDTH, "width of one of them"),
    "generator_ffn": ShapeField(whole(1, 10**7, "features"), "feed-forward width of ELECTRA's generator"),
    "discriminator_weight": ShapeField(number(1e-6, 1e6), "weight of the discriminator's loss"),
    "cutoffs": ShapeField(whole(1, 10**8, "tokens", items=16), "first words of the adaptive softmax's clusters"),
    "cluster_shares": ShapeField(number(1e-6, 1, zero=True, items=16), "share of targets in each cluster"),
    "div_val": ShapeField(whole(1, 64), "divisor of the embedding width from cluster to cluster"),
    # images and volumes
    "classes": ShapeField(CLASSES, "classes"),
    "label_smoothing": ShapeField(SHARE, "label smoothing"),
    "depth": ShapeField(whole(1, 10**4, "layers"), "depth of a convolutional network"),
    "width": ShapeField(WIDTH, "width of the first stage"),
    "depth_multiple": ShapeField(number(0.01, 100), "factor of the blocks of each stage"),
    "width_multiple": ShapeField(number(0.01, 100), "factor of the channels of each stage"),
    "max_channels": ShapeField(WIDTH, "most channels of a stage, before that factor"),
    "widen": ShapeField(whole(1, 10**3), "factor of the widths"),
    "growth": ShapeField(WIDTH, "channels that a dense layer adds"),
    "divide": ShapeField(whole(1, 64), "divisor of the paper's widths"),
    "groups": ShapeField(whole(1, 10**5, "groups"), "groups of a convolution"),
    "group_width": ShapeField(WIDTH, "channels of one group"),
    "variant": ShapeField(NAME, "variant of the architecture"),
    "squeeze_excite": ShapeField(FLAG, "squeeze and excitation"),
    "wide_squeeze": ShapeField(FLAG, "squeeze from the expanded width"),
    "survival": ShapeField(number(1e-3, 1), "probability that a block is kept"),
    "drop_path": ShapeField(DROPOUT, "stochastic depth"),
    "inplace": ShapeField(FLAG, "activations in place"),
    "fused_norm": ShapeField(FLAG, "instance norms are one kernel, which takes channels last"),
    "patch": ShapeField(whole(1, 10**4, "pixels"), "side of a patch"),
    "kernel": ShapeField(KERNEL, "side of a kernel"),
    "out_kernel": ShapeField(KERNEL, "side of the last kernel"),
    "class_tokens": ShapeField(whole(1, 16, "tokens"), "tokens with a head of their own"),
    "mixing": ShapeField(choice(("mlp", "linear", "gated")), "how tokens are mixed"),
    "cell": ShapeField(choice(("lstm", "gru")), "cell of a recurrent network"),
    "bidirectional": ShapeField(FLAG, "reads both ways"),
    "edges": ShapeField(choice(("grid", "nearest")), "edges of the graph"),
    "neighbours": ShapeField(whole(1, 10**4, "nodes"), "neighbours of a node"),
    "name": ShapeField(NAME, "model of torchvision"),
    "anchors": ShapeField(whole(1, 10**7, "boxes"), "boxes of an image; follows from image_size"),
    "backbone": ShapeField(NAME, "backbone, as resnet50"),
    "masks": ShapeField(FLAG, "predicts masks"),
    "objects": ShapeField(whole(1, 1000, "objects"), "objects of an image"),
    "dims": ShapeField(whole(2, 3, "dimensions"), "2: images, 3: volumes"),
    "filters": ShapeField(whole(1, 10**5, "channels", items=12), "channels of each level"),
    "down": ShapeField(whole(1, 100, "layers", items=12), "layers of each level down"),
    "up": ShapeField(whole(1, 100, "layers", items=12), "layers of each level up"),
    "slope": ShapeField(SHARE, "slope of the leaky ReLU"),
    "dice_over_batch": ShapeField(FLAG, "the Dice loss is taken over the batch"),
    "dice_background": ShapeField(FLAG, "the Dice loss counts the background"),
    # diffusion
    "channels": ShapeField(WIDTH, "channels of the first level"),
    "multipliers": ShapeField(structured("text", _multipliers), "factor of the channels of each level"),
    "depths": ShapeField(structured("text", _depths), "transformer layers of each level, as in 0-2-10"),
    "blocks": ShapeField(whole(1, 100, "blocks"), "residual blocks of a level"),
    "context": ShapeField(WIDTH, "width of the text's features"),
    "latent_channels": ShapeField(whole(1, 10**4, "channels"), "channels of the latent image"),
    "text_encoder": ShapeField(FLAG, "the text model runs in the step"),
    "double_blocks": ShapeField(whole(1, 1000, "blocks"), "blocks with separate text and image weights"),
    "single_blocks": ShapeField(whole(1, 1000, "blocks"), "blocks with shared weights"),
    "pooled": ShapeField(WIDTH, "width of the pooled text"),
    "guidance": ShapeField(FLAG, "a guidance embedding"),
    # speech
    "symbols": ShapeField(whole(1, 10**6, "symbols"), "symbols of the transcript"),
    "target_len": ShapeField(whole(1, 10**5, "symbols"), "length of the transcript"),
    "flows": ShapeField(whole(1, 256, "flows"), "flows of WaveGlow"),
    "wn_layers": ShapeField(whole(1, 64, "layers"), "layers of one flow"),
    "wn_channels": ShapeField(WIDTH, "channels of one flow"),
    "wn_kernel": ShapeField(KERNEL, "kernel of one flow"),
    "early_every": ShapeField(whole(1, 256, "flows"), "flows between early outputs"),
    "early_size": ShapeField(whole(1, 10**4, "channels"), "channels of an early output"),
    "upsample_rates": ShapeField(whole(1, 1000, items=16), "factor of each upsampling"),
    "upsample_kernels": ShapeField(whole(1, 1000, items=16), "kernel of each upsampling"),
    "kernels": ShapeField(whole(1, 1000, items=16), "kernels of the residual blocks"),
    "dilations": ShapeField(whole(1, 1000, items=16), "dilations of the residual blocks"),
    "periods": ShapeField(whole(1, 1000, items=32), "periods of the discriminators"),
    # recommendation, tables and graphs
    "users": ShapeField(ROWS, "users"),
    "items": ShapeField(ROWS, "items"),
    "mf_dim": ShapeField(WIDTH, "width of the matrix factorisation"),
    "mlp": ShapeField(WIDTHS, "widths of the layers"),
    "tables": ShapeField(whole(1, 10**11, "rows", items=1000), "rows of each embedding table"),
    "embedding_dim": ShapeField(WIDTH, "width of an embedding"),
    "numerical": ShapeField(whole(1, 10**5, "features"), "numerical features"),
    "bottom": ShapeField(WIDTHS, "widths of the bottom layers"),
    "top": ShapeField(WIDTHS, "widths of the top layers"),
    "sparse": ShapeField(FLAG, "gradients of tables are sparse"),
    "static_classes": ShapeField(CLASSES, "values of the static feature"),
    "known_inputs": ShapeField(whole(1, 1000, "features"), "features that are known ahead"),
    "quantiles": ShapeField(whole(1, 1000, "quantiles"), "quantiles that are predicted"),
    "features": ShapeField(WIDTH, "features of a node"),
    "aggregation": ShapeField(choice(("gcn", "mean")), "how a node takes its neighbours: weighted sum or mean"),
    "fanout": ShapeField(whole(1, 10**4, "nodes", items=16), "neighbours sampled in each layer"),
}
"""Key of `model_config` -> its type, for every model that `PER_MODEL` does not name."""

PER_MODEL: Mapping[tuple[str, str], ShapeField] = {
    ("models.diffusion_unet:build", "head"): ShapeField(WIDTH, "width of an attention head"),
    ("models.unet:build", "norm"): ShapeField(choice(("instance", "batch")), "normalisation"),
    **{
        (f"models.{model}", "act"): ShapeField(choice(_ACTIVATIONS), "activation")
        for model in ("encoder:build", "electra:build", "bart_t5:build_bart")
    },
    ("models.resnet:build", "depth"): ShapeField(whole(1, 152, "layers"), "depth of a ResNet: 18, 34, 50, 101 or 152"),
    ("models.unet_variants:build_encoder", "depth"): ShapeField(
        whole(1, 152, "layers"), "depth of a ResNet: 18, 34, 50, 101 or 152"
    ),
    ("models.rcnn:build", "depth"): ShapeField(whole(1, 152, "layers"), "depth of a ResNet: 18, 34, 50, 101 or 152"),
    ("models.resnet:build", "variant"): ShapeField(choice(("v1", "v1.5")), "where the stride is"),
    ("models.jasper:build", "variant"): ShapeField(choice(("jasper", "quartznet")), "architecture"),
    ("models.transformers_models:build_clip", "variant"): ShapeField(choice(("clip", "siglip")), "loss and heads"),
    ("models.transformers_models:build_wav2vec2", "variant"): ShapeField(choice(("base", "large")), "where norms are"),
    ("models.huggingface:build", "freeze"): ShapeField(
        choice(("none", "vision", "language", "both")),
        "what is not trained of a model of text and images; both: all but the projector",
    ),
    ("models.vnet:build", "filters"): ShapeField(whole(1, 10**5, "channels"), "channels of the first level"),
}
"""(builder, key) -> the type there, where a key means something else than usual."""

SIDE = whole(1, 10**5, "pixels", items=2, alone=True)
INPUT: Mapping[str, ShapeField] = {
    "seq_len": ShapeField(TOKENS, "tokens of a sequence"),
    "target_len": ShapeField(TOKENS, "tokens of the output sequence"),
    "mem_len": ShapeField(TOKENS, "tokens of the memory"),
    "image_size": ShapeField(SIDE, "side of an image, or height and width"),
    "images": ShapeField(whole(0, 1000, "images"), "images of a sample of text and images"),
    "global_tokens": ShapeField(whole(1, 10**5, "tokens"), "tokens of a sequence that attend to all others"),
    "volume": ShapeField(whole(1, 10**4, "voxels", items=3, alone=True), "side of a volume, or its three sides"),
    "channels": ShapeField(whole(1, 10**4, "channels"), "channels of an image or volume"),
    "frames": ShapeField(whole(1, 10**4, "frames"), "frames of a clip"),
    "latent_size": ShapeField(whole(1, 10**4, "pixels"), "side of the latent image"),
    "text_tokens": ShapeField(whole(1, 10**6, "tokens"), "tokens of the text"),
    "audio_frames": ShapeField(whole(1, 10**7, "frames"), "frames of a spectrogram"),
    "audio_samples": ShapeField(whole(1, 10**8, "samples"), "samples of a clip"),
    "n_mels": ShapeField(whole(1, 10**4, "bands"), "bands of a spectrogram"),
    "encoder_steps": ShapeField(whole(1, 10**5, "steps"), "known steps of a time series"),
    "decoder_steps": ShapeField(whole(1, 10**5, "steps"), "predicted steps of a time series"),
    "nodes": ShapeField(whole(1, 10**9, "nodes"), "nodes of a graph"),
    "edges": ShapeField(whole(1, 10**10, "edges"), "edges of a graph, each direction counted"),
    "fields": ShapeField(whole(1, 1000, "fields"), "categorical fields of a sample"),
}
"""Key of `input` -> its type. Lengths may also be a range, LEAST..MOST."""


def config_field(builder: str, key: str) -> ShapeField:
    """The type of a key of `model_config` of the models of a builder."""
    return PER_MODEL.get((builder, key)) or MODEL_CONFIG[key]
