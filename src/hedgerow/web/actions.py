"""What a user can do at the dashboard: publish, clear a retained value, disconnect a client, command bridges.

An action is a function from what was asked to a line about what came of it; whether the request may act at
all (a log-in, its token) was decided before. Bridges and clients are for administrators. Publications are
for them too, and for whoever the ACL lets write the topic: as over MQTT, and with the same topics kept for
the broker's own parts. Every action is logged with the user's name, and so is one that is refused. A
section is never logged: it may hold a password.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hedgerow.bridges.commands import DELETE_BRIDGE, NEW_BRIDGE
from hedgerow.bridges.io.commanding import command_bridges
from hedgerow.bridges.section import read_section
from hedgerow.errors import HedgerowError, printable
from hedgerow.message import Message
from hedgerow.node import acts
from hedgerow.web import view
from hedgerow.web.sessions import DashboardRefused

if TYPE_CHECKING:
    from hedgerow.node.part import NodeContext

logger = logging.getLogger(__name__)

BY = "dashboard"  # as which the log knows what is published this way
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
    message = Message(topic, payload, qos, asked.form.get("retain") == "1")
    await acts.publish(asked.node, message, BY, asked.viewer.user, asked.address)
    return f"Published {len(payload)} bytes to {topic}"


async def clear_retained(asked: Asked) -> str:
    topic = _writable_topic(asked)
    await acts.clear_retained(asked.node, topic, BY, asked.viewer.user, asked.address)
    return f"Cleared {topic}"


def _writable_topic(asked: Asked) -> str:
    topic = asked.form.get("topic", "")  # not stripped: blanks are part of a topic
    viewer = asked.viewer
    acts.check_topic(asked.node, topic, lambda topic: viewer.is_administrator or viewer.may_write(topic))
    return topic


# Clients


async def disconnect_client(asked: Asked) -> str:
    _need_administrator(asked)
    client_id = asked.form.get("client_id", "")
    acts.disconnect_client(asked.node, client_id)
    return f"Disconnected {client_id}"


async def end_session(asked: Asked) -> str:
    """Of a client that is away: somebody else may need its identifier, or its room."""
    _need_administrator(asked)
    client_id = asked.form.get("client_id", "")
    acts.end_session(asked.node, client_id)
    return f"Ended the session of {client_id}"


# Bridges


async def new_bridge(asked: Asked) -> str:
    _need_administrator(asked)
    text = asked.value("section").replace("\r\n", "\n")
    name = read_section(text).name
    return f"Bridge {name}: {await command_bridges(asked.node, BY, NEW_BRIDGE, text)}"


async def delete_bridge(asked: Asked) -> str:
    _need_administrator(asked)
    name = asked.value("name")
    return f"Bridge {name}: {await command_bridges(asked.node, BY, DELETE_BRIDGE, name)}"


def _need_administrator(asked: Asked) -> None:
    if not asked.viewer.is_administrator:
        raise ActionError("this is for administrators (access.administrators, --administrator USER)")


ACTIONS: dict[str, Action] = {
    view.PUBLISH: publish,
    view.CLEAR_RETAINED: clear_retained,
    view.DISCONNECT_CLIENT: disconnect_client,
    view.END_SESSION: end_session,
    view.NEW_BRIDGE: new_bridge,
    view.DELETE_BRIDGE: delete_bridge,
}
