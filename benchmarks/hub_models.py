"""Models that transformers registers with a head for training, traced by config: `python -m benchmarks.hub_models`.

Answers are written to benchmarks/results/hub_models.json one by one, and a later run traces what is missing. With
`--again WORD...` it traces those models alone whose architecture or type is among the words, with `--again` all that
are refused.

A config names its `model_type` and architecture; all else is the default of its class, which often is the shape of a
published model. Where those defaults contradict each other, COMPLETED has what makes them whole. Each model is traced
in a process of its own, in amp-bf16 with 2 samples. Writes benchmarks/results/hub_models.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.speed import RESULTS
from precision_time.capture.captured_model import capture_model
from precision_time.errors import PrecisionTimeError
from precision_time.job import Job
from precision_time.report.table import Table

SECONDS = 120
HEADS = (
    "CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "MASKED_LM", "IMAGE_CLASSIFICATION",
    "OBJECT_DETECTION", "SEMANTIC_SEGMENTATION", "CTC", "AUDIO_CLASSIFICATION", "VIDEO_CLASSIFICATION",
    "DEPTH_ESTIMATION", "SEQUENCE_CLASSIFICATION", "TOKEN_CLASSIFICATION", "QUESTION_ANSWERING", "MULTIPLE_CHOICE",
    "MASKED_IMAGE_MODELING", "PRETRAINING",
)  # fmt: skip
"""Names in transformers' MODEL_FOR_..._MAPPING_NAMES."""
_GEMMA: Mapping[str, Any] = {
    "vision_config": {"model_type": "siglip_vision_model", "image_size": 896, "patch_size": 14}
}
_GLM: Mapping[str, Any] = {
    "text_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 12, 12],
                                        "partial_rotary_factor": 0.5}},
    "vision_config": {"out_hidden_size": 4096},
}  # fmt: skip
_QFORMER = {"projector_config": {"model_type": "blip_2_qformer", "encoder_hidden_size": 1024}}
_LFM2 = ["full_attention" if layer in (2, 6, 10, 14, 18, 21) else "conv" for layer in range(24)]
COMPLETED: Mapping[str, Mapping[str, Any]] = {
    "aria": {"vision_config": {"image_size": 490, "patch_size": 14}},
    "aya_vision": {"vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152, "num_hidden_layers": 27,
                                     "intermediate_size": 4304, "num_attention_heads": 16, "image_size": 364,
                                     "patch_size": 14}},
    "beit": {"out_indices": [3, 5, 7, 11]},
    "cosmos3_omni": {"vision_config": {"out_hidden_size": 4096}},
    "dbrx": {"d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352,
             "attn_config": {"rope_theta": 500000.0, "kv_n_heads": 8, "clip_qkv": 8},
             "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}},
    "deepseek_ocr2": {"text_config": {"num_hidden_layers": 12, "mlp_layer_types": ["dense", *["sparse"] * 11]}},
    "deepseek_v2": {"num_experts_per_tok": 6, "n_group": 1, "topk_group": 1},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6, "n_group": 1, "topk_group": 1},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "exaone4_5": {"vision_config": {"out_hidden_size": 4096}},
    "gemma3": _GEMMA,
    "gemma4": {"vision_config": {}, "text_config": {}},
    "glm46v": _GLM,
    "glm4v": _GLM,
    "granite_speech": _QFORMER,
    "granite_speech_plus": _QFORMER,
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "hunyuan_vl": {"text_config": {"head_dim": 128, "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [16, 16, 16, 16]}}},
    "idefics3": {"vision_config": {"image_size": 256, "patch_size": 32}},
    "lfm2_moe": {"num_hidden_layers": 24, "layer_types": _LFM2},
    "llama4": {"vision_config": {"vision_output_dim": 4096, "projector_output_dim": 4096, "intermediate_size": 5632,
                                 "hidden_size": 1408, "image_size": 336, "patch_size": 14}},
    "lw_detr": {"projector_scale_factors": [1.0]},
    "ministral": {"head_dim": 128},
    "molmo2": {"adapter_config": {"text_hidden_size": 4096}},
    "moonshine_streaming": {"num_key_value_heads": 8},
    "nemotron": {"num_key_value_heads": 8, "head_dim": 128},
    "qwen3_asr": {"audio_config": {"output_dim": 2048}},
    "qwen3_omni_moe_thinker": {"vision_config": {"out_hidden_size": 2048},
                               "text_config": {"hidden_size": 2048, "head_dim": 128}},
    "qwen3_vl": {"vision_config": {"out_hidden_size": 4096}},
    "qwen3_vl_moe": {"vision_config": {"out_hidden_size": 2048}},
    "reformer": {"axial_pos_shape": [8, 16]},
    "ReformerModelWithLMHead": {"is_decoder": True},
    "shieldgemma2": _GEMMA,
    "smolvlm": {"vision_config": {"image_size": 256, "patch_size": 32}},
    "t5gemma2": {"encoder": _GEMMA},
    "wav2vec2-bert": {"vocab_size": 32},
    "wav2vec2-conformer": {"vocab_size": 32},
    "xmod": {"default_language": "en_XX"},
}  # fmt: skip
"""model_type or architecture -> keys without which the defaults of its classes describe no model."""


def models() -> Iterator[tuple[str, str, str]]:
    """(head, model_type, architecture) of every model, once."""
    from transformers.models.auto import modeling_auto

    seen = set()
    for head in HEADS:
        for kind, names in getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES").items():
            name = names if isinstance(names, str) else names[0]
            if (kind, name) not in seen:
                seen.add((kind, name))
                yield head, kind, name


def refusal(kind: str, name: str) -> str:
    """Why a model is not traced; "" where it is."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        signal.alarm(SECONDS)
        os.write(writing, _traced(kind, name).encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        said = answer.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    return f"ended with status {status} (limit: {SECONDS} s)" if status else said


def _traced(kind: str, name: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        completed = {**COMPLETED.get(kind, {}), **COMPLETED.get(name, {})}
        path.write_text(json.dumps({"model_type": kind, "architectures": [name], **completed}))
        try:
            job = Job(f"hf:{path}", precision="amp-bf16", batch_size=2, gpu="h100-80gb-sxm")
            capture_model(job, few_layers=True)
        except PrecisionTimeError as error:
            return str(error).split("; hf:")[0].replace(f"hf:{path}", "its config")
        except Exception as error:
            return f"{type(error).__name__} without a sentence: {error}"
    return ""


def _answers(again: list[str] | None) -> dict[str, str]:
    """Architecture and type -> why it is refused, "" where it is traced."""
    import transformers

    stored = RESULTS / "hub_models.json"
    kept: dict[str, Any] = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else {}
    answers: dict[str, str] = kept.get("answers", {}) if kept.get("transformers") == transformers.__version__ else {}
    for _, kind, name in models():
        pair = f"{name} {kind}"
        if again is None:
            asked = pair not in answers
        else:
            asked = bool(set(again) & {name, kind}) if again else bool(answers.get(pair))
        if asked:
            answers[pair] = refusal(kind, name)
            content = {"transformers": transformers.__version__, "answers": answers}
            stored.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return answers


def main() -> None:
    import transformers

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", nargs="*", metavar="WORD", help="trace these architectures or types alone")
    answers = _answers(parser.parse_args().again)
    refused: list[tuple[str, str, str]] = []
    counted: Counter[str] = Counter()
    unasked = 0
    for head, kind, name in models():
        said = answers.get(f"{name} {kind}")
        counted[head] += said is not None
        unasked += said is None
        if said:
            refused.append((head, name, said.replace("|", "/")))
    without = Counter(head for head, _, _ in refused)
    heads = Table(
        ("head", "models", "traced"), [(each, str(counted[each]), str(counted[each] - without[each])) for each in HEADS]
    )
    total = sum(counted.values())
    missing = f"; {unasked} more have not been tried" if unasked else ""
    text = (
        f"# Models of transformers {transformers.__version__}\n\n`python -m benchmarks.hub_models`: every model with a "
        f"head for training, from the defaults of its config, in amp-bf16. {total - len(refused)} of {total} are "
        f"traced{missing}.\n\n{heads.markdown()}\n\nThose that are refused, and the sentence:\n\n"
        f"{Table(('head', 'architecture', 'sentence'), refused, left=3).markdown()}\n"
    )
    (RESULTS / "hub_models.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
