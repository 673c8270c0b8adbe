"""The HTTP port: metrics, health, and what it does not do."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hedgerow.errors import StoreError
from hedgerow.mqtt.packets import Publish, Suback, Subscribe, Subscription
from hedgerow.net import http, metrics
from hedgerow.net.http import Request, Response
from hedgerow.net.server import Server
from hedgerow.net.store import Store
from tests.net.peers import LOOPBACK, connected, port_of, raw_client, running
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
        assert values["hedgerow_connections"] == 1
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
        shown = metrics.COUNTERS.keys() | {"clients_maximum"}
        assert shown == set(type(server.broker.stats).__dataclass_fields__)


async def test_openmetrics_is_given_to_who_asks() -> None:
    async with running(http=LOOPBACK) as server:
        head = (
            b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n"
        )
        status, headers, body = await ask(server, head)
        assert status == HTTPStatus.OK
        assert headers["content-type"].startswith("application/openmetrics-text")
        assert body.endswith(b"# EOF\n")


async def test_health_follows_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Store, changes: object) -> None:
        raise StoreError("disk full")

    async with running(mqtt=LOOPBACK, http=LOOPBACK, data=tmp_path) as server:
        status, headers, body = await get(server, "/health")
        assert status == HTTPStatus.OK
        assert headers["content-type"] == "application/json"
        assert b'"status": "ok"' in body
        with monkeypatch.context() as patch:
            patch.setattr(Store, "write", fail)
            async with connected(port_of(server), "c", properties={"session_expiry_interval": 60}):
                await until(lambda: server.problem is not None, "the failure to be seen")
                status, _, body = await get(server, "/health")
                assert status == HTTPStatus.SERVICE_UNAVAILABLE
                assert b"disk full" in body
        await until(lambda: server.problem is None, "the recovery to be seen")


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


async def test_a_request_that_does_not_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTION_S", 0.1)
    async with running(http=LOOPBACK) as server, raw_client(port_of(server, "http")) as client:
        client.writer.write(b"GET /health HTTP/1.1\r\n")
        assert await client.closed()
        assert server.open_sockets == 0


async def test_an_open_request_does_not_hold_up_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hedgerow.net.server.SHUT_DOWN_S", 0.2)
    async with running(http=LOOPBACK) as server, raw_client(port_of(server, "http")) as client:
        client.writer.write(b"GET /health HTTP/1.1\r\n")
        await until(lambda: server.open_sockets == 1, "the connection")
        async with asyncio.timeout(2):
            await server.stop()


def test_a_handler_that_fails_is_a_500(caplog: pytest.LogCaptureFixture) -> None:
    def fail(request: Request) -> Response:
        raise RuntimeError("a mistake of ours")

    assert http.respond({"/": fail}, Request("GET", "/")).status == HTTPStatus.INTERNAL_SERVER_ERROR
    assert "a mistake of ours" in caplog.text
