"""Anchors: measured jobs that correct the predictions of similar jobs and narrow their intervals.

takes     measured steps of the published base and of the user, each with what was predicted for it
gives     a `Correction` of the terms of a step, and how much of the interval is left
knows not how a step is predicted
"""
