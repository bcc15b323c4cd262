"""From measured jobs to the correction of another: what is most likely, given how far errors go together.

The logs of measured over predicted are taken as normal with the covariance of `covariance.py`; given those of the
anchors, the mean of each term's log factor corrects that term, and the variance that is left narrows the interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from precision_time.anchors.anchor import Anchor, Kind
from precision_time.anchors.covariance import Array, Covariance, Kinds, own_variance, step_covariance, term_covariances
from precision_time.estimate.correction import INFORMED, NONE, AnchorUse, Correction

NEAREST = 3
"""Anchors that a correction names."""


@dataclass(frozen=True, slots=True)
class _Solved:
    """A family's anchors as columns, the covariance between their residuals, its inverse, and the residuals."""

    kinds: Kinds
    between: Array
    inverse: Array
    residuals: Array


class Anchors:
    """Measured jobs and how far their errors go together with others'."""

    def __init__(self, anchors: Iterable[Anchor], covariance: Covariance) -> None:
        self.covariance = covariance
        self._by_family: dict[str, list[Anchor]] = {}
        for anchor in anchors:
            self._by_family.setdefault(anchor.kind.family, []).append(anchor)
        self._solved: dict[str, _Solved] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_family.values()))

    def __iter__(self) -> Iterator[Anchor]:
        for found in self._by_family.values():
            yield from found

    def _family(self, family: str) -> _Solved:
        """What does not depend on the job that is asked for; worked out once."""
        if family not in self._solved:
            found = self._by_family[family]
            kinds = Kinds([a.kind for a in found])
            noise = self.covariance.noise_of([a.trust for a in found])
            between = step_covariance(self.covariance, kinds, kinds) + np.diag(noise**2)
            residuals = np.array([a.residual for a in found])
            self._solved[family] = _Solved(
                kinds, between, np.asarray(np.linalg.inv(between), dtype=np.float64), residuals
            )
        return self._solved[family]

    def correction(self, kind: Kind, without: Sequence[str] = ()) -> Correction:
        """What the anchors of the job's family say about it.

        Left out are those that agree with it in all of `without`: ("key",) for those of this very job.
        """
        known = self._by_family.get(kind.family, [])
        use = np.arange(len(known))
        if without:
            use = use[[not _agree(a.kind, kind, without) for a in known]]
        if not len(use):
            return NONE
        solved, target = self._family(kind.family), Kinds([kind])
        inverse = solved.inverse if len(use) == len(known) else np.linalg.inv(solved.between[np.ix_(use, use)])
        of_terms = term_covariances(self.covariance, target, solved.kinds)
        terms = {name: each[0, use] for name, each in of_terms.items()}
        shares = solved.kinds.shares[use]
        across = terms["whole"].copy()
        for index, name in enumerate(INFORMED):
            across += terms[name] * target.shares[0, index] * shares[:, index]
        prior = own_variance(self.covariance, kind.shares)
        weights = inverse @ solved.residuals[use]
        whole = float(terms["whole"] @ weights)
        factors = {
            name: math.exp(whole + float((terms[name] * shares[:, index]) @ weights))
            for index, name in enumerate(INFORMED)
        }
        left = max(prior - float(across @ inverse @ across), 0.0)
        own = self.covariance.noise["B"]  # even the same job, measured again, differs by this much
        alike = across / np.sqrt(prior * np.diag(solved.between)[use])
        nearest = np.argsort(-alike, kind="stable")[:NEAREST].tolist()
        return Correction(
            factors=factors,
            log_spread=math.hypot(math.sqrt(left), own),
            own_spread=own,
            informed=1.0 - left / prior,
            count=len(use),
            nearest=tuple(
                AnchorUse(known[use[i]].id, known[use[i]].source, known[use[i]].measured_s, round(float(alike[i]), 3))
                for i in nearest
            ),
        )


def _agree(one: Kind, other: Kind, names: Sequence[str]) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in names)
