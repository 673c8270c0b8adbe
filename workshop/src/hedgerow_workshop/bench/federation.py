"""`hedgerow bench federation`: from a publisher at one end of a line of brokers to a subscriber at the other.

Lines of two and of four brokers (one hop and three) are measured side by side (`end_to_end`): our nodes with
the federator inside, Mosquittos with a sidecar (`hedgerow federate`) beside each, and Mosquittos joined by
their own bridges. The federations are told who is whose neighbour and nothing else: what they carry, they
learn from the subscription. The bridges are told the topics and carry them one way.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import hedgerow
from hedgerow.federation.config import ASSUME_NOTHING
from hedgerow.federation.interests.events import MOSQUITTO_LINES
from hedgerow.federation.state import HOME_STATE_TOPIC
from hedgerow_workshop.bench import BenchError, end_to_end
from hedgerow_workshop.bench.bridge import HEDGEROW, MOSQUITTO, PEER_BRIDGE, bridging
from hedgerow_workshop.bench.end_to_end import QOS_0, QOS_1, Ends, EndToEnd, EndToEndTraffic, Stage, row_names
from hedgerow_workshop.bench.peers import BrokerKind, Child, Process, configured
from hedgerow_workshop.bench.report import BenchRequest, BenchResult

PROGRAM = [sys.executable, "-m", "hedgerow"]
HOPS = (1, 3)
LINKED_S = 20.0
_LOOK_S = 0.1
# All that a Mosquitto is asked for: its sidecar reads in the log who subscribes. The last line is its
# default, which Mosquittos that are measured otherwise do not have.
LOGGING_MOSQUITTO = configured(MOSQUITTO, "\n".join((*MOSQUITTO_LINES, "connection_messages true", "")))


@dataclass(frozen=True)
class Line:
    """So many brokers and one more, from the publisher's to the subscriber's."""

    name: str
    hops: int
    brokers: tuple[BrokerKind, ...]
    start: Callable[[EndToEnd, int, EndToEndTraffic, ExitStack], Ends]
    at_least: float | None = None
    is_peer: bool = False

    def open(self, bench: EndToEnd, traffic: EndToEndTraffic, stack: ExitStack) -> Ends:
        return self.start(bench, self.hops, traffic, stack)


# Each program is started after the neighbour that it dials, so that none of them has to dial again.


def start_nodes(
    bench: EndToEnd, hops: int, traffic: EndToEndTraffic, stack: ExitStack, node: BrokerKind
) -> Ends:
    nodes: list[Child] = []
    for number in reversed(range(hops + 1)):
        # Each has a neighbour and looks for no more: a line of four would not stay one.
        arguments = ["--id", node_id(number), "--active-neighbours", "1"]
        arguments += neighbour(nodes[-1]) if nodes else ["--federation"]
        nodes.append(stack.enter_context(bench.running(node, arguments)))
    return Ends(nodes[-1], nodes[0], {"broker": nodes})


def start_sidecars(
    bench: EndToEnd,
    hops: int,
    traffic: EndToEndTraffic,
    stack: ExitStack,
    program: Sequence[str],
    linked_s: float,
) -> Ends:
    brokers = [stack.enter_context(bench.running(LOGGING_MOSQUITTO)) for _ in range(hops + 1)]
    sidecars = []
    for number in reversed(range(hops + 1)):
        command = [*program, *sidecar_arguments(number, brokers)]
        sidecars.append(stack.enter_context(bench.running_beside(f"sidecar {node_id(number)}", command)))
    asyncio.run(wait_until_linked(brokers, sidecars, linked_s))
    return Ends(brokers[0], brokers[-1], {"broker": brokers, "sidecar": sidecars})


def start_bridges(bench: EndToEnd, hops: int, traffic: EndToEndTraffic, stack: ExitStack) -> Ends:
    brokers = [stack.enter_context(bench.running(MOSQUITTO))]
    for _ in range(hops):
        section = PEER_BRIDGE.section(brokers[-1].port, traffic.qos)
        brokers.append(stack.enter_context(bench.running(bridging(MOSQUITTO, section))))
    return Ends(brokers[-1], brokers[0], {"broker": brokers})


def sidecar_arguments(number: int, brokers: list[Child]) -> list[str]:
    words = ["federate", "--broker", url(brokers[number]), "--id", node_id(number)]
    words += ["--assume", ASSUME_NOTHING]  # It is there before all clients.
    return [*words, *(neighbour(brokers[number + 1]) if number + 1 < len(brokers) else ())]


async def wait_until_linked(brokers: Sequence[Child], sidecars: Sequence[Process], linked_s: float) -> None:
    """Until each sidecar has its neighbours: what is subscribed before it hears the log, it never learns."""
    last = len(brokers) - 1
    waits = [
        asyncio.create_task(_has_neighbours(broker, node_id(number), 1 if number in (0, last) else 2))
        for number, broker in enumerate(brokers)
    ]
    try:
        async with asyncio.timeout(linked_s):
            while not all(wait.done() for wait in waits):
                await asyncio.wait(waits, timeout=_LOOK_S, return_when=asyncio.FIRST_EXCEPTION)
                for sidecar in sidecars:
                    if ended := sidecar.how_it_ended():
                        raise BenchError(f"{sidecar.name} {ended}")
        for wait in waits:
            wait.result()
    except TimeoutError:
        raise BenchError(f"the sidecars were not linked within {linked_s:g} s") from None
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _has_neighbours(broker: Child, name: str, count: int) -> None:
    async with hedgerow.connect(url(broker)) as bus:
        async for message in bus.subscribe(HOME_STATE_TOPIC + name):
            if len(json.loads(message.payload)["neighbours"]) >= count:
                return


def neighbour(child: Child) -> list[str]:
    return ["--neighbour", url(child)]


def url(child: Child) -> str:
    return f"mqtt://127.0.0.1:{child.port}"


def node_id(number: int) -> str:
    return f"bench-{number}"


def stage(
    traffic: EndToEndTraffic, hops: int, node: BrokerKind, program: Sequence[str], linked_s: float
) -> Stage:
    nodes = partial(start_nodes, node=node)
    sidecars = partial(start_sidecars, program=program, linked_s=linked_s)
    ours = (
        Line("hedgerow", hops, (HEDGEROW,), nodes, at_least=3.0),
        Line("sidecars", hops, (HEDGEROW, MOSQUITTO), sidecars, at_least=0.5),
    )
    named = replace(traffic, name=f"qos{traffic.qos}-{hops}hop{'s' if hops > 1 else ''}")
    return Stage(named, ours, Line("bridges", hops, (MOSQUITTO,), start_bridges, is_peer=True))


def make_stages(
    node: BrokerKind = HEDGEROW, program: Sequence[str] = PROGRAM, linked_s: float = LINKED_S
) -> tuple[Stage, ...]:
    """`program` is what the sidecars are started with."""
    return tuple(stage(traffic, hops, node, program, linked_s) for hops in HOPS for traffic in (QOS_0, QOS_1))


STAGES = make_stages()
ROW_NAMES = row_names(STAGES)


def run(request: BenchRequest) -> BenchResult:
    return end_to_end.run(request, STAGES)
