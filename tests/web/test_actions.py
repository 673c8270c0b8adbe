"""What can be done at the dashboard: by whom, and that every other way is refused and changes nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

import pytest

from hedgerow.bridges.part import BridgesPart
from hedgerow.message import Properties
from hedgerow.mqtt.packets import Disconnect, Publish, Suback, Subscribe, Subscription
from hedgerow.mqtt.reasons import Reason
from hedgerow.web import view
from hedgerow.web.actions import ACTIONS
from tests.node.peers import connected, part_of, port_of
from tests.waiting import until
from tests.web.browser import PASSWORD, showing, with_users

ACL = """
user anna
topic readwrite farm/#
topic read $hedgerow/status/#
user boss
topic read farm/#
"""
AS_ANNA = {"username": "anna", "password": PASSWORD.encode()}


async def test_publish_reaches_subscribers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with (
        showing(**with_users(tmp_path, "anna", acl=ACL)) as shown,
        connected(port_of(shown.server), "client", **AS_ANNA) as client,
    ):
        client.send(Subscribe(1, [Subscription("farm/#", 1)]))
        assert isinstance(await client.receive(), Suback)
        anna = await shown.browser_of("anna")
        notice = await anna.act(view.PUBLISH, topic="farm/Stall 1", payload="warm ☀", qos="1")
        assert notice == "Published 8 bytes to farm/Stall 1."
        message = await client.receive()
        assert isinstance(message, Publish)
        assert (message.topic, message.payload, message.qos) == ("farm/Stall 1", "warm ☀".encode(), 1)
        assert "publish, 'anna' from 127.0.0.1: Published 8 bytes to farm/Stall 1" in caplog.text
        # Said once.
        assert "Published" not in (await anna.get("/")).text


async def test_a_retained_value_is_set_and_cleared(tmp_path: Path) -> None:
    async with showing(**with_users(tmp_path, "anna", acl=ACL)) as shown:
        anna, retained = await shown.browser_of("anna"), shown.server.broker.retained
        await anna.act(view.PUBLISH, topic="farm/a", payload="1", qos="1", retain="1")
        assert (value := retained.get("farm/a")) is not None
        assert value.payload == b"1"
        assert await anna.act(view.CLEAR_RETAINED, "/retained", topic="farm/a") == "Cleared farm/a."
        assert retained.get("farm/a") is None
        notice = await anna.act(view.CLEAR_RETAINED, topic="farm/a")
        assert notice == "Not done: farm/a has no retained value."


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"topic": "house/a"}, "you may not write house/a"),
        ({"topic": "$SYS/broker/bridge/new", "payload": "connection x"}, "the broker's own parts"),
        ({"topic": "$hedgerow/status/x"}, "the broker's own parts"),
        ({"topic": "farm/#"}, "wildcard"),
        ({"topic": ""}, "at least one character"),
        ({}, "at least one character"),
        ({"topic": "farm/a", "qos": "3"}, "QoS"),
    ],
)
async def test_what_may_not_be_published_is_not(tmp_path: Path, fields: dict[str, str], reason: str) -> None:
    async with showing(**with_users(tmp_path, "anna", acl=ACL)) as shown:
        anna = await shown.browser_of("anna")
        before = shown.server.broker.stats.publish_received
        notice = await anna.act(view.PUBLISH, **fields)
        assert notice.startswith("Not done: ")
        assert reason in notice
        assert shown.server.broker.stats.publish_received == before


async def test_administrators_may_publish_where_the_acl_has_nothing_for_them(tmp_path: Path) -> None:
    users = with_users(tmp_path, "boss", acl=ACL, administrators=("boss",))
    async with showing(**users) as shown:
        boss = await shown.browser_of("boss")
        assert (await boss.act(view.PUBLISH, topic="farm/a")).startswith("Published")


async def test_a_client_is_disconnected_by_administrators_alone(tmp_path: Path) -> None:
    users = with_users(tmp_path, "anna", "boss", acl=ACL, administrators=("boss",))
    async with (
        showing(**users) as shown,
        connected(port_of(shown.server), "client <1>", **AS_ANNA) as client,
    ):
        anna, boss = await shown.browser_of("anna"), await shown.browser_of("boss")
        assert "for administrators" in await anna.act(view.DISCONNECT_CLIENT, client_id="client <1>")
        assert shown.server.broker.client_count == 1
        notice = await boss.act(view.DISCONNECT_CLIENT, "/clients", client_id="client <1>")
        assert notice == "Disconnected client <1>."
        answer = await client.receive()
        assert isinstance(answer, Disconnect)
        assert answer.reason_code == Reason.ADMINISTRATIVE_ACTION
        assert "there is no client" in await boss.act(view.DISCONNECT_CLIENT, client_id="nobody")


async def test_the_session_of_a_client_that_is_away_is_ended_by_administrators_alone(tmp_path: Path) -> None:
    users = with_users(tmp_path, "anna", "boss", acl=ACL, administrators=("boss",))
    kept: Properties = {"session_expiry_interval": 3_600}
    async with showing(**users) as shown:
        anna, boss = await shown.browser_of("anna"), await shown.browser_of("boss")
        async with connected(port_of(shown.server), "away", properties=kept, **AS_ANNA):
            assert "disconnect it first" in await boss.act(view.END_SESSION, client_id="away")
        await until(lambda: not shown.server.broker.client_count, "the client to be away")
        assert "for administrators" in await anna.act(view.END_SESSION, client_id="away")
        assert await boss.act(view.END_SESSION, "/clients", client_id="away") == "Ended the session of away."
        assert "away" not in shown.server.broker.sessions


async def test_a_client_that_gives_ids_is_disconnected_as_any_other(tmp_path: Path) -> None:
    users = with_users(tmp_path, "boss", administrators=("boss",))
    said: Properties = {"user_property": (("hedgerow-node", "press-4"),)}
    as_boss = {"username": "boss", "password": PASSWORD.encode()}
    async with (
        showing(**users) as shown,
        connected(port_of(shown.server), "press", properties=said, **as_boss) as client,
    ):
        boss = await shown.browser_of("boss")
        assert await boss.act(view.DISCONNECT_CLIENT, client_id="press") == "Disconnected press."
        assert isinstance(await client.receive(), Disconnect)


async def test_bridges_are_made_and_ended_by_administrators_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    lines = ["connection north", "address 127.0.0.1:1", "topic # both 1"]
    lines += ["remote_username u", "remote_password pw-1"]
    section = "\r\n".join(lines)
    users = with_users(tmp_path, "anna", "boss", administrators=("boss",))
    async with showing(**users) as shown:
        anna, boss = await shown.browser_of("anna"), await shown.browser_of("boss")
        bridges = part_of(shown.server, BridgesPart).bridges
        assert "for administrators" in await anna.act(view.NEW_BRIDGE, section=section)
        assert "north" not in bridges
        assert await boss.act(view.NEW_BRIDGE, "/links", section=section) == "Bridge north: created."
        assert "north" in bridges
        assert "for administrators" in await anna.act(view.DELETE_BRIDGE, name="north")
        assert await boss.act(view.DELETE_BRIDGE, "/links", name="north") == "Bridge north: deleted."
        assert "north" not in bridges
        assert (await boss.act(view.DELETE_BRIDGE, name="north")).startswith("Not done: ")
        assert (await boss.act(view.NEW_BRIDGE, section="address nowhere")).startswith("Not done: ")
        assert await boss.act(view.NEW_BRIDGE, section=" ") == "Not done: section is empty."
        assert "pw-1" not in caplog.text
        assert "new bridge, 'boss' from 127.0.0.1" in caplog.text
        # Those who asked are gone: nobody listens for answers any more.
        assert "$SYS/broker/bridge/result" not in shown.server.broker.subscriptions.local.counts


@pytest.mark.parametrize("path", ACTIONS)
@pytest.mark.parametrize(
    "spoil", [lambda form: form.pop("token"), lambda form: form.update(token="0" * 64)], ids=["none", "wrong"]
)
async def test_nothing_is_done_without_the_sessions_token(
    tmp_path: Path, path: str, spoil: Callable[[dict[str, str]], object]
) -> None:
    users = with_users(tmp_path, "boss", administrators=("boss",))
    async with (
        showing(**users) as shown,
        connected(port_of(shown.server), "client", username="boss", password=PASSWORD.encode()),
    ):
        boss = await shown.browser_of("boss")
        form = {
            "token": (await boss.get("/")).field("token"),
            "topic": "a",
            "payload": "x",
            "client_id": "client",
            "name": "north",
            "section": "connection north\naddress 127.0.0.1:1\ntopic #",
        }
        spoil(form)
        before = shown.server.broker.stats.publish_received
        assert (await boss.post(path, form)).status == HTTPStatus.FORBIDDEN
        assert shown.server.broker.stats.publish_received == before
        assert shown.server.broker.client_count == 1


async def test_the_token_of_another_session_is_none(tmp_path: Path) -> None:
    async with showing(**with_users(tmp_path, "anna", "ben")) as shown:
        anna, ben = await shown.browser_of("anna"), await shown.browser_of("ben")
        token = (await ben.get("/")).field("token")
        answer = await anna.post(view.PUBLISH, {"token": token, "topic": "a"})
        assert answer.status == HTTPStatus.FORBIDDEN


@pytest.mark.parametrize("path", ACTIONS)
async def test_actions_are_no_links_and_need_a_log_in(tmp_path: Path, path: str) -> None:
    async with showing(**with_users(tmp_path, "anna")) as shown:
        anna = await shown.browser_of("anna")
        assert (await anna.get(path)).status == HTTPStatus.METHOD_NOT_ALLOWED
        answer = await shown.browser().post(path, {"topic": "a"})
        assert answer.status == HTTPStatus.SEE_OTHER
        assert answer.headers["location"].startswith("/login")
