"""Counts and times of the server, written as Prometheus reads them (text format 0.0.4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import accumulate

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0)
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_COUNTS = {
    "requests": "Requests by route, method and status.",
    "predictions": "Predictions that were made, by route.",
    "kept_predictions": "Predictions that the store keeps.",
    "outcomes": "Outcomes that were recorded, by whether they were new.",
    "cache": "Requests for predictions, by whether the reply was kept from an earlier one.",
    "corrected": "Predictions that outcomes of the cluster corrected.",
    "refused": "Requests that were refused, by reason.",
}
"""Counters (without the prefix and _total) and their help."""


class Metrics:
    """Counters, and the latency of every route."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[tuple[tuple[str, str], ...], int]] = {name: defaultdict(int) for name in _COUNTS}
        self._times: dict[str, list[int]] = defaultdict(lambda: [0] * (len(BOUNDS_S) + 1))
        self._sums: dict[str, float] = defaultdict(float)
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        """Name without the prefix -> help and value."""

    def count(self, name: str, **labels: str) -> None:
        """One more of a counter of `_COUNTS`."""
        self._counts[name][tuple(labels.items())] += 1

    def time(self, route: str, seconds: float) -> None:
        """One more answer of a route."""
        place = next((index for index, bound in enumerate(BOUNDS_S) if seconds <= bound), len(BOUNDS_S))
        self._times[route][place] += 1
        self._sums[route] += seconds

    def text(self) -> str:
        """All of them."""
        lines: list[str] = []
        for name, meaning in _COUNTS.items():
            lines += _head(f"{name}_total", meaning, "counter")
            lines += [f"precision_time_{name}_total{_braces(key)} {n}" for key, n in self._counts[name].items()]
        lines += _head("request_seconds", "Seconds from a request to its answer, by route.", "histogram")
        for route, counts in self._times.items():
            bounds = [*map(str, BOUNDS_S), "+Inf"]
            for bound, total in zip(bounds, accumulate(counts), strict=True):
                label = _braces((("route", route), ("le", bound)))
                lines.append(f"precision_time_request_seconds_bucket{label} {total}")
            label = _braces((("route", route),))
            lines.append(f"precision_time_request_seconds_sum{label} {self._sums[route]:.6f}")
            lines.append(f"precision_time_request_seconds_count{label} {sum(counts)}")
        for name, (meaning, value) in self.gauges.items():
            lines += [*_head(name, meaning, "gauge"), f"precision_time_{name} {value():g}"]
        return "\n".join(lines) + "\n"


def _head(name: str, meaning: str, kind: str) -> list[str]:
    return [f"# HELP precision_time_{name} {meaning}", f"# TYPE precision_time_{name} {kind}"]


def _braces(labels: Iterable[tuple[str, str]]) -> str:
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{inside}}}" if inside else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
