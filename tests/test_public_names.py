"""The public names: growing this list is a deliberate edit."""

from __future__ import annotations

import precision_time


def test_public_names() -> None:
    assert precision_time.__all__ == [
        "Estimate", "Job", "PrecisionTimeError", "__version__", "compare", "predict", "predict_time",
    ]  # fmt: skip
    assert all(hasattr(precision_time, name) for name in precision_time.__all__)
