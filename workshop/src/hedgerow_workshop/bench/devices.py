"""`hedgerow bench devices`: thousands of devices that each say little, at our broker and at others.

Each device has a connection and a topic of its own, and sends one small message per write, which is what
users have; `bench broker` measures long runs from one connection. A case has a row for what was delivered per
second until the last message arrived (`CASE`), per second of the broker's processor (`CASE/cpu`), and for the
latency at a fixed rate (`CASE/p50`, `CASE/p99`). On a machine that others use too, the second is the one to
trust. `device_cases` has what differs from that: clients that come, subscribe and retain.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from hedgerow_workshop.bench.broker import data_directory
from hedgerow_workshop.bench.device_cases import (
    DevicePlan,
    Noted,
    Timed,
    other_scenarios,
    per_processor_s,
    rates,
)
from hedgerow_workshop.bench.device_loader import DEVICES, ByteCounter, Crowd, Reader, Traffic
from hedgerow_workshop.bench.device_wire import publication
from hedgerow_workshop.bench.peers import BROKERS, OURS, BrokerKind, Child
from hedgerow_workshop.bench.report import BenchRequest, BenchResult
from hedgerow_workshop.bench.rounds import Bench, Plan
from hedgerow_workshop.bench.scenarios import Figures, Scenario, latencies_us, measure_all, row_names
from hedgerow_workshop.bench.wire import Nats

ALL_TOPICS = "site/+/device/+/state"


@dataclass(frozen=True)
class Shape:
    """Who publishes to whom. Subscribers share out the topics, or all get all (`copies`)."""

    qos: int
    devices: int = 500
    subscribers: int = 1
    copies: int = 1
    """How many subscribers get each message."""
    topic_filter: str = ALL_TOPICS
    """Of every subscriber; "": each has the topic of one device."""
    rate: int = 5_000
    """Messages a second, where latency is measured."""
    durable: bool = False
    window: int = 1_000
    """Messages under way at QoS 0."""


def topic(number: int) -> str:
    return f"site/{number % 10}/device/{number:04}/state"


def traffic(child: Child, shape: Shape, share: float, stack: ExitStack) -> Traffic:
    """Connections to the broker, ready to run; `share` of the devices and subscribers."""
    dialect, crowd = child.dialect, Crowd()
    stack.callback(crowd.close)
    devices, subscribers = (max(1, int(count * share)) for count in (shape.devices, shape.subscribers))
    for number in range(subscribers):
        connection = dialect.connect(child.port, f"subscriber-{number}", clean_start=not shape.durable)
        dialect.subscribe(connection, [shape.topic_filter or topic(number)], shape.qos)
        if shape.qos:
            Reader(crowd, connection)
        else:
            ByteCounter(crowd, connection, pings=isinstance(dialect, Nats))
    kind = DEVICES[shape.qos]
    senders = [
        kind(
            crowd,
            dialect.connect(child.port, f"device-{number}"),
            publication(dialect, topic(number), number, shape.qos),
        )
        for number in range(devices)
    ]
    copies = subscribers if shape.copies > 1 else 1
    return Traffic(crowd, senders, copies, counts_bytes=shape.qos == 0, window=shape.window)


def measure_traffic(
    bench: Bench, rows: Sequence[str], brokers: Sequence[BrokerKind], shape: Shape, plan: DevicePlan
) -> list[Figures]:
    noted = Noted(bench, rows[0])

    def prepare(broker: BrokerKind, stack: ExitStack) -> tuple[Child, Traffic]:
        arguments = ("--data", stack.enter_context(data_directory())) if shape.durable else ()
        child = stack.enter_context(bench.running(broker, arguments))
        load = traffic(child, shape, plan.share, stack)
        load.run(bench.plan.warm_up_s)
        return child, load

    def measure(broker: BrokerKind, subject: tuple[Child, Traffic]) -> tuple[Timed, Timed, list[int]]:
        child, load = subject
        seconds = bench.plan.round_s
        full, used = noted.measured(broker, child, partial(load.run, seconds))
        rate = max(shape.rate * plan.share, 10)
        paced, paced_used = noted.measured(
            broker, child, partial(load.run_paced, seconds, rate), is_paced=True
        )
        return (
            Timed(full.deliveries, full.seconds, used, full.busy),
            Timed(paced.deliveries, paced.seconds, paced_used, paced.busy),
            paced.latencies,
        )

    values = bench.interleave(bench.plan.rounds, brokers, prepare, measure)
    noted.tell()
    paced = {broker: [(each[1].count, each[1].processor_s) for each in of] for broker, of in values.items()}
    return [
        *rates({broker: [each[0] for each in of] for broker, of in values.items()}),
        per_processor_s(paced),
        *latencies_us({broker: [each[2] for each in of] for broker, of in values.items()}),
    ]


def _traffic(case: str, peers: tuple[str, ...], shape: Shape, plan: DevicePlan) -> Scenario:
    rows = {
        case: "msg/s",
        f"{case}/cpu": "msg/cpu-s",
        f"{case}/paced-cpu": "msg/cpu-s",
        f"{case}/p50": "µs",
        f"{case}/p99": "µs",
    }
    lower = frozenset((f"{case}/p50", f"{case}/p99"))
    return Scenario(rows, "higher", peers, partial(measure_traffic, shape=shape, plan=plan), lower)


MQTT_PEERS = ("mosquitto", "aedes")
ALL_PEERS = ("mosquitto", "nats-server", "aedes")
QUICK_PEERS = ("mosquitto", "nats-server")
# aedes has no shared subscriptions.
SHARING_PEERS = ("mosquitto",)

TO_ONE = Shape(1)
SHAPES: dict[str, tuple[tuple[str, ...], Shape]] = {
    "many-to-one-qos0": (ALL_PEERS, replace(TO_ONE, qos=0)),
    "many-to-one-qos1": (MQTT_PEERS, TO_ONE),
    # Mosquitto takes 5,000 messages a second at most.
    "many-to-one-qos2": (MQTT_PEERS, replace(TO_ONE, qos=2, rate=1_000)),
    "many-to-one-qos1-durable": (MQTT_PEERS, replace(TO_ONE, durable=True, rate=2_000)),
    "many-to-four-qos1": (MQTT_PEERS, replace(TO_ONE, subscribers=4, copies=4)),
    "pairs-qos1": (MQTT_PEERS, replace(TO_ONE, subscribers=500, topic_filter="")),
    "fan-out-1000": (ALL_PEERS, Shape(0, devices=1, subscribers=1_000, copies=1_000, rate=20, window=10)),
    "fan-in-shared": (
        SHARING_PEERS,
        replace(TO_ONE, subscribers=10, topic_filter=f"$share/dashboards/{ALL_TOPICS}"),
    ),
}


FULL = Plan(rounds=5, warm_up_s=0.5, round_s=1.0, starts=1)
QUICK = Plan(rounds=2, warm_up_s=0.1, round_s=0.3, starts=1)
QUICK_DEVICES = DevicePlan(share=0.2, fresh_rounds=1)


def scenarios(plan: DevicePlan) -> tuple[Scenario, ...]:
    return (
        *(_traffic(case, peers, shape, plan) for case, (peers, shape) in SHAPES.items()),
        *other_scenarios(plan),
    )


ROW_NAMES = row_names(scenarios(DevicePlan()))


def run(request: BenchRequest) -> BenchResult:
    request.check(ROW_NAMES, ALL_PEERS)
    names = request.peers
    if names is None:
        names = QUICK_PEERS if request.quick else ALL_PEERS
    devices, plan = (QUICK_DEVICES, QUICK) if request.quick else (DevicePlan(), FULL)
    peers = [BROKERS[name] for name in names]
    return measure_all(scenarios(devices), BROKERS[OURS], peers, plan, request.only)
