"""Federators of the document's wire in virtual time, joined by links with a delay each."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from heapq import heappop, heappush
from random import Random

from hedgerow.federation.document.data_log import DataLog
from hedgerow.federation.document.federator import DocumentFederator
from hedgerow.federation.document.neighbours import DocumentPeer
from hedgerow.federation.document.numbers import PublicationId

Link = frozenset[int]


class DocumentNetwork:
    """Every message arrives; those from one federator to another in order. `knows_numbers`: else they ask.

    A federator speaks at the brokers of the others as the user whose name is its number."""

    def __init__(
        self,
        links: Iterable[tuple[int, int]],
        *,
        redundancy: int = 2,
        delay_s: Callable[[], float] = lambda: 0.005,
        knows_numbers: bool = True,
    ) -> None:
        self.now = 1_000.0
        self.delays: dict[Link, float] = {frozenset(link): delay_s() for link in links}
        self.got: dict[int, Counter[bytes]] = {}
        self.transmissions: Counter[tuple[int, int]] = Counter()
        self.nodes: dict[int, DocumentFederator] = {}
        self._queue: list[tuple[float, int, int, str, bytes, str]] = []
        self._number = 0
        for node in sorted({node for link in self.delays for node in link}):
            peers = [
                DocumentPeer(str(each), each if knows_numbers else None, str(each) if knows_numbers else None)
                for each in self.neighbours(node)
            ]
            log = DataLog(1 << 20, 0)
            token = partial(Random(node).getrandbits, 64)
            self.nodes[node] = DocumentFederator(node, peers, log, token=token, redundancy=redundancy)
            self.got[node] = Counter()
        for node, federator in self.nodes.items():
            for each in self.neighbours(node):
                federator.linked(str(each), self.now)
            self._collect(node)

    def neighbours(self, node: int) -> list[int]:
        return sorted(each for link in self.delays if node in link for each in link - {node})

    def want(self, node: int, topic_filter: str, is_wanted: bool = True) -> None:
        self.nodes[node].set_wanted(topic_filter, is_wanted, self.now)
        self._collect(node)

    def publish(self, node: int, topic: str, payload: bytes) -> None:
        self._number += 1
        self.nodes[node].publish(topic, PublicationId(node, self._number), payload, self.now)
        self._collect(node)

    def run(self, seconds: float) -> None:
        end_at = self.now + seconds
        while True:
            due, node = min((federator.deadline, node) for node, federator in self.nodes.items())
            if self._queue and self._queue[0][0] <= min(due, end_at):
                at, _, node, name, payload, speaker = heappop(self._queue)
                self.now = max(self.now, at)
                self.nodes[node].receive(name, payload, speaker, self.now)
            elif due <= end_at:
                self.now = max(self.now, due)
                self.nodes[node].handle_timer(self.now)
                assert self.nodes[node].deadline > self.now, "a timer that is never done"
            else:
                break
            self._collect(node)
        self.now = end_at

    def _collect(self, node: int) -> None:
        for address, name, payload, is_data in self.nodes[node].take_packets():
            self._number += 1
            self.transmissions[node, int(address)] += is_data
            at = self.now + self.delays[frozenset((node, int(address)))]
            heappush(self._queue, (at, self._number, int(address), name, payload, f"user:{node}"))
        for publication in self.nodes[node].take_publications():
            self.got[node][publication.payload] += 1
        self.nodes[node].take_listens()

    def distances(self, start: int) -> dict[int, int]:
        found = {start: 0}
        waiting = deque([start])
        while waiting:
            here = waiting.popleft()
            for other in self.neighbours(here):
                if other not in found:
                    found[other] = found[here] + 1
                    waiting.append(other)
        return found
