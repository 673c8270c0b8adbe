"""Observers see every publication once, with its id and its sender, at one place (`publishing.observe`).

An observer says which topics it wants when their routes are made, so that a broker without observers pays
one test for a batch. What it keeps of a publication at QoS 1 or 2 may have to be durable before the
publisher hears that it was taken: then the acknowledgement waits for it as it waits for the store. Where an
observer has no room, whoever sent the message is disconnected before anybody gets it, and sends it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hedgerow.broker.batch import Batch


class Observer:
    name = ""
    """Its figures are published below `$SYS/broker/NAME`."""
    interests: Sequence[str] = ()
    """Topic filters of what other brokers are to bring here for it, as for a subscriber."""

    def wants(self, topic: str, has_clients: bool) -> bool:
        """Is it to see what is published there? `has_clients`: it goes to clients, here or elsewhere."""
        return True

    def has_room(self, size: int) -> bool:
        """May payloads of so many bytes come at QoS 1 or 2?"""
        return True

    def observe(self, batch: Batch, now: float) -> bool:
        """See publications, before anybody gets them. True: their acknowledgement waits until all that this
        observer keeps is durable."""
        raise NotImplementedError

    @property
    def is_behind(self) -> bool:
        """Is anything that it keeps not durable yet?"""
        return False

    def figures(self) -> Mapping[str, int]:
        """What people see."""
        return {}
