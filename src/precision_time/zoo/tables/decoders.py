"""Decoder-only language models, all built by `models.decoder` from their shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from precision_time.zoo.tables.language import SEQ as LENGTH
from precision_time.zoo.workload import BATCH, SEQ, ZooEntry

_SAMPLES = replace(BATCH, apart=None)
"""Steps of one sample are those of the templates, which serve these models (zoo/templates.py)."""
PLAIN: Mapping[str, Any] = {
    "attn": "heads",
    "q_lora": 0,
    "kv_lora": 0,
    "qk_nope": 0,
    "qk_rope": 0,
    "v_head": 0,
    "sliding_window": 0,
    "attn_sink": "none",
    "experts": 0,
    "local_experts": 0,
    "topk": 0,
    "moe_ffn": 0,
    "shared_ffn": 0,
    "dense_layers": 0,
    "expert_groups": 0,
    "topk_groups": 0,
    "router": "softmax",
    "pattern": "",
    "mamba_heads": 0,
    "mamba_head_dim": 0,
    "mamba_groups": 0,
    "mamba_state": 0,
    "mamba_taps": 4,
    "mtp_layers": 0,
    "lora": 0,
    "lora_dropout": 0.0,
}
"""What a dense decoder has none of."""
GPT: Mapping[str, Any] = {
    **PLAIN,
    "norm": "layernorm",
    "act": "gelu",
    "pos": "learned",
    "bias": 1,
    "tied_embeddings": 1,
    "qk_norm": 0,
    "dropout": 0.0,
    "max_positions": 2048,
}
LLAMA: Mapping[str, Any] = {
    **PLAIN,
    "norm": "rmsnorm",
    "act": "swiglu",
    "pos": "rope",
    "bias": 0,
    "tied_embeddings": 0,
    "qk_norm": 0,
    "dropout": 0.0,
}
NEMOTRON: Mapping[str, Any] = {
    **LLAMA,
    "norm": "layernorm",
    "act": "relu2",
    "rotary_percent": 0.5,
    "vocab": 256000,
}
GPT2: Mapping[str, Any] = {**GPT, "act": "gelu_tanh", "vocab": 50257, "dropout": 0.1, "max_positions": 1024}


def decoder_shape(
    layers: int, hidden: int, heads: int, kv_heads: int | None = None, ffn: int | None = None
) -> dict[str, Any]:
    return {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads or heads,
        "head_dim": hidden // heads,
        "ffn": ffn or 4 * hidden,
    }


def decoder_entry(
    name: str,
    family: str,
    config: Mapping[str, Any],
    seq_len: int,
    parameters: int = 0,
    source: str = "",
    batch_size: int = 1,
) -> ZooEntry:
    return ZooEntry(
        name=name,
        builder="models.decoder:build",
        family=family,
        input={"seq_len": seq_len},
        optimizer="adamw",
        dataset="text",
        batch_size=batch_size,
        config=config,
        symbols=(_SAMPLES, LENGTH),
        clip_norm=1.0,
        attention=True,
        parameters=parameters,
        parameters_source=source,
    )


def _by_template(entry: ZooEntry) -> ZooEntry:
    """A model whose whole step is too long to be traced (`capture.limits`): a template serves it."""
    return replace(entry, ships=False)


def _gpt2(name: str, shape: dict[str, Any], parameters: int) -> ZooEntry:
    source = f"transformers GPT2LMHeadModel, {name}"
    return decoder_entry(name, "gpt", {**GPT2, **shape}, 1024, parameters, source, batch_size=8)


def _llama(name: str, shape: dict[str, Any], vocab: int, theta: float, seq_len: int, parameters: int) -> ZooEntry:
    config = {**LLAMA, **shape, "vocab": vocab, "rope_theta": theta}
    return decoder_entry(name, "llama", config, seq_len, parameters, "transformers LlamaForCausalLM, published config")


def _experts(experts: int, topk: int, width: int, shared: int = 0, dense_layers: int = 0) -> dict[str, Any]:
    return {"experts": experts, "topk": topk, "moe_ffn": width, "shared_ffn": shared, "dense_layers": dense_layers}


def _large(name: str, family: str, config: Mapping[str, Any], seq_len: int, parameters: int, source: str) -> ZooEntry:
    entry = decoder_entry(name, family, {**LLAMA, **config}, seq_len, parameters, source)
    return replace(entry, symbols=(_SAMPLES, SEQ), ships_math=False)


def _mixtral(name: str, shape: dict[str, Any], parameters: int) -> ZooEntry:
    config = {**shape, **_experts(8, 2, shape["ffn"]), "vocab": 32000, "rope_theta": 1e6}
    return _large(name, "mixtral", config, 4096, parameters, "transformers MixtralForCausalLM, published config")


def _qwen3(name: str, shape: dict[str, Any], width: int, parameters: int) -> ZooEntry:
    config = {**shape, **_experts(128, 8, width), "head_dim": 128, "vocab": 151936, "qk_norm": 1, "rope_theta": 1e6}
    return _large(name, "qwen3-moe", config, 4096, parameters, "transformers Qwen3MoeForCausalLM, published config")


MLA: Mapping[str, Any] = {
    "attn": "mla",
    "q_lora": 1536,
    "kv_lora": 512,
    "qk_nope": 128,
    "qk_rope": 64,
    "v_head": 128,
    "router": "sigmoid",
}
LORA: Mapping[str, Any] = {**LLAMA, "fused_qkv": 1, "lora": 16, "lora_dropout": 0.1}
GPT_OSS: Mapping[str, Any] = {
    "bias": 1,
    "act": "clamped_quick_geglu",
    "pos": "yarn_rope",
    "sliding_window": "128_every_second_layer",
    "attn_sink": "learned",
}
LLM_FOUNDRY = "llm-foundry throughput table, sequence length 2048"
LLAMA3_8B = decoder_shape(32, 4096, 32, 8, 14336)
LLAMA3_70B = decoder_shape(80, 8192, 64, 8, 28672)
LLAMA3_COUNTS = (8_030_261_248, 70_553_706_496, 405_853_388_800)

ENTRIES: tuple[ZooEntry, ...] = (
    # Defaults of the user-defined GPT are those of GPT-2 small with a vocabulary padded to a multiple of 128.
    decoder_entry("gpt", "gpt", {**GPT, **decoder_shape(12, 768, 12), "vocab": 50304}, 1024, batch_size=8),
    _gpt2("gpt2", decoder_shape(12, 768, 12), 124_439_808),
    _gpt2("gpt2-medium", decoder_shape(24, 1024, 16), 354_823_168),
    _gpt2("gpt2-large", decoder_shape(36, 1280, 20), 774_030_080),
    _gpt2("gpt2-xl", decoder_shape(48, 1600, 25), 1_557_611_200),
    *(
        decoder_entry(f"mpt-{size}", "mpt", {**GPT, **decoder_shape(*shape), "vocab": 50368}, 2048, count, LLM_FOUNDRY)
        for size, shape, count in (
            ("125m", (12, 768, 12), 125_311_488),
            ("350m", (24, 1024, 16), 355_985_408),
            ("760m", (24, 1536, 12), 760_470_528),
            ("1b", (24, 2048, 16), 1_315_950_592),
            ("3b", (32, 2560, 20), 2_651_837_440),
            ("7b", (32, 4096, 32), 6_658_859_008),
            ("13b", (40, 5120, 40), 12_853_954_560),
            ("30b", (48, 7168, 56), 29_975_214_080),
            ("70b", (80, 8192, 64), 64_862_437_376),
        )
    ),
    decoder_entry("gpt3-5b", "gpt", {**GPT, **decoder_shape(24, 4096, 32), "vocab": 51200}, 2048),
    decoder_entry("gpt3-20b", "gpt", {**GPT, **decoder_shape(44, 6144, 48), "vocab": 51200}, 2048),
    decoder_entry(
        "gpt3-175b",
        "gpt",
        {**GPT, **decoder_shape(96, 12288, 96), "vocab": 51200},
        2048,
        174_600_000_000,
        "arXiv:2005.14165 table D.1 (rounded to 0.1 billion; vocabulary 50257)",
    ),
    _llama("llama2-7b", decoder_shape(32, 4096, 32, 32, 11008), 32000, 1e4, 4096, 6_738_415_616),
    _llama("llama2-13b", decoder_shape(40, 5120, 40, 40, 13824), 32000, 1e4, 4096, 13_015_864_320),
    _llama("llama2-70b", decoder_shape(80, 8192, 64, 8, 28672), 32000, 1e4, 4096, 68_976_648_192),
    _llama("llama3-8b", LLAMA3_8B, 128256, 5e5, 8192, LLAMA3_COUNTS[0]),
    _llama("llama3-70b", LLAMA3_70B, 128256, 5e5, 8192, LLAMA3_COUNTS[1]),
    _llama("llama3.1-8b", LLAMA3_8B, 128256, 5e5, 8192, LLAMA3_COUNTS[0]),
    _llama("llama3.1-70b", LLAMA3_70B, 128256, 5e5, 8192, LLAMA3_COUNTS[1]),
    _by_template(
        _llama("llama3.1-405b", decoder_shape(126, 16384, 128, 8, 53248), 128256, 5e5, 8192, LLAMA3_COUNTS[2])
    ),
    # The adapted layers are those of MLPerf's reference: query, key and value in one projection, and the output.
    _large(
        "llama2-70b-lora",
        "llama",
        {
            **decoder_shape(80, 8192, 64, 8, 28672),
            "vocab": 32000,
            "rope_theta": 1e4,
            **LORA,
        },
        8192,
        69_021_212_672,
        "MLPerf training reference, llama2_70b_lora: 68,976,648,192 frozen and 44,564,480 trained",
    ),
    _mixtral("mixtral-8x7b", decoder_shape(32, 4096, 32, 8, 14336), 46_702_792_704),
    _mixtral("mixtral-8x22b", decoder_shape(56, 6144, 48, 8, 16384), 140_620_634_112),
    _qwen3("qwen3-30b-a3b", decoder_shape(48, 2048, 32, 4, 6144), 768, 30_532_122_624),
    _by_template(_qwen3("qwen3-235b-a22b", decoder_shape(94, 4096, 64, 4, 12288), 1536, 235_093_634_560)),
    _large(
        "gpt-oss-120b",
        "gpt-oss",
        {
            **decoder_shape(36, 2880, 64, 8, 2880),
            **_experts(128, 4, 2880),
            "head_dim": 64,
            "vocab": 201088,
            "rope_theta": 150000.0,
            **GPT_OSS,
        },
        4096,
        116_829_156_672,
        "arXiv:2508.10925 table 1 (116.83 billion)",
    ),
    _large(
        "deepseek-v3",
        "deepseek",
        {
            **decoder_shape(61, 7168, 128, ffn=18432),
            **_experts(256, 8, 2048, 2048, 3),
            "expert_groups": 8,
            "topk_groups": 4,
            **MLA,
            "vocab": 129280,
        },
        4096,
        671_026_404_352,
        "transformers DeepseekV3ForCausalLM, published config, without the router's correction of 14,848 numbers",
    ),
    _large(
        "kimi-k2",
        "deepseek",
        {
            **decoder_shape(61, 7168, 64, ffn=18432),
            **_experts(384, 8, 2048, 2048, 1),
            **MLA,
            "vocab": 163840,
            "rope_theta": 50000.0,
        },
        4096,
        1_026_408_209_408,
        "published config of moonshotai/Kimi-K2-Base (1.026 T), without the router's correction of 23,040 numbers",
    ),
    # arXiv:2512.20848; the layers' order is hybrid_override_pattern of the published configuration.
    _large(
        "nemotron-3-nano",
        "nemotron-h",
        {
            **decoder_shape(52, 2688, 32, 2, 1856),
            **_experts(128, 6, 1856, 3712),
            "pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
            "mamba_heads": 64,
            "mamba_head_dim": 64,
            "mamba_groups": 8,
            "mamba_state": 128,
            "head_dim": 128,
            "vocab": 131072,
            "act": "relu2",
            "pos": "none",
            "router": "sigmoid",
        },
        8192,
        31_600_000_000,
        "arXiv:2512.20848 (31.6 billion, rounded)",
    ),
    decoder_entry("nemotron-8b", "nemotron", {**NEMOTRON, **decoder_shape(32, 4096, 32)}, 4096),
    decoder_entry("nemotron-22b", "nemotron", {**NEMOTRON, **decoder_shape(40, 6144, 48)}, 4096),
    _by_template(
        decoder_entry(
            "nemotron-340b",
            "nemotron",
            {**NEMOTRON, **decoder_shape(96, 18432, 96, 8)},
            4096,
            341_000_000_000,
            "Nemotron-4 340B report: 331.6 billion + 9.4 billion embedding parameters (rounded)",
        )
    ),
)
