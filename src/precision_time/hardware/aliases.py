"""Other names of GPUs and the plain form in which names are compared."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Other name -> catalog name. A short name is the most common part: the SXM module with the larger memory for A100,
# the 16 GB module for V100. Where no variant is the most common (RTX 3080, 4060 Ti, 5060 Ti), there is none: the name
# is an error that lists them. Names of the kernel tables and of the driver ("NVIDIA", "Tesla" ... left out) are
# recognised as well.
GPU_ALIASES = {
    "p100": "p100-16gb-sxm",
    "p100-pcie": "p100-16gb-pcie",
    "v100": "v100-16gb-sxm",
    "v100-16gb": "v100-16gb-sxm",
    "v100-32gb": "v100-32gb-sxm",
    "v100-sxm3-32gb": "v100-32gb-sxm",
    "v100-pcie": "v100-16gb-pcie",
    "2080ti": "rtx-2080-ti",
    "3060": "rtx-3060",
    "3060ti": "rtx-3060-ti",
    "3070": "rtx-3070",
    "3070ti": "rtx-3070-ti",
    "3080ti": "rtx-3080-ti",
    "3090": "rtx-3090",
    "3090ti": "rtx-3090-ti",
    "4060": "rtx-4060",
    "4070": "rtx-4070",
    "4070ti": "rtx-4070-ti",
    "4080": "rtx-4080",
    "4090": "rtx-4090",
    "5060": "rtx-5060",
    "5070": "rtx-5070",
    "5070ti": "rtx-5070-ti",
    "5080": "rtx-5080",
    "5090": "rtx-5090",
    "a4000": "rtx-a4000",
    "a4500": "rtx-a4500",
    "a6000": "rtx-a6000",
    "a5000": "rtx-a5000",
    "rtx-8000": "quadro-rtx-8000",
    "rtx-4500-ada-generation": "rtx-4500-ada",
    "rtx-5000-ada-generation": "rtx-5000-ada",
    "rtx-6000-ada-generation": "rtx-6000-ada",
    "a100": "a100-80gb-sxm",
    "a100-sxm": "a100-80gb-sxm",
    "a100-40gb": "a100-40gb-sxm",
    "a100-80gb": "a100-80gb-sxm",
    "a100-pcie": "a100-80gb-pcie",
    "a800": "a800-80gb-sxm",
    "a800-80gb": "a800-80gb-sxm",
    "a800-sxm4-80gb": "a800-80gb-sxm",
    "a800-pcie": "a800-80gb-pcie",
    "a800-pcie-80gb": "a800-80gb-pcie",
    "h20": "h20-96gb-sxm",
    "h20-96gb": "h20-96gb-sxm",
    "h800": "h800-80gb-sxm",
    "h800-80gb": "h800-80gb-sxm",
    "h100": "h100-80gb-sxm",
    "h100-sxm": "h100-80gb-sxm",
    "h100-sxm5": "h100-80gb-sxm",
    "h100-80gb": "h100-80gb-sxm",
    "h100-80gb-hbm3": "h100-80gb-sxm",
    "h100-pcie": "h100-80gb-pcie",
    "h100-nvl": "h100-94gb-nvl",
    "h200": "h200-141gb-sxm",
    "h200-nvl": "h200-141gb-nvl",
    "gh200": "gh200-96gb",
    "gh200-480gb": "gh200-96gb",
    "b200": "b200-180gb-sxm",
    "b300": "b300-288gb-sxm",
    "rtx-pro-4000-blackwell": "rtx-pro-4000",
    "rtx-pro-4500-blackwell": "rtx-pro-4500",
    "rtx-pro-5000-blackwell": "rtx-pro-5000",
    "rtx-pro-6000-blackwell-server-edition": "rtx-pro-6000",
    "rtx-pro-6000-blackwell-workstation-edition": "rtx-pro-6000-workstation",
    "rtx-pro-6000-blackwell-max-q-workstation-edition": "rtx-pro-6000-maxq",
}
_MAKERS = re.compile(r"^(nvidia|tesla|geforce|amd|instinct)-")


def plain(name: str) -> str:
    """Lower case, with one hyphen for every run of other characters: 'RTX A6000' and 'rtx_a6000' give rtx-a6000."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def plain_gpu(name: str) -> str:
    """As `plain`, without the maker: 'NVIDIA GeForce RTX 3090' -> rtx-3090."""
    text, shorter = "", plain(name)
    while text != shorter:
        text, shorter = shorter, _MAKERS.sub("", shorter)
    return text


def plain_system(name: str) -> str:
    """As `plain`, without counts and remarks: '2x RTX 3090' -> rtx-3090; 'Selene (DGX A100)' -> selene."""
    text = re.sub(r"\(.*?\)", " ", name.lower())
    return plain(re.sub(r"\b\d+\s*x\s*(?=[a-z])", " ", text))


SKYPILOT_GPUS: Mapping[str, str] = {
    "A100": "a100-40gb-sxm",
    "A100-80GB": "a100-80gb-sxm",
    "A100-80GB-SXM": "a100-80gb-sxm",
    "H100": "h100-80gb-sxm",
    "H100-SXM": "h100-80gb-sxm",
    "H200": "h200-141gb-sxm",
    "H200-SXM": "h200-141gb-sxm",
    "B200": "b200-180gb-sxm",
    "B300": "b300-288gb-sxm",
    "V100": "v100-16gb-sxm",
    "V100-32GB": "v100-32gb-sxm",
    "P100": "p100-16gb-pcie",
}
"""SkyPilot's names of accelerators that the catalog of GPUs has more than one of."""

GKE_GPUS: Mapping[str, str] = {
    "nvidia-tesla-p4": "p4",
    "nvidia-tesla-p100": "p100-16gb-pcie",
    "nvidia-tesla-v100": "v100-16gb-sxm",
    "nvidia-tesla-a100": "a100-40gb-sxm",
    "nvidia-a100-80gb": "a100-80gb-sxm",
    "nvidia-h100-80gb": "h100-80gb-sxm",
    "nvidia-h100-mega-80gb": "h100-80gb-sxm",
    "nvidia-h200-141gb": "h200-141gb-sxm",
    "nvidia-b200": "b200-180gb-sxm",
    "nvidia-gb200": "gb200",
    "nvidia-rtx-pro-6000": "rtx-pro-6000",
}
"""Values of Google's node label `cloud.google.com/gke-accelerator` (GPU machine types of Compute Engine: A2, A3, A4,
G4, N1) that do not have a catalog name within them."""
