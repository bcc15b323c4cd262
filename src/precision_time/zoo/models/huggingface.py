"""Any Hugging Face model from a local `config.json`: nothing is downloaded and no weights are read.

`config["path"]` names the file. The class follows `architectures[0]` in it, else the first class of image
classification, sequence to sequence, causal and masked modelling that knows the model type. The loss is the
model's own; attention goes through SDPA where the model has it. Some models ask their (absent) data whether
sequences are packed or padded: the capture answers that, a bare forward on the meta device fails there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from precision_time.checks import show
from precision_time.errors import JobError
from precision_time.reading import read_json
from precision_time.zoo.models.text import tokens
from precision_time.zoo.workload import Config, Sizes, Workload

TASKS = (
    ("ForCausalLM", "AutoModelForCausalLM"),
    ("LMHeadModel", "AutoModelForCausalLM"),
    ("ForMaskedLM", "AutoModelForMaskedLM"),
    ("ForPreTraining", "AutoModelForPreTraining"),
    ("ForConditionalGeneration", "AutoModelForSeq2SeqLM"),
    ("ForSequenceClassification", "AutoModelForSequenceClassification"),
    ("ForQuestionAnswering", "AutoModelForQuestionAnswering"),
    ("ForTokenClassification", "AutoModelForTokenClassification"),
    ("ForImageClassification", "AutoModelForImageClassification"),
    ("ForSemanticSegmentation", "AutoModelForSemanticSegmentation"),
)
"""Ending of the architecture's name, and the class of `transformers` that builds it."""

CONDITIONAL = ("AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq", "AutoModelForImageTextToText")
"""Classes that build a `...ForConditionalGeneration`, tried in this order."""

BY_TYPE = (
    "AutoModelForImageClassification",
    "AutoModelForSeq2SeqLM",
    "AutoModelForCausalLM",
    "AutoModelForMaskedLM",
    "AutoModelForSequenceClassification",
)
"""Tried in this order when the file names no architecture."""

ENCODERS = frozenset(
    [
        "albert",
        "bert",
        "camembert",
        "deberta",
        "deberta-v2",
        "distilbert",
        "electra",
        "mpnet",
        "roberta",
        "xlm-roberta",
    ]
)
"""Model types that also have a causal class but are trained as masked models."""


NOT_OPTIONS = frozenset(
    [
        "model_type",
        "torch_dtype",
        "dtype",
        "auto_map",
        "trust_remote_code",
        "attn_implementation",
        "_attn_implementation",
        "name_or_path",
        "_name_or_path",
        "use_pretrained_backbone",
    ]
)
"""Keys of the file that are not handed on: they name code, weights or kernels to fetch, or what the job decides."""


MOST, MOST_LAYERS = 10**12, 10**4
"""Largest number of a configuration, and of a key that counts layers."""
TEXT_ALONE = "text alone: samples have no images, and the weights of the vision tower and its projector are frozen"
_IMAGES = re.compile(r"vision|visual|image|multi_modal_projector")
_UNBOUNDED = "time_step_limit"
"""Key of state space models that transformers writes as [0.0, Infinity], which is also the default of their classes."""
_DEPTH = re.compile(r"(layers?|depths?|blocks?|stages?|experts?)$")


def read(path: str) -> dict[str, Any]:
    """The JSON object in the file; `JobError` when it is missing or is no model configuration."""
    content = read_json(path, "Hugging Face config", infinity_as_null=True)
    if isinstance(content, dict) and None in (content.get(_UNBOUNDED) or ()):
        del content[_UNBOUNDED]
    if not isinstance(content, dict) or "model_type" not in content:
        raise JobError(f"{path} has no model_type: give the config.json of a transformers model")
    names = content.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in (content["model_type"], *names)):
        raise JobError(f"{path}: model_type must be a name, and architectures a list of names; correct them")
    return content


def check_numbers(content: Mapping[str, Any], path: str) -> None:
    """Raise `JobError` for a number that no configuration has: its model would be built for hours."""
    for key, value in content.items():
        each = value if isinstance(value, list) else [value]
        most = MOST_LAYERS if _DEPTH.search(key) else MOST
        for number in each:
            if isinstance(number, (int, float)) and not -MOST <= number <= most:
                raise JobError(f"{path} has {key} {show(number)}; the most are {most:,}: correct the file")


def auto_class(content: dict[str, Any], transformers: Any, hf_config: Any) -> tuple[str, tuple[str, ...]]:
    """Name of the `AutoModelFor...` class that builds the configured model with a loss, and what had to be assumed.

    Raises `JobError` for an architecture with another head, such as object detection.
    """
    names = content.get("architectures") or []
    for architecture in names:
        for ending, name in TASKS:
            if architecture.endswith(ending):
                tried = CONDITIONAL if ending == "ForConditionalGeneration" else (name,)
                return next((each for each in tried if _builds(transformers, each, hf_config)), name), ()
        if "For" in architecture:
            raise JobError(
                f"architecture {show(architecture)} has a head whose loss is not known here; name one that ends with "
                f"{', '.join(ending for ending, _ in TASKS)}, or give your own module (FILE.py:FUNCTION)"
            )
    usual = ("AutoModelForMaskedLM",) if content["model_type"] in ENCODERS else BY_TYPE
    for name in usual:
        if _builds(transformers, name, hf_config):
            head = f"trained as {name.removeprefix('AutoModelFor')}, since its config"
            return name, (f"{head} {f'names {names[0]}, which has no loss' if names else 'names no architecture'}",)
    raise JobError(f"no training head is known for model_type {content['model_type']!r}: name one in architectures")


def _builds(transformers: Any, name: str, hf_config: Any) -> bool:
    return type(hf_config) in getattr(transformers, name)._model_mapping


def make_inputs(task: str, hf_config: Any, sizes: Sizes) -> dict[str, Tensor]:
    """One micro-batch with labels, in the names that the model's forward takes."""
    batch = int(sizes["batch_size"])
    if task in ("AutoModelForImageClassification", "AutoModelForSemanticSegmentation"):
        side = sizes.get("image_size", getattr(hf_config, "image_size", 224))
        height, width = (side, side) if isinstance(side, int) else (int(side[0]), int(side[1]))
        channels = int(getattr(hf_config, "num_channels", 3))
        labels = tokens(batch, height, width) if task == "AutoModelForSemanticSegmentation" else tokens(batch)
        return {"pixel_values": torch.zeros(batch, channels, height, width), "labels": labels}
    seq = int(sizes["seq_len"])
    if task == "AutoModelForSpeechSeq2Seq":  # a spectrogram of 30 s, twice as long as the encoder's sequence
        labels = tokens(batch, int(sizes.get("target_len", seq)))
        bands, frames = int(hf_config.num_mel_bins), 2 * int(hf_config.max_source_positions)
        return {"input_features": torch.zeros(batch, bands, frames), "labels": labels, "decoder_input_ids": labels}
    inputs = {"input_ids": tokens(batch, seq)}
    if task == "AutoModelForSequenceClassification":
        inputs["labels"] = tokens(batch)
    elif task == "AutoModelForQuestionAnswering":
        inputs["start_positions"], inputs["end_positions"] = tokens(batch), tokens(batch)
    elif task == "AutoModelForSeq2SeqLM":
        inputs["labels"] = tokens(batch, int(sizes.get("target_len", seq)))
        inputs["decoder_input_ids"] = torch.zeros_like(inputs["labels"])
    else:
        inputs["labels"] = tokens(batch, seq)
    if task == "AutoModelForPreTraining" and hf_config.model_type == "bert":
        inputs["next_sentence_label"] = tokens(batch)
    return inputs


def loss(module: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # advice about training (loss types, padding) does not apply
    try:
        return module(**inputs).loss
    finally:
        logging.set_verbosity(verbosity)


def build(config: Config, sizes: Sizes) -> Workload:
    import transformers

    content = read(str(config["path"]))
    check_numbers(content, str(config["path"]))
    options = {key: value for key, value in content.items() if key not in NOT_OPTIONS}
    hf_config = transformers.AutoConfig.for_model(content["model_type"], **options)
    hf_config.use_cache = False
    task, assumed = auto_class(content, transformers, hf_config)
    if task == "AutoModelForSequenceClassification" and hf_config.pad_token_id is None:
        hf_config.pad_token_id = 0  # decoders need one to find the last token of a batch
    if task == "AutoModelForSequenceClassification" and not hf_config.problem_type and hf_config.num_labels > 1:
        hf_config.problem_type = "single_label_classification"  # some models look for it in the labels
    factory = getattr(transformers, task)
    try:
        module = factory.from_config(
            hf_config, attn_implementation="sdpa", dtype=torch.float32, trust_remote_code=False
        )
    except ValueError:  # the model has no SDPA path
        module = factory.from_config(
            hf_config, attn_implementation="eager", dtype=torch.float32, trust_remote_code=False
        )
    if task == "AutoModelForImageTextToText":
        assumed = (TEXT_ALONE,)
        for name, weight in module.named_parameters():
            weight.requires_grad_(_IMAGES.search(name) is None)
    return Workload(module, make_inputs(task, hf_config, sizes), loss, assumptions=assumed)
