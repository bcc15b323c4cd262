"""Selection of the regressor by cross-validation with whole networks left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from precision_time.predictors.predictddl.network import Floats, Ints
from precision_time.predictors.predictddl.regressors import SETTINGS, Fitted, Setting, fit

FOLDS = 5


def grouped_folds(groups: Sequence[str], folds: int = FOLDS, seed: int = 0) -> list[tuple[Ints, Ints]]:
    """(train, test) row numbers of each fold; all rows of a group are on one side. At most one fold for each group.

    Groups are assigned in random order, the largest first, each to the fold with the fewest rows so far.
    """
    names = sorted(set(groups))
    order = [names[i] for i in np.random.default_rng(seed).permutation(len(names))]
    sizes = dict.fromkeys(names, 0)
    for group in groups:
        sizes[group] += 1
    order.sort(key=lambda name: -sizes[name])
    count = min(folds, len(names))
    filled = [0] * count
    of: dict[str, int] = {}
    for name in order:
        fold = min(range(count), key=lambda f: filled[f])
        of[name] = fold
        filled[fold] += sizes[name]
    dealt = np.array([of[group] for group in groups])
    return [(np.flatnonzero(dealt != f), np.flatnonzero(dealt == f)) for f in range(count)]


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen setting fitted to all rows, the held-out errors of every setting, and the residuals of the chosen one.

    `errors` is the mean of |log(predicted / measured)| over held-out rows, by setting; `residuals` are the chosen
    setting's log(predicted / measured), row by row, each from the fold without its network.
    """

    fitted: Fitted
    errors: tuple[tuple[Setting, float], ...]
    residuals: Floats


def choose(
    x: Floats,
    y: Floats,
    groups: Sequence[str],
    *,
    settings: Sequence[Setting] = SETTINGS,
    folds: int = FOLDS,
    simplest: bool = True,
    seed: int = 0,
) -> Choice:
    """Fit every setting to the folds, keep one, fit it to all rows.

    With `simplest` the first of `settings`, which are ordered from simple to flexible, within one standard error of the
    best over networks is kept (Breiman et al. 1984), since with some thirty networks the order of the best is mostly
    chance; else the best is kept.
    """
    parts = grouped_folds(groups, folds, seed)
    off = {setting: _residuals(setting, x, y, parts, seed) for setting in settings}
    errors = tuple((setting, float(np.mean(np.abs(residuals)))) for setting, residuals in off.items())
    best, least = min(errors, key=lambda pair: pair[1])
    allowed = least + (_standard_error(off[best], groups) if simplest else 0.0)
    kept = next(setting for setting, error in errors if error <= allowed)
    return Choice(fit(kept, x, y, seed), errors, off[kept])


def _residuals(setting: Setting, x: Floats, y: Floats, parts: Sequence[tuple[Ints, Ints]], seed: int) -> Floats:
    """log(predicted / measured) of every row, by the fit to the folds without it."""
    residuals = np.zeros(len(y))
    for train, test in parts:
        # With a single network nothing can be held out.
        known = train if len(train) else test
        residuals[test] = fit(setting, x[known], y[known], seed).predict(x[test]) - y[test]
    return residuals


def _standard_error(residuals: Floats, groups: Sequence[str]) -> float:
    """Standard error of the mean |residual| over networks."""
    named = np.array(groups)
    means = [float(np.abs(residuals[named == name]).mean()) for name in sorted(set(groups))]
    return float(np.std(means, ddof=1) / np.sqrt(len(means))) if len(means) > 1 else 0.0
