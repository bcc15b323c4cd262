"""The searches that CherryPick is compared with: at random, and along one coordinate after another."""

from __future__ import annotations

import numpy as np

from precision_time.predictors.cloud_search import Configurations, Measure, Search, Trial, Trials


def random_search(
    table: Configurations, measure: Measure | None = None, *, runs: int, deadline_s: float | None = None, seed: int = 0
) -> Search:
    """Measures `runs` configurations drawn without return."""
    trials = Trials(table, measure, deadline_s)
    for index in np.random.default_rng(seed).permutation(len(table))[:runs]:
        trials.run(int(index))
    return trials.end(f"{len(trials.done)} drawn")


def coordinate_descent(
    table: Configurations, measure: Measure | None = None, *, runs: int, deadline_s: float | None = None, seed: int = 0
) -> Search:
    """From a random configuration, takes the best along one coordinate after the other until none is better.

    Starts again elsewhere while runs are left. Coordinates go in the order of the table, as in the paper's comparison.
    """
    trials = Trials(table, measure, deadline_s)
    draws = np.random.default_rng(seed)
    while len(trials.done) < runs and trials.open:
        here = trials.run(int(draws.choice(trials.open)))
        moved = True
        while moved and len(trials.done) < runs:
            moved = False
            for axis in range(len(table.coordinates[0])):
                best = _along(trials, here, axis, runs)
                moved |= best.index != here.index
                here = best
    return trials.end(f"{len(trials.done)} runs used" if trials.open else f"all {len(table)} measured")


def _along(trials: Trials, here: Trial, axis: int, runs: int) -> Trial:
    """The best trial among those that differ from `here` in one coordinate at most, as far as the runs go."""
    place = trials.table.coordinates[here.index]
    for index, other in enumerate(trials.table.coordinates):
        same_otherwise = all(a == b for i, (a, b) in enumerate(zip(place, other, strict=True)) if i != axis)
        if same_otherwise and (index in trials.done or len(trials.done) < runs):
            trial = trials.run(index)
            if (not trial.feasible, trial.cost) < (not here.feasible, here.cost):
                here = trial
    return here
