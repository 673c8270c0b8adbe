"""A service that is asked who may log in: what it says is done, and without an answer nobody is let in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hedgerow.mqtt.packets import Connack, Connect, Disconnect
from hedgerow.mqtt.reasons import Reason
from hedgerow.node.config import LoginHook
from hedgerow.node.passwords import delete_user, set_enabled, set_password
from hedgerow.node.server import Server
from tests.node.identity import web_service
from tests.node.peers import connected, port_of, raw_client, running
from tests.web.browser import PASSWORD, with_users


def decide(body: bytes) -> tuple[int, object]:
    question = json.loads(body)
    return 200, {"allow": question["password"] == "right", "groups": ["cowherds"]}


async def refused(server: Server, user: str, password: bytes) -> None:
    async with raw_client(port_of(server)) as client:
        client.send(Connect("c", username=user, password=password))
        answer = await client.receive()
        assert isinstance(answer, Connack)
        assert answer.reason_code == Reason.BAD_USER_NAME_OR_PASSWORD


async def test_it_decides_about_users_whom_no_file_names(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    users = with_users(tmp_path, "anna")
    async with web_service() as service:
        service.answer = decide
        hook = LoginHook(service.url, secret=secret)
        async with running(hook=hook, anonymous=False, **users) as server:
            async with connected(port_of(server), "a", username="carol", password=b"right"):
                assert server.memberships.of("carol") == {"cowherds"}
                server.reload()
                assert server.broker.client_count == 1
            head, question = service.asked[0]
            assert question == {"username": "carol", "password": "right", "address": "127.0.0.1"}
            assert "Bearer s3cret" in head
            await refused(server, "carol", b"wrong")
            async with connected(port_of(server), "b", username="anna", password=PASSWORD.encode()):
                pass
            await refused(server, "anna", b"right")
            assert [question["username"] for _, question in service.asked] == ["carol", "carol"]


async def test_a_yes_is_remembered() -> None:
    async with web_service() as service:
        service.answer = decide
        async with running(hook=LoginHook(service.url), anonymous=False) as server:
            for number in range(3):
                async with connected(port_of(server), f"c{number}", username="carol", password=b"right"):
                    pass
            assert len(service.asked) == 1
            await refused(server, "carol", b"wrong")
            assert len(service.asked) == 2


@pytest.mark.parametrize(
    "answer", [None, (500, {"allow": True}), (200, []), (200, {"allow": "yes"}), (302, {})]
)
async def test_without_an_answer_nobody_is_let_in(answer: tuple[int, object] | None) -> None:
    async with web_service() as service:
        service.answer = lambda body: answer
        async with running(hook=LoginHook(service.url, timeout_s=0.2), anonymous=False) as server:
            for _ in range(8):  # More than wrong passwords would be looked at: it is not the user's mistake.
                await refused(server, "carol", b"right")
            service.answer = decide
            async with connected(port_of(server), "c", username="carol", password=b"right"):
                pass


async def test_a_service_that_is_slow_keeps_no_others_waiting(tmp_path: Path) -> None:
    users = with_users(tmp_path, "anna")
    async with web_service() as service:
        service.answer = lambda body: None
        hook = LoginHook(service.url, timeout_s=5.0)
        async with (
            running(hook=hook, anonymous=False, **users) as server,
            raw_client(port_of(server)) as slow,
        ):
            slow.send(Connect("c", username="carol", password=b"right"))
            async with connected(port_of(server), "a", username="anna", password=PASSWORD.encode()) as anna:
                assert server.broker.client_count == 1
                anna.send(b"\xc0\x00")
                assert await anna.receive() is not None


async def test_nobody_answers_there() -> None:
    async with web_service() as service:
        hook = LoginHook(service.url)
    async with running(hook=hook, anonymous=False) as server:
        await refused(server, "carol", b"right")


async def test_who_is_disabled_is_let_in_by_nobody(tmp_path: Path) -> None:
    users = with_users(tmp_path, "anna", "carol")
    delete_user(users["passwords"], "carol")
    async with web_service() as service:
        service.answer = lambda body: (200, {"allow": True})
        async with running(hook=LoginHook(service.url), anonymous=False, **users) as server:
            async with connected(port_of(server), "a", username="carol", password=b"x") as carol:
                set_password(users["passwords"], "carol", b"x", iterations=10)
                set_enabled(users["passwords"], "carol", False)
                server.reload()
                goodbye = await carol.receive()
                assert isinstance(goodbye, Disconnect)
                assert goodbye.reason_code == Reason.NOT_AUTHORIZED
            await refused(server, "carol", b"x")
            assert len(service.asked) == 1
