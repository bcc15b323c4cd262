"""PredictDDL (IEEE CLUSTER 2023): a graph hypernetwork embeds a network, a regressor predicts its time.

network.py, paths.py, primitives.py   the graph of a job's layers
encoder.py                 its vector: the GHN-2 encoder, pre-trained by benchmarks/papers/predictddl_pretraining.py
facts.py, features.py      facts of a job, and the columns made of them
regressors.py, selection.py, trainer.py   the offline trainer
confidence.py, task_checker.py, storage.py   similarity to the training networks, checks of a job, files
predictor.py               the `Predictor`
"""

from precision_time.predictors.predictddl.predictor import PredictDDL

__all__ = ["PredictDDL"]
