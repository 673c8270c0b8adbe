"""A device without a server, for tests: does what its standard input says, and tells what happens to it.

    python device.py URL [GROUP]

Commands and what it tells are JSON, one object a line. With GROUP, every topic has this one IPv6 group.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from typing import Any

import hedgerow
from hedgerow.client.bus import Bus
from hedgerow.client.multicast_transport import MulticastTransport
from hedgerow.client.urls import parse_url
from hedgerow.multicast import topic_groups
from hedgerow.multicast.groups import CONTROL_TOPIC, ipv6_group
from hedgerow.multicast.io.options import read_options


def tell(**what: object) -> None:
    print(json.dumps(what), flush=True)


class Device:
    def __init__(self, transport: MulticastTransport) -> None:
        self._bus = Bus(transport)
        self._endpoint = transport.endpoint
        self._tasks: list[asyncio.Task[None]] = []
        self._groups: dict[str, list[str]] = {}
        if self._endpoint.ip == 4:
            self._note_groups(self._endpoint._groups)

    async def obey(self, command: dict[str, Any]) -> None:
        match command.pop("do"):
            case "subscribe":
                subscription = self._bus.subscribe(*command.pop("filters"), **command)
                messages = await subscription.__aenter__()
                self._tasks.append(asyncio.create_task(self._print(messages)))
                tell(done="subscribe")
            case "publish":
                await self._publish(**command)
                tell(done="publish")
            case "publish on":
                self._tasks.append(asyncio.create_task(self._publish(**command)))
                tell(done="publish on")
            case "groups":
                tell(groups=self._groups)
            case "stats":
                tell(stats=asdict(self._endpoint.member.stats))
            case "reload":
                self._endpoint.set_keys(self._endpoint.read_keys())
                tell(done="reload")

    def _note_groups(self, named: Any) -> None:
        """Remember the groups that each topic was given, one after the other."""
        choose = named._choose

        def note(entry: Any, group: str, now: float) -> None:
            self._groups.setdefault(entry.topic, []).append(group)
            choose(entry, group, now)

        named._choose = note

    async def _print(self, messages: hedgerow.Subscription) -> None:
        async for message in messages:
            payload = message.payload.decode()
            tell(topic=message.topic, payload=payload, qos=message.qos, retain=message.retain)

    async def _publish(
        self, topic: str, payloads: list[str], qos: int = 0, retain: bool = False, every_s: float = 0.0
    ) -> None:
        for payload in payloads:
            await self._bus.publish(topic, payload, qos=qos, retain=retain)
            if every_s:
                await asyncio.sleep(every_s)


async def main(url: str) -> None:
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    address = parse_url(url)
    transport = MulticastTransport(read_options(address.host, address.port, address.rest))
    await transport.open()
    async with Bus(transport):
        device = Device(transport)
        tell(done="open")
        while line := await lines.readline():
            await device.obey(json.loads(line))


def share_group(group: str) -> None:
    def ipv6_group_of_all(topic: str, scope: int) -> str:
        return ipv6_group(topic, scope) if topic == CONTROL_TOPIC else group

    vars(topic_groups)["ipv6_group"] = ipv6_group_of_all


if __name__ == "__main__":
    if len(sys.argv) > 2:
        share_group(sys.argv[2])
    asyncio.run(main(sys.argv[1]))
