"""estimate: the timeline of a steady step and the facts of the run become an `Estimate` (intervals, memory, cost)."""
