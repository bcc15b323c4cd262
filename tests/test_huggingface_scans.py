"""Scans of states in models of Hugging Face: one operator each, with the arithmetic worked out by hand."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from precision_time import predict_time  # noqa: E402
from precision_time.capture.captured_model import capture_model  # noqa: E402
from precision_time.capture.graph import OpSignature, TensorSpec  # noqa: E402
from precision_time.job import Job  # noqa: E402
from precision_time.timing.operators import WorkOptions, works  # noqa: E402
from precision_time.zoo.models import hf_scans  # noqa: E402
from precision_time.zoo.models.hf_scans import scan_kernels  # noqa: E402

SMALL: dict[str, Any] = {"hidden_size": 32, "vocab_size": 64, "num_hidden_layers": 2}
ATTENDS: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 48}
CONFIGS: dict[str, tuple[dict[str, Any], str, int]] = {
    "mamba": ({**SMALL, "state_size": 4, "time_step_rank": 4}, "pt.selective_scan", 2),
    "falcon_mamba": ({**SMALL, "state_size": 4, "time_step_rank": 4}, "pt.selective_scan", 2),
    "jamba": ({**SMALL, **ATTENDS, "mamba_d_state": 4, "attn_layer_period": 2, "attn_layer_offset": 1,
               "num_experts": 2}, "pt.selective_scan", 1),
    "mamba2": ({**SMALL, "num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1}, "pt.state_scan_forward", 2),
    "qwen3_next": ({**SMALL, **ATTENDS, "head_dim": 16, "num_experts": 2, "num_experts_per_tok": 1,
                    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "linear_key_head_dim": 8,
                    "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4},
                   "pt.delta_rule", 2),
    "rwkv": ({**SMALL, "attention_hidden_size": 32}, "pt.wkv", 2),
    "recurrent_gemma": ({**SMALL, **ATTENDS, "lru_width": 32, "block_types": ["recurrent"]}, "pt.position_loop", 2),
}  # fmt: skip


def job(folder: Path, kind: str, length: int = 16) -> Job:
    path = folder / f"{kind}.json"
    path.write_text(json.dumps({"model_type": kind, **CONFIGS[kind][0]}))
    return Job(f"hf:{path}", precision="amp-bf16", batch_size=2, input={"seq_len": length}, gpu="h100-80gb-sxm")


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_scan_is_one_operator_of_any_length(kind: str, tmp_path: Path) -> None:
    _, name, layers = CONFIGS[kind]
    graphs = [capture_model(job(tmp_path, kind, length)).graph for length in (16, 48)]
    names = [Counter(graph.kinds[call.kind].name for call in graph.calls) for graph in graphs]
    assert names[0] == names[1]
    assert names[0][name] == layers == names[0][name.replace("_forward", "") + "_backward"]


def test_the_estimate_names_the_kernels_and_has_no_unknown_operator(tmp_path: Path) -> None:
    found = predict_time(job(tmp_path, "jamba").model, precision="amp-bf16", batch_size=2, gpu="h100-80gb-sxm")
    assert not found.unsupported
    assert any("causal-conv1d and mamba-ssm" in note for note in found.assumptions)


def test_transformers_own_loop_runs_where_there_is_a_device() -> None:
    config = transformers.MambaConfig(**CONFIGS["mamba"][0])
    module = transformers.MambaForCausalLM(config).eval()
    ids = torch.arange(12).view(1, 12)
    with torch.no_grad():
        usual = module(input_ids=ids).logits
        with scan_kernels(module):
            inside = module(input_ids=ids).logits
    torch.testing.assert_close(inside, usual)


def test_the_work_of_a_selective_scan() -> None:
    x, state, small = (
        TensorSpec((2, 8, 16), "bfloat16"),
        TensorSpec((8, 4), "float32"),
        TensorSpec((2, 4, 16), "bfloat16"),
    )
    kind = OpSignature("pt.selective_scan", (x, x, state, small, small, x), (x,))
    (work,) = works(kind, WorkOptions()) or []
    assert work.flops == 9 * 2 * 8 * 16 * 4
    assert work.bytes_read == 3 * 2 * (2 * 8 * 16) + 4 * 32 + 2 * 2 * (2 * 4 * 16)
    assert work.bytes_written == 2 * (2 * 8 * 16)


def test_the_work_of_the_delta_rule() -> None:
    value, key = TensorSpec((1, 128, 2, 32), "bfloat16"), TensorSpec((1, 128, 2, 16), "bfloat16")
    gate = TensorSpec((1, 128, 2), "float32")
    forward = works(OpSignature("pt.delta_rule", (value, key, key, gate, gate), (value,)), WorkOptions()) or []
    # Two chunks of 64 for each of two heads; pairs of keys and of queries with keys, the inverse, corrected keys,
    # corrected values and their sums, three products with the state.
    chunk = 2 * 64 * 64 * (2 * 16 + 64 / 3 + 16 + 2 * 32) + 3 * 2 * 64 * 32 * 16
    assert sum(work.flops for work in forward) == pytest.approx(4 * chunk)
    back = OpSignature("pt.delta_rule_backward", (value, value, key, key, gate, gate), (value, key, key, gate, gate))
    assert sum(work.flops for work in works(back, WorkOptions()) or []) > 2 * 4 * chunk


@pytest.mark.parametrize("precision", ["bf16", "fp32", "amp-bf16"])
def test_the_loop_over_positions_is_that_of_its_trace(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator has the kernels, the host's launches and the memory of RecurrentGemma's loop."""
    one = job(tmp_path, "recurrent_gemma", 48).replace(precision=precision, batch_size=8)
    found = predict_time(**one.to_dict())
    assert hf_scans.LOOPED in found.assumptions
    monkeypatch.setattr(hf_scans, "_loops_of", lambda module: [])
    (tmp_path / "other").mkdir()
    traced = predict_time(**job(tmp_path / "other", "recurrent_gemma", 48)
                          .replace(precision=precision, batch_size=8).to_dict())  # fmt: skip
    assert traced.step.p50 == pytest.approx(found.step.p50, rel=0.06)
    assert traced.memory.allocated_bytes == pytest.approx(found.memory.allocated_bytes, rel=0.05)
    assert hf_scans.LOOPED not in traced.assumptions


def test_work_of_the_loop_by_hand() -> None:
    """8 positions of 2 x 4 in bf16, gate in fp32: 5 kernels each forward, 13 back, of which 5 take whole tensors."""
    hidden, gate = TensorSpec((2, 8, 4), "bfloat16"), TensorSpec((2, 8, 4), "float32")
    forward = works(OpSignature("pt.position_loop", (hidden, gate), (hidden, gate)), WorkOptions()) or []
    assert sum(work.launches for work in forward) == 8 * 5
    back = OpSignature("pt.position_loop_backward", (hidden, hidden, gate, gate), (hidden, gate))
    backward = works(back, WorkOptions()) or []
    assert sum(work.launches for work in backward) == 8 * 13
    whole = 8 * (2 * hidden.nbytes + 4 * hidden.nbytes + 4 * gate.nbytes)
    small = sum(work.bytes for work in backward) - whole
    assert small == 8 * 2 * 4 * (2 * 4 + 2 + 3 * 12 + 6 + 6)
