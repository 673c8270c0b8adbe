"""How far the jobs are, for Prometheus: what `progress` has, served by `hedgerow pipeline run --metrics`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hedgerow.errors import HedgerowError, reason_of
from hedgerow.pipeline.progress import Progress

Read = Callable[[Progress], float | None]

GAUGES: dict[str, tuple[str, Read]] = {
    "running": (
        "1: it runs; 0: it was stopped, or failed",
        lambda p: float(p.state == "running"),
    ),
    "batch": ("The number of the last batch", lambda p: p.batch),
    "batch_seconds": ("What the last batch took", lambda p: p.batch_s),
    "rows_per_second": ("Of the last batch", lambda p: p.rows_per_s),
    "behind_rows": ("What the journals have and the job has not", lambda p: p.behind),
    "unreadable_positions": ("Positions of the journals that could not be read", lambda p: p.unreadable),
}
COUNTERS: dict[str, tuple[str, Read]] = {
    "rows": ("Rows since the command began", lambda p: p.total_rows),
    "late_rows": ("Readings that came too late to be judged", lambda p: p.late),
}


class ProgressMetrics(Collector):
    """The newest progress of each job, as it was told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: dict[str, Progress] = {}
        self._failures: dict[str, int] = {}

    def tell(self, progress: Progress) -> None:
        with self._lock:
            self._told[progress.job] = progress
            failed = progress.state == "failed"
            self._failures[progress.job] = self._failures.get(progress.job, 0) + failed

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            told, failures = dict(self._told), dict(self._failures)
        for kind, table in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for name, (text, read) in table.items():
                family = kind(f"hedgerow_pipeline_{name}", text, labels=["job"])
                for job, progress in told.items():
                    value = read(progress)
                    if value is not None:
                        family.add_metric([job], value)
                yield family
        counted = CounterMetricFamily("hedgerow_pipeline_failures", "How often it has failed", labels=["job"])
        for job, count in failures.items():
            counted.add_metric([job], count)
        yield counted


@contextmanager
def serving(metrics: ProgressMetrics, host: str, port: int) -> Iterator[str]:
    """At /metrics of this address; gives its URL. HedgerowError: it is in use."""
    registry = CollectorRegistry()
    registry.register(metrics)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise HedgerowError(f"--metrics {host}:{port}: {reason_of(error)}; choose another port") from error
    try:
        yield f"http://{host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
