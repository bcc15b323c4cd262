"""Heads of Hugging Face's models: the class that builds each, one micro-batch with labels, and the loss.

The loss is the model's own where it needs no data. Of CTC, PyTorch's kernel stands in the trace (`zoo.models.ctc`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from precision_time.errors import JobError
from precision_time.zoo.models.ctc import ctc_loss
from precision_time.zoo.models.hf_batch import Batch, image, own_loss, sides
from precision_time.zoo.models.hf_boxes import detection
from precision_time.zoo.models.text import tokens
from precision_time.zoo.workload import Sizes

PATCHES = 2048
"""Patches of an image of Pix2Struct (arXiv:2210.03347, section 3)."""
CHOICES = 4
"""Answers of a question (RACE, SWAG)."""
AUDIO_SECONDS, SAMPLE_RATE, FRAMES_PER_SECOND = 10, 16_000, 50
CODES_PER_SECOND = 86
"""Codes of every codebook of the Descript Audio Codec: 44,100 samples a second, 512 a code (arXiv:2306.06546)."""


def _grid(config: Any, sizes: Sizes) -> dict[str, Any]:
    """Patches of an image, which a processor cuts, with the number of rows and columns (SigLIP 2)."""
    side = math.isqrt(int(config.vision_config.num_patches))
    batch, patch = int(sizes["batch_size"]), int(config.vision_config.patch_size)
    _, height, width = sides(config, {"image_size": side * patch, **sizes})
    rows, columns = height // patch, width // patch
    with torch.device("cpu"):
        shapes = torch.tensor([[rows, columns]] * batch)
    return {
        "pixel_values": torch.zeros(batch, rows * columns, int(config.vision_config.num_channels) * patch * patch),
        "pixel_attention_mask": tokens(batch, rows * columns),
        "spatial_shapes": shapes,
    }


def _clip(config: Any, sizes: Sizes) -> dict[str, Any]:
    channels, height, width = sides(config, sizes)
    frames = int(sizes.get("frames") or getattr(config, "num_frames", None) or 16)
    return {"pixel_values": torch.zeros(int(sizes["batch_size"]), frames, channels, height, width)}


def _text(sizes: Sizes) -> dict[str, Any]:
    return {"input_ids": tokens(int(sizes["batch_size"]), int(sizes["seq_len"]))}


def _image_classes(config: Any, sizes: Sizes) -> Batch:
    return Batch({**image(config, sizes), "labels": tokens(int(sizes["batch_size"]))})


def _clip_classes(config: Any, sizes: Sizes) -> Batch:
    return Batch({**_clip(config, sizes), "labels": tokens(int(sizes["batch_size"]))})


def _pixels(config: Any, sizes: Sizes) -> Batch:
    inputs = image(config, sizes)
    return Batch({**inputs, "labels": tokens(inputs["pixel_values"].shape[0], *inputs["pixel_values"].shape[2:])})


def _depth(config: Any, sizes: Sizes) -> Batch:
    def loss(module: nn.Module, inputs: dict[str, Any]) -> Tensor:
        depth: Tensor = module(**inputs).predicted_depth
        return (depth - torch.zeros_like(depth)).abs().mean()

    return Batch(image(config, sizes), loss, ("the loss is the mean absolute error of the depth: the model has none",))


def _restored_image(config: Any, sizes: Sizes) -> Batch:
    return Batch(image(config, sizes))


def _masked_image(config: Any, sizes: Sizes) -> Batch:
    inputs = image(config, sizes)
    patches = inputs["pixel_values"].shape[2] // int(config.patch_size)
    mask = torch.zeros(int(sizes["batch_size"]), patches * patches, dtype=torch.bool)
    return Batch({**inputs, "bool_masked_pos": mask})


def _spectrogram(config: Any, sizes: Sizes) -> Batch:
    """A spectrogram of 30 s, twice as long as the encoder's sequence (Whisper), or of audio_frames."""
    batch = int(sizes["batch_size"])
    labels = tokens(batch, int(sizes.get("target_len", sizes["seq_len"])))
    encoder = getattr(config, "encoder_config", config)
    bands = int(getattr(encoder, "num_mel_bins", 0) or getattr(config, "input_feat_per_channel", 80))
    usual = 2 * int(config.max_source_positions) if config.model_type == "whisper" else AUDIO_SECONDS * 100
    frames = int(sizes.get("audio_frames", usual))
    shape = (batch, bands, frames) if config.model_type == "whisper" else (batch, frames, bands)
    return Batch({"input_features": torch.zeros(shape), "labels": labels, "decoder_input_ids": labels})


def _heard(config: Any, sizes: Sizes) -> Batch:
    """A wave and its transcript (Moonshine, speech encoders with a text decoder)."""
    inputs, note = _sound(config, sizes)
    labels = tokens(int(sizes["batch_size"]), int(sizes.get("target_len", sizes["seq_len"])))
    return Batch({**inputs, "labels": labels, "decoder_input_ids": labels}, notes=(note,))


def _spoken(config: Any, sizes: Sizes) -> Batch:
    """A text and the codes of its sound, which a decoder writes (Dia)."""
    batch, channels = int(sizes["batch_size"]), int(config.decoder_config.num_channels)
    frames = int(sizes.get("audio_frames", AUDIO_SECONDS * CODES_PER_SECOND))
    inputs = {
        **_text(sizes),
        "decoder_input_ids": tokens(batch, frames, channels),
        "labels": tokens(batch * channels, frames),
    }
    note = f"samples have seq_len tokens of text and {frames} frames of sound, of {channels} codes each"
    return Batch(inputs, notes=(note,))


def _sound(config: Any, sizes: Sizes) -> tuple[dict[str, Any], str]:
    """A wave, or the features of one, and a note on its length; nothing of it is masked."""
    unmasked = ", none masked (apply_spec_augment)" if getattr(config, "apply_spec_augment", False) else ""
    config.apply_spec_augment = False
    batch, bands = int(sizes["batch_size"]), getattr(config, "feature_projection_input_dim", None)
    encoder = getattr(config, "encoder_config", None)
    bands = bands or getattr(encoder, "num_mel_bins", None)
    if bands:
        frames = int(sizes.get("audio_frames", AUDIO_SECONDS * (FRAMES_PER_SECOND if encoder is None else 100)))
        return {
            "input_features": torch.zeros(batch, frames, int(bands))
        }, f"samples have {frames} frames of sound{unmasked}"
    samples = int(sizes.get("audio_samples", AUDIO_SECONDS * SAMPLE_RATE))
    return {"input_values": torch.zeros(batch, samples)}, f"samples have {samples:,} values of sound{unmasked}"


def _ctc(config: Any, sizes: Sizes) -> Batch:
    inputs, note = _sound(config, sizes)
    batch = int(sizes["batch_size"])
    labels, lengths = tokens(batch, int(sizes.get("target_len", sizes["seq_len"]))), tokens(batch)

    def loss(module: nn.Module, inputs: dict[str, Any]) -> Tensor:
        logits: Tensor = module(**inputs).logits
        chances = logits.float().log_softmax(-1).transpose(0, 1)
        return ctc_loss(chances, labels, lengths, lengths)[0].mean()

    return Batch(inputs, loss, (f"{note}, {labels.shape[1]} symbols of transcript",))


def _sound_classes(config: Any, sizes: Sizes) -> Batch:
    inputs, note = _sound(config, sizes)
    return Batch({**inputs, "labels": tokens(int(sizes["batch_size"]))}, notes=(note,))


def _spectrogram_classes(config: Any, sizes: Sizes) -> Batch:
    """The audio spectrogram transformer takes a fixed number of frames."""
    shape = int(sizes["batch_size"]), int(config.max_length), int(config.num_mel_bins)
    return Batch({"input_values": torch.zeros(shape), "labels": tokens(shape[0])})


def _sequence_class(config: Any, sizes: Sizes) -> Batch:
    labels = tokens(int(sizes["batch_size"]))
    if not getattr(config, "is_encoder_decoder", False):
        return Batch({**_text(sizes), "labels": labels})
    with torch.device("cpu"):  # the model reads where the last token is
        ids = torch.full((int(sizes["batch_size"]), int(sizes["seq_len"])), int(config.eos_token_id == 0))
    ids[:, -1] = int(config.eos_token_id)

    def loss(module: nn.Module, inputs: dict[str, Any]) -> Tensor:
        with _KeptValues():
            return own_loss(module, inputs)

    return Batch({"input_ids": ids, "labels": labels}, loss)


class _KeptValues(TorchFunctionMode):
    """Tensors with values keep them where a model moves them to its device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.to and not args[0].is_meta and not args[0].is_floating_point():
            return args[0]
        return func(*args, **(kwargs or {}))


def _answer_span(config: Any, sizes: Sizes) -> Batch:
    ends = {name: tokens(int(sizes["batch_size"])) for name in ("start_positions", "end_positions")}
    return Batch({**_text(sizes), **ends})


def _choice(config: Any, sizes: Sizes) -> Batch:
    batch = int(sizes["batch_size"])
    ids = tokens(batch, CHOICES, int(sizes["seq_len"]))
    note = f"samples have {CHOICES} choices, each a sequence of seq_len tokens"
    return Batch({"input_ids": ids, "labels": tokens(batch)}, notes=(note,))


def _translation(config: Any, sizes: Sizes) -> Batch:
    inputs = _text(sizes)
    inputs["labels"] = tokens(int(sizes["batch_size"]), int(sizes.get("target_len", sizes["seq_len"])))
    return Batch({**inputs, "decoder_input_ids": torch.zeros_like(inputs["labels"])})


def _language(config: Any, sizes: Sizes) -> Batch:
    return Batch({**_text(sizes), "labels": _text(sizes)["input_ids"]})


def _caption(config: Any, sizes: Sizes) -> Batch:
    """An image for each text, whose tokens stand before it (GIT); with images=0 there is no such model."""
    inputs = image(config.vision_config, sizes)
    height, width = inputs["pixel_values"].shape[2:]
    note = f"samples have 1 image of {height} x {width} pixels, beside seq_len tokens of text"
    return Batch({**_language(config, sizes).inputs, **inputs}, notes=(note,))


def _pretraining(config: Any, sizes: Sizes) -> Batch:
    if config.model_type in _MASKED_AUTOENCODERS:
        if not hasattr(config, "num_frames"):
            return _restored_image(config, sizes)
        frames = _clip(config, sizes)["pixel_values"]
        patches = (frames.shape[1] // config.tubelet_size) * (frames.shape[-1] // config.patch_size) ** 2
        raise JobError(
            f"model_type {config.model_type} restores masked parts of {patches} patches, whose number depends on data; "
            "give your own module (FILE.py:FUNCTION)"
        )
    inputs = _language(config, sizes).inputs
    return Batch(inputs)


_OF_PAIRS = ("next_sentence_label", "sentence_order_label")
"""Labels of pre-training on pairs of sentences (BERT, ALBERT)."""


_MASKED_AUTOENCODERS = frozenset(["vit_mae", "videomae"])


def _written(config: Any, sizes: Sizes, names: Collection[str]) -> Batch:
    """An image and the text that a decoder writes of it (TrOCR, Donut, Pix2Struct)."""
    batch, labels = int(sizes["batch_size"]), tokens(int(sizes["batch_size"]), int(sizes["seq_len"]))
    if "flattened_patches" in names:
        values = int(config.vision_config.patch_embed_hidden_size)
        shape = (batch, PATCHES, 2 + values)  # with the row and column of each
        note = f"samples have an image of {PATCHES} patches; seq_len is the text that the decoder writes"
        return Batch({"flattened_patches": torch.zeros(shape), "labels": labels}, notes=(note,))
    inputs = image(config.encoder, sizes)
    height, width = inputs["pixel_values"].shape[2:]
    note = f"samples have 1 image of {height} x {width} pixels; seq_len is the text that the decoder writes"
    return Batch({**inputs, "labels": labels}, notes=(note,))


def _contrastive(config: Any, sizes: Sizes) -> Batch:
    """Images and texts of one rank (CLIP, SigLIP)."""
    length = int(getattr(config.text_config, "max_position_embeddings", 0) or sizes["seq_len"])
    text = {"input_ids": tokens(int(sizes["batch_size"]), min(length, int(sizes["seq_len"])))}
    return Batch({**image(config.vision_config, sizes), **text, "return_loss": True})


HEADS: Mapping[str, tuple[tuple[str, ...], Callable[[Any, Sizes], Batch]]] = {
    "ForCausalLM": (("AutoModelForCausalLM", "AutoModelForImageTextToText"), _language),
    "LMHeadModel": (("AutoModelForCausalLM", "AutoModelForMaskedLM"), _language),
    "ForMaskedLM": (("AutoModelForMaskedLM",), _language),
    "ForPreTraining": (("AutoModelForPreTraining",), _pretraining),
    "VisionEncoderDecoderModel": (("AutoModelForImageTextToText",), _translation),
    "SpeechEncoderDecoderModel": (("AutoModelForSpeechSeq2Seq",), _spectrogram),
    "ForConditionalGeneration": (
        ("AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq", "AutoModelForImageTextToText"),
        _translation,
    ),
    "ForSequenceClassification": (
        ("AutoModelForSequenceClassification", "AutoModelForAudioClassification"),
        _sequence_class,
    ),
    "ForAudioClassification": (("AutoModelForAudioClassification",), _sound_classes),
    "ForQuestionAnswering": (("AutoModelForQuestionAnswering",), _answer_span),
    "ForQuestionAnsweringSimple": (("AutoModelForQuestionAnswering",), _answer_span),
    "ForVisionText2Text": (("AutoModelForImageTextToText",), _translation),
    "ForSpeechToText": (("AutoModelForSpeechSeq2Seq",), _spectrogram),
    "ForTextToText": (("AutoModelForSeq2SeqLM",), _translation),
    "ForTokenClassification": (("AutoModelForTokenClassification",), _language),
    "ForMultipleChoice": (("AutoModelForMultipleChoice",), _choice),
    "ForNextSentencePrediction": (("AutoModelForNextSentencePrediction",), _sequence_class),
    "ForImageClassification": (("AutoModelForImageClassification",), _image_classes),
    "ForVideoClassification": (("AutoModelForVideoClassification",), _clip_classes),
    "ForSemanticSegmentation": (("AutoModelForSemanticSegmentation",), _pixels),
    "ForDepthEstimation": (("AutoModelForDepthEstimation",), _depth),
    "ForMaskedImageModeling": (("AutoModelForMaskedImageModeling",), _masked_image),
    "ForObjectDetection": (("AutoModelForObjectDetection",), detection),
    "ForCTC": (("AutoModelForCTC",), _ctc),
}
"""Ending of an architecture's name -> the classes of `transformers` that may build it, tried in this order, and its
batch."""
_OF_CLASS = {
    "AutoModelForSpeechSeq2Seq": _spectrogram,
    "AutoModelForAudioClassification": _sound_classes,
    "AutoModel": _contrastive,
    **{names[0]: batch for names, batch in HEADS.values()},
}
BY_TYPE = (
    "AutoModelForImageClassification",
    "AutoModelForSeq2SeqLM",
    "AutoModelForCausalLM",
    "AutoModelForMaskedLM",
    "AutoModelForSequenceClassification",
    "AutoModelForImageTextToText",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForCTC",
    "AutoModelForObjectDetection",
    "AutoModelForSemanticSegmentation",
    "AutoModelForVideoClassification",
    "AutoModelForAudioClassification",
    "AutoModelForDepthEstimation",
)
"""Tried in this order when the file names no architecture."""
CONTRASTIVE = frozenset(["altclip", "chinese_clip", "clip", "metaclip_2", "siglip"])
"""Model types of images and texts whose plain model is the one that is trained."""
ENCODERS = frozenset(
    "albert bert camembert deberta deberta-v2 distilbert electra mpnet roberta xlm-roberta".split(),
)
"""Model types that also have a causal class but are trained as masked models."""


def auto_class(content: Mapping[str, Any], transformers: Any, config: Any) -> tuple[str, tuple[str, ...]]:
    """Name of the `AutoModel...` class that builds the configured model with a loss, and what had to be assumed.

    Raises `JobError` for an architecture with another head, such as universal segmentation.
    """
    names = content.get("architectures") or []
    if content["model_type"] in CONTRASTIVE and (not names or names[0].endswith("Model")):
        return "AutoModel", ()
    for architecture in names:
        for ending, (tried, _) in HEADS.items():
            if architecture.endswith(ending):
                return next((each for each in tried if _builds(transformers, each, config)), tried[0]), ()
        if "For" in architecture:
            raise JobError(
                f"architecture {architecture!r} has a head whose loss is not known here; name one that ends with "
                f"{', '.join(HEADS)}, or give your own module (FILE.py:FUNCTION)"
            )
    usual = ("AutoModelForMaskedLM",) if content["model_type"] in ENCODERS else BY_TYPE
    for name in usual:
        if _builds(transformers, name, config):
            head = f"trained as {name.removeprefix('AutoModelFor')}, since its config"
            return name, (f"{head} {f'names {names[0]}, which has no loss' if names else 'names no architecture'}",)
    raise JobError(
        f"model_type {content['model_type']!r} has no training head that is known: it is a part of other models, or "
        "generates without a loss; name the whole model's config or give your own module (FILE.py:FUNCTION)"
    )


def _builds(transformers: Any, name: str, config: Any) -> bool:
    return type(config) in getattr(transformers, name)._model_mapping


def sees(names: Iterable[str]) -> bool:
    """Whether a forward of these arguments takes images."""
    return any("pixel_values" in name or "patches" in name for name in names)


def make_batch(task: str, config: Any, sizes: Sizes, names: Collection[str]) -> Batch:
    """One micro-batch with labels; `names` are those that the model's forward takes."""
    batch = _of_head(task, config, sizes, names)
    for label in _OF_PAIRS:
        if task == "AutoModelForPreTraining" and label in names:
            batch.inputs[label] = tokens(int(sizes["batch_size"]))
    if config.model_type == "xmod":  # adapters of all samples are those of the default language
        language = list(config.languages).index(config.default_language)
        batch.inputs["lang_ids"] = torch.full((batch.inputs["input_ids"].shape[:-1].numel(),), language, device="cpu")
    if task == "AutoModelForMultipleChoice" and config.model_type in ("xlm", "flaubert"):
        ids = batch.inputs["input_ids"]  # of which those that are no padding are counted
        batch.inputs["input_ids"] = torch.ones(ids.shape, dtype=torch.long, device="cpu")
    if config.model_type in ("xlm", "flaubert") and task != "AutoModelForMultipleChoice":
        batch.inputs["lengths"] = torch.full((int(sizes["batch_size"]),), int(sizes["seq_len"]), device="cpu")
    if "pixel_values_videos" in names and "pixel_values" not in names:
        batch.inputs["pixel_values_videos"] = batch.inputs.pop("pixel_values")
    return batch


def _of_head(task: str, config: Any, sizes: Sizes, names: Collection[str]) -> Batch:
    if config.model_type == "audio-spectrogram-transformer":
        return _spectrogram_classes(config, sizes)
    if config.model_type == "dia":
        return _spoken(config, sizes)
    if config.model_type == "git" and task == "AutoModelForCausalLM":
        return _caption(config, sizes)
    if task == "AutoModelForImageTextToText":
        return _written(config, sizes, names) if sees(names) else _language(config, sizes)
    if task == "AutoModelForPreTraining" and "input_ids" not in names and config.model_type not in _MASKED_AUTOENCODERS:
        raise JobError(
            f"model_type {config.model_type} learns from parts of sound or images that are masked at random; give your "
            "own module (FILE.py:FUNCTION)"
        )
    if "spatial_shapes" in names and task == "AutoModelForImageClassification":
        return Batch({**_grid(config, sizes), "labels": tokens(int(sizes["batch_size"]))})
    if task == "AutoModelForSpeechSeq2Seq" and "input_values" in names and "input_ids" not in names:
        return _heard(config, sizes)
    if task == "AutoModelForAudioClassification" and config.model_type == "whisper":
        features = _spectrogram(config, sizes).inputs["input_features"]
        return Batch({"input_features": features, "labels": tokens(int(sizes["batch_size"]))})
    return _OF_CLASS[task](config, sizes)
