"""The clients of a run, which speak MQTT 3.1.1, as the document's do."""

from __future__ import annotations

from typing import Any

from hedgerow.client.bus import Bus
from hedgerow.mqtt.packets import MQTT_3_1_1
from hedgerow_workshop.lab import clients


class Clients(clients.Clients):
    async def connect(self, name: str, url: str, **options: Any) -> Bus:
        return await super().connect(name, url, version=MQTT_3_1_1, **options)

    async def connect_roaming(self, name: str, url: str) -> Bus:
        """A client that comes and goes: its broker keeps its session, and both soon notice an absence."""
        return await self.connect(name, url, clean_start=False, keep_alive=1, timeout=1.0, keep_trying=True)
