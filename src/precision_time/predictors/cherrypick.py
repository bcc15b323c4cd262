"""CherryPick (Alipourfard et al., NSDI 2017): search for the cheapest configuration within a deadline in few runs.

Minimise C(x) = P(x) T(x) subject to T(x) <= T_max. A Gaussian process on log C; the next run is where expected
improvement times the probability of meeting T_max is largest, with T = C / P; three quasi-random runs to start; stop
once that is below 10 % and at least 6 runs are made. Log C makes an improvement of 0.1 one of about 10 % of the cost,
and noise multiplicative, as the paper has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from precision_time.errors import PredictorError
from precision_time.predictors.cloud_search import Configurations, FloatArray, Measure, Search, Trials
from precision_time.predictors.surrogate import Averaged, Likelihood

BY_LIKELIHOOD = Likelihood()


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings of a search; the defaults are the published ones.

    starts, stop_below, least_runs   3 quasi-random runs; stop below 10 % after 6 runs
    most_runs                        a budget in runs; None for none
    surrogate                        the Gaussian process: hyperparameters of greatest likelihood, or averaged
    per_cost                         divide the expected improvement of a run by its expected cost; an addition
    joint                            expected improvement only where the deadline is met, instead of the product with
                                     its probability: T is C / P, so a low cost is also a short time, and the published
                                     product counts the same probability twice; an addition
    """

    starts: int = 3
    stop_below: float = 0.1
    least_runs: int = 6
    most_runs: int | None = None
    surrogate: Likelihood | Averaged = BY_LIKELIHOOD
    per_cost: bool = False
    joint: bool = False

    def __post_init__(self) -> None:
        for field, value in (
            ("starts", self.starts),
            ("least_runs", self.least_runs),
            ("most_runs", self.most_runs or 1),
        ):
            if value < 1:
                raise PredictorError(f"{field} {value!r} of a search must be at least 1")
        if not self.stop_below >= 0.0:
            raise PredictorError(f"stop_below {self.stop_below!r} of a search must not be below 0; 0.1 is published")


PUBLISHED = Setting()
AUTHORS = Setting(starts=2, stop_below=0.06, surrogate=Averaged())
"""Settings of the authors' public code (2 starts, 6 %, averaged hyperparameters), which differ from the paper."""
IMPROVED = Setting(stop_below=0.03, least_runs=8, surrogate=Averaged(), per_cost=True, joint=True)
"""This project's settings, chosen on the runs of the five analytics jobs published with CherryPick."""


def cherrypick(
    configurations: Configurations,
    measure: Measure | None = None,
    *,
    deadline_s: float | None = None,
    seed: int = 0,
    setting: Setting = PUBLISHED,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Search:
    """Search for the cheapest configuration; `measure(position)` gives seconds (default: the table's known times).

    `progress(runs made, runs at most)` is called after each run. Until a run meets the deadline, the next is where the
    probability of meeting it is largest, and the search does not stop before all are measured or the budget is spent.
    """
    trials = Trials(configurations, measure, deadline_s)
    places = configurations.normalised
    most = min(len(configurations), setting.most_runs or len(configurations))
    for index in quasi_random(places, min(setting.starts, most), seed):
        trials.run(index)
        progress(len(trials.done), most)
    while trials.open and len(trials.done) < most:
        gain, score = acquisition(trials, places, setting, seed)
        best, top = trials.best, float(gain.max())
        if best is not None and len(trials.done) >= setting.least_runs and top < setting.stop_below:
            return trials.end(
                f"expected improvement {top:.1%} is below {setting.stop_below:.0%} after {len(trials.done)} runs"
            )
        at = int(np.argmax(score))
        trials.run(trials.open[at], None if best is None else float(gain[at]))
        progress(len(trials.done), most)
    return trials.end(f"all {len(configurations)} measured" if not trials.open else f"{most} runs used")


def quasi_random(places: FloatArray, count: int, seed: int) -> list[int]:
    """Positions nearest to the points of a scrambled Sobol sequence, each taken once."""
    from scipy.stats import qmc

    if places.shape[1] == 0:
        return list(range(count))
    sobol: Any = qmc.Sobol(places.shape[1], rng=np.random.default_rng(seed))
    taken: list[int] = []
    for point in sobol.random_base2(math.ceil(math.log2(count)))[:count]:
        distance = np.sum((places - point) ** 2, axis=1)
        distance[taken] = np.inf
        taken.append(int(np.argmin(distance)))
    return taken


def acquisition(trials: Trials, places: FloatArray, setting: Setting, seed: int) -> tuple[FloatArray, FloatArray]:
    """(gain, score) of every open position: the expected improvement of a run there, and the criterion of the choice.

    The gain is the expected improvement of log C times the probability of meeting the deadline; before any run meets
    it, that probability alone. The score is the gain, or the gain for each unit of cost.
    """
    done, rest = list(trials.done), trials.open
    if places.shape[1] == 0:
        return np.ones(len(rest)), np.ones(len(rest))
    known = np.log([trials.done[i].cost for i in done])
    belief = setting.surrogate(places[done], known, places[rest], seed)
    limit = np.log((trials.deadline_s or math.inf) * trials.table.price_per_s[rest])
    if (best := trials.best) is None:
        gain = belief.below(limit)
    elif setting.joint:
        gain = belief.improvement_within(math.log(best.cost), limit)
    else:
        gain = belief.expected_improvement(math.log(best.cost)) * belief.below(limit)
    # Logarithms, since small gains underflow and would tie at 0.
    score = np.log(np.maximum(gain, 1e-300)) - (belief.middle if setting.per_cost else 0.0)
    return gain, score
