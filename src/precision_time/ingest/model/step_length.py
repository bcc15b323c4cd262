"""Adaptive step length of the fluid model: long while rates change little, at most a share of an epoch."""

from __future__ import annotations

import numpy as np

from precision_time.ingest.model.contention import Flags
from precision_time.ingest.model.rates import Array

CHANGE, CHANGE_LRU = 0.2, 0.8
"""Accepted change of a rate, or of the share of time that a job reads, in half a step, per epoch of the longest step.
For a longest step of 1/8 that is 2.5 %, or 10 % with an LRU cache, whose steps cost more. Effect on makespans:
tests/test_fluid.py, test_step_length_hardly_matters and test_equal_jobs_gain_nothing_from_a_stagger."""
AFTER_JUMP, LEAST = 1 / 2, 1 / 16
"""Length of the first step after a jump, and of the shortest, as shares of the longest."""


class StepLength:
    """Length and midpoint of the next step in each lane, from how much the rates changed in the last one.

    A step that was too long is not repeated; the next one is shorter.
    """

    def __init__(self, step: float, change: float, jobs: int, lanes: int) -> None:
        self._step, self._change = step, change * step
        # In epochs of the fastest job.
        self._span = np.full(lanes, AFTER_JUMP * step)
        self._jumped = np.ones(lanes, dtype=bool)
        self._rate = np.zeros((jobs, lanes))
        self._since = np.ones(lanes)

    def longest(self, rate: Array) -> Array:
        """Seconds, [lanes]."""
        with np.errstate(divide="ignore"):  # where no job runs
            return np.asarray(self._span / rate.max(axis=0))

    def middle(self, x: Array, rate: Array, dt: Array) -> Array:
        """Progress in the middle of a step, with the acceleration of the last half step where nothing jumped since."""
        part = np.where(self._jumped, 0.0, 0.25 * dt / np.maximum(self._since, 1e-300))
        faster = np.clip((rate - self._rate) * part, -0.5 * rate, 0.5 * rate)
        return np.asarray(x + 0.5 * dt * (rate + faster))

    def adapt(self, dt: Array, before: Array, rate: Array, read: Array, lanes: Flags) -> None:
        """Half a step of `dt` took the rates from `before` to `rate`, and shares of reading changed by `read`."""
        change = (np.abs(rate - before) / np.maximum(before, 1e-300) + read).max(axis=0)
        fits = dt * before.max(axis=0) * self._change / np.maximum(change, 1e-12)
        span = np.clip(np.clip(fits, 0.5 * self._span, 2.0 * self._span), LEAST * self._step, self._step)
        self._span = np.where(lanes, span, self._span)
        self._rate, self._since = rate, -0.5 * dt

    def accept(self, dt: Array, jumped: Flags) -> None:
        """A step of `dt` was taken, and rates may have `jumped` at its end."""
        self._jumped = jumped
        self._span = np.where(jumped, np.minimum(self._span, AFTER_JUMP * self._step), self._span)
        self._since = self._since + dt
