"""Decoders with published weights that follow templates (zoo/templates.py): no graphs of their own ship.

Shapes are those of config.json in the repository that `zoo.tables.hub` names (recalled; re-read in public copies for
Mistral 7B and Nemo, Llama 3.2 3B, Qwen2.5-0.5B and 3B, Qwen3-0.6B, 4B and 8B, DeepSeek-V2-Lite). Parameter counts are
those of the named class of transformers built at that configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from precision_time.zoo.tables.decoders import GPT_OSS, LLAMA, MLA, decoder_entry, decoder_shape
from precision_time.zoo.workload import ZooEntry

QWEN2: Mapping[str, Any] = {**LLAMA, "bias": "qkv"}
PHI3: Mapping[str, Any] = {**LLAMA, "fused_qkv": 1}
"""transformers also joins the gate with the other half of the feed-forward layer; here they are two products."""
GEMMA: Mapping[str, Any] = {**LLAMA, "act": "geglu", "tied_embeddings": 1}
GEMMA2: Mapping[str, Any] = {
    **GEMMA, "post_norm": 1, "sliding_window": "4096_every_second_layer", "attn_softcap": 50.0, "logit_softcap": 30.0,
}  # fmt: skip
GEMMA3: Mapping[str, Any] = {**GEMMA, "qk_norm": 1, "post_norm": 1, "sliding_window": "1024_five_of_six"}
"""Gemma's scaling of embeddings is left out."""
MLA_LITE: Mapping[str, Any] = {**MLA, "q_lora": 0, "router": "softmax"}
_TIED: Mapping[str, Any] = {"tied_embeddings": 1}
_QWEN3: Mapping[str, Any] = {**LLAMA, "qk_norm": 1, "head_dim": 128, "rope_theta": 1e6}
_Shape = tuple[int, ...]
"""Layers, hidden, heads, kv_heads, ffn."""


def _open(
    name: str,
    family: str,
    shape: _Shape,
    vocab: int,
    parameters: int,
    config: Mapping[str, Any],
    kind: str,
    seq_len: int = 4096,
) -> ZooEntry:
    """`kind`: the class of transformers without ForCausalLM."""
    whole = {**LLAMA, **decoder_shape(*shape), "vocab": vocab, "rope_theta": 1e4, **config}
    source = f"transformers {kind}ForCausalLM, published config"
    return replace(decoder_entry(name, family, whole, seq_len, parameters, source), ships=False)


_LLAMA: tuple[tuple[str, _Shape, int, int, Mapping[str, Any], int], ...] = (
    ("llama3.2-1b", (16, 2048, 32, 8, 8192), 128256, 1_235_814_400, {**_TIED, "rope_theta": 5e5}, 8192),
    ("llama3.2-3b", (28, 3072, 24, 8, 8192), 128256, 3_212_749_824, {**_TIED, "rope_theta": 5e5}, 8192),
    ("llama3.3-70b", (80, 8192, 64, 8, 28672), 128256, 70_553_706_496, {"rope_theta": 5e5}, 8192),
    ("codellama-34b", (48, 8192, 64, 8, 22016), 32000, 33_743_970_304, {"rope_theta": 1e6}, 4096),
    ("tinyllama-1.1b", (22, 2048, 32, 4, 5632), 32000, 1_100_048_384, {}, 2048),
    ("smollm2-135m", (30, 576, 9, 3, 1536), 49152, 134_515_008, {**_TIED, "rope_theta": 1e5}, 2048),
    ("smollm2-360m", (32, 960, 15, 5, 2560), 49152, 361_821_120, {**_TIED, "rope_theta": 1e5}, 2048),
    ("smollm2-1.7b", (24, 2048, 32, 32, 8192), 49152, 1_711_376_384, {**_TIED, "rope_theta": 1.3e5}, 2048),
    ("yi-6b", (32, 4096, 32, 4, 11008), 64000, 6_061_035_520, {"rope_theta": 5e6}, 4096),
    ("yi-34b", (60, 7168, 56, 8, 20480), 64000, 34_388_917_248, {"rope_theta": 5e6}, 4096),
)
# The window of 4,096 tokens of Mistral 7B v0.1 has no effect up to that length; later versions have none.
_MISTRAL: tuple[tuple[str, _Shape, int, int, Mapping[str, Any]], ...] = (
    ("mistral-7b", (32, 4096, 32, 8, 14336), 32000, 7_241_732_096, {}),
    ("mistral-7b-v0.3", (32, 4096, 32, 8, 14336), 32768, 7_248_023_552, {"rope_theta": 1e6}),
    ("mistral-nemo-12b", (40, 5120, 32, 8, 14336), 131072, 12_247_782_400, {"head_dim": 128, "rope_theta": 1e6}),
    ("mistral-small-24b", (40, 5120, 32, 8, 32768), 131072, 23_572_403_200, {"head_dim": 128, "rope_theta": 1e8}),
    ("mistral-large-123b", (88, 12288, 96, 8, 28672), 32768, 122_610_069_504, {"rope_theta": 1e6}),
)
# Qwen2 of 0.5, 1.5, 7 and 72 billion parameters has the same shapes.
_QWEN25: tuple[tuple[str, _Shape, int, int, Mapping[str, Any]], ...] = (
    ("qwen2.5-0.5b", (24, 896, 14, 2, 4864), 151936, 494_032_768, _TIED),
    ("qwen2.5-1.5b", (28, 1536, 12, 2, 8960), 151936, 1_543_714_304, _TIED),
    ("qwen2.5-3b", (36, 2048, 16, 2, 11008), 151936, 3_085_938_688, _TIED),
    ("qwen2.5-7b", (28, 3584, 28, 4, 18944), 152064, 7_615_616_512, {}),
    ("qwen2.5-14b", (48, 5120, 40, 8, 13824), 152064, 14_770_033_664, {}),
    ("qwen2.5-32b", (64, 5120, 40, 8, 27648), 152064, 32_763_876_352, {}),
    ("qwen2.5-72b", (80, 8192, 64, 8, 29568), 152064, 72_706_203_648, {}),
)
_QWEN3_DENSE: tuple[tuple[str, _Shape, int, Mapping[str, Any]], ...] = (
    ("qwen3-0.6b", (28, 1024, 16, 8, 3072), 596_049_920, _TIED),
    ("qwen3-1.7b", (28, 2048, 16, 8, 6144), 1_720_574_976, _TIED),
    ("qwen3-4b", (36, 2560, 32, 8, 9728), 4_022_468_096, _TIED),
    ("qwen3-8b", (36, 4096, 32, 8, 12288), 8_190_735_360, {}),
    ("qwen3-14b", (40, 5120, 40, 8, 17408), 14_768_307_200, {}),
    ("qwen3-32b", (64, 5120, 64, 8, 25600), 32_762_123_264, {}),
)
_PHI = (
    ("phi-3-mini", (32, 3072, 32, 32, 8192), 32064, 3_821_079_552),
    ("phi-3-medium", (40, 5120, 40, 10, 17920), 32064, 13_960_238_080),
    ("phi-4", (40, 5120, 40, 10, 17920), 100352, 14_659_507_200),
)
_GEMMA: tuple[tuple[str, _Shape, int, int, int, Mapping[str, Any], str], ...] = (
    ("gemma-2b", (18, 2048, 8, 1, 16384), 256, 256000, 2_506_172_416, GEMMA, "Gemma"),
    ("gemma-7b", (28, 3072, 16, 16, 24576), 256, 256000, 8_537_680_896, GEMMA, "Gemma"),
    (
        "gemma3-1b",
        (26, 1152, 4, 1, 6912),
        256,
        262144,
        999_885_952,
        {**GEMMA3, "sliding_window": "512_five_of_six"},
        "Gemma3",
    ),
    ("gemma3-4b", (34, 2560, 8, 4, 10240), 256, 262208, 3_880_263_168, GEMMA3, "Gemma3"),
    ("gemma3-12b", (48, 3840, 16, 8, 15360), 256, 262208, 11_766_034_176, GEMMA3, "Gemma3"),
    ("gemma3-27b", (62, 5376, 32, 16, 21504), 128, 262208, 27_009_346_304, GEMMA3, "Gemma3"),
)
_GEMMA2 = (
    ("gemma2-2b", (26, 2304, 8, 4, 9216), 256, 2_614_341_888),
    ("gemma2-9b", (42, 3584, 16, 8, 14336), 256, 9_241_705_984),
    ("gemma2-27b", (46, 4608, 32, 16, 36864), 128, 27_227_128_320),
)
_EXPERTS = (
    _open(
        "deepseek-v2-lite", "deepseek", (27, 2048, 16, 16, 10944), 102400, 15_706_484_224,
        {**MLA_LITE, "experts": 64, "topk": 6, "moe_ffn": 1408, "shared_ffn": 2816, "dense_layers": 1}, "DeepseekV2",
    ),
    _open(
        "gpt-oss-20b", "gpt-oss", (24, 2880, 64, 8, 2880), 201088, 20_914_757_184,
        {"experts": 32, "topk": 4, "moe_ffn": 2880, "head_dim": 64, "rope_theta": 1.5e5, **GPT_OSS}, "GptOss",
    ),
)  # fmt: skip

ENTRIES: tuple[ZooEntry, ...] = (
    *(
        _open(name, "llama", shape, vocab, count, more, "Llama", length)
        for name, shape, vocab, count, more, length in _LLAMA
    ),
    *(_open(name, "mistral", shape, vocab, count, more, "Mistral") for name, shape, vocab, count, more in _MISTRAL),
    *(
        _open(name, "qwen2", shape, vocab, count, {**QWEN2, "rope_theta": 1e6, **more}, "Qwen2")
        for name, shape, vocab, count, more in _QWEN25
    ),
    *(
        _open(name, "qwen3", shape, 151936, count, {**_QWEN3, **more}, "Qwen3")
        for name, shape, count, more in _QWEN3_DENSE
    ),
    *(_open(name, "phi3", shape, vocab, count, PHI3, "Phi3") for name, shape, vocab, count in _PHI),
    *(
        _open(name, "gemma", shape, vocab, count, {**config, "head_dim": size}, kind)
        for name, shape, size, vocab, count, config, kind in _GEMMA
    ),
    *(
        _open(name, "gemma", shape, 256000, count, {**GEMMA2, "head_dim": size}, "Gemma2", 8192)
        for name, shape, size, count in _GEMMA2
    ),
    *_EXPERTS,
)
