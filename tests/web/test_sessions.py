"""Log-ins at the dashboard: who gets in, for how long, and what other sites cannot do."""

from __future__ import annotations

import asyncio
import socket
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from hedgerow.node.addresses import is_own_name
from hedgerow.node.back_off import PAIR, USER
from hedgerow.node.browsers import objection_to_request
from hedgerow.node.config import Config
from hedgerow.node.eventlog import MAX_WARNINGS
from hedgerow.node.handlers import Request
from hedgerow.node.logins import MAX_ASKED_OF_ONE, Logins, TooManyError
from hedgerow.node.part import NodeContext
from hedgerow.node.passwords import Passwords, delete_user, set_password
from hedgerow.web import sessions
from hedgerow.web.sessions import read_cookie
from hedgerow.web.view import LOG_OUT, PUBLISH
from tests.node.peers import part_of
from tests.waiting import until
from tests.web.browser import PASSWORD, showing, with_users


async def test_every_page_asks_for_a_log_in_and_comes_back_after_it(tmp_path: Path) -> None:
    async with showing(**with_users(tmp_path, "anna")) as shown:
        browser = shown.browser()
        answer = await browser.get("/topics?search=farm")
        assert answer.status == HTTPStatus.SEE_OTHER
        assert answer.headers["location"] == "/login?back=%2Ftopics%3Fsearch%3Dfarm"
        answer = await browser.log_in("anna", back="/topics?search=farm")
        assert answer.status == HTTPStatus.SEE_OTHER
        assert answer.headers["location"] == "/topics?search=farm"
        assert (await browser.get("/topics")).status == HTTPStatus.OK


async def test_health_and_metrics_need_no_log_in(tmp_path: Path) -> None:
    async with showing(**with_users(tmp_path, "anna")) as shown:
        assert (await shown.browser().get("/health")).status == HTTPStatus.OK
        assert (await shown.browser().get("/metrics")).status == HTTPStatus.OK


async def test_a_log_in_is_needed_even_if_clients_need_none(tmp_path: Path) -> None:
    async with showing(**with_users(tmp_path, "anna"), anonymous=True) as shown:
        assert (await shown.browser().get("/")).status == HTTPStatus.SEE_OTHER


async def test_the_cookie_is_for_this_site_alone(tmp_path: Path) -> None:
    async with showing(**with_users(tmp_path, "anna")) as shown:
        answer = await shown.browser().log_in("anna")
        name, *attributes = answer.headers["set-cookie"].split("; ")
        assert name.startswith(f"hedgerow-session-{shown.port}=")
        assert len(name.partition("=")[2]) == 64
        assert {"HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"} == set(attributes)


def test_over_tls_the_cookie_is_for_tls_alone() -> None:
    request = Request("GET", "/", {"host": "barn"}, is_tls=True)
    assert sessions.set_cookie(request, "name", "value", 1)["Set-Cookie"].endswith("; Secure")


@pytest.mark.parametrize(
    ("user", "password"), [("anna", "wrong"), ("nobody", PASSWORD), ("anna", ""), ("", "")]
)
async def test_a_wrong_log_in_gives_nothing(tmp_path: Path, user: str, password: str) -> None:
    async with showing(**with_users(tmp_path, "anna")) as shown:
        browser = shown.browser()
        answer = await browser.log_in(user, password)
        assert answer.status == HTTPStatus.FORBIDDEN
        assert "The user or the password is wrong." in answer.text
        assert not any(name.startswith("hedgerow-session") for name in browser.cookies)
        assert len(shown.dashboard.sessions) == 0
        assert (await browser.get("/")).status == HTTPStatus.SEE_OTHER


async def test_wrong_log_ins_do_not_fill_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with showing(**with_users(tmp_path, "anna")) as shown:
        for number in range(MAX_WARNINGS + 5):
            answer = await shown.browser().log_in(f"user-{number}", "wrong")
            assert answer.status == HTTPStatus.FORBIDDEN
    lines = [each.getMessage() for each in caplog.records]
    assert len([each for each in lines if "wrong user or password" in each]) == MAX_WARNINGS
    assert "5 more of DashboardRefused from 127.0.0.1 were left out" in lines


async def test_after_five_wrong_passwords_the_right_one_has_to_wait(tmp_path: Path) -> None:
    async with showing(**with_users(tmp_path, "anna")) as shown:
        browser = shown.browser()
        for _ in range(PAIR.free):
            assert (await browser.log_in("anna", "wrong")).status == HTTPStatus.FORBIDDEN
        answer = await browser.log_in("anna")
        assert answer.status == HTTPStatus.TOO_MANY_REQUESTS
        assert 0 < int(answer.headers["retry-after"]) <= PAIR.most_s
        shown.server.clock = lambda clock=shown.server.clock: clock() + PAIR.most_s  # type: ignore[assignment]
        assert (await browser.log_in("anna")).status == HTTPStatus.SEE_OTHER


async def test_who_hangs_up_does_not_get_around_the_limit(tmp_path: Path) -> None:
    async with showing(**with_users(tmp_path, "anna")) as shown:
        known, logins = shown.dashboard.sessions, part_of(shown.server, Logins)
        request = Request("POST", "/login", address="192.0.2.1")
        for _ in range(PAIR.free):
            trying = asyncio.create_task(known.log_in(request, "anna", "wrong"))
            await asyncio.sleep(0)  # until it waits for the password to be looked at
            trying.cancel()
            await until(lambda: not logins.asked, "it to be found wrong all the same")
        with pytest.raises(TooManyError):
            await known.log_in(request, "anna", PASSWORD)
        # Others are not concerned.
        assert await known.log_in(Request("POST", "/login", address="192.0.2.2"), "anna", PASSWORD)


async def test_behind_a_proxy_a_user_who_is_attacked_delays_no_other(tmp_path: Path) -> None:
    """All have the proxy's address. The log-ins of a user whom many sites try wait, 4 s each."""
    async with showing(**with_users(tmp_path, "anna", "ben")) as shown:
        known, logins = shown.dashboard.sessions, part_of(shown.server, Logins)
        request = Request("POST", "/login", address="127.0.0.1")
        for number in range(USER.free + 10):
            logins.back_off.note("anna", f"198.51.100.{number}", accepted=False, now=shown.server.clock())
        count = 2 * MAX_ASKED_OF_ONE
        attacks = [asyncio.create_task(known.log_in(request, "anna", "wrong")) for _ in range(count)]
        await until(
            lambda: sum(each.done() for each in attacks) == count - MAX_ASKED_OF_ONE, "the line to be full"
        )
        assert await asyncio.wait_for(known.log_in(request, "ben", PASSWORD), USER.most_s / 2)
        assert logins.asked == MAX_ASKED_OF_ONE - 1
        for each in attacks:
            each.cancel()
        await asyncio.wait(attacks)


async def test_a_log_in_form_of_another_browser_is_refused(tmp_path: Path) -> None:
    async with showing(**with_users(tmp_path, "anna")) as shown:
        theirs, ours = shown.browser(), shown.browser()
        token = (await theirs.get("/login")).field("token")
        await ours.get("/login")
        for given in (token, "", "0" * 64):
            answer = await ours.post("/login", {"user": "anna", "password": PASSWORD, "token": given})
            assert answer.status == HTTPStatus.FORBIDDEN
            assert len(shown.dashboard.sessions) == 0


@pytest.mark.parametrize(
    "back",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example",
        "/nothing",
        "/login",
        "/topics\r\nX: y",
        "javascript:1",
        "/assets/style.css",
        "",
    ],
)
async def test_a_log_in_leads_to_pages_of_ours_alone(tmp_path: Path, back: str) -> None:
    async with showing(**with_users(tmp_path, "anna")) as shown:
        answer = await shown.browser().log_in("anna", back=back)
        assert answer.headers["location"] in ("/", "/topics")
        assert "x" not in answer.headers


async def test_log_out_ends_the_session_and_needs_the_token(tmp_path: Path) -> None:
    async with showing(**with_users(tmp_path, "anna")) as shown:
        browser = await shown.browser_of("anna")
        assert (await browser.post(LOG_OUT, {"token": "wrong"})).status == HTTPStatus.FORBIDDEN
        assert (await browser.get("/")).status == HTTPStatus.OK
        token = (await browser.get("/")).field("token")
        kept = dict(browser.cookies)
        answer = await browser.post(LOG_OUT, {"token": token})
        assert answer.status == HTTPStatus.SEE_OTHER
        assert answer.headers["location"] == "/login"
        browser.cookies = kept
        assert (await browser.get("/")).status == HTTPStatus.SEE_OTHER


async def test_a_user_who_is_gone_is_logged_out_at_the_reload(tmp_path: Path) -> None:
    async with showing(**with_users(tmp_path, "anna", "ben")) as shown:
        anna, ben = await shown.browser_of("anna"), await shown.browser_of("ben")
        delete_user(tmp_path / "passwords", "anna")
        assert (await anna.get("/")).status == HTTPStatus.OK
        shown.server.reload()
        assert (await anna.get("/")).status == HTTPStatus.SEE_OTHER
        assert (await ben.get("/")).status == HTTPStatus.OK


async def test_a_new_password_ends_the_sessions_of_the_old(tmp_path: Path) -> None:
    async with showing(**with_users(tmp_path, "anna")) as shown:
        anna = await shown.browser_of("anna")
        set_password(tmp_path / "passwords", "anna", b"another", iterations=10)
        shown.server.reload()
        assert (await anna.get("/")).status == HTTPStatus.SEE_OTHER


async def test_a_session_ends_after_twelve_hours(tmp_path: Path) -> None:
    async with showing(**with_users(tmp_path, "anna")) as shown:
        anna = await shown.browser_of("anna")
        clock = shown.server.clock
        shown.server.clock = lambda: clock() + 12 * 3_600 - 60  # type: ignore[assignment]
        assert (await anna.get("/")).status == HTTPStatus.OK
        shown.server.clock = lambda: clock() + 12 * 3_600 + 1  # type: ignore[assignment]
        assert (await anna.get("/")).status == HTTPStatus.SEE_OTHER


async def test_the_session_that_was_idle_longest_makes_room(tmp_path: Path) -> None:
    async with showing(**with_users(tmp_path, "anna")) as shown:
        shown.dashboard.sessions.max_sessions = 2
        first, second = await shown.browser_of("anna"), await shown.browser_of("anna")
        assert (await first.get("/")).status == HTTPStatus.OK
        third = await shown.browser_of("anna")
        assert [(await each.get("/")).status for each in (first, second, third)] == [200, 303, 200]
        assert len(shown.dashboard.sessions) == 2


async def test_a_live_part_of_a_session_that_has_ended_leads_to_the_log_in(tmp_path: Path) -> None:
    async with showing(**with_users(tmp_path, "anna")) as shown:
        answer = await shown.browser().get("/topics?search=a&live=1")
        assert answer.headers["hx-redirect"] == "/login?back=%2Ftopics%3Fsearch%3Da"
        assert answer.text == ""


def a_node() -> NodeContext:
    return cast(NodeContext, SimpleNamespace(config=Config(), node_id="barn"))


def from_site(method: str, **headers: str) -> Request:
    fields = {name.replace("_", "-"): text for name, text in headers.items()}
    return Request(method, "/", {"host": "127.0.0.1:8780"} | fields)


@pytest.mark.parametrize(
    "request_",
    [
        from_site("GET", sec_fetch_site="cross-site", sec_fetch_dest="image"),
        from_site("GET", sec_fetch_site="cross-site", sec_fetch_dest="iframe"),
        from_site("GET", sec_fetch_site="same-site", sec_fetch_dest="empty"),
        from_site("POST", sec_fetch_site="cross-site", sec_fetch_dest="document"),
        from_site("POST", origin="https://evil.example"),
        from_site("POST", origin="http://127.0.0.1:9999"),
        from_site("POST", origin="http://[broken"),
        from_site("POST", origin="null"),  # a sandbox in any page, or a file
        from_site("POST", sec_fetch_site="same-origin", origin="null"),
        from_site("GET", origin="https://evil.example"),
        from_site("GET", origin="null"),
    ],
)
def test_requests_of_other_sites_are_refused(request_: Request) -> None:
    found = objection_to_request(a_node(), request_)
    assert found is not None
    assert found[0] == HTTPStatus.FORBIDDEN


@pytest.mark.parametrize(
    "request_",
    [
        from_site("GET"),
        from_site("GET", sec_fetch_site="cross-site", sec_fetch_dest="document"),
        from_site("GET", sec_fetch_site="same-origin", sec_fetch_dest="empty"),
        from_site("POST", sec_fetch_site="same-origin", origin="http://127.0.0.1:8780"),
        from_site("HEAD"),
        from_site("POST"),
        # A proxy took the TLS off.
        from_site("POST", origin="https://127.0.0.1:8780"),
    ],
)
def test_our_own_requests_are_not(request_: Request) -> None:
    assert objection_to_request(a_node(), request_) is None


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8780", "192.0.2.7", "[::1]:8780", "localhost:8780", "LOCALHOST", "localhost."]
)
def test_addresses_and_localhost_are_answered(host: str) -> None:
    assert objection_to_request(a_node(), Request("GET", "/", {"host": host})) is None


@pytest.mark.parametrize(
    "host",
    ["evil.example:8780", "evil.example", "", "127.0.0.1.evil.example", "a@127.0.0.1", "x/127.0.0.1", "[::1"],
)
def test_a_name_that_anyone_can_give_is_not(host: str) -> None:
    found = objection_to_request(a_node(), Request("GET", "/", {"host": host}))
    assert found is not None
    assert found[0] == HTTPStatus.MISDIRECTED_REQUEST
    assert "--allow-host" in found[1]


def test_the_hosts_own_name_is_its_own() -> None:
    for name in ("barn", "barn.farm.example", "barn.local", "BARN"):
        assert is_own_name(name, "barn.farm.example")
    assert not is_own_name("farm.example", "barn.farm.example")
    assert is_own_name(socket.gethostname())


async def test_the_host_is_looked_at_before_anything_else() -> None:
    async with showing() as shown:
        answer = await shown.browser("evil.example").get("/")
        assert answer.status == HTTPStatus.MISDIRECTED_REQUEST
        assert (await shown.browser("localhost").get("/")).status == HTTPStatus.OK


async def test_users_log_in_by_a_name_that_is_configured(tmp_path: Path) -> None:
    async with showing(**with_users(tmp_path, "anna"), host_names=frozenset({"barn.example"})) as shown:
        browser = shown.browser("barn.example")
        assert (await browser.log_in("anna")).status == HTTPStatus.SEE_OTHER
        assert (await browser.get("/")).status == HTTPStatus.OK


async def test_without_users_nobody_acts_and_nobody_logs_in() -> None:
    async with showing() as shown:
        browser = shown.browser()
        answer = await browser.post(PUBLISH, {"topic": "a", "payload": "b", "token": ""})
        assert answer.status == HTTPStatus.FORBIDDEN
        assert shown.server.broker.stats.publish_received == 0
        assert (await browser.get("/login")).status == HTTPStatus.SEE_OTHER
        assert (await browser.post("/login", {"user": "anna"})).headers["location"] == "/"


@pytest.mark.parametrize(
    "cookie", ["", "hedgerow-session", "hedgerow-session=short", "=;,\x01", "a" * 10_000]
)
def test_a_cookie_that_is_none_of_ours_is_nothing(cookie: str) -> None:
    assert read_cookie(Request("GET", "/", {"host": "barn", "cookie": cookie}), "hedgerow-session") is None


def test_a_changed_password_has_another_entry(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    set_password(path, "anna", b"one", create=True, iterations=10)
    before, same = Passwords.load(path), Passwords.load(path)
    set_password(path, "anna", b"one", iterations=10)
    assert before.entry_of("anna") == same.entry_of("anna")
    assert before.entry_of("anna") != Passwords.load(path).entry_of("anna")
    assert before.entry_of("ben") is None


@pytest.mark.parametrize("other", ['settings={"theme": "dark"}', "a=b c", "@x=1", "path=/", "Secure", "é=1"])
def test_a_cookie_of_another_program_of_this_host_is_no_harm(other: str) -> None:
    own = f"hedgerow-session={'0a' * 32}"
    for cookies in (f"{other}; {own}", f"{own}; {other}"):
        request = Request("GET", "/", {"host": "barn", "cookie": cookies})
        assert read_cookie(request, "hedgerow-session") == "0a" * 32
