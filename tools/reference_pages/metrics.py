"""docs/reference/metrics.md: every metric of `/metrics`, as running nodes give them."""

from __future__ import annotations

from prometheus_client.core import Metric

from reference_pages.live import Seen
from reference_pages.source import code, head, table

# The part of the name behind hedgerow_ → its heading, and where such metrics are to be found.
GROUPS = {
    "journal_": ("The journal", "Of nodes with a [journal](../journal.md)."),
    "bridge_": ("Bridges", "`bridge` is the name of the [bridge](../bridges.md)."),
    "federation_": (
        "Federation",
        "Of [federated](../federation.md) nodes; `neighbour` is the neighbour's name.",
    ),
    "subscription_log_": (
        "A federator beside another broker",
        "What it [reads of that broker's log](../federation.md).",
    ),
    "mobility_": ("Mobility", "Of [mobile and fixed](../mobility.md) brokers."),
    "sensor_": ("Sensors", "Of nodes that serve [UDP sensors](../sensors.md)."),
    "gateway_": (
        "The multicast gateway",
        "Of nodes that pass topics to [multicast](../multicast.md), and from it.",
    ),
    "multicast_": ("Multicast", "The network's side of the same nodes."),
}
SUFFIXES = {"counter": "_total", "info": "_info"}


def page(seen: Seen) -> str:
    lines = head(
        "Metrics",
        "`http://HOST:8780/metrics` of a node has these, in Prometheus' text format or OpenMetrics, and "
        "those of its process (`process_…`, `python_…`). Where a part of the node is not configured, its "
        "metrics are not there.",
    )
    groups: dict[str, list[Metric]] = {prefix: [] for prefix in ("", *GROUPS)}
    for name, family in seen.metrics.items():
        prefix = next((each for each in GROUPS if name.startswith(f"hedgerow_{each}")), "")
        groups[prefix].append(family)
    for prefix, families in groups.items():
        title, text = GROUPS.get(prefix, ("The broker", "Of every node."))
        lines += [f"## {title}", "", text, ""]
        lines += table(("metric", "type", "labels", ""), map(_row, families))
    return "\n".join(lines)


def _row(family: Metric) -> tuple[str, str, str, str]:
    # What has no sample yet still knows its labels.
    labels = list(getattr(family, "_labelnames", ())) or sorted(
        {label for sample in family.samples for label in sample.labels}
    )
    name = family.name + SUFFIXES.get(family.type, "")
    return code(name), family.type, ", ".join(map(code, labels)), family.documentation
