"""Who may do what at the API: each route of the table, without its right and with it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from hedgerow.node.api import ADMIN, READ, RIGHTS, ApiRoute
from hedgerow.node.server import Server
from hedgerow.web.api.part import MAX_BODY_BYTES, STRANGERS_BODY_BYTES, ApiPart
from hedgerow.web.api.tokens import Tokens, create_token
from hedgerow.web.config import ApiConfig
from tests.node.peers import part_of
from tests.web.api.asking import Asker, as_user, with_tokens
from tests.web.browser import PASSWORD, showing, with_users

ACL = """
user anna
topic readwrite farm/#
topic read $hedgerow/status/#
"""


def table_of(server: Server) -> list[ApiRoute]:
    return part_of(server, ApiPart).table


def an_address(route: ApiRoute) -> str:
    """With something for each name in the path."""
    return route.path.replace("{", "a-").replace("}", "")


def a_body(route: ApiRoute) -> Any:
    return None if route.body is None else {}


async def refused(asker: Asker, route: ApiRoute, status: int) -> None:
    told = await asker.ask(route.method, an_address(route), a_body(route))
    assert told.status == status, (route.method, route.path, told)
    assert told.body["status"] == status
    assert told.headers["content-type"] == "application/problem+json"


async def test_nothing_is_written_without_a_token(tmp_path: Path) -> None:
    settings, _ = with_tokens(tmp_path, reader=READ)
    async with showing(settings) as shown:
        writing = [route for route in table_of(shown.server) if route.is_writing]
        assert len(writing) > 10
        for route in writing:
            await refused(Asker(shown.server), route, 401)
            await refused(Asker(shown.server, "Bearer hg_nobodys"), route, 401)
            await refused(Asker(shown.server, as_user("anna", "guess")), route, 401)


async def test_each_route_takes_its_right(tmp_path: Path) -> None:
    settings, said = with_tokens(tmp_path, **{right: right for right in RIGHTS})
    async with showing(settings) as shown:
        for route in table_of(shown.server):
            for right in RIGHTS:
                if right not in (route.right, ADMIN):
                    await refused(Asker(shown.server, said[right]), route, 403)
            # With it, what is wrong is something else: a body that lacks everything, a name that is none.
            told = await Asker(shown.server, said[route.right]).ask(
                route.method, an_address(route), a_body(route)
            )
            assert told.status in (200, 404, 409, 422), (route.path, told)


async def test_where_there_are_users_nothing_is_read_without_one(tmp_path: Path) -> None:
    async with showing(**with_users(tmp_path, "anna", acl=ACL)) as shown:
        for route in table_of(shown.server):
            await refused(Asker(shown.server), route, 401)
        anna = Asker(shown.server, as_user("anna", PASSWORD))
        assert (await anna.get("/nodes"))["items"][0]["id"] == shown.server.node_id
        told = await anna.ask("POST", "/publish", {"topic": "farm/a", "payload": "1", "retain": True})
        assert told.status == 200
        assert (await anna.get("/retained/farm%2Fa"))["payload"] == "1"
        assert (await anna.ask("POST", "/publish", {"topic": "house/a"})).status == 403
        assert (await anna.ask("GET", "/users")).status == 403


async def test_wrong_passwords_wait_as_those_of_mqtt(tmp_path: Path) -> None:
    async with showing(**with_users(tmp_path, "anna")) as shown:
        guesses = [
            Asker(shown.server, as_user("anna", f"guess {number}")).ask("GET", "/nodes")
            for number in range(8)
        ]
        statuses = [(await guess).status for guess in guesses]
        assert statuses[:5] == [401] * 5
        assert statuses[-1] == 429
        told = await Asker(shown.server, as_user("anna", PASSWORD)).ask("GET", "/nodes")
        assert told.status == 429
        assert int(told.headers["retry-after"]) >= 1


async def test_a_token_is_bound_to_the_rights_of_its_user(tmp_path: Path) -> None:
    settings, said = with_tokens(tmp_path, door="publish,read@anna", all="admin", gone="read@bert")
    async with showing(settings, **with_users(tmp_path, "anna", acl=ACL)) as shown:
        door, everything = Asker(shown.server, said["door"]), Asker(shown.server, said["all"])
        assert (
            await door.ask("POST", "/publish", {"topic": "farm/a", "retain": True, "payload": "1"})
        ).status == 200
        assert (await door.ask("POST", "/publish", {"topic": "house/a"})).status == 403
        # The ACL says nothing of whoever has no name, whatever the token's right.
        assert (await everything.ask("POST", "/publish", {"topic": "farm/a"})).status == 403
        assert (await everything.get("/retained"))["items"] == []
        assert [each["topic"] for each in (await door.get("/retained?filter=farm/%23"))["items"]] == [
            "farm/a"
        ]
        assert (await Asker(shown.server, said["gone"]).ask("GET", "/nodes")).status == 401


async def test_a_token_ends(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    token = create_token(file, "short", [READ], lasts_s=60)
    now = time.time()
    assert Tokens.load(file).find(token, now) is not None
    assert Tokens.load(file).find(token, now + 61) is None
    assert token not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0


async def test_a_body_is_bounded_before_it_is_read(tmp_path: Path) -> None:
    settings, said = with_tokens(tmp_path, door="publish")
    async with showing(settings) as shown:
        for asker, most in (
            (Asker(shown.server), STRANGERS_BODY_BYTES),
            (Asker(shown.server, said["door"]), MAX_BODY_BYTES),
        ):
            told = await asker.ask("POST", "/publish", b"{}", content_length=str(most + 1))
            assert told.status == 413
        told = await Asker(shown.server, said["door"]).ask(
            "POST", "/publish", b'{"topic": "a", "payload": "' + b"x" * 100_000 + b'"}'
        )
        assert told.status == 200


@pytest.mark.parametrize("path", ["/nodes", "/openapi.json"])
async def test_pages_of_other_sites_are_refused(path: str) -> None:
    async with showing() as shown:
        asker = Asker(shown.server)
        assert (await asker.ask("GET", path, origin="https://evil.example")).status == 403
        assert (await asker.ask("GET", path, host="evil.example", accept_language="en")).status == 421


async def test_tokens_are_read_again(tmp_path: Path) -> None:
    settings, said = with_tokens(tmp_path, reader=READ)
    assert isinstance(settings, ApiConfig)
    async with showing(settings, **with_users(tmp_path, "anna")) as shown:
        assert settings.tokens is not None
        later = Asker(shown.server, f"Bearer {create_token(settings.tokens, 'later', [READ])}")
        assert (await later.ask("GET", "/nodes")).status == 401
        shown.server.reload()
        assert (await later.ask("GET", "/nodes")).status == 200
        await asyncio.gather(*(later.get("/nodes") for _ in range(5)))
        assert (await Asker(shown.server, said["reader"]).ask("GET", "/clients")).status == 200
