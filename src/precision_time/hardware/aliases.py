"""Other names of GPUs and the plain form in which names are compared."""

from __future__ import annotations

import re

# Other name -> catalog name. A short name is the most common part: the SXM module with the larger memory for A100,
# the 16 GB module for V100. Names of the kernel tables and of the driver ("NVIDIA", "Tesla" ... left out) are
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
    "3090": "rtx-3090",
    "4090": "rtx-4090",
    "a6000": "rtx-a6000",
    "a5000": "rtx-a5000",
    "rtx-8000": "quadro-rtx-8000",
    "rtx-6000-ada-generation": "rtx-6000-ada",
    "a100": "a100-80gb-sxm",
    "a100-sxm": "a100-80gb-sxm",
    "a100-40gb": "a100-40gb-sxm",
    "a100-80gb": "a100-80gb-sxm",
    "a100-pcie": "a100-80gb-pcie",
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
    "rtx-pro-6000-blackwell-server-edition": "rtx-pro-6000",
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
