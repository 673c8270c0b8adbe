"""Side-by-side measurements: `hedgerow bench NAME`.

`report` holds what every bench shares (rows, table, JSON, progress), `peers` the brokers as child
processes, `wire` the bytes they are spoken to with, `loader` and `latency` the two drivers, and each
further module is one bench.
"""

from __future__ import annotations

from hedgerow.errors import HedgerowError


class BenchError(HedgerowError):
    """A measurement that could not be made; the text names the broker and what it did not do."""
