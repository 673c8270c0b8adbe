"""Both ends of tunnels and a broker between them, which keeps the order and loses what it is told to lose."""

from __future__ import annotations

from collections import defaultdict, deque
from random import Random

from hedgerow.federation.tunnel.frames import MAX_FRAME_BYTES, decode
from hedgerow.federation.tunnel.tunnel import Tunnel
from hedgerow.federation.tunnel.tunnels import (
    MAX_TUNNELS,
    Closed,
    Opened,
    TunnelEvent,
    TunnelReceived,
    Tunnels,
)

FEDERATOR = "federator"
DIALLER = "dialler"
KEY = bytes(range(32))


class Carrier:
    """Nodes are named by their node id."""

    def __init__(
        self,
        key: bytes | None = None,
        *diallers: str,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_tunnels: int = MAX_TUNNELS,
    ) -> None:
        self.now = 1_700_000_000.0
        self.nodes: dict[str, Tunnels] = {}
        self.queues: dict[str, deque[bytes]] = defaultdict(deque)
        """Frames that the broker has for each node."""
        self.carried: list[tuple[str, bytes]] = []
        """(receiver, payload) of all that arrived."""
        self.lost: list[bytes] = []
        self.events: dict[str, list[TunnelEvent]] = defaultdict(list)
        self.arrived: dict[tuple[str, int], bytearray] = defaultdict(bytearray)
        """(receiver, tunnel id) → the stream as it came out."""
        self._random = Random(5)
        self._max_frame_bytes = max_frame_bytes
        self._max_tunnels = max_tunnels
        self.add(FEDERATOR, key)
        for name in diallers or (DIALLER,):
            self.add(name, key)

    def add(self, name: str, key: bytes | None, *, is_federator: bool | None = None) -> Tunnels:
        """A node, or one in its place that knows nothing."""
        self.nodes[name] = Tunnels(
            name,
            is_federator=name == FEDERATOR if is_federator is None else is_federator,
            key=key,
            random_bytes=self._random.randbytes,
            max_frame_bytes=self._max_frame_bytes,
            max_tunnels=self._max_tunnels,
        )
        return self.nodes[name]

    @property
    def federator(self) -> Tunnels:
        return self.nodes[FEDERATOR]

    @property
    def dialler(self) -> Tunnels:
        return self.nodes[DIALLER]

    def dial(self, tunnel_id: int = 7, name: str = DIALLER) -> tuple[Tunnel, Tunnel]:
        """Both ends of a new tunnel that is open."""
        tunnel = self.nodes[name].open(tunnel_id, self.now)
        self.settle()
        opened = [event.tunnel for event in self.events[FEDERATOR] if isinstance(event, Opened)]
        assert tunnel.is_open
        assert opened[-1].id == tunnel_id
        return tunnel, opened[-1]

    def collect(self) -> None:
        """What the nodes have to say goes to the broker, and what happened is noted."""
        for name, node in self.nodes.items():
            for destination, payload in node.take_frames():
                self.queues[FEDERATOR if destination is None else destination].append(payload)
            for event in node.take_events():
                self.events[name].append(event)
                if isinstance(event, TunnelReceived):
                    self.arrived[name, event.tunnel.id] += event.data

    def carry(self, receiver: str) -> bool:
        """One frame arrives, if there is one."""
        self.collect()
        if not self.queues[receiver]:
            return False
        payload = self.queues[receiver].popleft()
        if receiver in self.nodes:
            self.nodes[receiver].receive(payload, self.now)
            self.carried.append((receiver, payload))
        self.collect()
        return True

    def lose(self, receiver: str) -> bool:
        """One frame does not arrive, if there is one."""
        self.collect()
        if self.queues[receiver]:
            self.lost.append(self.queues[receiver].popleft())
            return True
        return False

    def settle(self) -> None:
        """All arrives that is under way, and what is written because of it."""
        while sum(self.carry(name) for name in self.nodes):
            pass

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        self.settle()
        while (due_at := min(node.deadline for node in self.nodes.values())) <= until:
            self.now = max(self.now, due_at)
            for node in self.nodes.values():
                node.handle_timer(self.now)
            self.settle()
        self.now = until

    def restart(self) -> None:
        """The broker forgets all that was under way, and every node loses its connection."""
        self.collect()
        for queue in self.queues.values():
            self.lost += queue
            queue.clear()
        for node in self.nodes.values():
            node.close_all("the connection was lost")
        self.collect()

    def closed(self, name: str) -> list[str]:
        """Why tunnels closed there."""
        return [event.reason for event in self.events[name] if isinstance(event, Closed)]

    def kinds(self, receiver: str) -> list[str]:
        """Of the frames that the broker has for it."""
        self.collect()
        return [decode(payload).kind.name for payload in self.queues[receiver]]
