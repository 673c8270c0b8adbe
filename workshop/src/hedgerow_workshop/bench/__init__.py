"""Side-by-side measurements: `hedgerow bench NAME`.

`report` holds what every bench shares (rows, table, JSON, progress), `peers` the brokers as child
processes, `wire` the bytes they are spoken to with, `loader` and `latency` the two drivers, `rounds` how they
take turns. `devices` (with `device_cases`, on `device_loader`, `device_storm` and `device_wire`), `broker`,
`bridge` and `federation` (both on `end_to_end` and `lossy`), `multicast` (with `multicast_team` and
`multicast_participant`), `sensors` (with `udp_echo`) and `dashboard` (with `dashboard_fabric`,
`dashboard_reader` and `browser`) are the benches.
"""

from __future__ import annotations

from hedgerow.errors import HedgerowError


class BenchError(HedgerowError):
    """A measurement that could not be made; the text names the broker and what it did not do."""
