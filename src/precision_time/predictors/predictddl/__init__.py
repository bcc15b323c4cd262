"""PredictDDL (IEEE CLUSTER 2023): a graph hypernetwork tells networks apart, a regressor turns that into time.

network.py, paths.py, primitives.py   the graph of a job's layers
encoder.py                 its vector: the GHN-2 encoder, pre-trained by benchmarks/papers/predictddl_pretraining.py
facts.py, features.py      what is known of a job, and the columns made of it
regressors.py, selection.py, trainer.py   the offline trainer
confidence.py, task_checker.py, storage.py   the parts around the answer
predictor.py               all of it as one `Predictor`
"""

from precision_time.predictors.predictddl.predictor import PredictDDL

__all__ = ["PredictDDL"]
