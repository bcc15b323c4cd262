"""Layers of Hugging Face's models that need no data here: FLOP and weights of steps that really run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from precision_time import predict_time  # noqa: E402
from precision_time.capture.captured_model import capture_model  # noqa: E402
from precision_time.errors import PrecisionTimeError  # noqa: E402
from precision_time.estimate.estimate import Estimate  # noqa: E402
from precision_time.job import Job  # noqa: E402

TEXT: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                        "vocab_size": 300}  # fmt: skip
LOCAL: dict[str, Any] = {**TEXT, "cross_attn_k": 1, "cross_attn_all_layers": True, "hidden_size_global": 64}
BLT: dict[str, Any] = {
    "model_type": "blt", "architectures": ["BltForCausalLM"], "vocab_size": 300, "encoder_hash_byte_group_size": [3, 4],
    "encoder_hash_byte_group_vocab": 50, "cross_attn_k": 1, "patcher_config": TEXT, "encoder_config": LOCAL,
    "decoder_config": LOCAL, "global_config": TEXT,
}  # fmt: skip
NEMOTRON: dict[str, Any] = {"model_type": "nemotron", "architectures": ["NemotronForCausalLM"], **TEXT,
                            "num_key_value_heads": 2, "head_dim": 16}  # fmt: skip
XMOD: dict[str, Any] = {"model_type": "xmod", "architectures": ["XmodForMaskedLM"], **TEXT, "languages": ["de", "en"],
                        "default_language": "en", "adapter_reduction_factor": 2}  # fmt: skip
YOSO: dict[str, Any] = {"model_type": "yoso", "architectures": ["YosoForMaskedLM"], **TEXT}
SEQ, BATCH = 24, 2


def written(folder: Path, config: dict[str, Any]) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return f"hf:{path}"


def estimate(folder: Path, config: dict[str, Any]) -> Estimate:
    return predict_time(
        written(folder, config),
        precision="fp32",
        batch_size=BATCH,
        gpu="h100-80gb-sxm",
        input={"seq_len": SEQ},
        attention="math",
    )


def really_trained(config: dict[str, Any]) -> tuple[int, int]:
    options = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **options)
    settings.use_cache = False
    model = getattr(transformers, config["architectures"][0])._from_config(settings, attn_implementation="eager")
    ids = torch.randint(3, 100, (BATCH, SEQ))
    with FlopCounterMode(display=False) as counter:
        model.train()(input_ids=ids, labels=ids).loss.backward()
    return sum(p.numel() for p in model.parameters()), counter.get_total_flops()


@pytest.mark.parametrize(
    "config",
    [
        {**BLT, "patch_in_forward": False},
        {**BLT, "patch_size": 1, "patching_threshold": -1.0},  # every byte surprises the patcher
        NEMOTRON,
        XMOD,
        YOSO,
    ],
    ids=["blt", "blt-patcher", "nemotron", "xmod", "yoso"],
)
def test_layers_are_those_of_a_real_step(config: dict[str, Any], tmp_path: Path) -> None:
    parameters, flops = really_trained(config)
    found = estimate(tmp_path, config)
    assert found.parameters == parameters
    assert found.utilisation.model_flops == pytest.approx(flops, rel=0.001)


def test_patches_of_bytes_are_said_and_make_the_step_smaller(tmp_path: Path) -> None:
    short, found = estimate(tmp_path, {**BLT, "patch_size": 1}), estimate(tmp_path, BLT)
    assert found.utilisation.model_flops < short.utilisation.model_flops
    assert "patches have 4 bytes (patch_size), where the patcher ends them by what it reads" in found.assumptions
    split = estimate(tmp_path, {**BLT, "max_patch_length": 2})
    assert found.utilisation.model_flops < split.utilisation.model_flops < short.utilisation.model_flops


def test_norms_of_nemotron_run_in_the_dtype_of_autocast(tmp_path: Path) -> None:
    job = Job(
        written(tmp_path, NEMOTRON), precision="amp-bf16", batch_size=BATCH, gpu="a100-80gb-sxm", input={"seq_len": SEQ}
    )
    norms = [kind for kind in capture_model(job).graph.kinds if kind.name == "aten.native_layer_norm"]
    assert norms
    assert all(each.inputs[0].dtype == "bfloat16" for each in norms)


def test_a_backward_pass_that_mixes_dtypes_is_refused_by_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PrecisionTimeError, match=r"mixes tensors of fp32 and 16 bits.* write precision fp32 or tf32"):
        predict_time(written(tmp_path, YOSO), precision="amp-bf16", batch_size=BATCH, gpu="a100-80gb-sxm")
