"""The HTTP port: metrics, health, and what it does not do."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hedgerow.broker.limits import Limits
from hedgerow.mqtt.packets import Publish, Suback, Subscribe, Subscription
from hedgerow.node.config import Config
from hedgerow.node.handlers import Request, Response, respond
from hedgerow.node.http import MAX_FIELDS, MAX_FORM_BYTES, HttpLink
from hedgerow.node.listener import Factory
from hedgerow.node.listeners import Listeners
from hedgerow.node.metrics import COUNTERS
from hedgerow.node.open_sockets import places
from hedgerow.node.server import SHUT_DOWN_S, Server
from tests.node.faulty_store import FAULTY_STORE, FaultyCommitter
from tests.node.peers import LOOPBACK, RawClient, connected, part_of, port_of, raw_client, running, with_part
from tests.waiting import PATIENCE_S, until


async def ask(server: Server, head: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send a request as it is; the status, the headers and the body."""
    async with raw_client(port_of(server, "http")) as client:
        client.writer.write(head)
        async with asyncio.timeout(PATIENCE_S):
            answer = await client.reader.read()
    top, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = top.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, body


async def get(server: Server, path: str) -> tuple[int, dict[str, str], bytes]:
    return await ask(server, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())


async def test_metrics_count_what_happened() -> None:
    async with (
        running(mqtt=LOOPBACK, http=LOOPBACK) as server,
        connected(port_of(server), "client") as client,
    ):
        client.send(Subscribe(1, [Subscription("#")]), Publish("a", b"1"), Publish("a", b"2"))
        assert isinstance(await client.receive(), Suback)
        assert await client.receive() == Publish("a", b"1")
        assert await client.receive() == Publish("a", b"2")
        status, headers, body = await get(server, "/metrics")
        assert status == HTTPStatus.OK
        assert headers["content-type"].startswith("text/plain")
        families = {family.name: family for family in text_string_to_metric_families(body.decode())}
        values = {sample.name: sample.value for family in families.values() for sample in family.samples}
        assert values["hedgerow_connections"] == values["hedgerow_clients"] == 1
        assert values["hedgerow_links"] == 0
        assert values["hedgerow_subscriptions"] == 1
        assert values["hedgerow_messages_received_total"] == 2
        assert values["hedgerow_messages_sent_total"] == 2
        assert values["hedgerow_received_bytes_total"] > 0
        assert values["hedgerow_healthy"] == 1
        assert values["process_resident_memory_bytes"] > 0
        assert all(family.documentation for family in families.values())
        node = families["hedgerow_node_info"].samples[0]
        assert node.labels == {"id": server.node_id}


async def test_every_counter_of_the_broker_is_a_metric() -> None:
    async with running() as server:
        shown = COUNTERS.keys() | {"clients_maximum"}
        assert shown == set(type(server.broker.stats).__dataclass_fields__)


async def test_openmetrics_is_given_to_who_asks() -> None:
    async with running(http=LOOPBACK) as server:
        head = (
            b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
            b"Accept: application/openmetrics-text; version=1.0.0\r\n\r\n"
        )
        status, headers, body = await ask(server, head)
        assert status == HTTPStatus.OK
        assert headers["content-type"].startswith("application/openmetrics-text")
        assert body.endswith(b"# EOF\n")


async def test_health_follows_the_store(tmp_path: Path) -> None:
    async with running(mqtt=LOOPBACK, http=LOOPBACK, data=tmp_path, table=FAULTY_STORE) as server:
        store = part_of(server, FaultyCommitter).store
        status, headers, body = await get(server, "/health")
        assert status == HTTPStatus.OK
        assert headers["content-type"] == "application/json"
        assert b'"status": "ok"' in body
        store.failures = 1_000
        async with connected(port_of(server), "c", properties={"session_expiry_interval": 60}):
            await until(lambda: server.problem is not None, "the failure to be seen")
            status, _, body = await get(server, "/health")
            assert status == HTTPStatus.SERVICE_UNAVAILABLE
            assert b"disk full" in body
            status, _, body = await get(server, "/health/ready")
            assert status == HTTPStatus.SERVICE_UNAVAILABLE
            status, _, body = await get(server, "/health/live")
            assert status == HTTPStatus.OK
            assert json.loads(body) == {"status": "alive", "node": server.node_id}
        store.failures = 0
        await until(lambda: server.problem is None, "the recovery to be seen")


# As they ask: what they send beside the Host header.
PROMETHEUS = "User-Agent: Prometheus/2.42.0\r\nAccept: text/plain\r\nAccept-Encoding: gzip\r\n"
BROWSER = "User-Agent: Mozilla/5.0\r\nAccept: */*\r\nAccept-Language: de,en;q=0.5\r\n"
SILENT_BROWSER = "Accept-Language: \r\n"  # all that a page can do about it


@pytest.mark.parametrize("path", ["/metrics", "/health"])
@pytest.mark.parametrize(
    ("host", "headers", "is_answered"),
    [
        ("127.0.0.1:8780", PROMETHEUS, True),
        ("barn.farm.example:8780", BROWSER, False),
        ("barn.farm.example", SILENT_BROWSER, False),
        ("[::1].farm.example", BROWSER, False),
        ("farm.example[::1]:8780", BROWSER, False),
        ("127.0.0.1:8780", BROWSER, True),
        ("[fd00::1]:8780", BROWSER, True),
        ("localhost:8780", BROWSER, True),
        (socket.gethostname(), BROWSER, True),
    ],
)
async def test_browsers_are_answered_by_our_own_names(
    path: str, host: str, headers: str, is_answered: bool
) -> None:
    """A page elsewhere could have its name lead here, and read what this machine's user may."""
    async with running(http=LOOPBACK) as server:
        head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n"
        status, _, body = await ask(server, head.encode())
        assert status == (HTTPStatus.OK if is_answered else HTTPStatus.MISDIRECTED_REQUEST)
        assert (server.node_id.encode() in body) is is_answered


async def test_routes_can_be_added() -> None:
    async with running(http=LOOPBACK) as server:
        server.routes["/echo"] = lambda request: Response(request.path.encode())
        assert (await get(server, "/echo?a=1"))[2] == b"/echo"


async def test_head_has_no_body() -> None:
    async with running(http=LOOPBACK) as server:
        status, headers, body = await ask(server, b"HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status == HTTPStatus.OK
        assert int(headers["content-length"]) > 0
        assert body == b""


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n", HTTPStatus.NOT_FOUND),
        (b"GET /../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", HTTPStatus.NOT_FOUND),
        (b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", HTTPStatus.METHOD_NOT_ALLOWED),
        (b"GET /health\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"\x10\x0c\x00\x04MQTT\x05\x02\x00\x00\x00\x00\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /" + b"a" * 100_000, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
    ],
)
async def test_bad_requests_get_their_status(head: bytes, status: HTTPStatus) -> None:
    async with running(http=LOOPBACK) as server:
        assert (await ask(server, head))[0] == status
        await until(lambda: server.open_sockets == 0, "the socket to close")


class Impatient(Listeners):
    def factory(self, scheme: str) -> Factory:
        return partial(HttpLink, self.node, max_s=0.1)


async def test_a_request_that_does_not_end_is_cut_off() -> None:
    async with (
        running(http=LOOPBACK, table=with_part("listeners", Impatient)) as server,
        raw_client(port_of(server, "http")) as client,
    ):
        client.writer.write(b"GET /health HTTP/1.1\r\n")
        assert await client.closed()
        assert server.open_sockets == 0


async def test_an_open_request_does_not_hold_up_the_stop() -> None:
    async with (
        running(http=LOOPBACK, shut_down_s=0.2) as server,
        raw_client(port_of(server, "http")) as client,
    ):
        client.writer.write(b"GET /health HTTP/1.1\r\n")
        await until(lambda: server.open_sockets == 1, "the connection")
        async with asyncio.timeout(2):
            await server.stop()


def test_a_handler_that_fails_is_a_500(caplog: pytest.LogCaptureFixture) -> None:
    def fail(request: Request) -> Response:
        raise RuntimeError("a mistake of ours")

    response = respond({"/": fail}, {}, Request("GET", "/"))
    assert isinstance(response, Response)
    assert response.status == HTTPStatus.INTERNAL_SERVER_ERROR
    assert "a mistake of ours" in caplog.text


async def post(server: Server, path: str, form: bytes, more: str = "") -> tuple[int, dict[str, str], bytes]:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(form)}\r\n{more}\r\n"
    return await ask(server, head.encode() + form)


FORM = "Content-Type: application/x-www-form-urlencoded\r\n"


async def test_actions_take_forms() -> None:
    async def act(request: Request) -> Response:
        await asyncio.sleep(0)
        return Response(repr((dict(request.form), request.address, request.is_tls)).encode())

    async with running(http=LOOPBACK) as server:
        server.actions["/act"] = act
        status, _, body = await post(server, "/act", b"name=a%2Bb+c&empty=", FORM)
        assert status == HTTPStatus.OK
        assert body.decode() == repr(({"name": "a+b c", "empty": ""}, "127.0.0.1", False))
        assert (await get(server, "/act"))[0] == HTTPStatus.METHOD_NOT_ALLOWED


@pytest.mark.parametrize(
    ("form", "more", "status"),
    [
        (b'{"a": 1}', "Content-Type: application/json\r\n", HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
        (b"a=" + b"x" * MAX_FORM_BYTES, FORM, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
        (b"&".join(b"a=1" for _ in range(MAX_FIELDS + 1)), FORM, HTTPStatus.BAD_REQUEST),
        (b"a=%ff%fe", FORM, HTTPStatus.BAD_REQUEST),
    ],
)
async def test_bad_forms_get_their_status(form: bytes, more: str, status: HTTPStatus) -> None:
    async with running(http=LOOPBACK) as server:
        server.actions["/act"] = lambda request: Response(b"done")
        assert (await post(server, "/act", form, more))[0] == status


CHUNKED = f"POST /act HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n{FORM}\r\n".encode()


async def test_forms_in_chunks_are_refused_before_any_comes() -> None:
    """Chunks of one byte take the loop longest: a client would wait for the whole of them."""
    async with running(http=LOOPBACK) as server:
        server.actions["/act"] = lambda request: Response(b"done")
        for sent in (CHUNKED, CHUNKED + b"1\r\na\r\n" * 40_000):
            assert (await ask(server, sent))[0] == HTTPStatus.LENGTH_REQUIRED


async def test_a_form_that_is_too_long_is_refused_before_any_comes() -> None:
    async with running(http=LOOPBACK) as server:
        server.actions["/act"] = lambda request: Response(b"done")
        head = f"POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Length: {MAX_FORM_BYTES + 1}\r\n{FORM}\r\n"
        assert (await ask(server, head.encode()))[0] == HTTPStatus.REQUEST_ENTITY_TOO_LARGE


async def test_a_form_that_does_not_come_is_cut_off() -> None:
    async with (
        running(http=LOOPBACK, table=with_part("listeners", Impatient)) as server,
        raw_client(port_of(server, "http")) as client,
    ):
        server.actions["/act"] = lambda request: Response(b"done")
        client.writer.write(b"POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n")
        assert await client.closed()


async def test_a_handler_that_waits_does_not_outlive_its_connection() -> None:
    ended: list[str] = []

    async def wait_for_ever(request: Request) -> Response:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(request.path)
        raise AssertionError("it never ends by itself")

    async with running(http=LOOPBACK) as server:
        server.routes["/slow"] = wait_for_ever
        async with raw_client(port_of(server, "http")) as client:
            client.writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: server.open_sockets == 1, "the connection")
        await until(lambda: ended == ["/slow"], "the handler to be cancelled")


async def test_the_query_is_read() -> None:
    async with running(http=LOOPBACK) as server:
        server.routes["/echo"] = lambda request: Response(repr(dict(request.query)).encode())
        assert (await get(server, "/echo?a=1&b=x%20y&a=2"))[2].decode() == repr({"a": "2", "b": "x y"})


async def test_a_node_does_not_wait_for_connections_that_ask_nothing() -> None:
    async with running(http=LOOPBACK) as server, raw_client(port_of(server, "http")) as client:
        client.writer.write(b"GET / HT")
        await until(lambda: len(server.sockets.http_links) == 1, "the connection")
        async with asyncio.timeout(SHUT_DOWN_S / 2):
            await server.stop()


# Places: those of HTTP and of MQTT are not each other's


def taken(server: Server) -> int:
    """One that is being opened counts as well, for a moment twice."""
    return server.sockets.http_open + server.sockets.http_opening


@asynccontextmanager
async def asking_nothing(server: Server, count: int) -> AsyncIterator[list[RawClient]]:
    """So many connections to the HTTP port that hold a place, each."""
    async with AsyncExitStack() as stack:
        clients = []
        for number in range(1, count + 1):
            clients.append(await stack.enter_async_context(raw_client(port_of(server, "http"))))
            await until(lambda wanted=number: taken(server) == wanted, "the place to be taken")  # type: ignore[misc]
        yield clients


async def test_a_node_full_of_clients_still_answers() -> None:
    async with running(mqtt=LOOPBACK, http=LOOPBACK, limits=Limits(connections=2)) as server:
        server.sockets.maximum = 2
        port = port_of(server)
        async with connected(port, "first"), connected(port, "second"):
            async with raw_client(port) as third:
                assert await third.closed(), "there is no room for more"
            assert (await get(server, "/health"))[0] == HTTPStatus.OK


async def test_readers_of_http_take_no_place_of_a_client() -> None:
    limits = Limits(connections=1, http_connections=4)
    async with running(mqtt=LOOPBACK, http=LOOPBACK, limits=limits) as server:
        async with asking_nothing(server, 4) as clients:
            async with raw_client(port_of(server, "http")) as fifth:
                assert await fifth.closed()
            async with connected(port_of(server), "client"):
                await clients.pop().close()
                await until(lambda: taken(server) == 3, "a place to be free again")
                status, _, body = await get(server, "/metrics")
        assert status == HTTPStatus.OK
        assert b"hedgerow_http_connections 4.0" in body
        assert b"hedgerow_clients 1.0" in body
        # What lingers holds its place until it is gone.
        await until(lambda: (server.sockets.http_open, server.open_sockets) == (0, 0), "the sockets to close")


async def test_one_address_has_a_part_of_the_places_of_http() -> None:
    limits = Limits(http_connections=8)
    async with running(http=LOOPBACK, limits=limits) as server, asking_nothing(server, 2):
        server.sockets.http_spares_loopback = False
        async with raw_client(port_of(server, "http")) as third:
            assert await third.closed()
        assert server.sockets.admit("192.0.2.1", "http")
        assert not server.sockets.admit("127.0.0.1", "https")
        assert server.sockets.admit("127.0.0.1", "mqtt")


async def test_what_lingers_is_of_the_part_of_its_address() -> None:
    async with (
        running(http=LOOPBACK, limits=Limits(http_connections=8)) as server,
        asking_nothing(server, 2) as clients,
    ):
        server.sockets.http_spares_loopback = False
        for client in clients:  # They are answered, and do not hang up.
            client.writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: len(server.sockets.lingering) == 2, "the answers")
        assert not server.sockets.admit("127.0.0.1", "http")
        assert server.sockets.admit("192.0.2.1", "http")
        for client in clients:
            await client.close()
        await until(lambda: taken(server) == 0, "the places to be free again")
        assert server.sockets.admit("127.0.0.1", "http")


@pytest.mark.parametrize(
    ("files", "http", "others"),
    [(resource.RLIM_INFINITY, 256, 11_000), (100_000, 256, 11_000), (1_024, 120, 840), (20, 0, 0)],
)
def test_places_are_within_what_the_process_may_open(files: int, http: int, others: int) -> None:
    assert places(Config(), files) == (http, others)
    assert places(Config(http=()), files) == (0, min(11_000, others + http))
