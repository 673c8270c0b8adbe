"""What a user can do at the dashboard: publish, clear a retained value, disconnect a client, command bridges.

An action is a function from what was asked to a line about what came of it; whether the request may act at
all (a log-in, its token) was decided before. Bridges and clients are for administrators. Publications are
for them too, and for whoever the ACL lets write the topic: as over MQTT, and with the same topics kept for
the broker's own parts. Every action is logged with the user's name, and so is one that is refused. A
section is never logged: it may hold a password.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hedgerow.bridges.commands import DELETE_BRIDGE, NEW_BRIDGE, RESULT
from hedgerow.bridges.section import read_section
from hedgerow.broker.port import Port
from hedgerow.errors import ConfigError, HedgerowError, TopicError, printable
from hedgerow.message import Message
from hedgerow.mqtt.reasons import Reason
from hedgerow.topics import validate_name
from hedgerow.web import view
from hedgerow.web.sessions import DashboardRefused

if TYPE_CHECKING:
    from hedgerow.node.part import NodeContext

logger = logging.getLogger(__name__)

ANSWER_S = 3.0  # for a bridge's command to be carried out and stored
MAX_LOGGED = 200  # characters of what somebody wrote
QUALITIES = {"0": 0, "1": 1, "2": 2}


@dataclass(frozen=True, slots=True)
class Asked:
    """Who asks for what, and from where."""

    node: NodeContext
    viewer: view.Viewer
    form: Mapping[str, str]
    address: str

    def value(self, name: str) -> str:
        """A field that must be there."""
        text = self.form.get(name, "").strip()
        if not text:
            raise ActionError(f"{name} is empty")
        return text


class ActionError(HedgerowError):
    """Nothing was done; the text says why."""


Action = Callable[[Asked], Awaitable[str]]


async def run(action: Action, asked: Asked) -> str:
    """Do it, log it, and say what came of it."""
    name = action.__name__.replace("_", " ")
    try:
        text = await action(asked)
    except HedgerowError as error:
        user, address = _who(asked)
        refused = DashboardRefused(address, f"{name}, {user} from {address}: refused: {_short(str(error))}")
        asked.node.event_log.write(refused, asked.node.clock())
        return f"Not done: {error}."
    logger.info("%s, %s from %s: %s", name, *_who(asked), _short(text))
    return f"{text}."


def _who(asked: Asked) -> tuple[str, str]:
    return repr(asked.viewer.user), asked.address


def _short(text: str) -> str:
    return printable(text[:MAX_LOGGED])


# Publications


async def publish(asked: Asked) -> str:
    topic = _writable_topic(asked)
    qos = QUALITIES.get(asked.form.get("qos", "0"))
    if qos is None:
        raise ActionError("the QoS is 0, 1 or 2")
    payload = asked.form.get("payload", "").encode(errors="replace")
    _publish(asked.node, Message(topic, payload, qos, asked.form.get("retain") == "1"))
    return f"Published {len(payload)} bytes to {topic}"


async def clear_retained(asked: Asked) -> str:
    topic = _writable_topic(asked)
    if asked.node.broker.retained.get(topic) is None:
        raise ActionError(f"{topic} has no retained value")
    _publish(asked.node, Message(topic, b"", 1, retain=True))
    return f"Cleared {topic}"


def _writable_topic(asked: Asked) -> str:
    topic = asked.form.get("topic", "")  # not stripped: blanks are part of a topic
    try:
        validate_name(topic)
    except TopicError as error:
        raise ActionError(str(error)) from None
    if topic.startswith("$") or asked.node.broker.is_reserved(topic):
        raise ActionError(f"{topic} is for the broker's own parts")
    if not (asked.viewer.is_administrator or asked.viewer.may_write(topic)):
        raise ActionError(f"you may not write {topic}")
    return topic


def _publish(node: NodeContext, message: Message) -> None:
    port = Port(node.broker, "dashboard", lambda _: None)
    try:
        if not port.publish(message, node.clock()):
            raise ActionError("there is no room for more retained messages")
    finally:
        port.close()
        node.flush()


# Clients


async def disconnect_client(asked: Asked) -> str:
    _need_administrator(asked)
    node, client_id = asked.node, asked.form.get("client_id", "")
    session = node.broker.sessions.get(client_id)
    if session is None or session.role.is_link:
        raise ActionError(f"there is no client {client_id}")
    if session.connection is None:
        raise ActionError(f"{client_id} is not connected")
    node.broker.now = node.clock()
    session.connection.disconnect(Reason.ADMINISTRATIVE_ACTION, "by an administrator")
    node.flush()
    return f"Disconnected {client_id}"


async def end_session(asked: Asked) -> str:
    """Of a client that is away: somebody else may need its identifier, or its room."""
    _need_administrator(asked)
    node, client_id = asked.node, asked.form.get("client_id", "")
    session = node.broker.sessions.get(client_id)
    if session is None or session.role.is_link or session.role.is_own:
        raise ActionError(f"there is no client {client_id}")
    if session.connection is not None:
        raise ActionError(f"{client_id} is connected: disconnect it first")
    node.broker.now = node.clock()
    node.broker.discard(session)
    node.flush()
    return f"Ended the session of {client_id}"


# Bridges


async def new_bridge(asked: Asked) -> str:
    _need_administrator(asked)
    text = asked.value("section").replace("\r\n", "\n")
    name = read_section(text).name
    return f"Bridge {name}: {await command_bridges(asked.node, NEW_BRIDGE, text)}"


async def delete_bridge(asked: Asked) -> str:
    _need_administrator(asked)
    name = asked.value("name")
    return f"Bridge {name}: {await command_bridges(asked.node, DELETE_BRIDGE, name)}"


def _need_administrator(asked: Asked) -> None:
    if not asked.viewer.is_administrator:
        raise ActionError("this is for administrators (access.administrators, --administrator USER)")


async def command_bridges(node: NodeContext, topic: str, text: str) -> str:
    """Give the node's bridges a command, as a client would; the reason in its answer. Raises ActionError."""
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    correlation = secrets.token_bytes(8)

    def hear(message: Message) -> None:
        if message.properties.get("correlation_data") == correlation and not answer.done():
            answer.set_result(message.payload)

    port = Port(node.broker, "dashboard", hear)
    try:
        port.subscribe(RESULT, node.clock())
        port.publish(Message(topic, text.encode(), 1, properties={"correlation_data": correlation}))
        node.flush()
        async with asyncio.timeout(ANSWER_S):
            outcome = json.loads(await answer)
    except TimeoutError:
        raise ActionError(f"no answer in {ANSWER_S:g} s: it may still be done") from None
    finally:
        port.close()
        node.flush()
    if outcome["ok"] is not True:
        raise ConfigError(str(outcome["reason"]))
    return str(outcome["reason"])


ACTIONS: dict[str, Action] = {
    view.PUBLISH: publish,
    view.CLEAR_RETAINED: clear_retained,
    view.DISCONNECT_CLIENT: disconnect_client,
    view.END_SESSION: end_session,
    view.NEW_BRIDGE: new_bridge,
    view.DELETE_BRIDGE: delete_bridge,
}
