"""Commands to a node's bridges from its own parts: as a client would give them, with the answer."""

from __future__ import annotations

import asyncio
import json
import secrets
from http import HTTPStatus
from typing import TYPE_CHECKING

from hedgerow.bridges.commands import RESULT
from hedgerow.broker.port import Port
from hedgerow.errors import ConfigError
from hedgerow.message import Message
from hedgerow.node.api import ApiError

if TYPE_CHECKING:
    from hedgerow.node.part import NodeContext

ANSWER_S = 3.0  # for a command to be carried out and stored


async def command_bridges(node: NodeContext, by: str, topic: str, text: str) -> str:
    """Give the node's bridges a command; the reason in its answer. Raises ConfigError, or ApiError where
    there is
    no answer. `by`: what the log calls whoever gives it."""
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    correlation = secrets.token_bytes(8)

    def hear(message: Message) -> None:
        if message.properties.get("correlation_data") == correlation and not answer.done():
            answer.set_result(message.payload)

    port = Port(node.broker, by, hear)
    try:
        port.subscribe(RESULT, node.clock())
        port.publish(Message(topic, text.encode(), 1, properties={"correlation_data": correlation}))
        node.flush()
        async with asyncio.timeout(ANSWER_S):
            outcome = json.loads(await answer)
    except TimeoutError:
        reason = f"no answer in {ANSWER_S:g} s: it may still be done"
        raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, reason) from None
    finally:
        port.close()
        node.flush()
    if outcome["ok"] is not True:
        raise ConfigError(str(outcome["reason"]))
    return str(outcome["reason"])
