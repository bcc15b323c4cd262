"""Any Hugging Face model from a local `config.json`: nothing is downloaded and no weights are read.

`config["path"]` names the file. The class follows `architectures[0]` in it, else the first usual one that knows the
model type (`hf_heads`). Attention goes through SDPA where the model has it, scans of states through their kernels
(`hf_scans`). Some models ask their (absent) data whether sequences are packed or padded: the capture answers that, a
bare forward on the meta device fails there.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from precision_time.checks import show
from precision_time.errors import CaptureError, JobError, PrecisionTimeError
from precision_time.reading import read_json
from precision_time.zoo.models.hf_batch import Batch, Loss, own_loss
from precision_time.zoo.models.hf_errors import check_type, from_config, refusal, without_loss
from precision_time.zoo.models.hf_experts import assumed_experts
from precision_time.zoo.models.hf_heads import auto_class, make_batch, sees
from precision_time.zoo.models.hf_image_places import images_by
from precision_time.zoo.models.hf_images import (
    Media,
    freeze,
    images_filled,
    images_of,
    use_segments,
    with_placeholders,
)
from precision_time.zoo.models.hf_layers import assumed_patches, replaced_layers
from precision_time.zoo.models.hf_scans import assumed_kernels, scan_kernels
from precision_time.zoo.models.hf_sound import hears, sound_of
from precision_time.zoo.models.hf_windows import within_windows
from precision_time.zoo.models.text import tokens
from precision_time.zoo.workload import Config, Sizes, Workload

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
_OF_IMAGES = frozenset(["AutoModelForImageTextToText", "AutoModelForSeq2SeqLM"])
"""Classes of models of text with images; one that reads and one that writes the text may be registered as either."""
_IMAGES = re.compile(r"vision|visual|image|multi_modal_projector")
_UNBOUNDED = "time_step_limit"
"""Key of state space models that transformers writes as [0.0, Infinity], which is also the default of their classes."""
_LEFT_OUT = frozenset(["layerdrop", "encoder_layerdrop", "decoder_layerdrop"])
"""Shares of layers that are left out at random, which the trace would leave out always."""
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


def build(config: Config, sizes: Sizes) -> Workload:
    import transformers

    content = read(str(config["path"]))
    check_numbers(content, str(config["path"]))
    options = {key: value for key, value in content.items() if key not in NOT_OPTIONS}
    kind, name = content["model_type"], "/".join(content.get("architectures") or ["the model"])
    check_type(kind, transformers)
    hf_config = from_config(name, kind, lambda: transformers.AutoConfig.for_model(kind, **options))
    text_config = from_config(name, kind, hf_config.get_text_config)
    for part in (hf_config, text_config):
        part.use_cache = False
    for name in _LEFT_OUT & vars(hf_config).keys():
        setattr(hf_config, name, 0.0)
    task, assumed = auto_class(content, transformers, hf_config)
    _name_tokens(hf_config)
    if task == "AutoModelForSequenceClassification":
        for part in (hf_config, text_config):
            if getattr(part, "pad_token_id", None) is None:
                part.pad_token_id = 0  # decoders need one to find the last token of a batch
        if not hf_config.problem_type and hf_config.num_labels > 1:
            hf_config.problem_type = "single_label_classification"  # some models look for it in the labels
    module = from_config(name, kind, lambda: _built(getattr(transformers, task), hf_config))
    names = inspect.signature(module.forward).parameters
    if task in _OF_IMAGES and "input_ids" in names and sees(names):
        batch = _with_images(module, hf_config, sizes)
    elif hears(module):
        batch = _filled(module, hf_config, sizes, sound_of)
    else:
        batch = within_windows(task, hf_config, sizes, make_batch(task, hf_config, sizes, names))
    frozen = freeze(module, str(config.get("freeze", "none")))
    notes = (*assumed, *batch.notes, *((frozen,) if frozen else ()), *assumed_kernels(module),
             *assumed_experts(hf_config, sizes), *assumed_patches(hf_config), *_left_out(names, batch))  # fmt: skip
    return Workload(module, batch.inputs, _quiet(batch.loss or own_loss), assumptions=notes)


_MEDIA = {
    "images": ("pixel_values", "image_pixel_values", "image_patches", "flattened_patches"),
    "sound": ("input_features", "input_values", "audio_input_features"),
}
"""Kind -> arguments of models of text by which they take it."""


def _left_out(names: Collection[str], batch: Batch) -> tuple[str, ...]:
    """What else than text a model takes and the samples have not."""
    if "input_ids" not in batch.inputs or TEXT_ALONE in batch.notes:
        return ()
    missing = [
        kind
        for kind, given in _MEDIA.items()
        if any(name in names for name in given) and not any(name in batch.inputs for name in given)
    ]
    return (f"samples have no {' and no '.join(missing)}, which this model can take",) if missing else ()


_SPECIAL = {"decoder_start_token_id": 0, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
"""Tokens that models look up and files may leave out -> a place in the vocabulary."""


def _name_tokens(hf_config: Any) -> None:
    for name, place in _SPECIAL.items():
        if hf_config.is_encoder_decoder and getattr(hf_config, name, None) is None:
            setattr(hf_config, name, place)
        elif not hasattr(hf_config, name):
            setattr(hf_config, name, None)


def _built(factory: Any, hf_config: Any) -> nn.Module:
    options = {"dtype": torch.float32, "trust_remote_code": False}
    try:
        module: nn.Module = factory.from_config(hf_config, attn_implementation="sdpa", **options)
    except ValueError:  # the model has no SDPA path
        module = factory.from_config(hf_config, attn_implementation="eager", **options)
    return module.to(torch.empty(0).device)  # some tensors are made on the CPU


def _with_images(module: nn.Module, hf_config: Any, sizes: Sizes) -> Batch:
    """Text with images, whose tokens come on top of those of the text, or text alone."""
    if int(sizes.get("images", 1)) == 0:
        for name, weight in module.named_parameters():
            weight.requires_grad_(_IMAGES.search(name) is None)
        return _text_alone(module, hf_config, sizes)
    use_segments(module)
    return _filled(module, hf_config, sizes, images_by(inspect.signature(module.forward).parameters) or images_of)


def _text_alone(module: nn.Module, hf_config: Any, sizes: Sizes) -> Batch:
    text = tokens(int(sizes["batch_size"]), int(sizes["seq_len"]))
    inputs = {"input_ids": text, "labels": text}
    if "image_token_pooling" in inspect.signature(module.forward).parameters:
        inputs["mm_token_type_ids"] = text
    if hf_config.is_encoder_decoder:
        inputs = {"input_ids": _ones(text), **_answer(hf_config, sizes)}
    return Batch(inputs, notes=(TEXT_ALONE,))


def _answer(hf_config: Any, sizes: Sizes) -> dict[str, Tensor]:
    """The text that a model writes after it has read images and text. Some tokens of images have weights of their own:
    of those that have values, none is one."""
    labels = tokens(int(sizes["batch_size"]), int(sizes.get("target_len", sizes["seq_len"])))
    return {"labels": labels, **({"decoder_input_ids": _ones(labels)} if hf_config.is_encoder_decoder else {})}


def _ones(like: Tensor) -> Tensor:
    return torch.ones(like.shape, dtype=torch.long, device="cpu")


def _filled(module: nn.Module, hf_config: Any, sizes: Sizes, media_of: Callable[..., Media]) -> Batch:
    """Text with images or sound in the place of some of its tokens."""
    length, count = int(sizes["seq_len"]), int(sizes["batch_size"])
    try:
        media = media_of(module, hf_config, sizes)
    except PrecisionTimeError:
        raise
    except Exception as error:
        raise _untraced(error, media_of) from error
    text = tokens(count, length + media.placeholders)
    placed = with_placeholders(hf_config, count, length, media.placeholders, media.token)
    inputs = {**media.inputs, "input_ids": placed, "labels": text}
    if hf_config.is_encoder_decoder or not getattr(hf_config, "use_decoder_only_language_model", True):
        inputs |= _answer(hf_config, sizes)
    if "token_type_ids" in inspect.signature(module.forward).parameters:
        inputs["token_type_ids"] = text

    def loss(module: nn.Module, inputs: dict[str, Any]) -> Tensor:
        try:
            with images_filled(media.counted):
                return own_loss(module, inputs)
        except PrecisionTimeError:
            raise
        except Exception as error:
            raise _untraced(error, media_of) from error

    return Batch(inputs, loss, (media.note,))


def _untraced(error: Exception, media_of: Callable[..., Media]) -> CaptureError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    if media_of is sound_of:
        return CaptureError(
            f"sound of this model could not be traced without data ({reason}); give input audio_frames as its "
            "processor makes them, or your own module (FILE.py:FUNCTION)"
        )
    return CaptureError(
        f"images of this model could not be traced without data ({reason}); write input images=0 to train it on text "
        "alone, or give your own module (FILE.py:FUNCTION)"
    )


def _quiet(loss: Loss) -> Loss:
    def quiet(module: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        from transformers.utils import logging

        verbosity = logging.get_verbosity()
        logging.set_verbosity_error()  # advice about training (loss types, padding) does not apply
        try:
            with scan_kernels(module), replaced_layers(module):
                found = loss(module, inputs)
            if found is None:
                raise without_loss(module, inputs)
            return found
        except PrecisionTimeError:
            raise
        except (
            ArithmeticError,
            AssertionError,
            AttributeError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            raise refusal(module, inputs, error) from error
        finally:
            logging.set_verbosity(verbosity)

    return quiet
