"""The run in which nodes are killed and links cut, one after the other, under load at QoS 1.

Publishers are at 6 and at 0, subscribers at 2 and 7; every other node is killed in turn, and every link that
carries publications is silently cut in turn. What failed comes back, and the next fails when all is as it
was.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import chain, repeat

from hedgerow_workshop.lab.harness.clients import Clients
from hedgerow_workshop.lab.harness.programs import end_tasks, wait_until
from hedgerow_workshop.lab.spohn import grid, measure
from hedgerow_workshop.lab.spohn.clients import GridTraffic
from hedgerow_workshop.lab.spohn.delays import MESH_S
from hedgerow_workshop.lab.spohn.federation import GridFederation
from hedgerow_workshop.lab.spohn.record import Failure, Misfortune, Setting, SpohnRecord, SpohnSpec

PUBLISHERS = (grid.PUBLISHER, "0")
KILLED = tuple(node for node in grid.NODES if node not in {*PUBLISHERS, *grid.SUBSCRIBERS})
FAST_KILLED = ("4", "5")
FAST_CUTS = 2
INTERVAL_S = 0.05
WINDOW_S = 1.0  # in which it is seen which links carry publications
HEAL_S = 10.0
NOTICE_S = 5.0
DWELL_S = 0.5  # on the other ways, before what failed comes back
WHOLE_S = 15.0
SETTLE_S = 15.0


class Failures:
    def __init__(
        self,
        federation: GridFederation,
        *,
        heal_s: float = HEAL_S,
        dwell_s: float = DWELL_S,
        window_s: float = WINDOW_S,
    ) -> None:
        self._heal_s = heal_s
        self._dwell_s = dwell_s
        self._window_s = window_s
        self.record = SpohnRecord(SpohnSpec(federation.kind, Setting.FAILURES))
        self._federation = federation
        self._topic = self.record.topic
        self._not_as_published: list[str] = []
        self._publishing: list[asyncio.Task[None]] = []

    async def perform(self, fast: bool) -> SpohnRecord:
        record, federation = self.record, self._federation
        async with Clients() as clients:
            traffic = GridTraffic(clients, record, self._topic, qos=1)
            for node in grid.SUBSCRIBERS:
                await traffic.subscribe(node, federation.url(node))
            for node in PUBLISHERS:
                await traffic.open_publisher(node, federation.url(node))
            await federation.wait_until_whole(self._topic, MESH_S)
            record.states.append(dict(federation.watch.states))
            self._not_as_published = measure.mesh_differences(federation.watch.states, self._topic)
            try:
                self._publish(traffic)
                cuts = await self._find_busy_links()
                for node in FAST_KILLED if fast else KILLED:
                    await self._kill(node)
                for link in cuts[:FAST_CUTS] if fast else cuts:
                    await self._cut(*link)
            finally:
                await end_tasks(self._publishing)
            await traffic.settle(SETTLE_S, federation.check)
            record.states.append(dict(federation.watch.states))
        return record

    def _publish(self, traffic: GridTraffic) -> None:
        """At the same pace, but not at the same moments."""
        for index, node in enumerate(PUBLISHERS):
            gaps_s = chain([index * INTERVAL_S / len(PUBLISHERS)], repeat(INTERVAL_S))
            self._publishing.append(asyncio.create_task(traffic.publish(node, gaps_s)))

    async def _find_busy_links(self) -> list[tuple[str, str]]:
        """Those that carry at least half of what one publisher publishes: first those of the publishers,
        where nothing goes two ways at once, then the busiest."""
        before = self._federation.network.carried()
        await asyncio.sleep(self._window_s)
        after = self._federation.network.carried()
        enough = self._window_s / INTERVAL_S * grid.PAYLOAD_BYTES / 2
        most = {(a, b): max(after[a, b] - before[a, b], after[b, a] - before[b, a]) for a, b in grid.LINKS}
        busy = [link for link in most if most[link] >= enough]
        return sorted(busy, key=lambda link: (not set(link) & set(PUBLISHERS), -most[link]))

    async def _kill(self, name: str) -> None:
        node = self._federation.nodes[name]

        async def start() -> None:
            self._federation.watch.forget(name)
            await node.start()

        lost = [(other, name) for other in grid.neighbours(name)]
        await self._undergo(Failure(Misfortune.KILL, name, time.monotonic()), node.kill, start, lost)

    async def _cut(self, a: str, b: str) -> None:
        network = self._federation.network

        async def restore() -> None:
            network.restore(a, b)

        failure = Failure(Misfortune.CUT, f"{a}-{b}", time.monotonic())
        await self._undergo(failure, lambda: network.cut(a, b), restore, [(a, b), (b, a)])

    async def _undergo(
        self,
        failure: Failure,
        fail: Callable[[], None],
        mend: Callable[[], Awaitable[None]],
        lost: list[tuple[str, str]],
    ) -> None:
        """`lost`: who is to notice that who is no neighbour any more. That takes longer than to be heard by
        another way, and to mend it earlier would leave out half of the trial."""
        fail()
        await self._wait_until_heard(failure.at)
        patience_s = failure.at + NOTICE_S - time.monotonic()
        await wait_until(lambda: self._is_noticed(lost), patience_s, self._check)
        await asyncio.sleep(self._dwell_s)
        await mend()
        whole_at = await self._federation.wait_until_whole(self._topic, WHOLE_S, self._not_as_published)
        self.record.happened.append(failure._replace(whole_at=whole_at))

    def _is_noticed(self, lost: list[tuple[str, str]]) -> bool:
        states = self._federation.watch.states
        return not any(far in states[near]["neighbours"] for near, far in lost if near in states)

    async def _wait_until_heard(self, since: float) -> None:
        """Until every subscriber has heard every publisher again, or that has taken too long."""
        sent = self.record.sent
        waiting = {(publisher, subscriber) for publisher in sent for subscriber in self.record.arrived}

        def is_heard() -> bool:
            for subscriber, received in self.record.arrived.items():
                for each in reversed(received):
                    if each.at < since:
                        break
                    if sent[each.publisher][each.number] > since:
                        waiting.discard((each.publisher, subscriber))
            return not waiting

        await wait_until(is_heard, since + self._heal_s - time.monotonic(), self._check)

    def _check(self) -> None:
        self._federation.check()
        for task in self._publishing:
            if task.done():
                task.result()
