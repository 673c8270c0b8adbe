"""Every figure that the node counts is a metric, and each metric is named as Prometheus' conventions ask."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

import hedgerow
from hedgerow.broker.ledger import Inbound, Outbound
from hedgerow.federation.part import FederationPart
from hedgerow.mobility.part import MobilityPart
from hedgerow.multicast.gateway import GatewayLedger
from hedgerow.multicast.part import MulticastPart
from hedgerow.node.committer import Committer
from hedgerow.node.metrics import LEDGER_DROPS
from hedgerow.node.server import Server
from hedgerow.node.version import VERSION
from hedgerow.sensors.part import SensorsPart
from tests.node.peers import LOOPBACK, connected, part_of, port_of, running
from tests.node.whole_fabric import all_families, families_of, whole_fabric
from tests.waiting import until

# The library's own, whose help texts and names are not ours to choose.
FOREIGN = re.compile(r"(process|python)_[a-z_]+")

# Label → why it is bounded.
LABELS = {
    "bridge": "MAX_BRIDGES",
    "neighbour": "those that may be given or chosen, and those gone for less than federation.keep",
    "direction": "in and out",
    "reason": "words of this program",
    "kind": "packets of the federation's protocol",
    "what": "columns of a ledger",
    "transport": "listeners, and parts of the node",
    "registry": "in and out",
    "id": "one node",
    "version": "one program",
}

# Counted in a process that has no HTTP port.
NOT_OF_A_NODE = {"AgentStats"}


def stats_of(servers: dict[str, Server]) -> dict[str, list[Any]]:
    """Name of the class → what the nodes have of it."""
    barn, tractor, sidecar = servers["barn"], servers["tractor"], servers["sidecar"]
    interests = part_of(sidecar, FederationPart).interests
    assert interests is not None
    found = [
        barn.broker.stats,
        part_of(barn, Committer).stats,
        part_of(barn, FederationPart).machine.federator.stats,
        part_of(barn, FederationPart).machine.overlay.stats,
        part_of(barn, MulticastPart).endpoint.member.stats,
        part_of(barn, MulticastPart).endpoint.stats,
        part_of(barn, SensorsPart).exchange.stats,
        part_of(barn, MobilityPart).machine.machine.stats,
        part_of(tractor, MobilityPart).machine.machine.stats,
        interests.log.stats,
    ]
    named: dict[str, list[Any]] = {}
    for stats in found:
        named.setdefault(f"{type(stats).__module__}.{type(stats).__name__}", []).append(stats)
    return named


def classes_of_stats() -> Iterator[str]:
    for module in pkgutil.walk_packages(hedgerow.__path__, "hedgerow."):
        if not re.search(r"\.(pipeline|lab|bench|demo|cli|web|sim)(\.|$)", module.name):
            loaded = importlib.import_module(module.name)
            for name, value in vars(loaded).items():
                is_own = getattr(value, "__module__", "") == module.name and is_dataclass(value)
                if is_own and name.endswith("Stats") and name not in NOT_OF_A_NODE:
                    yield f"{module.name}.{name}"


async def test_every_counter_of_every_stats_is_exported(tmp_path: Path) -> None:
    async with whole_fabric(tmp_path) as servers:
        known = stats_of(servers)
        assert set(known) == set(classes_of_stats()), "a new class of counters: export it, and name it here"
        written: dict[str, float] = {}
        value = 7_000_000_001.0  # nothing on this machine is counted so far
        for name, instances in known.items():
            for stats in instances:
                for field in fields(stats):
                    value += 1
                    written[f"{name}.{field.name}"] = value
                    is_by_kind = isinstance(getattr(stats, field.name), Counter)
                    setattr(stats, field.name, Counter({"a kind": int(value)}) if is_by_kind else int(value))
        shown = {
            sample.value
            for families in all_families(servers.values()).values()
            for family in families
            for sample in family.samples
        }
        missing = [name for name, value in written.items() if value not in shown]
        assert not missing


def test_the_columns_of_every_ledger_are_exported() -> None:
    outward, inward = ({field.name for field in fields(kind)} for kind in (Outbound, Inbound))
    assert outward == {"published", "relayed", *LEDGER_DROPS["out"]}
    assert inward == {"published", *LEDGER_DROPS["in"]}
    assert {"published", "relayed", "waiting"} < {field.name for field in fields(GatewayLedger)}


async def test_names_types_units_and_help_follow_the_conventions(tmp_path: Path) -> None:
    async with whole_fabric(tmp_path) as servers:
        found = all_families(servers.values())
    assert len(found) > 100
    mistakes = [
        f"{name}: {problem}"
        for name, families in found.items()
        for family in families
        for problem in lint(family)
    ]
    assert not mistakes


def lint(family: Any) -> Iterator[str]:
    """The rules of `promtool check metrics`, and those of this project."""
    name, samples = family.name, {sample.name for sample in family.samples}
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        yield "not in snake_case"
    if not family.documentation:
        yield "no help"
    if FOREIGN.fullmatch(name):
        return
    if not name.startswith("hedgerow_"):
        yield "whose is it?"
    if not family.documentation.endswith("."):
        yield "its help is no sentence"
    if family.type == "counter" and any(not sample.endswith("_total") for sample in samples):
        yield "a counter without _total"
    if family.type != "counter" and any(sample.endswith("_total") for sample in samples):
        yield "_total, and no counter"
    if re.search(r"_(gauge|counter|summary|histogram|metric)(_|$)", name):
        yield "its type is in its name"
    if re.search(
        r"_(ms|milliseconds|us|minutes|hours|kb|kib|mb|mib|kilobytes|megabytes|bits|percent)(_|$)", name
    ):
        yield "not in a base unit"
    for unit in ("seconds", "bytes"):
        if unit in name and not name.removesuffix("_total").endswith(f"_{unit}"):
            yield f"{unit} is not at its end"
    for sample in family.samples:
        if unknown := sample.labels.keys() - LABELS.keys():
            yield f"a label that is not known to be bounded: {unknown}"


@dataclass
class Family:
    name: str
    type: str = "gauge"
    documentation: str = "Something."
    samples: tuple[Any, ...] = ()


@pytest.mark.parametrize(
    "family",
    [
        Family("hedgerow_Clients"),
        Family("clients"),
        Family("hedgerow_clients", documentation="clients"),
        Family("hedgerow_delay_ms"),
        Family("hedgerow_bytes_sent"),
        Family("hedgerow_clients_gauge"),
    ],
)
def test_the_rules_find_mistakes(family: Family) -> None:
    assert list(lint(family))


async def test_the_node_says_what_it_is_and_since_when() -> None:
    async with running(http=LOOPBACK) as server:
        families = families_of(server)
        assert families["hedgerow_build_info"].samples[0].labels == {"version": VERSION}
        assert families["hedgerow_start_time_seconds"].samples[0].value == pytest.approx(server.started_at)
        assert {"process_open_fds", "python_info", "python_gc_collections"} <= families.keys()


async def test_connections_are_counted_by_transport_and_queues_by_what_waits() -> None:
    async with running(mqtt=LOOPBACK, ws=LOOPBACK) as server, connected(port_of(server), "a"):
        families = families_of(server)
        counted = {s.labels["transport"]: s.value for s in families["hedgerow_transport_connections"].samples}
        assert counted == {"mqtt": 1}
        assert families["hedgerow_queued_messages"].samples[0].value == 0


async def test_commits_are_counted_and_timed(tmp_path: Path) -> None:
    async with running(data=tmp_path) as server:
        properties = {"session_expiry_interval": 60}
        async with connected(port_of(server), "kept", properties=properties):
            commits = part_of(server, Committer).stats
            await until(lambda: commits.commits > 0, "the session to be stored")
        families = families_of(server)
        assert families["hedgerow_commits"].samples[0].value >= 1
        assert 0 < families["hedgerow_commit_seconds"].samples[0].value < 60
        assert families["hedgerow_commit_failures"].samples[0].value == 0


async def test_a_timer_that_comes_late_is_seen() -> None:
    async with running() as server:
        server.lateness.note(1.25, server.clock())
        shown = families_of(server)["hedgerow_loop_lateness_maximum_seconds"].samples[0].value
        assert shown == 1.25


async def test_links_to_other_brokers_are_up_or_down(tmp_path: Path) -> None:
    async with whole_fabric(tmp_path) as servers:

        def value(node: str, name: str) -> float:
            # A neighbour for which nothing waits is forgotten: then there is none to tell of.
            return sum(sample.value for sample in families_of(servers[node])[name].samples)

        await until(lambda: value("barn", "hedgerow_bridge_up") == 1, "the bridge")
        await until(lambda: value("barn", "hedgerow_mobility_links_up") == 1, "the mobile broker")
        await until(lambda: value("tractor", "hedgerow_mobility_links_up") == 1, "the fixed broker")
        await until(lambda: value("barn", "hedgerow_federation_neighbour_up") == 1, "the neighbour")
        await servers["tractor"].stop()
        await servers["house"].stop()
        await until(lambda: value("barn", "hedgerow_mobility_links_up") == 0, "the mobile broker's end")
        await until(lambda: value("barn", "hedgerow_federation_neighbour_up") == 0, "the neighbour's end")
        await until(lambda: value("barn", "hedgerow_bridge_up") == 0, "the bridge's end")
