"""Corrections learned from outcomes: what a cluster's finished jobs say about the next one.

facets      what jobs share: GPU, framework, precision, family, model, the job itself
effects     the effects that make up log(measured / predicted), with their variances
posterior   the effects given outcomes, robust against broken machines
conformal   P10 and P90 that hold 80 % of a cluster's outcomes
outcome     what is learned from an outcome
anomalies   outcomes far from what others say, with what speaks for a cause
cluster     the state of one cluster
learning    the state of all, kept as JSON
"""

from precision_time.serve.learning.anomalies import Anomaly
from precision_time.serve.learning.facets import Facets
from precision_time.serve.learning.learning import Learning

__all__ = ["Anomaly", "Facets", "Learning"]
