"""The data loader of one job: the rate of storage, cache and workers, and whether training waits for it."""
