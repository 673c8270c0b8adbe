"""What the API shows and does."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from hedgerow.journal.config import JournalConfig
from hedgerow.mqtt.packets import Disconnect, Publish, Subscribe, Subscription
from hedgerow.mqtt.reasons import Reason
from hedgerow.node.api import ADMIN
from hedgerow.node.passwords import list_users
from tests.node.peers import LOOPBACK, connected, port_of
from tests.waiting import until
from tests.web.api.asking import Asker, with_tokens
from tests.web.browser import PASSWORD, Shown, showing, with_users

AWAY = {"session_expiry_interval": 600}


def an_administrator(tmp_path: Path) -> tuple[Any, dict[str, str]]:
    return with_tokens(tmp_path, admin=ADMIN)


def port(shown: Shown) -> int:
    return port_of(shown.server)


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_publish_reaches_subscribers(tmp_path: Path, qos: int) -> None:
    settings, said = an_administrator(tmp_path)
    async with showing(settings, data=tmp_path / "data") as shown, connected(port(shown), "c") as client:
        client.send(Subscribe(1, [Subscription("farm/#", 2)]))
        await client.receive()
        asker = Asker(shown.server, said["admin"])
        body = {
            "topic": "farm/a",
            "payload_base64": b64encode(b"\xff").decode(),
            "qos": qos,
            "content_type": "x/y",
            "user_properties": [["a", "1"], ["a", "2"]],
        }
        told = await asker.ask("POST", "/publish", body)
        assert told.body == {"done": "published 1 bytes to farm/a"}
        message = await client.receive()
        assert isinstance(message, Publish)
        assert (message.topic, message.payload, message.qos) == ("farm/a", b"\xff", qos)
        assert message.properties["content_type"] == "x/y"
        assert message.properties["user_property"] == (("a", "1"), ("a", "2"))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"topic": "$SYS/broker/bridge/new", "payload": "connection x"}, 403),
        ({"topic": "$hedgerow/status/x"}, 403),
        ({"topic": "a/#"}, 422),
        ({"topic": "a\0"}, 422),
        ({"topic": "\ud800"}, 422),
        ({"topic": "a", "qos": 3}, 422),
        ({"topic": "a", "payload": "1", "payload_base64": "MQ=="}, 422),
        ({"topic": "a", "payload_base64": "?"}, 422),
        ({"topic": "a", "colour": "red"}, 422),
        ({"topic": "a", "response_topic": "+"}, 422),
        ({"topic": "a", "content_type": "é" * 40_000}, 422),
        ([], 422),
        (b"{", 400),
        (b'{"topic": NaN}', 400),
        (b"[" * 60_000, 400),
    ],
)
async def test_what_mqtt_would_not_take_is_refused(tmp_path: Path, body: object, status: int) -> None:
    settings, said = an_administrator(tmp_path)
    async with showing(settings) as shown:
        before = shown.server.broker.stats.publish_received
        told = await Asker(shown.server, said["admin"]).ask("POST", "/publish", body)
        assert told.status == status, told
        assert shown.server.broker.stats.publish_received == before


async def test_what_a_node_does_not_offer_is_refused(tmp_path: Path) -> None:
    settings, said = an_administrator(tmp_path)
    async with showing(settings, maximum_qos=0, retain_available=False) as shown:
        asker = Asker(shown.server, said["admin"])
        assert (await asker.ask("POST", "/publish", {"topic": "a", "qos": 1})).status == 422
        assert (await asker.ask("POST", "/publish", {"topic": "a", "retain": True})).status == 422


async def test_clients_are_shown_disconnected_and_forgotten(tmp_path: Path) -> None:
    settings, said = an_administrator(tmp_path)
    async with showing(settings) as shown:
        asker = Asker(shown.server, said["admin"])
        async with connected(port(shown), "phone/7", properties=AWAY) as client:
            client.send(Subscribe(1, [Subscription("farm/+", 1)]))
            await client.receive()
            assert [each["client_id"] for each in (await asker.get("/clients"))["items"]] == ["phone/7"]
            assert (await asker.get("/clients/phone%2F7"))["subscriptions"] == 1
            assert (await asker.get("/subscriptions"))["items"] == [
                {"client_id": "phone/7", "filter": "farm/+", "qos": 1, "shared": None}
            ]
            assert (await asker.ask("DELETE", "/sessions/phone%2F7")).status == 409
            assert (await asker.ask("DELETE", "/clients/phone%2F7")).status == 200
            assert await client.receive() == Disconnect(
                Reason.ADMINISTRATIVE_ACTION, {"reason_string": "by an administrator"}
            )
        assert (await asker.get("/clients"))["items"] == []
        (session,) = (await asker.get("/sessions?is_connected=false"))["items"]
        assert session["client_id"] == "phone/7"
        assert (await asker.ask("DELETE", "/sessions/phone%2F7")).status == 200
        assert (await asker.ask("GET", "/sessions/phone%2F7")).status == 404


async def test_lists_come_page_by_page(tmp_path: Path) -> None:
    settings, said = an_administrator(tmp_path)
    async with showing(settings) as shown:
        asker, topics = Asker(shown.server, said["admin"]), [f"farm/{number:03}" for number in range(25)]
        for topic in reversed(topics):
            await asker.ask("POST", "/publish", {"topic": topic, "payload": topic, "retain": True})
        found = await asker.all_of("/retained?filter=farm/%23", 10)
        assert [each["topic"] for each in found] == topics
        assert (await asker.ask("GET", "/retained?after=nonsense")).status == 400
        assert (await asker.ask("GET", "/retained?limit=0")).status == 400
        assert (await asker.ask("GET", "/retained?colour=red")).status == 400
        assert (await asker.ask("DELETE", "/retained/farm%2F000")).status == 200
        assert (await asker.ask("GET", "/retained/farm%2F000")).status == 404


async def test_users_are_added_changed_and_removed(tmp_path: Path) -> None:
    settings, said = an_administrator(tmp_path)
    users = with_users(tmp_path, "anna", administrators=("anna",))
    async with showing(settings, **users) as shown:
        asker, file = Asker(shown.server, said["admin"]), users["passwords"]
        assert (await asker.ask("POST", "/users", {"name": "bert", "password": "b"})).status == 201
        assert (await asker.ask("POST", "/users", {"name": "bert", "password": "c"})).status == 409
        assert (await asker.ask("POST", "/users", {"name": "a:b", "password": "c"})).status == 422
        as_bert = {"username": "bert", "password": b"b"}
        async with connected(port(shown), "phone", **as_bert) as phone:
            assert (await asker.ask("PATCH", "/users/bert", {"is_enabled": False})).status == 200
            goodbye = await phone.receive()
            assert isinstance(goodbye, Disconnect)
            assert goodbye.reason_code == Reason.NOT_AUTHORIZED
        assert (await asker.get("/users"))["items"] == [
            {"name": "anna", "is_enabled": True, "is_administrator": True},
            {"name": "bert", "is_enabled": False, "is_administrator": False},
        ]
        assert (await asker.ask("PATCH", "/users/bert", {"is_enabled": True, "password": "d"})).status == 200
        async with connected(port(shown), "phone", username="bert", password=b"d"):
            pass
        assert (await asker.ask("DELETE", "/users/bert")).status == 200
        assert (await asker.ask("DELETE", "/users/bert")).status == 404
        assert [user.name for user in list_users(file)] == ["anna"]


async def test_users_cannot_be_made_administrators_without_being_one(tmp_path: Path) -> None:
    settings, said = with_tokens(tmp_path, users="users")
    users = with_users(tmp_path, "anna", administrators=("anna", "boss"))
    async with showing(settings, **users) as shown:
        asker = Asker(shown.server, said["users"])
        assert (await asker.ask("PATCH", "/users/anna", {"password": "mine"})).status == 403
        assert (await asker.ask("POST", "/users", {"name": "boss", "password": "mine"})).status == 403
        assert (await asker.ask("DELETE", "/users/anna")).status == 403
        assert shown.server.passwords is not None
        assert shown.server.passwords.verify("anna", PASSWORD.encode())


async def test_tokens_are_made_and_removed(tmp_path: Path) -> None:
    settings, said = an_administrator(tmp_path)
    async with showing(settings) as shown:
        asker = Asker(shown.server, said["admin"])
        told = await asker.ask("POST", "/tokens", {"name": "door", "rights": ["publish"], "lasts_s": 60})
        assert told.status == 201
        door = Asker(shown.server, f"Bearer {told.body['token']}")
        assert (await door.ask("POST", "/publish", {"topic": "a"})).status == 200
        assert [each["name"] for each in (await asker.get("/tokens"))["items"]] == ["admin", "door"]
        assert (await asker.ask("DELETE", "/tokens/door")).status == 200
        assert (await door.ask("POST", "/publish", {"topic": "a"})).status == 401


async def test_bridges_are_made_and_deleted(tmp_path: Path) -> None:
    settings, said = an_administrator(tmp_path)
    async with showing(settings) as shown, showing() as far:
        asker = Asker(shown.server, said["admin"])
        section = f"connection north\naddress 127.0.0.1:{port(far)}\ntopic # both 1"
        assert (await asker.ask("POST", "/bridges", {"section": section})).status == 201
        assert [each["name"] for each in (await asker.get("/bridges"))["items"]] == ["north"]
        await until(lambda: shown.server.broker.link_count == 1, "the bridge to be up")
        assert (await asker.ask("POST", "/bridges", {"section": "connection"})).status == 422
        assert (await asker.ask("DELETE", "/bridges/north")).status == 200
        assert (await asker.ask("DELETE", "/bridges/north")).status == 404


async def test_rooms_add_their_routes(tmp_path: Path) -> None:
    journal = JournalConfig(directory=tmp_path / "journal", topics=("farm/#",))
    async with showing(journal, mqtt=LOOPBACK) as shown:
        asker = Asker(shown.server)
        (told,) = (await asker.get("/journals"))["items"]
        assert told["topics"] == ["farm/#"]
        assert told["figures"]["messages/recorded"] == 0
        assert (await asker.ask("GET", "/neighbours")).status == 404  # It has no such room.
        paths = (await asker.get("/openapi.json"))["paths"]
        assert "/journals" in paths
        assert "/neighbours" not in paths


async def test_methods_that_are_not_known_are_refused(tmp_path: Path) -> None:
    async with showing() as shown:
        told = await Asker(shown.server).ask("PUT", "/clients/a")
        assert told.status == 405
        assert told.headers["allow"] == "DELETE, GET"
        assert (await Asker(shown.server).ask("HEAD", "/nodes")).status == 200
        assert (await Asker(shown.server).ask("GET", "/nodes/%ff")).status == 400
        assert (await Asker(shown.server).ask("GET", "/nodes?limit=%ff")).status == 400
