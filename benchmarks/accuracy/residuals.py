"""Known reasons for large errors, by model family (README.md of this folder explains how they were found)."""

from __future__ import annotations

from dataclasses import dataclass

from precision_time.evaluation.rows import JudgedRow

NOT_UNDERSTOOD = "not understood"


@dataclass(frozen=True, slots=True)
class Known:
    """An explanation and its rows: those of a family, perhaps on certain GPUs, predicted too slow or too fast."""

    family: str
    too_slow: bool
    text: str
    gpus: tuple[str, ...] = ()

    def explains(self, judged: JudgedRow) -> bool:
        """Whether the explanation applies to the row."""
        row = judged.row
        return (
            self.family == row.family
            and (not self.gpus or row.gpu in self.gpus)
            and self.too_slow == (judged.error > 0)
        )


KNOWN = (
    Known(
        "waveglow",
        False,
        "On four and eight GPUs of a node its steps in half precision and TF32 lack 55 to 164 ms, as if processes "
        "waited for each other in MAGMA's decompositions, which is not modelled. Its script also waits for the device "
        "after the forward pass. Without WaveGlow no published step tells of dilated convolutions of one dimension.",
    ),
    Known(
        "jasper",
        False,
        "Every step holds 0.15 to 0.25 s that no batch size changes; a NovoGrad that asks the device about every "
        "tensor is a part of it, decoding on the host another, which is not modelled, and the rest is not understood. "
        "What tells one-dimensional convolutions apart comes from WaveGlow alone when Jasper is left out.",
    ),
    Known(
        "ssd",
        True,
        "Convolutions of all published families run faster than the hand-set priors say; without SSD fewer are left to "
        "say so. Those in half precision on V100s are furthest off: TensorFlow's networks, channels last too, are "
        "slower there.",
    ),
    Known(
        "efficientnet",
        False,
        "On eight V100s EfficientNet-B0 and ResNet-50 both end at 7,800 to 8,600 images a second, 122 to 135 for each "
        "of the 64 loader workers of the script, and on eight A100s at 16,600 with 128, as if they waited for JPEGs; "
        "jobs of rows have no loader.",
        gpus=("v100-16gb-sxm", "v100-32gb-sxm"),
    ),
    Known(
        "ncf",
        True,
        "About a quarter of the step in half precision is lookups in large embeddings and their gradients, whose "
        "traffic was never measured alone. Why half precision is further off than fp32 is not understood.",
    ),
    Known(
        "unet",
        False,
        "On the A100 in half precision nothing else published keeps images in NCHW, so its convolutions are those of "
        "other arithmetics. Of a step, some 7 ms change with no batch size.",
        gpus=("a100-80gb-sxm",),
    ),
    Known(
        "resnet",
        True,
        "Graphics chips of the Ampere name are an architecture of their own, and ResNet-50 is the only convolutional "
        "network published on them: left out, they take what holds for other chips.",
        gpus=("rtx-3090", "rtx-a6000"),
    ),
)
"""The first that applies is shown."""


def why(judged: JudgedRow) -> str:
    """The known reason for the error of the row."""
    return next((known.text for known in KNOWN if known.explains(judged)), NOT_UNDERSTOOD)
