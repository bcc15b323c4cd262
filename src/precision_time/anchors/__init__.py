"""Anchors: measured jobs that correct the prediction of similar ones, and say how far they can be trusted to.

takes     measured steps of the published base and of the user, each with what was predicted for it
gives     a `Correction` of the terms of a step, and how much of the interval is left
knows not how a step is predicted
"""
