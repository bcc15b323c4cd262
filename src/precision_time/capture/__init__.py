"""capture: the model, its loss and its precision become an `OpGraph`. Knows no hardware.

`graph` and `symbolic` need numpy only; everything that traces (`step`, `tracer`, `intercept`) imports torch.
"""
