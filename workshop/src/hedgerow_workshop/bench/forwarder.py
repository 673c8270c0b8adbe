"""What the loader can do: a stand-in for a broker that looks at nothing.

It answers CONNECT and SUBSCRIBE, and passes every further chunk on to all subscribers as it came.
`hedgerow bench broker --peers ceiling` measures it like a peer: the loader can do at least this much,
and a broker that comes near it in the same run is no longer what is measured. QoS 0 only.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

_SUBSCRIBE, _SUBACK = 0x82, 0x90
_CONNACK = bytes((0x20, 2, 0, 0))


class _Forwarder(asyncio.Protocol):
    def __init__(self, subscribers: list[asyncio.Transport]) -> None:
        self._subscribers = subscribers
        self._handle = self._connect

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport in self._subscribers:
            self._subscribers.remove(self._transport)

    def data_received(self, data: bytes) -> None:
        self._handle(data)

    def _connect(self, data: bytes) -> None:
        self._transport.write(_CONNACK)
        self._handle = self._subscribe

    def _subscribe(self, data: bytes) -> None:
        self._handle = self._forward
        if data[0] == _SUBSCRIBE:
            self._subscribers.append(self._transport)
            self._transport.write(bytes((_SUBACK, 3)) + data[2:4] + b"\0")
        else:
            self._forward(data)

    def _forward(self, data: bytes) -> None:
        for subscriber in self._subscribers:
            subscriber.write(data)


async def _serve(port: int) -> None:
    subscribers: list[asyncio.Transport] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Forwarder(subscribers), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
