"""A model's config.json as a decoder of the zoo: the weights and operations are those of the library's own model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from precision_time import Job, predict, predict_time
from precision_time.errors import DataError, PrecisionTimeError
from precision_time.job.importers.recognise import read_import
from precision_time.zoo.catalog import ENTRIES

SMALL: dict[str, Any] = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4,
                         "intermediate_size": 192, "vocab_size": 512, "pad_token_id": 0}  # fmt: skip
EXPERTS: dict[str, Any] = {**SMALL, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
LATENT: dict[str, Any] = {"kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**SMALL, "tie_word_embeddings": True},
    "mistral": {**SMALL, "sliding_window": None},
    "qwen2": SMALL,
    "qwen3": {**SMALL, "head_dim": 64},
    "qwen3_moe": {**EXPERTS, "num_experts": 8, "head_dim": 32, "mlp_only_layers": [], "decoder_sparse_step": 1},
    "mixtral": {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {**EXPERTS, **LATENT, "num_key_value_heads": 4, "n_routed_experts": 8, "n_shared_experts": 2,
                    "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 48},
    "phi3": SMALL,
    "gemma": {**SMALL, "head_dim": 64, "tie_word_embeddings": True},
    "gemma2": {**SMALL, "head_dim": 64, "sliding_window": 32, "tie_word_embeddings": True},
    "gpt2": {"n_embd": 128, "n_head": 4, "n_layer": 3, "vocab_size": 512, "n_positions": 256},
}  # fmt: skip


def written(folder: Path, kind: str, **changes: Any) -> Path:
    path = folder / "config.json"
    values = {"model_type": kind, "transformers_version": "5.0", "architectures": [f"{kind}ForCausalLM"]}
    path.write_text(json.dumps({**values, **CONFIGS.get(kind, SMALL), **changes}), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", CONFIGS)
def test_weights_and_operations_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    path = written(tmp_path, kind)
    words: dict[str, Any] = {"precision": "bf16", "batch_size": 2, "input": {"seq_len": 128}, "gpu": "h100-80gb-sxm"}
    imported = read_import(path)
    shape = predict(Job(**imported.job_fields(words)))
    own = predict_time(f"hf:{path}", **words)
    # A sigmoid router has a buffer in transformers that counts as no weight, and GPT-OSS a bias for its router.
    assert shape.parameters == pytest.approx(own.parameters, rel=0.002)
    units = {"fp16", "bf16"}
    assert sum(shape.flops_per_step.get(unit, 0.0) for unit in units) == pytest.approx(
        sum(own.flops_per_step.get(unit, 0.0) for unit in units), rel=0.2 if kind == "gemma2" else 0.02
    )  # transformers caps the scores of all pairs, masked ones too


def test_a_shape_may_be_divided_in_ways_that_a_traced_model_may_not(tmp_path: Path) -> None:
    path = written(tmp_path, "llama")
    words: dict[str, Any] = {"layout": "tp=2,zero=1", "gpus": 8, "precision": "bf16-master"}
    assert predict(Job(**read_import(path).job_fields(words))).step.p50 > 0
    with pytest.raises(PrecisionTimeError, match=r"tp=2 needs a model whose parts are known.*--import"):
        predict_time(f"hf:{path}", **words)


@pytest.mark.parametrize(("kind", "window"), [
    ("gemma2", "32_every_second_layer"), ("gpt_oss", "32_every_second_layer"), ("gemma3_text", "32_five_of_six"),
    ("mistral", 32),
])  # fmt: skip
def test_windows(kind: str, window: str | int, tmp_path: Path) -> None:
    found = read_import(written(tmp_path, kind, sliding_window=32)).fields["model_config"]["sliding_window"]
    assert str(found) == str(window)


def test_groups_of_experts(tmp_path: Path) -> None:
    config = read_import(written(tmp_path, "deepseek_v3")).fields["model_config"]
    assert (config["expert_groups"], config["topk_groups"]) == (2, 1)


def test_every_key_is_taken_or_has_a_reason(tmp_path: Path) -> None:
    path = written(tmp_path, "llama", attention_bias=True, hidden_act="relu", num_nextn_predict_layers=1, novel_gate=2)
    imported = read_import(path)
    assert imported.not_taken["attention_bias"].startswith("biases of these blocks")
    assert imported.not_taken["hidden_act"] == "no model of 'relu' in these blocks; taken as swiglu"
    assert imported.not_taken["num_nextn_predict_layers"].startswith("transformers trains no further tokens")
    assert imported.not_taken["novel_gate"].startswith("not understood")
    assert set(json.loads(path.read_text())) == {*imported.taken, *imported.not_taken}


@pytest.mark.parametrize(("changes", "reason"), [
    ({"model_type": "bert"}, "model_type 'bert' is that of no decoder of the zoo"),
    ({"model_type": ["llama"]}, "is that of no decoder"),
    ({"hidden_size": -8}, "hidden_size must be a whole number"),
    ({"num_hidden_layers": "many"}, "num_hidden_layers must be a whole number"),
    ({"mlp_only_layers": [3]}, "dense layers among its experts"),
    ({"num_attention_heads": {}}, "give a single value"),
])  # fmt: skip
def test_refusals_name_file_and_field(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"config\.json") as error:
        read_import(written(tmp_path, "llama", **changes))
    assert reason in str(error.value)


def test_every_type_has_a_named_model() -> None:
    from precision_time.job.importers.hf_model import _MODELS

    assert set(_MODELS.values()) <= set(ENTRIES)
