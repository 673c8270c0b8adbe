"""The nodes' own ledgers beside what the journals tell: do they agree?

A node counts what it sends to each neighbour and through each bridge, and what comes from there (`/metrics`).
The counts of what comes in begin anew with each link, so a ledger is made of several scrapes: where a count
has become smaller it has begun anew, and both are added. What was counted after the last scrape before a
link or a node was lost is in no ledger.

`agreement` looks at this, of what the journals have of all topics that flow between the nodes:

1. A ledger balances: published = passed on + dropped for a reason + what waits.
2. What a node got from a neighbour and did not drop is what its journal has from there (`quality`: a hop's
   `delivered`); of all its bridges together likewise.
3. A node got no more from a neighbour than was sent to it. Where there is no other way between the two, what
   was sent and did not arrive is what the journals miss: `lost`, and perhaps some of `before` and `open_end`.
4. No node's journal has a message twice: what came twice was dropped, and is among the ledger's duplicates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

_LABELS = {"federation": "neighbour", "bridge": "bridge"}
Counts = dict[str, int]
Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Ledger:
    """What went from `node` to `far` (`direction` out), or came from there (in)."""

    node: str
    far: str
    direction: str
    kind: str = "federation"
    """Or "bridge": `far` is then the bridge's name."""
    published: int = 0
    relayed: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    """By reason; coming in: duplicates, outdated, refused."""
    queued: int = 0


@dataclass(frozen=True, slots=True)
class Difference:
    where: str
    what: str
    ledger: int
    expected: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}: {self.ledger} by the ledger, {self.expected}"


def read_ledgers(scrapes: Iterable[str]) -> list[Ledger]:
    """The ledgers in texts of `/metrics`, of one node or of several, in the order of time."""
    ended: dict[Key, Counts] = {}
    latest: dict[Key, Counts] = {}
    for text in scrapes:
        for key, counts in _read_scrape(text).items():
            last = latest.get(key, {})
            # All counts of a ledger begin anew together; what waits is no count.
            if any(counts.get(name, 0) < value for name, value in last.items() if name != "queued"):
                ended[key] = _sum(ended.get(key, {}), last)
            latest[key] = counts
    return [_ledger(key, _sum(ended.get(key, {}), counts), counts) for key, counts in latest.items()]


def agreement(quality: Iterable[Mapping[str, Any]], ledgers: Iterable[Ledger]) -> list[Difference]:
    """Every difference; none if they agree. `quality`: the rows of all its links and hops (`Row.asDict()`);
    those of single topics are passed over. What they do not know (`basis` known) agrees with anything."""
    rows = [row for row in quality if row["topic"] is None]
    of_all = list(ledgers)
    return [
        *_unbalanced(of_all),
        *_arrivals(rows, of_all),
        *_losses(rows, of_all),
        *_repetitions(rows, of_all),
    ]


def _read_scrape(text: str) -> dict[Key, Counts]:
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    node = next((each.labels["id"] for each in samples if each.name == "hedgerow_node_info"), "")
    found: dict[Key, Counts] = {}
    for sample in samples:
        for kind, label in _LABELS.items():
            prefix = f"hedgerow_{kind}_"
            if sample.name.startswith(prefix) and label in sample.labels:
                name = _count_name(sample.name.removeprefix(prefix), sample)
                direction = sample.labels.get("direction", "out")
                if name is not None:
                    found.setdefault((kind, node, sample.labels[label], direction), {})[name] = int(
                        sample.value
                    )
    return found


def _count_name(name: str, sample: Sample) -> str | None:
    if name == "messages_dropped_total":
        return f"dropped {sample.labels['reason']}"
    names = {
        "messages_published_total": "published",
        "messages_relayed_total": "relayed",
        "queued_messages": "queued",
    }
    return names.get(name)


def _sum(one: Counts, other: Counts) -> Counts:
    return {name: one.get(name, 0) + other.get(name, 0) for name in one | other}


def _ledger(key: Key, total: Counts, now: Counts) -> Ledger:
    kind, node, far, direction = key
    reasons = {
        name.removeprefix("dropped "): count for name, count in total.items() if name.startswith("dropped ")
    }
    published, relayed = total.get("published", 0), total.get("relayed", 0)
    return Ledger(node, far, direction, kind, published, relayed, reasons, now.get("queued", 0))


def _unbalanced(ledgers: list[Ledger]) -> Iterator[Difference]:
    for ledger in ledgers:
        accounted = ledger.relayed + sum(ledger.dropped.values()) + ledger.queued
        if ledger.published != accounted:
            expected = f"{accounted} were passed on, dropped or wait"
            yield Difference(_name(ledger), "published", ledger.published, expected)


def _arrivals(rows: list[Mapping[str, Any]], ledgers: list[Ledger]) -> Iterator[Difference]:
    incoming = [ledger for ledger in ledgers if ledger.direction == "in"]
    neighbours = {(each.far, each.node) for each in incoming if each.kind == "federation"}
    delivered: dict[tuple[str, str], int] = {}
    for row in rows:
        if row["kind"] == "hop":
            hop = row["source"], row["target"]
            delivered[hop if hop in neighbours else ("bridges", row["target"])] = row["delivered"] + (
                0 if hop in neighbours else delivered.get(("bridges", row["target"]), 0)
            )
    relayed: dict[tuple[str, str], int] = {}
    for ledger in incoming:
        hop = (ledger.far if ledger.kind == "federation" else "bridges"), ledger.node
        relayed[hop] = relayed.get(hop, 0) + ledger.relayed
    for hop, count in relayed.items():
        if count != delivered.get(hop, 0):
            expected = f"{delivered.get(hop, 0)} in the journal of {hop[1]}"
            yield Difference(f"{hop[0]} → {hop[1]}", "delivered", count, expected)


def _losses(rows: list[Mapping[str, Any]], ledgers: list[Ledger]) -> Iterator[Difference]:
    federation = [ledger for ledger in ledgers if ledger.kind == "federation"]
    arrived = {(each.far, each.node): each.published for each in federation if each.direction == "in"}
    hops = {(row["source"], row["target"]): row for row in rows if row["kind"] == "hop"}
    for ledger in federation:
        hop = ledger.node, ledger.far
        if ledger.direction != "out" or hop not in arrived:
            continue
        lost = ledger.published - ledger.queued - arrived[hop]
        if lost < 0:
            yield Difference(_name(ledger), "sent", ledger.published, f"{arrived[hop]} arrived")
        row = hops.get(hop)
        if row is None or row["basis"] != "journal" or not _is_only_way(*hop, federation):
            continue
        most = row["lost"] + row["before"] + row["open_end"]
        if not row["lost"] <= lost <= most:
            expected = f"{row['lost']} by the journals" + (f", {most} at most" if most > row["lost"] else "")
            yield Difference(_name(ledger), "lost", lost, expected)


def _repetitions(rows: list[Mapping[str, Any]], ledgers: list[Ledger]) -> Iterator[Difference]:
    nodes = {ledger.node for ledger in ledgers}
    for row in rows:
        if row["kind"] != "subscriber" and row["target"] in nodes and row["duplicates"]:
            where = f"{row['source']} → {row['target']}"
            expected = f"{row['duplicates']} in the journal of {row['target']}"
            yield Difference(where, "duplicates that were passed on", 0, expected)


def _is_only_way(one: str, other: str, ledgers: list[Ledger]) -> bool:
    """Without their own link, does none lead from one node to the other?"""
    links = {frozenset((each.node, each.far)) for each in ledgers} - {frozenset((one, other))}
    reached, new = {one}, {one}
    while new:
        new = {node for link in links if link & new for node in link} - reached
        reached |= new
    return other not in reached


def _name(ledger: Ledger) -> str:
    ends = (ledger.node, ledger.far) if ledger.direction == "out" else (ledger.far, ledger.node)
    return f"{ends[0]} → {ends[1]} ({ledger.direction})"
