"""CherryPick (Alipourfard et al., NSDI 2017): search for the cheapest configuration within a deadline in few runs.

Minimise C(x) = P(x) T(x) subject to T(x) <= T_max. A Gaussian process on log C; the next run is where expected
improvement times the probability of meeting T_max is largest, with T = C / P; three quasi-random runs to start; stop
once that is below 10 % and at least 6 runs are made. Log C makes an improvement of 0.1 one of about 10 % of the cost,
and noise multiplicative, as the paper has it. docs/cherrypick.md says what is the paper's, a reading, and ours.

`CherryPick` is the engine: `ask` names the next configuration, `tell` takes its result; `cherrypick` runs it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from precision_time.checks import show
from precision_time.errors import MissingExtraError, PredictorError, nearest
from precision_time.predictors.cloud_search import Configurations, FloatArray, Measure, Search, Trial, Trials
from precision_time.predictors.slice_sampling import Sampled
from precision_time.predictors.surrogate import Averaged, Belief, Likelihood

SAMPLED = Sampled()


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings of a search; the defaults are the published ones.

    starts, stop_below, least_runs   3 quasi-random runs; stop below 10 % after 6 runs
    most_runs                        a budget in runs; None for none
    surrogate                        the Gaussian process: hyperparameters sampled (as the authors), of greatest
                                     likelihood, or drawn once from a prior and weighted (ours)
    per_cost                         divide the expected improvement of a run by its expected cost; an addition
    joint                            expected improvement only where the deadline is met, instead of the product with
                                     its probability: T is C / P, so a low cost is also a short time, and the published
                                     product counts the same probability twice; an addition
    """

    starts: int = 3
    stop_below: float = 0.1
    least_runs: int = 6
    most_runs: int | None = None
    surrogate: Sampled | Likelihood | Averaged = SAMPLED
    per_cost: bool = False
    joint: bool = False

    def __post_init__(self) -> None:
        for field, value in (
            ("starts", self.starts),
            ("least_runs", self.least_runs),
            ("most_runs", 1 if self.most_runs is None else self.most_runs),
        ):
            if value < 1:
                raise PredictorError(f"{field} {value!r} of a search must be at least 1")
        if not self.stop_below >= 0.0:
            raise PredictorError(f"stop_below {self.stop_below!r} of a search must not be below 0; 0.1 is published")


PUBLISHED = Setting()
AUTHORS = Setting(starts=2, stop_below=0.06)
"""Settings of the authors' public code with its default chooser (2 starts, 6 %), which differ from the paper."""
IMPROVED = Setting(stop_below=0.01, least_runs=8, surrogate=Averaged(), per_cost=True, joint=True)
"""This project's settings, chosen on the runs of the five analytics jobs published with CherryPick."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A configuration to measure next.

    `improvement` is the expected improvement of log C over the lowest cost so far, where a run has met the deadline;
    `chance` that of meeting the deadline, where there is one; `cost` and `seconds` are the expected ones, with the
    factor `spread` between P50 and P90. All are None for the first runs, which are quasi-random.
    """

    index: int
    name: str
    improvement: float | None = None
    chance: float | None = None
    cost: float | None = None
    seconds: float | None = None
    spread: float | None = None


class CherryPick:
    """A search that is told the results of runs made elsewhere.

    `ask` gives the next configuration, or None once `stopped` says why none is needed. `tell` takes a result of any
    configuration, asked for or not. The same results in the same order give the same answers.
    """

    def __init__(
        self,
        configurations: Configurations,
        *,
        deadline_s: float | None = None,
        seed: int = 0,
        setting: Setting = PUBLISHED,
    ) -> None:
        _require_scipy()
        self.trials = Trials(configurations, None, deadline_s)
        self.setting = setting
        self._seed = seed
        self._places = configurations.normalised
        self._most = min(len(configurations), setting.most_runs or len(configurations))
        self._ranked: list[Suggestion] | None = None
        self._stopped = ""

    def ask(self) -> Suggestion | None:
        """The configuration to measure next; None where the search has stopped."""
        ranked = self.ranked()
        return ranked[0] if ranked else None

    def ranked(self) -> list[Suggestion]:
        """All that could be measured next, the most promising first; empty where the search has stopped."""
        if self._ranked is None:
            self._ranked, self._stopped = self._next()
        return self._ranked

    def tell(self, configuration: str | int, seconds: float | None) -> None:
        """Take the seconds of a run, or None where it failed (out of memory, for example).

        A later result of the same configuration replaces the earlier one.
        """
        index = self._index(configuration)
        if seconds is None:
            self.trials.fail(index)
        else:
            expected = {s.index: s.improvement for s in self._ranked or ()}
            self.trials.add(index, seconds, expected.get(index))
        self._ranked = None

    @property
    def stopped(self) -> str:
        """Why the search has stopped; "" while it goes on."""
        self.ranked()
        return self._stopped

    @property
    def best(self) -> Trial | None:
        """The cheapest run so far that keeps the deadline; None where none does."""
        return self.trials.best

    def result(self) -> Search:
        """The runs so far, and why the search has stopped."""
        return self.trials.end(self.stopped)

    def _index(self, configuration: str | int) -> int:
        names = self.trials.table.names
        if isinstance(configuration, int) and 0 <= configuration < len(names):
            return configuration
        if configuration in names:
            return names.index(str(configuration))
        raise PredictorError(
            f"configuration {show(configuration)} is unknown; nearest: {nearest(configuration, names)}"
        )

    def _next(self) -> tuple[list[Suggestion], str]:
        """What could be measured next in order, or why nothing should be."""
        trials, setting = self.trials, self.setting
        names = trials.table.names
        if not trials.open:
            return [], f"all {len(names)} measured"
        if trials.tried >= self._most:
            return [], f"{self._most} runs used"
        if len(trials.done) < setting.starts:
            nexts = quasi_random(self._places, min(len(names), trials.tried + 1), self._seed)
            start = next(i for i in nexts if i in trials.open)
            return [Suggestion(start, names[start])], ""
        gain, score, belief = acquisition(trials, self._places, setting, self._seed)
        best, top = trials.best, float(gain.max())
        if best is not None and trials.tried >= setting.least_runs and top < setting.stop_below:
            return [], f"expected improvement {top:.1%} is below {setting.stop_below:.0%} after {trials.tried} runs"
        order = np.argsort(-score, kind="stable")
        return self._suggestions(order.tolist(), gain, belief), ""

    def _suggestions(self, order: list[int], gain: FloatArray, belief: Belief | None) -> list[Suggestion]:
        """The open positions in this order."""
        trials, rest = self.trials, self.trials.open
        names, price = trials.table.names, trials.table.price_per_s[rest]
        known = trials.best is not None
        if belief is None:
            return [Suggestion(rest[at], names[rest[at]], float(gain[at]) if known else None) for at in order]
        cost, spread = np.exp(belief.middle), np.exp(P90 * belief.spread)
        limit = trials.deadline_s
        chance = None if limit is None else belief.below(np.log(limit * price))
        return [
            Suggestion(
                rest[at],
                names[rest[at]],
                float(gain[at]) if known else None,
                None if chance is None else float(chance[at]),
                float(cost[at]),
                float(cost[at] / price[at]),
                float(spread[at]),
            )
            for at in order
        ]


P90 = 1.2815515655446004
"""Ninth decile of the standard normal distribution."""


def _require_scipy() -> None:
    try:
        import scipy  # noqa: F401
    except ImportError:
        raise MissingExtraError("a search needs scipy: pip install 'precision-time[predictors]'") from None


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
    search = CherryPick(configurations, deadline_s=deadline_s, seed=seed, setting=setting)
    measure = measure or configurations.known()
    most = min(len(configurations), setting.most_runs or len(configurations))
    while (suggestion := search.ask()) is not None:
        search.tell(suggestion.index, measure(suggestion.index))
        progress(search.trials.tried, most)
    return search.result()


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


def acquisition(
    trials: Trials, places: FloatArray, setting: Setting, seed: int
) -> tuple[FloatArray, FloatArray, Belief | None]:
    """(gain, score, belief) of every open position: the expected improvement of a run there, and what ranks it.

    The gain is the expected improvement of log C times the probability of meeting the deadline; before any run meets
    it, that probability alone. The score is the gain, or the gain for each unit of cost. A failed run counts as the
    highest cost measured, so that its neighbours are avoided.
    """
    done, rest = [*trials.done, *trials.failed], trials.open
    if places.shape[1] == 0:
        return np.ones(len(rest)), np.ones(len(rest)), None
    costs = [trial.cost for trial in trials.done.values()]
    known = np.log([*costs, *[max(costs)] * len(trials.failed)])
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
    return gain, score, belief
