"""Few of a model's equal blocks stand for all: the step is that of the whole trace, call by call."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch import nn  # noqa: E402

from precision_time import predict_time  # noqa: E402
from precision_time.capture.captured_model import capture_model  # noqa: E402
from precision_time.capture.few_layers import leave_few  # noqa: E402
from precision_time.capture.graph import OpGraph  # noqa: E402
from precision_time.capture.layers import layered  # noqa: E402
from precision_time.job import Job  # noqa: E402

SMALL: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 128}
DECODER: dict[str, Any] = {**SMALL, "num_key_value_heads": 2, "num_hidden_layers": 7, "pad_token_id": 0}
EXPERTS: dict[str, Any] = {**DECODER, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": DECODER,
    "gpt2": {"n_embd": 64, "n_head": 4, "n_layer": 6, "vocab_size": 128},
    "bert": {**SMALL, "num_hidden_layers": 6},
    "t5": {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_heads": 4, "num_layers": 6, "vocab_size": 128},
    "bart": {"d_model": 64, "encoder_layers": 5, "decoder_layers": 6, "encoder_attention_heads": 4,
             "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "vocab_size": 128},
    "gemma2": {**DECODER, "head_dim": 16, "num_hidden_layers": 8, "sliding_window": 8},
    "qwen3_moe": {**EXPERTS, "head_dim": 16, "num_experts": 4},
    "deepseek_v3": {**EXPERTS, "num_key_value_heads": 4, "n_routed_experts": 8, "n_group": 2, "topk_group": 1,
                    "first_k_dense_replace": 2, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
                    "qk_nope_head_dim": 16, "v_head_dim": 16},
    "gpt_oss": {**EXPERTS, "head_dim": 16, "num_local_experts": 4, "num_hidden_layers": 8, "sliding_window": 8},
}  # fmt: skip


def job(folder: Path, kind: str, **changes: Any) -> Job:
    path = folder / f"{kind}.json"
    path.write_text(json.dumps({"model_type": kind, **CONFIGS[kind], **changes}))
    return Job(f"hf:{path}", precision="bf16", batch_size=2, input={"seq_len": 16}, gpu="h100-80gb-sxm")


def calls(graph: OpGraph) -> Counter[object]:
    """All calls of the model with operator, shapes and phase."""
    layers = layered(graph)
    return Counter(
        (graph.kinds[graph.calls[i].kind], graph.calls[i].phase)
        for unit in layers.order
        for i in (*layers.units[unit].forward, *layers.units[unit].backward)
    )


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_calls_and_weights_are_those_of_the_whole_model(kind: str, tmp_path: Path) -> None:
    whole, few = (capture_model(job(tmp_path, kind), few_layers=few).graph for few in (False, True))
    assert few.repeated
    assert len(few.calls) < len(whole.calls)
    assert calls(few) == calls(whole)
    assert layered(few).parameter_count == whole.parameter_count
    assert len(layered(few).blocks) == len(layered(whole).blocks)


def test_the_estimate_is_that_of_the_whole_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def estimate(folder: str) -> dict[str, Any]:
        (tmp_path / folder).mkdir()
        given = job(tmp_path / folder, "deepseek_v3")
        found = predict_time(given.model, precision="bf16", batch_size=2, input=given.input, gpu="h100-80gb-sxm")
        return {name: value for name, value in found.to_dict().items() if name != "job"}

    few = estimate("few")
    monkeypatch.setattr("precision_time.capture.few_layers._WHOLE", ("use_cache", "model_type"))
    assert estimate("whole") == few


@pytest.mark.parametrize("change", [{"output_hidden_states": True}, {"num_hidden_layers": 3}])
def test_what_every_block_returns_or_few_blocks_need_the_whole_trace(change: dict[str, Any], tmp_path: Path) -> None:
    assert not capture_model(job(tmp_path, "llama", **change), few_layers=True).graph.repeated


def test_blocks_that_differ_in_a_weight_or_a_plain_attribute_are_kept() -> None:
    class Stack(nn.Module):
        def __init__(self, *blocks: nn.Module) -> None:
            super().__init__()
            self.config = type("Config", (), {})()
            vars(self.config).update(num_layers=len(blocks), kinds=list(range(len(blocks))))
            self.layers = nn.ModuleList(blocks)

    equal, wide, dropped = (lambda: nn.Linear(4, 4)), nn.Linear(4, 8), nn.Dropout(0.1)
    stack = Stack(equal(), equal(), wide, equal(), dropped, nn.Dropout(0.2), equal(), equal())
    assert leave_few(stack) == (("layers", (0, 1, 2, 1, 3, 4, 1, 5)),)
    assert (len(stack.layers), stack.config.num_layers, stack.config.kinds) == (6, 6, [0, 1, 2, 4, 5, 7])
    assert leave_few(Stack(equal(), equal(), equal())) == ()
