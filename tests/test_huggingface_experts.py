"""Models of experts by their configs: FLOP of steps that really run, by PyTorch's counter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from precision_time import predict_time  # noqa: E402
from precision_time.estimate.estimate import Estimate  # noqa: E402

SWITCH: dict[str, Any] = {
    "model_type": "switch_transformers", "architectures": ["SwitchTransformersForConditionalGeneration"], "d_model": 64,
    "d_kv": 16, "d_ff": 96, "num_layers": 4, "num_decoder_layers": 4, "num_heads": 4, "num_experts": 4,
    "vocab_size": 128, "num_sparse_encoder_layers": 2, "num_sparse_decoder_layers": 2, "decoder_start_token_id": 0,
    "pad_token_id": 0,
}  # fmt: skip
LONGCAT: dict[str, Any] = {
    "model_type": "longcat_flash", "architectures": ["LongcatFlashForCausalLM"], "hidden_size": 64, "vocab_size": 128,
    "num_layers": 2, "ffn_hidden_size": 96, "expert_ffn_hidden_size": 32, "num_attention_heads": 4, "kv_lora_rank": 16,
    "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "head_dim": 8,
    "n_routed_experts": 6, "zero_expert_num": 2, "moe_topk": 4,
}  # fmt: skip
JETMOE: dict[str, Any] = {
    "model_type": "jetmoe", "architectures": ["JetMoeForCausalLM"], "hidden_size": 64, "vocab_size": 128,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "kv_channels": 16, "intermediate_size": 96,
    "num_local_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
DBRX: dict[str, Any] = {
    "model_type": "dbrx", "architectures": ["DbrxForCausalLM"], "d_model": 64, "n_heads": 4, "n_layers": 2,
    "vocab_size": 128, "max_seq_len": 64, "attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8},
    "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64},
}  # fmt: skip
NLLB: dict[str, Any] = {
    "model_type": "nllb-moe", "architectures": ["NllbMoeForConditionalGeneration"], "d_model": 64, "vocab_size": 128,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "num_experts": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_sparse_step": 2, "decoder_sparse_step": 2,
    "expert_capacity": 16, "pad_token_id": 0, "decoder_start_token_id": 0, "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
}  # fmt: skip
SEQ, BATCH = 24, 2


def estimate(folder: Path, **config: Any) -> Estimate:
    path = folder / "config.json"
    path.write_text(json.dumps({**({} if "model_type" in config else SWITCH), **config}), encoding="utf-8")
    return predict_time(
        f"hf:{path}", precision="fp32", batch_size=BATCH, gpu="h100-80gb-sxm", input={"seq_len": SEQ}, attention="math"
    )


def really_trained(**config: Any) -> tuple[int, int]:
    options = {key: value for key, value in {**SWITCH, **config}.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model("switch_transformers", **options)
    torch.manual_seed(0)
    model = transformers.AutoModelForSeq2SeqLM.from_config(settings).train()
    ids = torch.randint(1, 128, (BATCH, SEQ))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids).loss.backward()
    return sum(p.numel() for p in model.parameters()), counter.get_total_flops()


def test_every_token_has_one_expert(tmp_path: Path) -> None:
    parameters, flops = really_trained()
    found = estimate(tmp_path)
    assert found.parameters == parameters
    assert found.utilisation.model_flops == pytest.approx(flops, rel=0.01)
    assert "experts get as many tokens each; finding them on the host is left out" in found.assumptions


def test_full_experts_leave_tokens_out(tmp_path: Path) -> None:
    """At most 3 tokens of each sequence of 24 for each of 4 experts: half of the tokens. Unevenly spread, as they are
    by chance, they fill no expert more than that."""
    _, flops = really_trained(expert_capacity=3)
    whole, found = estimate(tmp_path), estimate(tmp_path, expert_capacity=3)
    assert flops <= found.utilisation.model_flops < 1.03 * flops
    expert = 2 * 2 * 64 * 96  # FLOP of a token in an expert, of which the backward pass has twice as many
    left_out = 3 * expert * (BATCH * SEQ // 2) * 4  # in four sparse layers
    assert whole.utilisation.model_flops - found.utilisation.model_flops == pytest.approx(left_out, rel=1e-6)
    assert "up to expert_capacity 3 of a sequence" in found.assumptions[0]


def really_trained_decoder(config: dict[str, Any], even: bool = False) -> tuple[int, int]:
    options = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **options)
    model = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation="eager").train()
    for router in (each for each in model.modules() if even and hasattr(each, "get_topk_indices")):
        count = router.n_routed_experts
        router.get_topk_indices = lambda scores, count=count: (torch.arange(scores.shape[0] * 4) % count).view(-1, 4)
    ids = torch.randint(1, 128, (BATCH, SEQ))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids).loss.backward()
    return sum(p.numel() for p in model.parameters()), counter.get_total_flops()


@pytest.mark.parametrize("identities", [0, 2])
def test_longcat_computes_with_its_share_of_experts(identities: int, tmp_path: Path) -> None:
    config = {**LONGCAT, "zero_expert_num": identities}
    parameters, flops = really_trained_decoder(config, even=True)
    found = estimate(tmp_path, **config)
    assert found.parameters == parameters
    assert found.utilisation.model_flops == flops
    share = {0: "100%", 2: "75%"}[identities]
    assert f"so that {share} of the choices are experts that compute" in found.assumptions[0]


@pytest.mark.parametrize("config", [JETMOE, DBRX], ids=["jetmoe", "dbrx"])
def test_experts_have_products_of_their_own(config: dict[str, Any], tmp_path: Path) -> None:
    parameters, flops = really_trained_decoder(config)
    found = estimate(tmp_path, **config)
    assert found.parameters == parameters
    assert found.utilisation.model_flops == flops
    assert "experts get as many tokens each" in found.assumptions


def test_nllb_computes_every_token_in_two_experts(tmp_path: Path) -> None:
    """transformers takes the mask of chosen experts for their numbers."""
    options = {key: value for key, value in NLLB.items() if key != "model_type"}
    model = transformers.AutoModelForSeq2SeqLM.from_config(
        transformers.AutoConfig.for_model("nllb-moe", **options), attn_implementation="eager"
    ).train()
    ids = torch.randint(2, 128, (BATCH, SEQ))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids).loss.backward()
    found = estimate(tmp_path, **NLLB)
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.utilisation.model_flops == counter.get_total_flops()
    assert "as transformers runs it, experts 0 and 1 alone compute every token, 4 times" in found.assumptions
    used = [name for name, weight in model.named_parameters() if "expert_" in name and weight.grad is not None]
    assert all("expert_0" in name or "expert_1" in name for name in used)
