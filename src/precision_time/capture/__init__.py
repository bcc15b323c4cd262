"""Capture: from a model, its loss and its precision to the operators of one training step.

takes     a `Job`: a zoo name, an external model or the user's function
gives     an `OpGraph` of the micro-step and the operators after the backward pass
imports   no hardware; `step`, `tracer`, `intercept`, `fused` and `experts` import torch, the others do not
"""
