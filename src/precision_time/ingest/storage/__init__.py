"""Real storage: a generated data set, a file cache, readers, and the probes that measure storage and preparation."""
