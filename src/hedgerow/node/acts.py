"""What people do at a node over HTTP, whichever way they ask: publish, clear, disconnect, end a session.

Who may do it was decided before, but for what no client of MQTT may do either. All raise `ApiError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from math import ceil
from typing import TYPE_CHECKING

from hedgerow.broker.owners import owner_of
from hedgerow.broker.port import Port
from hedgerow.errors import TopicError
from hedgerow.message import Message
from hedgerow.mqtt.reasons import Reason
from hedgerow.node.api import ApiError
from hedgerow.topics import validate_name

if TYPE_CHECKING:
    from hedgerow.broker.session import Session
    from hedgerow.node.part import NodeContext

HEAD_BYTES = 16  # of a PUBLISH, beside topic, payload and properties


class ActingPort(Port):
    """Of somebody who publishes over HTTP: it takes room of what this owner may take, as a client's would."""

    def __init__(self, node: NodeContext, name: str, owner: str | None) -> None:
        super().__init__(node.broker, name, _nothing)
        self.share = owner


def check_topic(node: NodeContext, topic: str, may_write: Callable[[str], bool]) -> None:
    """May somebody publish there, who may write what `may_write` says?"""
    try:
        validate_name(topic)
    except TopicError as error:
        raise ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from None
    broker = node.broker
    if topic.startswith("$") or topic in broker.commands or broker.is_reserved(topic):
        raise ApiError(HTTPStatus.FORBIDDEN, f"{topic} is for the broker's own parts")
    if not may_write(topic):
        raise ApiError(HTTPStatus.FORBIDDEN, f"you may not write {topic}")


async def publish(node: NodeContext, message: Message, by: str, user: str | None, address: str) -> None:
    """`by`: what the log calls this way. Returns when a client would have had its acknowledgement."""
    config, broker = node.config, node.broker
    broker.now = node.clock()
    if message.qos > config.maximum_qos:
        raise ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, f"QoS {message.qos} is not taken here")
    if message.retain and not config.retain_available:
        raise ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, "retained messages are not taken here")
    if message.size + HEAD_BYTES > config.limits.packet_bytes:
        reason = f"more than {config.limits.packet_bytes} bytes (limits.packet_bytes)"
        raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
    wait_s = max(part.publication_wait_s(user, address, message.size) for part in node.parts)
    if wait_s:
        wait = {"Retry-After": str(ceil(wait_s))}
        raise ApiError(HTTPStatus.TOO_MANY_REQUESTS, "more than your quota allows", wait)
    port = ActingPort(node, by, owner_of(user, address))
    try:
        if message.qos:
            _check_room(node, port, message)
        if not port.publish(message):
            raise ApiError(HTTPStatus.INSUFFICIENT_STORAGE, "there is no room for more retained messages")
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if message.qos and broker.durability.enabled:
            broker.durability.when_committed(partial(_settle, stored), port.share)
        else:
            stored.set_result(None)
    finally:
        port.close()
        node.flush()
    await stored


def _settle(stored: asyncio.Future[None]) -> None:
    if not stored.done():  # Whoever asked may have hung up.
        stored.set_result(None)


def _check_room(node: NodeContext, port: ActingPort, message: Message) -> None:
    """As a client at QoS 1 or 2, who is not acknowledged before there is."""
    durability = node.broker.durability
    has_room = durability.takes_publications(node.clock()) and durability.takes_from(port.share)
    if not (has_room and port.has_room_for(message)):
        raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "too much waits until the disk takes more")


async def clear_retained(node: NodeContext, topic: str, by: str, user: str | None, address: str) -> None:
    if node.broker.retained.get(topic) is None:
        raise ApiError(HTTPStatus.NOT_FOUND, f"{topic} has no retained value")
    await publish(node, Message(topic, b"", min(1, node.config.maximum_qos), retain=True), by, user, address)


def disconnect_client(node: NodeContext, client_id: str) -> None:
    session = find_client(node, client_id)
    if session.connection is None:
        raise ApiError(HTTPStatus.CONFLICT, f"{client_id} is not connected")
    node.broker.now = node.clock()
    session.connection.disconnect(Reason.ADMINISTRATIVE_ACTION, "by an administrator")
    node.flush()


def end_session(node: NodeContext, client_id: str) -> None:
    """Of a client that is away: somebody else may need its identifier, or its room."""
    session = find_client(node, client_id)
    if session.connection is not None:
        raise ApiError(HTTPStatus.CONFLICT, f"{client_id} is connected: disconnect it first")
    node.broker.now = node.clock()
    node.broker.discard(session)
    node.flush()


def find_client(node: NodeContext, client_id: str) -> Session:
    session = node.broker.sessions.get(client_id)
    if session is None or session.role.is_link or session.role.is_own:
        raise ApiError(HTTPStatus.NOT_FOUND, f"there is no client {client_id}")
    return session


def _nothing(message: Message) -> None:
    pass
