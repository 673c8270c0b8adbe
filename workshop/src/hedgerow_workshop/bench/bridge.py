"""`hedgerow bench bridge`: from a publisher at one broker through a bridge to a subscriber at another.

Four bridges are measured side by side (`end_to_end`): ours between two of our brokers, ours to a Mosquitto
and from one, and beside them Mosquitto's own between two Mosquittos.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from hedgerow_workshop.bench import end_to_end
from hedgerow_workshop.bench.broker import data_directory
from hedgerow_workshop.bench.end_to_end import (
    PEER,
    QOS_0,
    QOS_0_LARGE,
    QOS_1,
    Ends,
    EndToEnd,
    EndToEndTraffic,
    Stage,
    row_names,
)
from hedgerow_workshop.bench.peers import BROKERS, OURS, BrokerKind, Child, configured
from hedgerow_workshop.bench.report import BenchRequest, BenchResult


@dataclass(frozen=True)
class Bridge:
    """Two brokers, of which `carrier` dials `far`."""

    name: str
    carrier: BrokerKind
    far: BrokerKind
    direction: str
    """Where messages go, seen from the carrier: "out" or "in"."""
    at_least: float | None = None
    is_peer: bool = False
    pattern: str = "bench/#"

    @property
    def brokers(self) -> tuple[BrokerKind, ...]:
        return self.carrier, self.far

    def section(self, far_port: int, qos: int) -> str:
        """What a configuration file says of it, to either broker; the rest is the default."""
        return (
            f"connection bench\naddress 127.0.0.1:{far_port}\ntopic {self.pattern} {self.direction} {qos}\n"
        )

    def open(self, bench: EndToEnd, traffic: EndToEndTraffic, stack: ExitStack) -> Ends:
        def running(broker: BrokerKind) -> Child:
            data = traffic.durable and broker.name == OURS
            arguments = ("--data", stack.enter_context(data_directory())) if data else ()
            return stack.enter_context(bench.running(broker, arguments))

        far = running(self.far)
        carrier = running(bridging(self.carrier, self.section(far.port, traffic.qos)))
        ends = (carrier, far) if self.direction == "out" else (far, carrier)
        return Ends(*ends, {"broker": [carrier], "far": [far]})


HEDGEROW, MOSQUITTO = BROKERS[OURS], BROKERS[PEER]
PEER_BRIDGE = Bridge("mosquitto-mosquitto", MOSQUITTO, MOSQUITTO, "out", is_peer=True)
OUR_BRIDGES = (
    Bridge("hedgerow-hedgerow", HEDGEROW, HEDGEROW, "out", at_least=3.0),
    Bridge("hedgerow-mosquitto", HEDGEROW, MOSQUITTO, "out", at_least=1.0),
    Bridge("mosquitto-hedgerow", HEDGEROW, MOSQUITTO, "in"),
)
TRAFFIC = (QOS_0, QOS_0_LARGE, QOS_1, replace(QOS_1, name="qos1-64-durable", durable=True))
STAGES = tuple(Stage(traffic, OUR_BRIDGES, PEER_BRIDGE) for traffic in TRAFFIC)
ROW_NAMES = row_names(STAGES)


def bridging(broker: BrokerKind, section: str) -> BrokerKind:
    """The broker with a bridge in its configuration."""
    if broker.name != OURS:
        return configured(broker, section)

    def command(port: int, directory: Path) -> list[str]:
        (directory / "bridge.conf").write_text(section)
        return [*broker.command(port, directory), "--bridge", str(directory / "bridge.conf")]

    return replace(broker, command=command)


def run(request: BenchRequest) -> BenchResult:
    return end_to_end.run(request, STAGES)
