"""Predictions inside of training scripts: callbacks of training frameworks, and `preview` for plain loops.

Takes a framework's trainer, or the model, optimizer and batch of a loop. Gives what the run will take before its first
step, the time left while it trains, and a file with what was predicted and measured at its end.

    huggingface    `PredictTime`, a `transformers.TrainerCallback`
    lightning      `PredictTime`, a `lightning.pytorch.Callback`
    torch          `preview`, for plain loops, and `predict_module`
    optuna         `predicted`, an objective whose hopeless trials are pruned before they start
    trials         `judged` and `worth_running`, for Ray Tune, executors and other tuners
    skypilot       `time_estimator` of a task for its optimizer
    batch_size     `suggest_batch_size`, without a GPU
    session        what all of them share: prediction, live correction (`live`), outcome; it imports no framework

Only the module of a framework imports it. A failure here never stops training: it becomes one logged warning.
"""
