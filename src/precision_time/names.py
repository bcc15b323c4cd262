"""Names of models and devices as people write them: compared without case and separators, and the nearest ones."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable


def joined(name: str) -> str:
    """Lower case without separators, save one hyphen between two numbers: 'ResNet-50' and 'resnet50' are equal,
    'llama3-18b' and 'llama3.1-8b', or 'qwen2-57b' and 'qwen25-7b', are not."""
    return re.sub(r"(?<![0-9])-|-(?![0-9])", "", re.sub(r"[^a-z0-9.]+", "-", name.lower()))


def nearest_names(name: str, choices: Iterable[str], count: int = 3) -> str:
    """The choices closest to a name, as text for an error message; the first eight of all where none is close.

    First those that begin with the name, then those that contain it, then those with other numbers alone, the nearest
    numbers first ('llama3-9b': llama3-8b), then by the share of characters in common.
    """
    given, known = joined(name[:100]), sorted(set(choices))
    ranked = sorted((*_distance(given, joined(choice)), choice) for choice in known)
    close = [choice for *ranks, other, choice in ranked[:count] if other <= _FAR or min(ranks) < 1.0]
    return ", ".join(close) if close else ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")


_FAR = 0.5
"""Largest share of characters that near names do not have in common."""
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def _distance(given: str, other: str) -> tuple[float, float, float, float]:
    """Of two joined names: whether one does not begin with, and not contain the other; how far numbers are apart (a
    share of the largest distance: 1 where other parts differ as well); the share of other characters."""
    part = bool(given) and given in other
    numbers = 1.0
    if _NUMBER.sub("#", given) == _NUMBER.sub("#", other):
        pairs = zip(_NUMBER.findall(given), _NUMBER.findall(other), strict=True)
        numbers = 1.0 - math.exp(-sum(abs(math.log1p(float(one)) - math.log1p(float(two))) for one, two in pairs))
    unlike = 1.0 - difflib.SequenceMatcher(None, given, other).ratio()
    return float(not (part and other.startswith(given))), float(not part), numbers, unlike
