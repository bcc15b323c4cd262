"""A Hugging Face model's config.json as a decoder of the zoo at that shape, which needs no torch.

`hf:config.json` predicts the code of transformers, traced; this importer the same weights as training frameworks run
them, in any layout. The model is a named one of the same `model_type`, and `model_config` its departures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precision_time.checks import show
from precision_time.errors import JobError, nearest
from precision_time.job.importers.imported import Imported
from precision_time.job.importers.reader import NO_EFFECT, Reader
from precision_time.reading import plain_mapping

KIND = "Hugging Face model config"
KEYS = ("model_type", "transformers_version", "architectures")
"""Keys of which two show such a file."""

_MODELS = {
    "llama": "llama3-8b", "mistral": "mistral-7b", "qwen2": "qwen2.5-7b", "qwen3": "qwen3-8b",
    "qwen3_moe": "qwen3-30b-a3b", "mixtral": "mixtral-8x7b", "deepseek_v2": "deepseek-v2-lite",
    "deepseek_v3": "deepseek-v3", "phi3": "phi-4", "gemma": "gemma-7b", "gemma2": "gemma2-9b",
    "gemma3_text": "gemma3-4b", "gpt_oss": "gpt-oss-20b", "gpt2": "gpt2",
}  # fmt: skip
"""model_type -> the named model whose blocks it has."""
_SIZES = {
    "num_hidden_layers": "layers", "n_layer": "layers", "hidden_size": "hidden", "n_embd": "hidden",
    "num_attention_heads": "heads", "n_head": "heads", "num_key_value_heads": "kv_heads",
    "intermediate_size": "ffn", "n_inner": "ffn", "vocab_size": "vocab", "n_positions": "max_positions",
    "num_experts": "experts", "num_local_experts": "experts", "n_routed_experts": "experts",
    "num_experts_per_tok": "topk", "moe_intermediate_size": "moe_ffn", "first_k_dense_replace": "dense_layers",
    "n_group": "expert_groups", "topk_group": "topk_groups",
    "q_lora_rank": "q_lora", "kv_lora_rank": "kv_lora", "qk_nope_head_dim": "qk_nope", "qk_rope_head_dim": "qk_rope",
    "v_head_dim": "v_head",
}  # fmt: skip
"""Key of the file -> key of `model_config`."""
_OR_NONE = ("q_lora_rank", "first_k_dense_replace", "n_group", "topk_group")
"""Sizes that may be 0, which a null means too."""
_LATENT = ("deepseek_v2", "deepseek_v3")
_EXPERTS_ARE_THE_FFN = ("mixtral", "gpt_oss")
"""Types whose intermediate_size is that of an expert."""
_WINDOWS = {"mistral": "{}", "gemma2": "{}_every_second_layer", "gpt_oss": "{}_every_second_layer",
            "gemma3_text": "{}_five_of_six"}  # fmt: skip
"""Types with windows, as the word of `sliding_window`; the others have a key for it that is off."""
_ACTIVATIONS = {"swiglu": ("silu", "swish"), "geglu": ("gelu_pytorch_tanh", "gelu", "gelu_new"), "gelu_tanh": (
    "gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "clamped_quick_geglu": ("silu",)}  # fmt: skip
_ACT_OF = {"gemma": "geglu", "gemma2": "geglu", "gemma3_text": "geglu", "gpt2": "gelu_tanh",
           "gpt_oss": "clamped_quick_geglu"}  # fmt: skip
_NO_EFFECT = frozenset(
    """
    architectures transformers_version torch_dtype dtype _name_or_path auto_map use_cache initializer_range
    rms_norm_eps layer_norm_epsilon layer_norm_eps bos_token_id eos_token_id pad_token_id unk_token_id
    decoder_start_token_id attention_dropout rope_theta rope_scaling rope_parameters rope_local_base_freq
    rope_interleave original_max_position_embeddings partial_rotary_factor max_position_embeddings n_ctx pretraining_tp
    output_router_logits router_aux_loss_coef aux_loss_alpha seq_aux norm_topk_prob
    routed_scaling_factor scoring_func topk_method router_jitter_noise initial_context_length
    max_window_layers use_sliding_window query_pre_attn_scalar cache_implementation attn_implementation
    summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
    task_specific_params reorder_and_upcast_attn scale_attn_weights scale_attn_by_inverse_layer_idx swiglu_limit
    id2label label2id hidden_activation sliding_window_pattern _sliding_window_pattern ep_size moe_layer_freq
    output_hidden_states output_attentions return_dict chunk_size_feed_forward is_encoder_decoder problem_type
    add_cross_attention qk_head_dim use_bidirectional_attention swiglu_alpha
    """.split()
)
"""Keys that change no time of a step, or whose value was looked at without being taken."""
_MULTI_TOKEN = "transformers trains no further tokens; add model_config mtp_layers where your framework does"


def from_hf_model(config: Mapping[str, Any]) -> Imported:
    """Model and shape of a config.json. Raises JobError for a type that no named model has the blocks of."""
    values = plain_mapping("the config", config)
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in _MODELS:
        raise JobError(
            f"model_type {show(kind)} is that of no decoder of the zoo; nearest: {nearest(kind, _MODELS)}; name the "
            "file as --model hf:FILE, which traces it with PyTorch"
        )
    reader = Reader(values)
    reader.take("model_type")
    shape: dict[str, Any] = {}
    for key, name in _SIZES.items():
        if key in _OR_NONE and (key in values and not values[key]):
            reader.take(key)
            shape[name] = 0
        elif (size := reader.number(key)) is not None:
            shape[name] = size
    _blocks(reader, kind, shape, values)
    not_taken = reader.finish(names=_NO_EFFECT)
    return Imported(KIND, {"model": _MODELS[kind], "model_config": shape}, not_taken=not_taken, taken=reader.taken)


def _blocks(reader: Reader, kind: str, shape: dict[str, Any], values: Mapping[str, Any]) -> None:
    """What is no plain size."""
    _widths(reader, kind, shape)
    if (tied := reader.take("tie_word_embeddings")) is not None:
        shape["tied_embeddings"] = int(bool(tied))
    if kind == "gpt2":
        dropout = [reader.take(name) for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop")]
        if (rate := next((each for each in dropout if each is not None), None)) is not None:
            shape["dropout"] = rate
    _window(reader, kind, shape, values)
    act = _ACT_OF.get(kind, "swiglu")
    given = reader.take("hidden_act", "hidden_activation", "activation_function")
    if given is not None and given not in _ACTIVATIONS[act]:
        reader.not_taken["hidden_act"] = f"no model of {show(given)} in these blocks; taken as {act}"
    for name in ("attention_bias", "mlp_bias", "use_bias"):
        usual = kind == "gpt_oss" or (kind == "qwen2" and name == "attention_bias")
        if reader.on(name) and not usual:
            reader.not_taken[name] = "biases of these blocks are not modelled; they take little time"
    for name, key in (("attn_logit_softcapping", "attn_softcap"), ("final_logit_softcapping", "logit_softcap")):
        if kind == "gemma2" and name in values:
            shape[key] = float(reader.take(name) or 0.0)
        else:
            reader.refuse(NO_EFFECT, name)
    reader.refuse(_MULTI_TOKEN, "num_nextn_predict_layers")
    if reader.number("decoder_sparse_step", default=1) != 1 or reader.take("mlp_only_layers", several=True):
        raise JobError(
            f"{kind} with dense layers among its experts (decoder_sparse_step, mlp_only_layers) is no shape of the "
            "zoo's decoder; name the file as --model hf:FILE"
        )


def _widths(reader: Reader, kind: str, shape: dict[str, Any]) -> None:
    """Sizes that follow from others where the file leaves them out."""
    if kind in _EXPERTS_ARE_THE_FFN and "ffn" in shape:
        shape["moe_ffn"] = shape["ffn"]
    if kind == "gpt2" and "hidden" in shape:
        shape.setdefault("ffn", 4 * shape["hidden"])
    if "heads" in shape:
        shape.setdefault("kv_heads", shape["heads"])
    head = reader.number("head_dim")
    if "hidden" in shape and "heads" in shape:  # with latent attention its own sizes count instead
        shape["head_dim"] = head if head and kind not in _LATENT else shape["hidden"] // shape["heads"]
    if (shared := reader.number("n_shared_experts")) is not None:
        shape["shared_ffn"] = shared * shape.get("moe_ffn", 0)


def _window(reader: Reader, kind: str, shape: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Windows of attention; `layer_types` says in which layers they are, which follows from the type."""
    length = reader.number("sliding_window")
    reader.take("layer_types", several=True)
    if kind in _WINDOWS:
        shape["sliding_window"] = _WINDOWS[kind].format(length) if length else 0
    elif length and values.get("use_sliding_window"):
        reader.not_taken["use_sliding_window"] = "windows in some layers are not modelled; all attend to everything"
