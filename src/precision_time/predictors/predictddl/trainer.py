"""Training on the measured jobs of one dataset type."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from precision_time.errors import PredictorError
from precision_time.job import Job
from precision_time.job.choices import AS_PYTORCH
from precision_time.predictors.interface import Z90, Forecast, MeasuredJob
from precision_time.predictors.predictddl.confidence import Likeness, likeness
from precision_time.predictors.predictddl.facts import Facts, facts_of
from precision_time.predictors.predictddl.features import GROUPS, SIZE, columns, matrix
from precision_time.predictors.predictddl.identity import network_groups
from precision_time.predictors.predictddl.law import LEAST_NETWORKS, Law, Work, fit_law
from precision_time.predictors.predictddl.network import Floats, Network
from precision_time.predictors.predictddl.regressors import MANY_ROWS, SETTINGS, SETTINGS_OF_MANY, Fitted, Setting, fit
from precision_time.predictors.predictddl.selection import FOLDS, choose, grouped_folds
from precision_time.predictors.predictddl.traced import known_networks

LEAST_SPREAD = 0.02
STRANGER = 2.0
"""Factor on the spread for a network out of distribution: chosen, nothing is published."""
FAR = 4.0
"""Standard deviations beyond which a size is extrapolated; vectors are means over nodes and do not contain size."""
KIND_ROWS, KIND_NETWORKS = 20, 4
"""Fewest rows and networks of a kind (`kinds_of`) for a spread of its own."""
LEAST_GPUS = 4
"""Fewest GPU types for a spread of types that no run was on."""
OTHER_GPU = "other gpu"
"""Key of that spread."""
FOLDS_OF_MANY = 3
"""Folds of the networks by which the regressor is chosen from `MANY_ROWS` rows on."""
FEW_SHARE = 0.2
"""Share of rows on several GPUs below which a forecast for several has a note."""

Embedder = Callable[[Network], Floats]
"""Network -> its vector."""


@dataclass(frozen=True, slots=True)
class Design:
    """Columns and regressors to use. `encoder` is "pretrained" or "random" (untrained)."""

    groups: tuple[str, ...] = GROUPS
    encoder: str = "pretrained"
    settings: tuple[Setting, ...] = ()
    """Regressors to choose from; none: `SETTINGS`, or `SETTINGS_OF_MANY` for many rows."""
    seed: int = 0
    law: bool = True
    """Whether the regressor predicts log(seconds / law of work) instead of log(seconds)."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A measured job with its facts."""

    measured: MeasuredJob
    facts: Facts


def described(measured: Sequence[MeasuredJob]) -> list[Row]:
    """Every job with its facts. Networks of the repository's table are taken from there, others from the graph that
    ships, or traced."""
    known = known_networks()
    return [Row(each, facts_of(each.job, known)) for each in measured]


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Measured jobs of one dataset type with all that a design may use of them.

    `columns` has a column of every name in `names`; `networks` names the network of each row (`network_groups`).
    """

    rows: tuple[Row, ...]
    networks: tuple[str, ...]
    vectors: Floats
    names: tuple[str, ...]
    columns: Floats
    work: Work
    seconds: Floats

    @classmethod
    def of(cls, rows: Sequence[Row], embed: Embedder) -> Table:
        networks = {id(row.facts.network): row.facts.network for row in rows}
        marks = {key: _mark(network) for key, network in networks.items()}
        vector_of = {mark: embed(networks[key]) for mark, key in {mark: key for key, mark in marks.items()}.items()}
        vectors = np.stack([vector_of[marks[id(row.facts.network)]] for row in rows])
        cells = [columns(row.facts, vector) for row, vector in zip(rows, vectors, strict=True)]
        names = tuple(sorted({name for row in cells for name in row}))
        return cls(
            tuple(rows),
            tuple(network_groups(rows)),
            vectors,
            names,
            matrix(cells, names),
            Work.of([row.facts for row in rows]),
            np.array([row.measured.seconds for row in rows]),
        )

    def only(self, rows: Sequence[int]) -> Table:
        """The rows at these positions."""
        at = list(rows)
        some, networks = tuple(self.rows[i] for i in at), tuple(self.networks[i] for i in at)
        return Table(
            some, networks, self.vectors[at], self.names, self.columns[at], self.work.only(at), self.seconds[at]
        )

    def merged(self) -> Table:
        """One row, at the geometric mean of seconds, for rows that differ in nothing that a design sees.

        Published rows of one network differ in the version of PyTorch alone; as many rows of it add nothing.
        """
        keys = [
            (row.tobytes(), labels, network)
            for row, labels, network in zip(self.columns, self.work.labels, self.networks, strict=True)
        ]
        first: dict[object, int] = {}
        of = np.array([first.setdefault(key, len(first)) for key in keys])
        _, kept = np.unique(of, return_index=True)
        means = np.bincount(of, weights=np.log(self.seconds)) / np.bincount(of)
        return replace(self.only(kept.tolist()), seconds=np.exp(means))

    def of_groups(self, groups: Sequence[str]) -> tuple[tuple[str, ...], Floats]:
        """Names and columns of feature groups."""
        kept = [i for i, name in enumerate(self.names) if name.partition(".")[0] in groups]
        return tuple(self.names[i] for i in kept), self.columns[:, kept]


def _mark(network: Network) -> tuple[bytes, ...]:
    """Equal for networks that the encoder does not tell apart."""
    return network.types.tobytes(), network.shapes.tobytes(), network.edges.tobytes()


def kinds_of(facts: Facts) -> tuple[str, str]:
    """Kinds of rows that have a spread of their own, the narrower first: GPU with one or several ranks, ranks."""
    ranks = "several" if facts.ranks > 1 else "one"
    return f"{facts.gpu} {ranks}", ranks


@dataclass(frozen=True, slots=True)
class Trained:
    """A predictor of one dataset type.

    `errors` are the settings' mean |log error| on networks held out; `spreads` the standard deviations of log(measured
    / predicted) by kind of row (`kinds_of`, "" for all), such that P10 to P90 hold 80 % of the rows of networks held
    out, and under `OTHER_GPU` of GPU types held out; `several` is the share of rows on several ranks.
    """

    dataset: str
    names: tuple[str, ...]
    fitted: Fitted
    likeness: Likeness
    networks: tuple[str, ...]
    gpus: tuple[str, ...]
    frameworks: tuple[str, ...]
    precisions: tuple[str, ...]
    groups: tuple[str, ...]
    spreads: Mapping[str, float]
    several: float
    rows: int
    measured_s: float
    fit_s: float
    errors: tuple[tuple[str, float], ...]
    law: Law | None = None
    peaks: bool = True
    """Whether all training devices had peaks (catalog or device file); a predicted job's device then needs them too."""

    def forecast(self, facts: Facts, vector: Floats) -> Forecast:
        """Seconds of a job whose network has this vector."""
        x = matrix([columns(facts, vector, self.groups)], self.names)
        work = Work.of([facts]) if self.law is not None else None
        seconds = math.exp(float(self.log_seconds(x, work)[0]))
        notes = [f"Nearest of {len(self.networks)} training networks: {self.networks[self.likeness.nearest(vector)]}."]
        if self.likeness.is_strange(vector):
            notes[0] = f"Out of distribution: the network is unlike all trained on. {notes[0]}"
        if far := self._far(x[0]):
            notes.append(f"Extrapolated: {far} lies far outside the networks trained on.")
        if facts.gpu not in self.gpus:
            notes.append(f"No training run was on {facts.job.gpu}; its catalog figures stand for it.")
        if facts.job.precision_spec.label not in self.precisions:
            notes.append(f"No training run was in {facts.job.precision_spec.label}; its peaks and widths stand for it.")
        if _operators_of(facts.job) not in self.frameworks:
            notes.append(f"No training run was in {facts.job.framework}, only in {', '.join(self.frameworks)}.")
        if facts.ranks > 1 and self.several < FEW_SHARE:
            notes.append(
                f"Only {100 * self.several:.0f} % of the {self.rows} training rows are of several GPUs; "
                "the interval is that of those rows."
            )
        return Forecast.spread(
            seconds, self.spread(facts, vector, x[0]), self.likeness.confidence(vector), tuple(notes)
        )

    def log_seconds(self, x: Floats, work: Work | None) -> Floats:
        """Log seconds of rows of columns; `work` is that of the same rows, None without a law."""
        answer = self.fitted.predict(x)
        return answer if self.law is None or work is None else answer + self.law.log_seconds(work)

    def spread(self, facts: Facts, vector: Floats, x: Floats) -> float:
        """Standard deviation of log(seconds): that of the kind of row, wider for networks unlike those trained on.

        A GPU, precision or framework without training runs takes the widest of all kinds.
        """
        kinds = (*kinds_of(facts), "")
        spread = next(self.spreads[kind] for kind in kinds if kind in self.spreads)
        if (
            facts.gpu not in self.gpus
            or facts.job.precision_spec.label not in self.precisions
            or _operators_of(facts.job) not in self.frameworks
        ):
            spread = max(self.spreads.values())
        return spread * STRANGER ** (self.likeness.is_strange(vector) + bool(self._far(x)))

    def _far(self, x: Floats) -> str:
        """Name of a size beyond `FAR` standard deviations of the training networks; "" where there is none."""
        mean, deviation = self.fitted.arrays["mean"], self.fitted.arrays["deviation"]
        for name, value, middle, width in zip(self.names, x, mean, deviation, strict=True):
            if name.startswith(f"{SIZE}.") and abs(value - middle) > FAR * width:
                return name.removeprefix(f"{SIZE}.").replace("_", " ")
        return ""


def in_known_frameworks(rows: Sequence[Row]) -> list[Row]:
    """The rows in frameworks that ran enough networks; all rows where none did.

    Published MXNet steps are of ResNet-50 alone, in code written for MLPerf: what is the framework's and what the
    network's cannot be told apart there.
    """
    ran: dict[str, set[str]] = {}
    for row, network in zip(rows, network_groups(rows), strict=True):
        ran.setdefault(_operators_of(row.measured.job), set()).add(network)
    enough = {name for name, networks in ran.items() if len(networks) >= LEAST_NETWORKS}
    return [row for row in rows if not enough or _operators_of(row.measured.job) in enough]


def _operators_of(job: Job) -> str:
    """The framework whose operators a job is predicted by."""
    return "pytorch" if job.framework in AS_PYTORCH else job.framework


def train(table: Table, dataset: str, design: Design) -> Trained:
    """Select a regressor by folds over networks and fit it. Raises a `PredictorError` for too few networks."""
    start = time.perf_counter()
    measured, table = [row.measured for row in table.rows], table.merged()
    if len(set(table.networks)) < LEAST_NETWORKS:
        raise PredictorError(
            f"dataset type {dataset!r} has runs of {len(set(table.networks))} networks, and an unseen one cannot be "
            f"told from fewer than {LEAST_NETWORKS}; measure more networks and give their runs as well "
            "(--real-runs FOLDER)"
        )
    y, law = np.log(table.seconds), None
    if design.law:
        y = y - _unseen_law(table, design.seed)
        law = fit_law(table.work, table.seconds, table.networks)
    names, x = table.of_groups(design.groups)
    many = len(table.rows) >= MANY_ROWS
    choice = choose(
        x,
        y,
        table.networks,
        settings=design.settings or (SETTINGS_OF_MANY if many else SETTINGS),
        folds=FOLDS_OF_MANY if many else FOLDS,
        simplest=not many,
        seed=design.seed,
    )
    unlike: dict[bytes, tuple[str, Floats]] = {}
    for name, vector in zip(table.networks, table.vectors, strict=True):
        unlike.setdefault(vector.astype(np.float32).tobytes(), (name, vector))
    facts = [row.facts for row in table.rows]
    return Trained(
        dataset=dataset,
        names=names,
        fitted=choice.fitted,
        likeness=likeness(np.stack([vector for _, vector in unlike.values()])),
        networks=tuple(name for name, _ in unlike.values()),
        gpus=tuple(sorted({each.gpu for each in facts})),
        frameworks=tuple(sorted({_operators_of(each.job) for each in facts})),
        precisions=tuple(sorted({each.job.precision_spec.label for each in facts})),
        groups=design.groups,
        spreads=_spreads(table, choice.residuals) | _other_gpu(table, x, choice.fitted.setting, design),
        several=float(np.mean([each.ranks > 1 for each in facts])),
        rows=len(measured),
        measured_s=sum(each.cost_s for each in measured),
        fit_s=time.perf_counter() - start,
        errors=tuple((setting.label, error) for setting, error in choice.errors),
        law=law,
        peaks=all(each.cluster is not None for each in facts),
    )


def _unseen_law(table: Table, seed: int) -> Floats:
    """Log seconds of every row by a law fitted without its network, so that residuals are those of new networks."""
    log_seconds = np.zeros(len(table.rows))
    for known, unseen in grouped_folds(table.networks, seed=seed + 1):
        some = table.only(known.tolist())
        law = fit_law(some.work, some.seconds, some.networks)
        log_seconds[unseen] = law.log_seconds(table.work.only(unseen.tolist()))
    return log_seconds


def _spreads(table: Table, residuals: Floats) -> dict[str, float]:
    """Spreads by kind of row, from the eighth decile of |residual| of networks held out."""
    kinds = [(*kinds_of(row.facts), "") for row in table.rows]
    spreads = {}
    for kind in sorted({kind for each in kinds for kind in each}):
        mine = [i for i, each in enumerate(kinds) if kind in each]
        enough = len(mine) >= KIND_ROWS and len({table.networks[i] for i in mine}) >= KIND_NETWORKS
        if enough or not kind:
            spreads[kind] = max(LEAST_SPREAD, float(np.quantile(np.abs(residuals[mine]), 0.8)) / Z90)
    return spreads


def _other_gpu(table: Table, x: Floats, setting: Setting, design: Design) -> dict[str, float]:
    """The spread of GPU types that no run was on, from folds without whole types, each type weighing as much.

    Empty where there are too few types.
    """
    gpus = [row.facts.gpu for row in table.rows]
    if len(set(gpus)) < LEAST_GPUS:
        return {}
    off = np.zeros(len(gpus))
    for known, unseen in grouped_folds(gpus, seed=design.seed + 2):
        some, others = table.only(known.tolist()), table.only(unseen.tolist())
        base, said = np.zeros(len(known)), np.zeros(len(unseen))
        if design.law:
            law = fit_law(some.work, some.seconds, some.networks)
            base, said = law.log_seconds(some.work), law.log_seconds(others.work)
        regressor = fit(setting, x[known], np.log(some.seconds) - base, design.seed)
        off[unseen] = np.abs(said + regressor.predict(x[unseen]) - np.log(others.seconds))
    order = np.argsort(off)
    share = np.cumsum([1.0 / gpus.count(gpus[i]) for i in order.tolist()]) / len(set(gpus))
    return {OTHER_GPU: max(LEAST_SPREAD, float(off[order[int(np.searchsorted(share, 0.8))]]) / Z90)}
