"""The statuses of the whole fabric, heard while somebody looks at them.
 The node is subscribed to them through a port from the first look until `idle_s` after the last one, so that
nobody pays when nobody looks. A fabric that is looked at again begins with this node's own status, made on
the spot, and is whole when the others have told theirs.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hedgerow.broker.port import Port
from hedgerow.message import Message
from hedgerow.node import status
from hedgerow.topics import STATUS_FILTER
from hedgerow.web.fabric import Fabric

if TYPE_CHECKING:
    from hedgerow.broker.routes import Route
    from hedgerow.broker.session import Publisher
    from hedgerow.node.part import NodeContext

IDLE_S = 10.0


class _StatusPort(Port):
    """Of this node, this node alone tells, whatever a neighbour says of it."""

    def take(self, message: Message, route: Route, publisher: Publisher | None) -> None:
        own = status.status_topic(self._broker.node_id)
        if publisher is None or not f"{message.topic}/".startswith(f"{own}/"):
            self.deliver(message)


class StatusWatch:
    def __init__(self, node: NodeContext, name: str) -> None:
        """`name`: what the log calls it."""
        self.fabric = Fabric()
        self.idle_s = IDLE_S
        self._node = node
        self._name = name
        self._port: Port | None = None
        self._looked_at = float("-inf")

    def look(self) -> Fabric:
        """Somebody looks now."""
        node, now = self._node, self._node.clock()
        self._looked_at = now
        if self._port is not None:
            return self.fabric
        # What was heard before is old, and everyone would look as if it were silent.
        self.fabric = Fabric()
        for topic, payload in status.all_statuses(node).items():
            self.fabric.receive(topic, payload, now)
        self.fabric.begin_counting()
        self._port = _StatusPort(node.broker, self._name, self._hear)
        self._port.listen(STATUS_FILTER, now)
        node.flush()
        asyncio.get_running_loop().call_later(self.idle_s, self._check_idle)
        return self.fabric

    def _hear(self, message: Message) -> None:
        if not message.retain:  # No node retains its status: it would be old.
            self.fabric.receive(message.topic, message.payload, self._node.clock())

    def _check_idle(self) -> None:
        if self._node.stopping:
            return
        left_s = self._looked_at + self.idle_s - self._node.clock()
        if left_s > 0:
            asyncio.get_running_loop().call_later(left_s, self._check_idle)
            return
        if self._port is not None:
            self._port.close()
            self._port = None
            self._node.flush()
