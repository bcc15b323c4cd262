"""estimate: the timeline of a steady step and the run's facts become an `Estimate` with intervals, memory and cost."""
