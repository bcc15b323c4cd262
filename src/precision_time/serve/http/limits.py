"""What one request may cost. docs/serve.md and docs/security.md state these figures."""

from __future__ import annotations

BODY_BYTES, IMPORT_BYTES, GRAPH_BYTES = 64 << 10, 512 << 10, 8 << 20
"""Of a body; of one with a file to import; of one with a graph."""
DEEPEST = 16
"""Mappings and lists inside each other in a body; a graph has at most six."""
MOST_BODY_VALUES, MOST_GRAPH_VALUES = 20_000, 500_000
BODY_WAIT_S = 10.0
"""Seconds until the next part of a body."""

PREDICT_S, SEARCH_S = 2.0, 20.0
"""Seconds of processor time of one prediction, and of a comparison or plan."""
WAIT_FACTOR = 5.0
"""A request on a busy machine may take so many times as long by the clock."""
MEMORY_BYTES = 512 << 20
"""Of one prediction, beyond what its process holds when it starts."""
MOST_ROWS = 64
"""Jobs of one comparison."""
WAITING = 64
"""Requests that may wait for each worker; further ones are answered 503."""
RETRY_S = 1
"""What `Retry-After` says."""

CACHE_BYTES = 32 << 20
"""Of kept replies."""
MOST_STEPS = 10_000
"""Single steps of an outcome."""
