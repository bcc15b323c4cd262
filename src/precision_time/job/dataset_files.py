"""How well-known training sets lie on storage: mean bytes of a sample, format, and where the figure comes from.

Figures recalled from the source that they name, unless they follow by arithmetic. Sets of running text have bytes per
token: a sample of them has seq_len tokens.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DatasetFiles:
    """`bytes_per_unit`: of a sample, or of a token where the set counts tokens."""

    bytes_per_unit: float
    format: str
    source: str
    samples_per_read: float = 1.0


_UINT16 = "two bytes a token (uint16, vocabularies below 65,536), as nanoGPT and Megatron write them; by arithmetic"
_UINT32 = "four bytes a token (a vocabulary above 65,536); by arithmetic"
_PAGES = 64.0
"""Windows of a memory-mapped file follow no order, but pages and read-ahead bring neighbours: assumed."""

DATASET_FILES: dict[str, DatasetFiles] = {
    "imagenet": DatasetFiles(
        110_000, "jpeg", "ILSVRC2012_img_train.tar has 137.8 GiB for 1,281,167 files: 115 kB with tar padding; "
        "110 kB is the mean file that papers on input pipelines state"
    ),
    "imagenet-21k": DatasetFiles(92_000, "jpeg", "image-net.org: about 1.3 TB for 14,197,122 files"),
    "coco": DatasetFiles(163_000, "jpeg", "cocodataset.org: train2017.zip, 18 GiB for 118,287 files"),
    "coco-annotated": DatasetFiles(163_000, "jpeg", "as coco"),
    "cifar10": DatasetFiles(3_073, "raw", "Krizhevsky: binary version, a label and 32 x 32 x 3 bytes", 10_000),
    "cifar100": DatasetFiles(3_074, "raw", "Krizhevsky: binary version, two labels and 32 x 32 x 3 bytes", 10_000),
    "mnist": DatasetFiles(785, "raw", "LeCun: 28 x 28 bytes and a label, in one file", 60_000),
    "fashion-mnist": DatasetFiles(785, "raw", "as mnist", 60_000),
    "librispeech": DatasetFiles(
        211_000, "flac", "openslr.org/12: 6.3, 23 and 30 GB of train archives for 281,241 utterances (12.3 s each)"
    ),
    "ljspeech": DatasetFiles(290_000, "wav", "13,100 clips of 6.57 s on average, 22,050 samples/s of two bytes"),
    "wikitext-103": DatasetFiles(4.0, "tokens", f"{_UINT32}: 267,735 words", _PAGES),
    "wikitext-2": DatasetFiles(2.0, "tokens", f"{_UINT16}: 33,278 words", _PAGES),
    "openwebtext": DatasetFiles(2.0, "tokens", f"{_UINT16}: GPT-2's 50,257", _PAGES),
    "c4": DatasetFiles(2.0, "tokens", f"{_UINT16}: T5's 32,100", _PAGES),
}  # fmt: skip
