"""Hedgerow: publish and subscribe at the edge of the network.

    import asyncio
    import hedgerow

    async def main():
        async with hedgerow.serve() as node:  # or begin `hedgerow up`, and connect to mqtt://localhost
            async with hedgerow.connect(node.url) as bus, bus.subscribe("home/+/status") as messages:
                await bus.publish("home/vacuum/status", "done")
                async for message in messages:
                    print(message.topic, message.payload)
                    break

    asyncio.run(main())

In scripts and notebooks, with a broker that runs already:

    import hedgerow

    with hedgerow.connect_sync("mqtt://localhost") as bus:
        with bus.subscribe("home/+/status") as messages:
            bus.publish("home/vacuum/status", "done")
            print(messages.get(timeout=10).payload)

What needs a network is imported when it is first used, so that the words of the fabric (`Message`,
the errors) cost nothing to a program that only speaks of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hedgerow import native as native  # first: it may have compiled modules imported
from hedgerow.errors import (
    ConfigError,
    ConnectError,
    HedgerowError,
    ProtocolError,
    RefusedError,
    StoreError,
    TopicError,
)
from hedgerow.message import Message, MessageId, Properties

if TYPE_CHECKING:
    from hedgerow.client.bus import Bus, Subscription
    from hedgerow.client.connect import connect
    from hedgerow.client.sync import SyncBus, SyncSubscription, connect_sync
    from hedgerow.client.transport import State, StateChange
    from hedgerow.serving import Node, serve

__all__ = [
    "Bus",
    "ConfigError",
    "ConnectError",
    "HedgerowError",
    "Message",
    "MessageId",
    "Node",
    "Properties",
    "ProtocolError",
    "RefusedError",
    "State",
    "StateChange",
    "StoreError",
    "Subscription",
    "SyncBus",
    "SyncSubscription",
    "TopicError",
    "connect",
    "connect_sync",
    "serve",
]

_LAZY = {
    "Bus": "hedgerow.client.bus",
    "Node": "hedgerow.serving",
    "State": "hedgerow.client.transport",
    "StateChange": "hedgerow.client.transport",
    "Subscription": "hedgerow.client.bus",
    "SyncBus": "hedgerow.client.sync",
    "SyncSubscription": "hedgerow.client.sync",
    "connect": "hedgerow.client.connect",
    "connect_sync": "hedgerow.client.sync",
    "serve": "hedgerow.serving",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value
