"""What the tractor's broker tells of itself under `$SYS/broker/hot/`."""

from __future__ import annotations

import json
import time
from typing import Any

from hedgerow.message import Message
from hedgerow_workshop.lab.harness.clients import Clients

PREFIX = "$SYS/broker/hot/"


class Watch:
    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._began_at = 0.0
        self.planned_at: float | None = None
        """When the first plan was followed, on the monotonic clock."""

    async def open(self, clients: Clients, url: str) -> None:
        bus = await clients.connect("watch", url)
        await clients.listen(bus, f"{PREFIX}#", 0, self.receive)

    def receive(self, message: Message) -> None:
        self._values[message.topic.removeprefix(PREFIX)] = json.loads(message.payload)
        if self.planned_at is None and self.plan is not None:
            self.planned_at = time.monotonic()

    def begin(self) -> None:
        """Measure from now."""
        self._began_at = time.time()

    def delegated_s(self, station: str) -> float | None:
        """How long after `begin` the first topic was delegated there; None: not yet."""
        times = [
            move["at"]
            for move in self._values.get("moves", ())
            if move["what"] == "delegated" and move["fixed"] == station and move["at"] >= self._began_at
        ]
        return min(times) - self._began_at if times else None

    @property
    def plan(self) -> dict[str, Any] | None:
        """That which is followed."""
        plan: dict[str, Any] | None = self._values.get("plan")
        return plan
