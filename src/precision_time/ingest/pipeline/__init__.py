"""One job's loader: what storage, cache and workers let through, and whether training waits for it."""
