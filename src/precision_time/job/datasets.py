"""Sizes of well-known training sets: samples in an epoch, their unit, and where the figure comes from.

Sets of running text count tokens; one epoch has tokens / seq_len samples. The table holds published figures only; for
any other set, the job gives `dataset_size`. The SQuAD and WikiText-2 figures were looked up when this table was made;
the others are recalled from the source that they name.
"""

from __future__ import annotations

from dataclasses import dataclass

from precision_time.checks import show
from precision_time.errors import JobError, nearest


@dataclass(frozen=True, slots=True)
class Dataset:
    """A training split of `size` units; `source` is where the figure is published."""

    name: str
    size: int
    unit: str
    source: str
    note: str = ""

    @property
    def counts_tokens(self) -> bool:
        return self.unit == "tokens"


_TFDS = "TensorFlow Datasets catalog"

DATASETS: dict[str, Dataset] = {
    d.name: d
    for d in (
        Dataset("imagenet", 1_281_167, "images", "ILSVRC 2012 train; Russakovsky et al. 2015, table 2"),
        Dataset("imagenet-21k", 14_197_122, "images", "image-net.org, full release of 2011"),
        Dataset("cifar10", 50_000, "images", "Krizhevsky 2009"),
        Dataset("cifar100", 50_000, "images", "Krizhevsky 2009"),
        Dataset("tiny-imagenet", 100_000, "images", "Le and Yang 2015 (Stanford CS231n): 200 classes of 500, 64 x 64"),
        Dataset("mnist", 60_000, "images", "LeCun et al. 1998"),
        Dataset("fashion-mnist", 60_000, "images", "Xiao et al. 2017"),
        Dataset("coco", 118_287, "images", "COCO 2017 train, cocodataset.org", "see coco-annotated"),
        Dataset("coco-annotated", 117_266, "images", "COCO 2017 train, MLPerf train_samples", "images with a box"),
        Dataset("openimages-mlperf", 1_170_301, "images", "MLPerf RetinaNet logs, train_samples", "264 classes"),
        Dataset("msd-brain-tumour", 484, "volumes", "Medical Segmentation Decathlon task 01, training"),
        Dataset("msd-hippocampus", 260, "volumes", "Medical Segmentation Decathlon task 04, training"),
        Dataset("kits19", 168, "volumes", "MLPerf 3D U-Net, train_samples", "of 210 published cases"),
        Dataset("isbi-2012-em", 30, "images", "ISBI 2012 EM segmentation challenge, training stack"),
        Dataset("dagm2007", 575, "images", "DAGM 2007, train half of class 1", "one of ten classes"),
        Dataset("librispeech", 281_241, "utterances", "openslr.org/12: the three train sets, 960 h"),
        Dataset("ljspeech", 13_100, "clips", "keithito.com/LJ-Speech-Dataset", "before a validation split"),
        Dataset("squad", 87_599, "questions", f"{_TFDS}, squad v1.1", "long contexts split into a few more"),
        Dataset("squad-v2", 130_319, "questions", f"{_TFDS}, squad v2.0"),
        Dataset("cnn-dailymail", 287_113, "articles", f"{_TFDS}, cnn_dailymail 3.0.0"),
        Dataset("xsum", 204_045, "articles", "Narayan et al. 2018"),
        Dataset("wmt14-en-de", 4_508_785, "sentence pairs", f"{_TFDS}, wmt14_translate/de-en"),
        Dataset("wikitext-103", 103_227_021, "tokens", "Merity et al. 2016, table 1", "words"),
        Dataset("wikitext-2", 2_088_628, "tokens", "Merity et al. 2016, table 1", "words"),
        Dataset("openwebtext", 9_035_582_198, "tokens", "nanoGPT data/openwebtext", "GPT-2 BPE"),
        Dataset("c4", 156_000_000_000, "tokens", "Dodge et al. 2021, C4.EN", "rounded by the source"),
        Dataset(
            "movielens-20m",
            99_308_850,
            "user-item pairs",
            "grouplens.org ML-20M: 20,000,263 ratings",
            "as NCF trains: one rating of each of 138,493 users held out, four negatives per rating",
        ),
        Dataset("criteo-1tb", 4_195_197_692, "impressions", "MLPerf DLRM training samples (days 0 to 22)"),
        Dataset("criteo-kaggle", 45_840_617, "impressions", "Criteo challenge 2014, train.txt"),
        Dataset("electricity", 450_000, "windows", "Lim et al. 2021 (TFT), training samples"),
        Dataset("traffic", 450_000, "windows", "Lim et al. 2021 (TFT), training samples"),
        Dataset("reddit", 153_431, "nodes", "DGL RedditDataset (GraphSAGE split), training nodes"),
        Dataset("ogbn-products", 196_615, "nodes", "Hu et al. 2020 (OGB), training nodes"),
        Dataset("ogbn-arxiv", 90_941, "nodes", "Hu et al. 2020 (OGB), training nodes"),
        Dataset("ogbg-molhiv", 32_901, "graphs", "Hu et al. 2020 (OGB), training molecules"),
    )
}

ALIASES: dict[str, str] = {
    "imagenet-1k": "imagenet", "ilsvrc2012": "imagenet", "coco2017": "coco",
    "openimages": "openimages-mlperf",
    "brats": "msd-brain-tumour", "isbi-em": "isbi-2012-em", "ml-20m": "movielens-20m", "squad-v1.1": "squad",
    "criteo": "criteo-1tb", "cnn-dm": "cnn-dailymail",
}  # fmt: skip


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "").replace("_", "")


_BY_PLAIN_NAME = {_plain(name): DATASETS[name] for name in DATASETS} | {
    _plain(alias): DATASETS[name] for alias, name in ALIASES.items()
}


def is_known(name: str) -> bool:
    return _plain(name) in _BY_PLAIN_NAME


def find_dataset(name: str) -> Dataset:
    """The catalog entry of a name or alias; case, hyphens and underscores aside."""
    dataset = _BY_PLAIN_NAME.get(_plain(name))
    if dataset is None:
        raise JobError(
            f"dataset {show(name)} is unknown; nearest: {nearest(name.strip(), [*DATASETS, *ALIASES])}; "
            f"correct it or give its number of samples as dataset_size"
        )
    return dataset


def samples_per_epoch(name: str, seq_len: int | None = None) -> int:
    """Samples in one epoch; text sets need `seq_len` because they count tokens."""
    dataset = find_dataset(name)
    if not dataset.counts_tokens:
        return dataset.size
    if seq_len is None:
        raise JobError(f"dataset {show(name)} counts tokens but seq_len is missing; give input.seq_len or dataset_size")
    return max(1, dataset.size // seq_len)
