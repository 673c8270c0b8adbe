"""What the node itself has to show and do: nodes, clients, sessions, subscriptions, messages.

Each function is given a `Call` that was checked. What a caller sees is what it would see over MQTT and at the
dashboard: `LocalRows` decides.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from hedgerow.errors import TopicError
from hedgerow.message import Message, Properties
from hedgerow.node import acts
from hedgerow.node.api import (
    CLIENTS,
    DONE,
    PUBLISH,
    READ,
    ApiError,
    ApiRoute,
    Call,
    Parameter,
    page_of,
    text,
    yes_no,
)
from hedgerow.topics import validate_name
from hedgerow.web.api import schemas
from hedgerow.web.api.paging import PAGE, Key, page
from hedgerow.web.api.rows import client_row, node_row, retained_row, session_row
from hedgerow.web.local import LocalRows, SomeFilters, topic_test
from hedgerow.web.view import MAX_FILTER, MAX_SEARCH, SubscriptionRow, Viewer

if TYPE_CHECKING:
    from hedgerow.broker.session import Session
    from hedgerow.node.part import NodeContext
    from hedgerow.web.fabric import Fabric

BY = "api"  # as which the log knows what is published this way
SEARCH = Parameter("search", text(maxLength=MAX_SEARCH), "A part of the client id, in any case.")
CLIENT_ID = {"client_id": "The client identifier."}
TOPIC = {"topic": "The topic, with `/` as `%2F`."}
NODE_ID = {"node_id": "The id of a node."}


def node_routes(node: NodeContext, look: Callable[[], Fabric]) -> Sequence[ApiRoute]:
    """`look` is called by whoever wants to know of the whole fabric."""
    return (
        ApiRoute(
            "GET", "/nodes", READ, "All nodes that are heard, as their statuses tell.",
            partial(list_nodes, node, look), page_of(schemas.NODE), PAGE,
        ),
        ApiRoute(
            "GET", "/nodes/{node_id}", READ, "One node.",
            partial(show_node, node, look), schemas.NODE, names=NODE_ID,
        ),
        ApiRoute(
            "GET", "/clients", READ,
            "Clients that are connected to this node; how many others have is in `/nodes`.",
            partial(list_clients, node), page_of(schemas.CLIENT), (*PAGE, SEARCH),
        ),
        ApiRoute(
            "GET", "/clients/{client_id}", READ, "One client.",
            partial(show_client, node), schemas.CLIENT, names=CLIENT_ID,
        ),
        ApiRoute(
            "DELETE", "/clients/{client_id}", CLIENTS,
            "Disconnect a client; its session stays for as long as it asked.",
            partial(disconnect_client, node), DONE, names=CLIENT_ID,
        ),
        ApiRoute(
            "GET", "/sessions", READ, "Sessions at this node, with or without a connection.",
            partial(list_sessions, node), page_of(schemas.SESSION),
            (*PAGE, SEARCH, Parameter("is_connected", yes_no(), "Only those that are, or are not.")),
        ),
        ApiRoute(
            "GET", "/sessions/{client_id}", READ, "One session.",
            partial(show_session, node), schemas.SESSION, names=CLIENT_ID,
        ),
        ApiRoute(
            "DELETE", "/sessions/{client_id}", CLIENTS,
            "End the session of a client that is not connected, with all that waits for it.",
            partial(end_session, node), DONE, names=CLIENT_ID,
        ),
        ApiRoute(
            "GET", "/subscriptions", READ, "What the clients of this node subscribe to.",
            partial(list_subscriptions, node), page_of(schemas.SUBSCRIPTION),
            (*PAGE, Parameter("search", SEARCH.schema, "A part of client id or filter, in any case.")),
        ),
        ApiRoute(
            "GET", "/retained", READ, "Retained messages.",
            partial(list_retained, node), page_of(schemas.RETAINED),
            (*PAGE, Parameter("filter", text(maxLength=MAX_FILTER), "A filter, or a part of a topic.")),
        ),
        ApiRoute(
            "GET", "/retained/{topic}", READ, "The retained message of a topic.",
            partial(show_retained, node), schemas.RETAINED, names=TOPIC,
        ),
        ApiRoute(
            "DELETE", "/retained/{topic}", PUBLISH, "Clear the retained message of a topic.",
            partial(clear_retained, node), DONE, names=TOPIC,
        ),
        ApiRoute(
            "POST", "/publish", PUBLISH,
            "Publish a message; answered when a client would have its acknowledgement.",
            partial(publish, node), DONE, body=schemas.PUBLICATION,
        ),
    )  # fmt: skip


# Nodes


async def list_nodes(node: NodeContext, look: Callable[[], Fabric], call: Call) -> Any:
    now = node.clock()
    visible = look().visible(call.caller.may_read)
    return await page(call, visible, lambda each: [((each.node_id,), partial(node_row, each, now))])


def show_node(node: NodeContext, look: Callable[[], Fabric], call: Call) -> Any:
    wanted = call.path["node_id"]
    for each in look().visible(call.caller.may_read):
        if each.node_id == wanted:
            return node_row(each, node.clock())
    raise ApiError(HTTPStatus.NOT_FOUND, f"no node {wanted} is heard")


# Clients and sessions


def local_rows(node: NodeContext, call: Call) -> LocalRows:
    caller = call.caller
    viewer = Viewer(
        caller.user,
        may_read=caller.may_read,
        may_write=caller.may_write,
        sees_clients=caller.sees_all_clients,
    )
    return LocalRows(node, viewer)


async def list_clients(node: NodeContext, call: Call) -> Any:
    rows, wanted = local_rows(node, call), call.query.get("search", "").casefold()

    def find(session: Session) -> Iterable[tuple[Key, Any]]:
        if session.connection is not None and rows.find_client(session, wanted):
            yield (session.client_id,), partial(client_row, session)

    return await page(call, rows.sessions(), find)


async def list_sessions(node: NodeContext, call: Call) -> Any:
    rows, wanted = local_rows(node, call), call.query.get("search", "").casefold()
    connected = call.query.get("is_connected")

    def find(session: Session) -> Iterable[tuple[Key, Any]]:
        is_wanted = connected is None or connected is (session.connection is not None)
        if is_wanted and rows.find_client(session, wanted):
            yield (session.client_id,), partial(session_row, session)

    return await page(call, rows.sessions(), find)


def show_client(node: NodeContext, call: Call) -> Any:
    session = _find_session(node, call)
    if session.connection is None:
        raise ApiError(HTTPStatus.NOT_FOUND, f"{session.client_id} is not connected")
    return client_row(session)


def show_session(node: NodeContext, call: Call) -> Any:
    return session_row(_find_session(node, call))


def _find_session(node: NodeContext, call: Call) -> Session:
    session = acts.find_client(node, call.path["client_id"])
    if not local_rows(node, call).find_client(session, ""):
        raise ApiError(HTTPStatus.NOT_FOUND, f"there is no client {session.client_id}")
    return session


def disconnect_client(node: NodeContext, call: Call) -> Any:
    acts.disconnect_client(node, call.path["client_id"])
    return {"done": f"disconnected {call.path['client_id']}"}


def end_session(node: NodeContext, call: Call) -> Any:
    acts.end_session(node, call.path["client_id"])
    return {"done": f"ended the session of {call.path['client_id']}"}


async def list_subscriptions(node: NodeContext, call: Call) -> Any:
    rows, wanted = local_rows(node, call), call.query.get("search", "").casefold()

    def find(some: SomeFilters) -> Iterable[tuple[Key, Any]]:
        for row in rows.find_subscriptions(*some, wanted):
            yield (row.client_id, row.filter, row.shared), partial(_subscription, row)

    return await page(call, rows.some_filters(), find)


def _subscription(row: SubscriptionRow) -> dict[str, Any]:
    return {
        "client_id": row.client_id,
        "filter": row.filter,
        "qos": row.qos,
        "shared": row.shared or None,
    }


# Messages


async def list_retained(node: NodeContext, call: Call) -> Any:
    rows, is_wanted = local_rows(node, call), topic_test(call.query.get("filter", ""))
    now = node.clock()

    def find(message: Message) -> Iterable[tuple[Key, Any]]:
        if rows.find_retained(message, is_wanted):
            yield (message.topic,), partial(retained_row, message, now)

    return await page(call, list(node.broker.retained), find)


def show_retained(node: NodeContext, call: Call) -> Any:
    topic = call.path["topic"]
    message = node.broker.retained.get(topic)
    if message is None or not local_rows(node, call).find_retained(message, lambda topic: True):
        raise ApiError(HTTPStatus.NOT_FOUND, f"{topic} has no retained message that you may read")
    return retained_row(message, node.clock())


async def clear_retained(node: NodeContext, call: Call) -> Any:
    topic, caller = call.path["topic"], call.caller
    acts.check_topic(node, topic, caller.may_write)
    await acts.clear_retained(node, topic, BY, caller.user, caller.address)
    return {"done": f"cleared {topic}"}


async def publish(node: NodeContext, call: Call) -> Any:
    body, caller = call.body, call.caller
    acts.check_topic(node, body["topic"], caller.may_write)
    message = Message(
        body["topic"], _payload(body), body.get("qos", 0), body.get("retain", False), _properties(body)
    )
    await acts.publish(node, message, BY, caller.user, caller.address)
    return {"done": f"published {len(message.payload)} bytes to {message.topic}"}


def _payload(body: dict[str, Any]) -> bytes:
    if "payload" in body and "payload_base64" in body:
        raise ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, "either payload or payload_base64")
    try:
        return (
            b64decode(body.get("payload_base64", ""), validate=True) or str(body.get("payload", "")).encode()
        )
    except ValueError:
        raise ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, "payload_base64 is not base64") from None


def _properties(body: dict[str, Any]) -> Properties:
    """As a client of MQTT 5 could have them, each text in as many bytes as there are room for."""
    properties: Properties = {}
    if "content_type" in body:
        properties["content_type"] = _fitting("content_type", body["content_type"])
    if "response_topic" in body:
        try:
            properties["response_topic"] = validate_name(body["response_topic"])
        except TopicError as error:
            raise ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, f"response_topic: {error}") from None
    if "message_expiry_interval" in body:
        properties["message_expiry_interval"] = body["message_expiry_interval"]
    pairs = tuple(
        (_fitting("user_properties", name), _fitting("user_properties", value))
        for name, value in body.get("user_properties", ())
    )
    if pairs:
        properties["user_property"] = pairs
    return properties


def _fitting(name: str, value: str) -> str:
    if "\0" in value or len(value.encode()) > schemas.MAX_NAME:
        reason = f"{name}: a text of more than {schemas.MAX_NAME} bytes, or with U+0000 [MQTT-1.5.4-2]"
        raise ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, reason)
    return value
