"""Convolutions of fewer input channels than tensor cores load at once, in half precision: the first layers of images.

cuDNN has kernels of its own for them, which multiprocessors limit. Rule and rate are those of one H100
(`data/measured/h100/profiled.csv`) in bfloat16 and NHWC; how far other formats, dtypes and devices are from them is
left to factors on kernels.
"""

from __future__ import annotations

import numpy as np

from precision_time.timing.curves import Array

WHOLE_CHANNELS = 8
"""Channels of half precision that tensor cores load at once: 16 bytes."""
STEPS_PER_SM_S = 1.47e8
"""Steps that such kernels do in a second on a multiprocessor: with filters of 3 x 3 to 7 x 7 and 16 to 64 outputs, nine
of ten forward passes of the H100 do 1.41e8 to 1.88e8, the tenth 1.09e8."""
OUTPUTS_OF_STEP = 32


def steps(images: Array, positions: Array, taps: Array, outputs: Array) -> Array:
    """Steps of a pass over `images` of as many output `positions`: each is 32 outputs at a position, and takes as long
    as the square root of its taps."""
    found: Array = images * positions * np.sqrt(taps) * np.ceil(outputs / OUTPUTS_OF_STEP)
    return found
