"""A law of work beneath the regressor: seconds of a step as a sum over its operations, fitted to the same runs.

    seconds = steps * sum over terms of theta * x,   theta >= 0, one set for each precision (and memory format)

with x the ideal seconds of the network's operations and bytes by kind of layer (at the device's peak and bandwidth,
or at nominal ones where it has none), its counts of layers and of recurrent steps, its weights, and one. Several
ranks have more terms: all of them once more on CPUs, the ring all-reduce and one on GPUs. Fitted by non-negative least
squares on relative errors; a set of few rows stays near that of all rows. This is an addition of this project: the
regressor then predicts log(seconds / law) instead of log(seconds). The law is additive where regressors of logs are
multiplicative, so one law fits networks bound by launches and networks bound by arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from precision_time.hardware.fabric import Cluster
from precision_time.predictors.interface import global_batch_size
from precision_time.predictors.predictddl.facts import Facts
from precision_time.predictors.predictddl.features import STATELESS, activation_bytes, peak_of
from precision_time.predictors.predictddl.network import Floats, Network
from precision_time.predictors.predictddl.primitives import POOLS, Primitive

NOMINAL_PEAK, NOMINAL_BANDWIDTH = 1e11, 1e10
"""FLOP/s and bytes/s of a device without peaks; theta then contains the ratio to its real ones."""
_DENSE: Mapping[str, tuple[Primitive, ...]] = {
    "convolution": (Primitive.CONV, Primitive.DIL_CONV),
    "grouped convolution": (Primitive.SEP_CONV,),
    "linear": (Primitive.LINEAR,),
    "attention": (Primitive.MSA,),
    "recurrent": (Primitive.RNN,),
}
_MOVING: Mapping[str, tuple[Primitive, ...]] = {
    "norm": (Primitive.BN, Primitive.LN),
    "activation": (Primitive.ACT,),
    "other": (*POOLS, Primitive.SUM, Primitive.CSE, Primitive.CONCAT, Primitive.EMBEDDING),
}
_LAYER_S, _STEP_S = 1e-4, 1e-3
_ROUNDS = 6
LSTM_GATES = 4
RING = -2
"""Position of the ring in the terms: its theta stays near 1, the time at which nothing is hidden."""
ANY = ""
"""Label of the theta for precisions without one of their own."""
LEAST_NETWORKS = 4
"""Fewest networks to train on."""
LABEL_NETWORKS = 13
"""Fewest networks of a label for a theta of its own: as many as there are terms of a step, or all networks."""


def terms(facts: Facts) -> Floats:
    """The x of a job's step, seconds each; then what several ranks add (zeros for one)."""
    network, cluster = facts.network, facts.cluster
    precision = facts.job.precision_spec
    samples = facts.batch_size * facts.job.grad_accum
    peak = peak_of(cluster, precision) if cluster else NOMINAL_PEAK
    bandwidth = cluster.gpu.memory_bytes_per_s if cluster else NOMINAL_BANDWIDTH
    flops = network.flops * samples / peak
    moved = network.bytes * samples * activation_bytes(precision) / 4.0 / bandwidth
    dense = [np.isin(network.types, kinds) for kinds in _DENSE.values()]
    weights = 4.0 * network.parameters / bandwidth
    on_cpu = cluster is None or cluster.gpu.device_type == "cpu"
    # A GPU updates weights in a few fused kernels, and few networks of the rows there have another optimizer than SGD.
    once = not on_cpu or facts.job.optimizer in STATELESS
    step = [
        *(float(flops[mine].sum()) for mine in dense),
        float(moved[np.any(dense, axis=0)].sum()),
        *(float(moved[np.isin(network.types, kinds)].sum()) for kinds in _MOVING.values()),
        _LAYER_S * _stepped(network) * facts.job.grad_accum if on_cpu else 0.0,
        _LAYER_S * network.nodes * facts.job.grad_accum,
        weights if once else 0.0,
        0.0 if once else weights,
        _STEP_S,
    ]
    several = [0.0] * (len(step) + 2)
    if facts.ranks > 1:
        # Ranks on a CPU share its cores, so that each term may take longer; ranks on GPUs do not.
        if cluster is None or on_cpu:
            several[: len(step)] = step
        else:
            several[len(step) :] = [_ring_s(facts, cluster), _STEP_S]
    return np.array([*step, *several])


def _ring_s(facts: Facts, cluster: Cluster) -> float:
    """Seconds of a ring all-reduce of the gradients at the bus bandwidth of the ranks, nothing hidden."""
    width = 2.0 if facts.job.precision_spec.parameter_dtype in ("float16", "bfloat16") else 4.0
    share = 2.0 * (facts.ranks - 1) / facts.ranks
    return share * width * facts.network.parameters / cluster.world.bus_bytes_per_s


def _stepped(network: Network) -> int:
    """Time steps of recurrent layers that PyTorch runs one by one on a CPU: all but the LSTM, which oneDNN fuses."""
    mine = (network.types == Primitive.RNN) & (network.shapes[:, 3] != LSTM_GATES)
    return int(network.shapes[mine, 2].sum())


def steps(facts: Facts) -> float:
    """Steps of a job, parts of one counted as parts."""
    return facts.samples / global_batch_size(facts.job)


def labels_of(facts: Facts) -> tuple[str, ...]:
    """Labels of the theta of a job, the narrowest first: precision, then kind of arithmetic, with memory format and
    without."""
    precision, layout = facts.job.precision_spec, facts.job.memory_format
    width = activation_bytes(precision)
    arithmetic = "tf32 arithmetic" if width == 4.0 and precision.tf32 else f"{8 * width:.0f}-bit arithmetic"
    return f"{precision.label} {layout}", precision.label, f"{arithmetic} {layout}", arithmetic


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Terms of jobs times their steps, one row each, and the labels of each job."""

    terms: Floats
    labels: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, facts: Sequence[Facts]) -> Work:
        return cls(np.stack([terms(each) * steps(each) for each in facts]), tuple(labels_of(each) for each in facts))

    def only(self, rows: Sequence[int]) -> Work:
        return Work(self.terms[rows], tuple(self.labels[i] for i in rows))


@dataclass(frozen=True, slots=True)
class Law:
    """Theta by label, and under `ANY` that of all rows together."""

    theta: Mapping[str, Floats]

    def log_seconds(self, work: Work) -> Floats:
        """Logs of what the law says of jobs."""
        theta = np.stack([self._of(labels) for labels in work.labels])
        return np.asarray(np.log(np.maximum((work.terms * theta).sum(1), 1e-9)))

    def _of(self, labels: tuple[str, ...]) -> Floats:
        return next(self.theta[label] for label in (*labels, ANY) if label in self.theta)


def fit_law(work: Work, seconds: Floats, networks: Sequence[str]) -> Law:
    """Fit to measured seconds; `networks` names the network of each row."""
    free = np.full(work.terms.shape[1], np.nan)
    free[RING] = 1.0
    everywhere = _solve(work.terms, seconds, free)
    theta, named = {ANY: everywhere}, np.array(networks)
    least = min(LABEL_NETWORKS, len(set(networks)))
    for label in sorted({label for each in work.labels for label in each}):
        mine = np.array([label in each for each in work.labels])
        if len(set(named[mine].tolist())) >= least:
            theta[label] = _solve(work.terms[mine], seconds[mine], everywhere)
    return Law(theta)


def _solve(rows: Floats, seconds: Floats, near: Floats) -> Floats:
    """Non-negative least squares whose weights turn relative errors into errors of logs, round by round.

    Weights of 1 / seconds alone favour predictions that are too small: those are off by one at most. A departure of a
    term from `near` (nan: free) weighs as much as one row that errs by the same share. Without it a term that is small
    in all rows may have any theta: linear layers where each network has one small classifier, which predicts VGG ten
    times too slow, or the ring where few networks ran on several GPUs.
    """
    from scipy.optimize import nnls

    weights = 1.0 / seconds
    theta = np.zeros(rows.shape[1])
    held = np.flatnonzero(np.isfinite(near))
    prior = np.eye(len(theta))[held] / np.maximum(near[held], 1.0)[:, None]
    wanted = near[held] / np.maximum(near[held], 1.0)
    sizes = np.maximum(np.linalg.norm(rows, axis=0), 1e-300)
    for _ in range(_ROUNDS):
        left = np.vstack([rows * weights[:, None], prior]) / sizes
        theta = nnls(left, np.concatenate([seconds * weights, wanted]))[0] / sizes
        weights = 1.0 / np.sqrt(seconds * np.maximum(rows @ theta, 1e-3 * seconds))
    return np.asarray(theta)
