"""Kernels that compute where each element lies and load it alone: multiprocessors limit them, whatever their bytes.

The rates are those of one H100 (`data/measured/h100/profiled.csv`).
"""

from __future__ import annotations

BY_ELEMENT = "by_element"
"""Variant, after the pass, of kernels that compute the place of every element and load it alone."""
ELEMENTS_PER_SM_S = 2.6e9
"""Elements that such kernels do in a second on a multiprocessor: an H100 (`data/measured`) does 340 billion, whatever
their bytes, 1.6 in a cycle of its clock."""
STEPS_OF_ONE_OPERAND = 0.6
"""Steps for each element of kernels that load one operand, where those that load several take one: the same H100 does
570 billion of their elements in a second."""
STEPS_OF_JOINED = 1.35
"""Steps for each element of tensors that are joined: the same H100 joins 330 to 400 billion elements of whole tensors
in a second, and 200 to 240 where some are parts of others."""
SECTOR_BYTES = 32
"""What a GPU reads at once of memory and caches, however little of it a kernel uses."""
APART_STEPS = 1.6
"""Steps for each element of an operand whose neighbours are not computed together, so that a sector is read for every
element of it: the same H100 adds and copies 130 to 150 billion elements a second into the other memory format."""
TOGETHER = 256
"""Elements from one neighbour to the next beyond which a block of threads does not compute both: with fewer, the H100
does up to 300 billion."""
CACHED = 2**20
"""Elements from one neighbour to the next beyond which a sector has left the caches in between: in a volume of 128
cubed, the same H100 does 49 billion elements a second, of 64 cubed 99, of 32 cubed 137."""


def is_by_element(family: str, variant: str) -> bool:
    """Whether the operations of a class are steps of threads, of which multiprocessors do ELEMENTS_PER_SM_S."""
    return family == "pooling" or variant.endswith(BY_ELEMENT)


def steps_apart(apart: float) -> float:
    """Steps for each element whose neighbours in one operand are that many elements apart (`OpSignature.attrs`,
    `strided`), beside those that compute its place."""
    return APART_STEPS * min(apart / TOGETHER, 1.0) if apart > 1 else 0.0


def sectors_again(elements: float, element_bytes: float, apart: float) -> float:
    """Bytes of sectors that such an operand of `elements` reads from memory more than once."""
    return elements * (SECTOR_BYTES - element_bytes) * min(apart / CACHED, 1.0) if apart > 1 else 0.0
