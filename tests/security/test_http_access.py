"""HTTP shows nothing that MQTT would refuse to the same peer."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hedgerow.node.config import Config, Tls
from hedgerow.node.handlers import Request, Response
from hedgerow.node.logins import MAX_ASKED_OF_ONE, Logins
from hedgerow.node.metrics import RENDERING_SHARE, Renderings
from hedgerow.node.passwords import set_password
from hedgerow.node.server import Server
from hedgerow.node.strangers import takes_strangers
from hedgerow.node.values import Address
from tests.node.certificates import Authority
from tests.node.gated_passwords import GatedPasswords
from tests.node.peers import LOOPBACK, part_of, port_of, running
from tests.waiting import PATIENCE_S, until

EVERYWHERE = (Address("*", 0),)
STRANGER = "192.0.2.66"
PAGES = ("/", "/messages", "/retained", "/clients", "/topics", "/events")


def certificates(
    tmp_path: Path, *, use_identity_as_username: bool = False, require_client_certificate: bool = True
) -> tuple[Authority, Tls]:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    required = require_client_certificate
    return authority, Tls(certificate, key, authority.certificate, required, use_identity_as_username)


async def ask(node: Server, path: str, address: str = STRANGER, **headers: str) -> Response:
    """As the HTTP port would, from any address."""
    fields = {"host": "127.0.0.1"} | {name.replace("_", "-"): text for name, text in headers.items()}
    answer = node.routes[path](Request("GET", path, fields, address=address))
    return answer if isinstance(answer, Response) else await answer


async def get(port: int, path: str, context: ssl.SSLContext) -> str:
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode())
        text = (await reader.read()).decode()
        writer.close()
        return text


async def test_with_certificates_alone_the_dashboard_shows_nothing_over_http(tmp_path: Path) -> None:
    _, tls = certificates(tmp_path, use_identity_as_username=True)
    async with running(mqtts=LOOPBACK, http=LOOPBACK, tls=tls, anonymous=False) as node:
        for path in sorted(path for path in node.routes if path in PAGES):
            for address in (STRANGER, "127.0.0.1"):
                answer = await ask(node, path, address)
                assert answer.status == 403
                assert b"access.passwords" in answer.body
        assert (await ask(node, "/metrics")).status == 401
        assert (await ask(node, "/health")).status == 200


async def test_over_https_the_certificate_is_the_user(tmp_path: Path) -> None:
    authority, tls = certificates(tmp_path, use_identity_as_username=True, require_client_certificate=False)
    acl = tmp_path / "acl"
    acl.write_text("user anna\ntopic read $SYS/#\n")
    settings = {"mqtts": LOOPBACK, "https": LOOPBACK, "tls": tls, "anonymous": False, "acl": acl}
    async with running(**settings) as node:
        port = port_of(node, "https")
        assert " 403 " in (await get(port, "/", authority.client_context()))[:20]
        assert " 200 " in (await get(port, "/", authority.client_context("anna")))[:20]


@pytest.mark.parametrize(
    ("mqtt", "address", "is_let_in"),
    [
        (LOOPBACK, STRANGER, False),
        (LOOPBACK, "127.0.0.1", True),
        (EVERYWHERE, STRANGER, True),
        ((), "127.0.0.1", False),
    ],
)
def test_required_certificates_count_unless_a_plain_listener_is_in_reach(
    mqtt: tuple[Address, ...], address: str, is_let_in: bool
) -> None:
    tls = Tls(Path("c"), Path("k"), Path("a"), require_client_certificate=True)
    config = Config(mqtt=mqtt, mqtts=EVERYWHERE, ws=(), tls=tls)
    assert takes_strangers(config, address) is is_let_in


def basic(user: str, password: str) -> str:
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


async def test_metrics_from_elsewhere_need_a_user_who_may_read_sys(tmp_path: Path) -> None:
    users, acl = tmp_path / "passwords", tmp_path / "acl"
    set_password(users, "anna", b"right", create=True, iterations=1)
    set_password(users, "bob", b"right", iterations=1)
    acl.write_text("user anna\ntopic read $SYS/#\nuser bob\ntopic read farm/#\n")
    async with running(http=LOOPBACK, passwords=users, acl=acl, anonymous=False) as node:
        assert (await ask(node, "/metrics", "127.0.0.1")).status == 200
        assert (await ask(node, "/metrics", "127.0.0.1", x_forwarded_for=STRANGER)).status == 401
        refused = await ask(node, "/metrics")
        assert refused.status == 401
        assert refused.headers["WWW-Authenticate"].startswith("Basic ")
        assert b"hedgerow_" not in refused.body
        for wrong in (basic("anna", "wrong"), basic("eve", "right"), "Basic !", "Bearer right"):
            assert (await ask(node, "/metrics", authorization=wrong)).status == 401
        assert (await ask(node, "/metrics", authorization=basic("bob", "right"))).status == 403
        assert (await ask(node, "/metrics", authorization=basic("anna", "right"))).status == 200


FOREIGN_NAMES = ("evil.example:8780", "127.0.0.1.evil.example", "")


@pytest.mark.parametrize("has_users", [False, True], ids=["open", "users"])
async def test_by_a_name_that_leads_to_this_machine_nobody_reads_metrics(
    tmp_path: Path, has_users: bool
) -> None:
    """DNS rebinding, in a browser that does not say that it is one. Other machines may use any name."""
    users = tmp_path / "passwords"
    set_password(users, "anna", b"right", create=True, iterations=1)
    access = {"passwords": users, "anonymous": False} if has_users else {}
    async with running(http=LOOPBACK, **access) as node:
        for host in FOREIGN_NAMES:
            refused = await ask(node, "/metrics", "127.0.0.1", host=host)
            assert refused.status == 401
            assert b"--allow-host" in refused.body
            assert (await ask(node, "/metrics", host=host)).status == (401 if has_users else 200)
            assert (await ask(node, "/health", "127.0.0.1", host=host)).status == 200
            if has_users:
                told = await ask(
                    node, "/metrics", "127.0.0.1", host=host, authorization=basic("anna", "right")
                )
                assert told.status == 200
        for host in ("localhost:8780", "127.0.0.1", "[::1]:8780"):
            assert (await ask(node, "/metrics", "127.0.0.1", host=host)).status == 200


@pytest.mark.parametrize(
    "header",
    ["forwarded", "x_forwarded_for", "x_forwarded_proto", "x_forwarded_host", "x_real_ip", "via"],
)
async def test_behind_a_proxy_on_this_machine_is_another_machine(tmp_path: Path, header: str) -> None:
    _, tls = certificates(tmp_path)
    listeners = {"mqtt": LOOPBACK, "mqtts": EVERYWHERE, "http": LOOPBACK}
    async with running(**listeners, tls=tls) as node:  # without a certificate, from this machine alone
        for path in ("/metrics", "/"):
            assert (await ask(node, path, "127.0.0.1")).status == 200
            assert (await ask(node, path, "127.0.0.1", **{header: "barn"})).status in (401, 403)


async def test_pages_of_other_sites_are_refused(tmp_path: Path) -> None:
    async with running(http=LOOPBACK) as node:
        for path in ("/metrics", "/health", "/"):
            for headers in (
                {"origin": "https://evil.example"},
                {"origin": "null"},
                {"sec_fetch_site": "cross-site", "sec_fetch_dest": "empty"},
                {"sec_fetch_site": "same-site", "sec_fetch_dest": "script"},
            ):
                assert (await ask(node, path, "127.0.0.1", **headers)).status == 403
            assert (await ask(node, path, "127.0.0.1", sec_fetch_site="none")).status == 200


async def test_metrics_of_an_open_node_are_for_everyone_who_may_read_sys(tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic read farm/#\n")
    async with running(http=LOOPBACK) as node:
        assert (await ask(node, "/metrics")).status == 200
    async with running(http=LOOPBACK, acl=acl) as node:
        assert (await ask(node, "/metrics")).status == 401


async def test_wrong_passwords_for_metrics_have_to_wait(tmp_path: Path) -> None:
    users = tmp_path / "passwords"
    set_password(users, "anna", b"right", create=True, iterations=1)
    async with running(http=LOOPBACK, passwords=users, anonymous=False) as node:
        statuses = [
            (await ask(node, "/metrics", authorization=basic("anna", "wrong"))).status for _ in range(6)
        ]
        assert statuses == [401] * 5 + [429]


async def test_passwords_over_http_wait_in_a_line_that_ends(tmp_path: Path) -> None:
    users = tmp_path / "passwords"
    set_password(users, "anna", b"right", create=True, iterations=1)
    async with running(http=LOOPBACK, passwords=users, anonymous=False) as node:
        passwords = part_of(node, Logins).queue.passwords = GatedPasswords()
        asked = [
            asyncio.create_task(ask(node, "/metrics", authorization=basic(f"u{number}", "wrong")))
            for number in range(MAX_ASKED_OF_ONE + 5)
        ]
        await until(lambda: sum(each.done() for each in asked) == 5, "those beyond the line to be refused")
        assert {each.result().status for each in asked if each.done()} == {429}
        other = asyncio.create_task(ask(node, "/metrics", "192.0.2.7", authorization=basic("anna", "right")))
        passwords.may_answer.set()
        assert (await other).status == 200
        for each in asked:
            assert (await each).status in (401, 429)


async def test_scrapes_take_a_tenth_of_the_time_at_most() -> None:
    now, renderings = 100.0, 0

    class Slow(Collector):
        def collect(self) -> Iterator[Metric]:
            nonlocal now, renderings
            now, renderings = now + 0.05, renderings + 1
            yield GaugeMetricFamily("a_gauge", "help", renderings)

    began, texts = now, Renderings(Slow(), lambda: now)
    assert b"a_gauge 1.0" in texts.response(is_open=False).body
    assert b"a_gauge 2.0" in texts.response(is_open=True).body  # seldom asked for: each is new
    while now < began + 60:
        texts.response(is_open=renderings % 2 == 0)
        now += 0.001
    assert renderings * 0.05 <= 60 * RENDERING_SHARE + 0.2
    assert renderings * 0.05 >= 60 * RENDERING_SHARE / 2


async def test_no_format_that_a_peer_invents_is_kept() -> None:
    async with running(http=LOOPBACK) as node:
        types = set()
        for version in ("1.0.0", "1.0.1", "7", "x", "1" * 5_000):
            for kind in ("application/openmetrics-text", "text/plain"):
                answer = await ask(node, "/metrics", accept=f"{kind}; version={version}")
                assert answer.status == 200
                types.add(answer.content_type)
        assert len(types) == 2
