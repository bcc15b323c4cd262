"""Parts of profiled steps (`data/measured/h100_parts.csv`) and the works that each is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from precision_time.timing.curves import Array
from precision_time.timing.work import CONV, CONV_1D, CONV_DEPTHWISE, CONV_DILATED, CONV_FEW, CONVOLUTIONS, MATMUL


@dataclass(frozen=True, slots=True)
class PartWorks:
    """The works of a part of a step: families, passes if not all, whether filters have one tap if some have."""

    families: frozenset[str]
    passes: tuple[str, ...] = ()
    one_tap: bool | None = None

    def among(self, classes: NDArray[np.str_], taps: Array) -> NDArray[np.bool_]:
        """Which works are of the part, by their classes (family|variant|arithmetic|dtype class) and taps."""
        names = [name.split("|")[:2] for name in classes.tolist()]
        found = np.array([family in self.families and self._in_pass(variant) for family, variant in names], dtype=bool)
        return found if self.one_tap is None else found & ((taps == 1) == self.one_tap)

    def _in_pass(self, variant: str) -> bool:
        return not self.passes or variant.partition(".")[0] in self.passes


_DENSE = frozenset({CONV, CONV_DILATED, CONV_1D})
_CONVOLUTION_KINDS = {
    "few": PartWorks(frozenset({CONV_FEW})),
    "one_tap": PartWorks(_DENSE, one_tap=True),
    "larger": PartWorks(_DENSE, one_tap=False),
    "grouped": PartWorks(CONVOLUTIONS - _DENSE - {CONV_FEW, CONV_DEPTHWISE}),
    "depthwise": PartWorks(frozenset({CONV_DEPTHWISE})),
}
OF_PART: Mapping[str, PartWorks] = {
    **{f"convolution_{kind}": replace(works, passes=("fwd",)) for kind, works in _CONVOLUTION_KINDS.items()},
    **{
        f"convolution_{kind}_backward": replace(works, passes=("dgrad", "wgrad"))
        for kind, works in _CONVOLUTION_KINDS.items()
    },
    "batch_norm": PartWorks(frozenset({"batch_norm"}), ("fwd",)),
    "batch_norm_backward": PartWorks(frozenset({"batch_norm"}), ("bwd",)),
    "layer_norm": PartWorks(frozenset({"layer_norm"}), ("fwd",)),
    "layer_norm_backward": PartWorks(frozenset({"layer_norm"}), ("bwd",)),
    "product": PartWorks(frozenset({MATMUL})),
    "pooling": PartWorks(frozenset({"pooling"})),
    "softmax": PartWorks(frozenset({"softmax"})),
    "reduction": PartWorks(frozenset({"reduction"})),
    "copy": PartWorks(frozenset({"cast", "copy", "transpose"})),
    "pointwise": PartWorks(frozenset({"pointwise"})),
}
"""Name of a part of a step -> its works."""
