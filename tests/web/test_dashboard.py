"""The dashboard on real nodes: what each page answers, to whom, and that nobody pays when nobody looks."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path

import pytest

from hedgerow.broker.events import ConnectionRefused
from hedgerow.broker.port import Port
from hedgerow.federation.config import FederationConfig
from hedgerow.message import Message
from hedgerow.mqtt.packets import Suback, Subscribe, Subscription
from hedgerow.mqtt.reasons import Reason
from hedgerow.node.broker_urls import BrokerUrl
from hedgerow.node.server import Server
from hedgerow.topics import STATUS_FILTER
from hedgerow.web import assets
from hedgerow.web.pages import PAGES
from tests.node.peers import LOOPBACK, RawClient, connected, port_of, running
from tests.waiting import PATIENCE_S, until
from tests.web.browser import PASSWORD, Browser, Shown, showing, with_users
from tests.web.statuses import status as status_of

PATHS = [page.path for page in PAGES]


def publish(server: Server, topic: str, payload: bytes = b"x", retain: bool = False) -> None:
    Port(server.broker, "test", lambda _: None).publish(Message(topic, payload, 1, retain), server.clock())
    server.flush()


async def subscribe(client: RawClient, *topic_filters: str) -> None:
    client.send(Subscribe(1, [Subscription(each) for each in topic_filters]))
    assert isinstance(await client.receive(), Suback)


async def until_page(browser: Browser, path: str, *words: str) -> str:
    """Poll as a browser does until a page says all of this."""
    page = ""
    async with asyncio.timeout(PATIENCE_S):
        while not all(word in page for word in words):
            await asyncio.sleep(0.05)
            page = (await browser.get(path)).text
    return page


@asynccontextmanager
async def two_nodes() -> AsyncIterator[tuple[Server, Shown]]:
    """Federated; the second has the dashboard."""
    async with running(FederationConfig(enabled=True), id="barn") as barn:
        links = FederationConfig(neighbours=(BrokerUrl("127.0.0.1", port_of(barn)),))
        async with showing(links, id="house") as shown:
            yield barn, shown


# Pages


@pytest.mark.parametrize("path", PATHS)
async def test_every_page_is_a_document_with_a_live_part(path: str) -> None:
    async with showing(id="barn") as shown:
        whole = await shown.browser().get(path)
        assert whole.status == HTTPStatus.OK
        assert whole.headers["content-type"] == "text/html; charset=utf-8"
        assert whole.headers["cache-control"] == "no-store"
        assert whole.text.startswith("<!doctype html>")
        assert "barn" in whole.text
        part = await shown.browser().get(f"{path}?live=1")
        assert part.status == HTTPStatus.OK
        assert "<!doctype" not in part.text


@pytest.mark.parametrize("path", [*PATHS, "/?live=1", "/login", "/logout"])
async def test_no_page_is_framed_or_runs_what_is_not_ours(tmp_path: Path, path: str) -> None:
    async with showing(**with_users(tmp_path, "anna")) as shown:
        anna = await shown.browser_of("anna")
        answer = await (anna.post(path, {"token": "x"}) if path == "/logout" else anna.get(path))
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "same-origin"
        policy = answer.headers["content-security-policy"].split("; ")
        assert {
            "default-src 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'self'",
        } <= set(policy)
        assert "unsafe" not in " ".join(policy)


async def test_what_is_no_page_is_not_found() -> None:
    async with showing() as shown:
        assert (await shown.browser().get("/nothing")).status == HTTPStatus.NOT_FOUND
        assert (await shown.browser().post("/", {})).status == HTTPStatus.METHOD_NOT_ALLOWED
        assert (await shown.browser().get("/metrics")).status == HTTPStatus.OK


async def test_a_browser_that_is_at_no_page_is_shown_the_way_back(tmp_path: Path) -> None:
    async with showing(id="barn", **with_users(tmp_path, "anna")) as shown:
        answer = await shown.browser().get("/nothing<here>", accept="text/html,*/*")
        assert answer.status == HTTPStatus.NOT_FOUND
        assert "Nothing is at <code>/nothing&lt;here&gt;</code>" in answer.text
        assert '<a href="/">To the map</a>' in answer.text
        assert answer.headers["x-frame-options"] == "DENY"
        program = await shown.browser().get("/nothing", accept="*/*")
        assert (program.status, program.text) == (HTTPStatus.NOT_FOUND, "404 Not Found\n")


async def test_assets_are_sent_once() -> None:
    async with showing() as shown:
        for path in ("/assets/style.css", "/assets/htmx.js"):
            answer = await shown.browser().get(path)
            assert answer.status == HTTPStatus.OK
            assert len(answer.text) > 1_000
            again = await shown.browser().get(path, if_none_match=f'"other", W/{answer.headers["etag"]}')
            assert again.status == HTTPStatus.NOT_MODIFIED
            assert again.text == ""
            assert (await shown.browser().get(path, if_none_match='"other"')).status == HTTPStatus.OK


async def test_without_the_extra_pages_reload_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, assets.HTMX_PACKAGE, None)
    async with showing() as shown:
        page = (await shown.browser().get("/")).text
        assert '<meta http-equiv="refresh" content="5">' in page
        assert "<script" not in page
        assert (await shown.browser().get("/assets/htmx.js")).status == HTTPStatus.NOT_FOUND


def test_a_wheel_with_another_htmx_is_as_good_as_none(caplog: pytest.LogCaptureFixture) -> None:
    assert assets.htmx("django_htmx/static/django_htmx/htmx-99.js") is None
    assert "pages reload themselves" in caplog.text


# The fabric


async def test_nobody_pays_when_nobody_looks() -> None:
    async with showing(id="barn") as shown:
        shown.dashboard.fabric_watch.idle_s = 0.1
        subscribed = shown.server.broker.subscriptions.local.counts
        assert STATUS_FILTER not in subscribed
        await shown.browser().get("/assets/style.css")
        await shown.browser().get("/health")
        assert STATUS_FILTER not in subscribed
        await shown.browser().get("/")
        assert STATUS_FILTER in subscribed
        await until(lambda: STATUS_FILTER not in subscribed, "the last look to be long ago")
        await shown.browser().get("/?live=1")
        assert STATUS_FILTER in subscribed


async def test_who_is_not_logged_in_does_not_look(tmp_path: Path) -> None:
    async with showing(**with_users(tmp_path, "anna")) as shown:
        await shown.browser().get("/")
        await shown.browser().get("/login")
        assert STATUS_FILTER not in shown.server.broker.subscriptions.local.counts


async def test_the_first_page_has_the_node_itself_and_nothing_is_missing_later() -> None:
    async with showing(id="barn") as shown:
        assert "barn" in (await shown.browser().get("/?live=1")).text
        node = shown.dashboard.fabric.nodes["barn"]
        assert node.status.number == 0
        await until(lambda: node.status.number > 0, "the first status")
        assert node.missing == 0


async def test_two_federated_nodes_are_on_one_page() -> None:
    async with two_nodes() as (barn, shown), connected(port_of(barn), "client") as client:
        await subscribe(client, "farm/wind")
        browser = shown.browser()
        await until_page(browser, "/?live=1", "barn", "house")
        await until_page(browser, "/topics?live=1", "farm/wind")
        await until_page(browser, "/links?live=1", "barn", "up")


async def test_a_node_for_clients_misses_no_other_wherever_they_connect() -> None:
    async with showing(mqtt=(), ws=LOOPBACK) as shown:
        assert "Not linked" not in (await shown.browser().get("/")).text


async def test_who_is_refused_at_the_dashboard_is_no_reason_for_missing_links() -> None:
    async with showing(mqtt=()) as shown:
        refused = ConnectionRefused("192.0.2.9", None, Reason.SERVER_BUSY, "64 HTTP connections are open")
        shown.server.event_log.write(refused, shown.server.clock())
        assert ">Not linked to any node yet.<" in (await shown.browser().get("/")).text


async def test_messages_of_other_nodes_are_watched() -> None:
    async with two_nodes() as (barn, shown):
        browser = shown.browser()
        await until_page(browser, "/?live=1", "barn", "house")
        await browser.get("/messages?filter=farm%2F%23")
        await until(lambda: "farm/#" in barn.broker.subscriptions.beyond.counts, "the subscription there")
        publish(barn, "farm/wind", b'{"speed": 4}')
        page = await until_page(browser, "/messages?filter=farm%2F%23&live=1", "farm/wind")
        assert "&quot;speed&quot;: 4" in page


# Rights

ACL = """
topic read public/#

user anna
topic readwrite farm/#
topic read $hedgerow/status/#

user ben
topic read farm/#
"""


async def test_a_user_sees_its_own_topics_alone_on_every_page(tmp_path: Path) -> None:
    users = with_users(tmp_path, "anna", "boss", acl=ACL, administrators=("boss",))
    async with showing(FederationConfig(enabled=True), **users) as shown:
        client = Port(shown.server.broker, "test", lambda _: None)
        for topic_filter in ("farm/filter", "secret/filter"):
            client.subscribe(topic_filter, shown.server.clock())
        anna = await shown.browser_of("anna")
        pages = {"/topics": await until_page(anna, "/topics", "farm/filter")}
        assert "secret/filter" in shown.dashboard.fabric.meshes
        await anna.get("/messages?filter=%23")
        for name in ("farm", "secret"):
            publish(shown.server, f"{name}/value", b"1", retain=True)
            publish(shown.server, f"{name}/message")
        for query in ("?live=1", "?search=e", "?filter=%23", "?filter=s%2F%23"):
            pages |= {path + query: (await anna.get(path + query)).text for path in PATHS}
        assert "farm/value" in pages["/retained?live=1"]
        assert "farm/message" in pages["/messages?filter=%23"]
        for address, page in pages.items():
            assert "secret" not in page, address


async def test_who_may_not_read_statuses_sees_no_nodes(tmp_path: Path) -> None:
    async with showing(**with_users(tmp_path, "anna", "ben", acl=ACL), id="the-barn") as shown:
        anna, ben = await shown.browser_of("anna"), await shown.browser_of("ben")
        assert "the-barn" in (await anna.get("/?live=1")).text
        for path in PATHS:
            assert "the-barn" not in (await ben.get(f"{path}?live=1")).text


async def test_without_passwords_the_acl_is_asked_for_nobody(tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text(ACL)
    async with showing(acl=acl) as shown:
        publish(shown.server, "public/a", b"1", retain=True)
        publish(shown.server, "farm/b", b"2", retain=True)
        page = (await shown.browser().get("/retained")).text
        assert "public/a" in page
        assert "farm/b" not in page


async def test_clients_of_others_are_for_administrators(tmp_path: Path) -> None:
    users = with_users(tmp_path, "anna", "boss", administrators=("boss",))
    async with (
        showing(**users) as shown,
        connected(port_of(shown.server), "a-client", username="boss", password=PASSWORD.encode()),
        connected(port_of(shown.server), "her-own", username="anna", password=PASSWORD.encode()),
    ):
        anna, boss = await shown.browser_of("anna"), await shown.browser_of("boss")
        seen_by_boss, seen_by_anna = (await boss.get("/clients")).text, (await anna.get("/clients")).text
        assert "a-client" in seen_by_boss
        assert "her-own" in seen_by_boss
        assert "a-client" not in seen_by_anna
        assert "her-own" in seen_by_anna


async def test_what_strangers_call_things_is_shown_as_text() -> None:
    evil = '<script>alert("1")</script>'
    async with (
        showing(FederationConfig(enabled=True)) as shown,
        connected(port_of(shown.server), f"client {evil}") as client,
    ):
        await subscribe(client, f"filter/{evil}")
        browser = shown.browser()
        await browser.get("/messages?filter=%23")
        publish(shown.server, f"topic/{evil}", evil.encode(), retain=True)
        await until_page(browser, "/topics", "filter/&lt;script&gt;")
        for path in PATHS:
            for query in ("", "?filter=%23", f"?search={evil}", f"?topic={evil}", f"?filter={evil}"):
                address = (path + query).replace("<", "%3C").replace(">", "%3E").replace('"', "%22")
                page = (await browser.get(address)).text
                assert "<script>" not in page, address
                assert 'alert("1")' not in page, address
        assert "topic/&lt;script&gt;" in (await browser.get("/messages?filter=%23")).text
        assert "client &lt;script&gt;" in (await browser.get("/clients")).text


async def test_a_long_filter_is_watched_whole_or_not_at_all() -> None:
    topic = "/".join(["field"] * 50)
    async with showing() as shown:
        browser = shown.browser()
        await browser.get(f"/messages?filter={topic}")
        publish(shown.server, topic, b"the-value")
        await until_page(browser, f"/messages?filter={topic}&live=1", "the-value")
        assert "a filter of more than" in (await browser.get(f"/messages?filter={topic * 4}")).text


async def test_a_filter_that_is_none_is_said_on_the_page() -> None:
    async with showing() as shown:
        answer = await shown.browser().get("/messages?filter=a%2F%23%2Fb")
        assert answer.status == HTTPStatus.OK
        assert "is not alone" in answer.text
        assert len(shown.dashboard.watches) == 0


async def test_a_watch_begins_with_a_page_and_pauses(tmp_path: Path) -> None:
    async with showing() as shown:
        subscribed = shown.server.broker.subscriptions.local.counts
        await shown.browser().get("/messages")
        assert len(shown.dashboard.watches) == 0
        await shown.browser().get("/messages?filter=farm%2F%23")
        assert "farm/#" in subscribed
        await shown.browser().get("/messages?filter=farm%2F%23&pause=1")
        assert "farm/#" not in subscribed


async def test_no_neighbour_tells_of_this_node_and_nothing_is_retained() -> None:
    async with showing(id="barn") as shown:
        await shown.browser().get("/")
        fabric = shown.dashboard.fabric
        for topic in ("$hedgerow/status/barn", "$hedgerow/status/barnyard"):
            publish(shown.server, topic, status_of("x", 1 << 40, software="a lie", uptime_s=1e9))
        publish(shown.server, "$hedgerow/status/house", status_of("house"), retain=True)
        assert set(fabric.nodes) == {"barn", "barnyard"}
        assert fabric.nodes["barn"].status.software != "a lie"
        number = fabric.nodes["barn"].status.number
        await until(lambda: fabric.nodes["barn"].status.number > number, "the node's own")
