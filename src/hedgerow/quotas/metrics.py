"""What `/metrics` shows of quotas."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

QUOTAS_EXCEEDED = ("hedgerow_quota_exceeded", "Publications that had to wait, or were refused, for a quota.")


def quota_metrics(exceeded: int) -> Iterator[Metric]:
    yield CounterMetricFamily(*QUOTAS_EXCEEDED, exceeded)
