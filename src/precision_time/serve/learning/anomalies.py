"""Outcomes that are much slower or faster than others of the cluster say, and what speaks for a cause."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from precision_time.serve.learning.outcome import Known, Observed

FAR = 3.0
"""Spreads from the median beyond which an outcome is an anomaly: chosen."""
LEAST_SLOWER = 0.15
"""And the least change of its step: chosen."""
_VARIES, _FULL, _LAUNCHES = 1.25, 0.95, 0.1
"""P90 over P50 of steps, share of memory, and share of kernels limited by launching that are worth a word."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """An outcome far from what the cluster's others say.

    slower    how much longer its step took than expected, as a fraction; negative where shorter
    spreads   how many spreads of log(step time) that is
    twins     outcomes of the same model, precision and GPU behind the expectation
    sentence  for people: what, and the likeliest cause with a question mark
    evidence  what speaks for causes, one phrase each, the strongest first
    hosts     that ran it, as its outcome names them
    """

    number: int
    prediction: str
    at: float
    job: str
    slower: float
    spreads: float
    twins: int
    sentence: str
    evidence: tuple[str, ...]
    hosts: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "evidence": list(self.evidence)}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Anomaly:
        return cls(**{**given, "evidence": tuple(given["evidence"])})


def anomaly_of(
    observed: Observed, expected: float, spread: float, twins: Sequence[Known], before: Iterable[Anomaly]
) -> Anomaly | None:
    """The anomaly that an outcome is; None where it is none.

    `expected`: mean of its log(measured / predicted) given all others, `spread` around it. `twins`: outcomes of its
    model, precision and GPU. `before`: earlier anomalies.
    """
    off = observed.ratio - expected
    if abs(off) < FAR * spread or abs(math.expm1(off)) < LEAST_SLOWER:
        return None
    known = observed.known
    evidence = tuple(_evidence(observed, twins, before)) if off > 0.0 else ("fewer samples or steps than the job says",)
    how = f"{math.expm1(off):.0%} slower" if off > 0.0 else f"{-math.expm1(off):.0%} faster"
    others = (
        f"its {len(twins)} twin rows" if len(twins) > 1 else "its twin row" if twins else "the cluster's other jobs"
    )
    than = f"{others} say" if not twins else others
    cause = evidence[0] if evidence else "the outcome says nothing of its machine that would explain it"
    sentence = f"{observed.name or 'this job'} runs {how} than {than}: {cause}{'?' if evidence else ''}"
    return Anomaly(
        number=known.number,
        prediction=observed.prediction,
        at=known.at,
        job=observed.facets.job,
        slower=round(math.expm1(off), 4),
        spreads=round(off / spread, 2),
        twins=len(twins),
        sentence=sentence,
        evidence=evidence,
        hosts=(known.machine or {}).get("hosts", ""),
    )


def _hosts(text: str) -> list[str]:
    return [host for host in text.split(", ") if host]


def _evidence(observed: Observed, twins: Sequence[Known], before: Iterable[Anomaly]) -> Iterator[str]:
    machine = observed.known.machine or {}
    where = f" on {machine['hosts']}" if "hosts" in machine else ""
    slow = Counter(host for each in before if each.slower > 0.0 for host in _hosts(each.hosts))
    repeated = [host for host in _hosts(machine.get("hosts", "")) if slow[host]]
    if repeated:
        yield f"a slow node {repeated[0]}, where {slow[repeated[0]]} of the earlier anomalies ran"
    if observed.varies is not None and observed.varies > _VARIES:
        yield f"host-bound or shared{where}, its steps vary (P90 is {observed.varies - 1.0:.0%} above the median)"
    if observed.full is not None and observed.full > _FULL:
        yield f"memory is {observed.full:.0%} full, so that the allocator waits{where}"
    for name in ("gpu", "driver", "cuda", "torch", "framework"):
        others = [each.machine[name] for each in twins if each.machine and name in each.machine]
        if name in machine and others and machine[name] not in others:
            yield f"{name} {machine[name]}{where}, where twins ran {max(set(others), key=others.count)}"
    if observed.facets.launch > _LAUNCHES:
        yield f"host-bound{where}, launching limits {observed.facets.launch:.0%} of its kernels' time"
    hosts = {each.machine["hosts"] for each in twins if each.machine and "hosts" in each.machine}
    if where and machine["hosts"] not in hosts and not repeated:
        yield f"host-bound or throttled{where}, where no twin ran" if hosts else f"host-bound or throttled{where}"
    elif where and not repeated:
        yield f"another load{where}, where a twin was as fast as expected"
