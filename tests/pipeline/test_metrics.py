"""The metrics of the jobs, as Prometheus fetches them."""

from __future__ import annotations

import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hedgerow.errors import HedgerowError
from hedgerow.pipeline.metrics import ProgressMetrics, serving
from hedgerow.pipeline.progress import Progress


def test_what_is_told_is_served() -> None:
    metrics = ProgressMetrics()
    with serving(metrics, "127.0.0.1", 0) as url:
        metrics.tell(Progress("ingest", "running", 3, 10, 20.0, 40, behind=7, batch_s=0.5))
        metrics.tell(Progress("anomalies", "failed", reason="full"))
        metrics.tell(Progress("anomalies", "running", 1, 5, late=2))
        text = urllib.request.urlopen(url).read().decode()
        port = int(url.rpartition(":")[2].partition("/")[0])
        in_use = pytest.raises(HedgerowError, match=f"--metrics 127.0.0.1:{port}: .*choose another port")
        with in_use, serving(ProgressMetrics(), "127.0.0.1", port):
            pass
    found = {
        (sample.name.removeprefix("hedgerow_pipeline_"), sample.labels["job"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["rows_total", "ingest"] == 40
    assert found["behind_rows", "ingest"] == 7
    assert ("behind_rows", "anomalies") not in found
    assert (found["batch_seconds", "ingest"], found["rows_per_second", "ingest"]) == (0.5, 20)
    assert (found["failures_total", "ingest"], found["failures_total", "anomalies"]) == (0, 1)
    assert (found["late_rows_total", "anomalies"], found["running", "anomalies"]) == (2, 1)
