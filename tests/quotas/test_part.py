"""Quotas at a node, with stock clients too: what is refused, what waits, and whom it leaves alone."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from hedgerow.mqtt.packets import Puback, Publish, Pubrec, Suback, Subscribe, Subscription
from hedgerow.mqtt.reasons import Reason
from hedgerow.node.server import Server
from hedgerow.quotas.buckets import REFUSED_AT_ONCE
from hedgerow.quotas.config import QuotasConfig
from hedgerow.quotas.part import QuotasPart
from tests.node.peers import LOOPBACK, RawClient, connected, part_of, port_of, running
from tests.programs import need_program, run_node, wait_until
from tests.waiting import until
from tests.web.api.asking import Asker, with_tokens
from tests.web.browser import PASSWORD, showing, with_users

FEW = QuotasConfig(client_messages=50)


async def listening(server: Server, client: RawClient) -> None:
    client.send(Subscribe(1, [Subscription("#", 2)]))
    assert isinstance(await client.receive(), Suback)


@pytest.mark.parametrize("qos", [1, 2])
async def test_mqtt_5_hears_quota_exceeded(qos: int) -> None:
    async with (
        running(FEW) as server,
        connected(port_of(server), "a") as a,
        connected(port_of(server)) as all_,
    ):
        await listening(server, all_)
        a.send(*(Publish("t", b"%d" % number, qos, packet_id=number) for number in range(1, 81)))
        answers = [await a.receive() for _ in range(80)]
        codes = [each.reason_code for each in answers if isinstance(each, Puback | Pubrec)]
        assert len(codes) == 80
        refused = codes.count(Reason.QUOTA_EXCEEDED)
        assert codes.index(Reason.QUOTA_EXCEEDED) >= 50
        assert refused >= REFUSED_AT_ONCE
        received = server.broker.stats.publish_received
        assert server.broker.stats.publish_refused == refused
        assert received == 80
        # After a second all is as at first. Until then what is not answered waits to be read.
        for packet_id in range(200, 300):
            a.send(Publish("t", b"late", qos, packet_id=packet_id))
            answer = await a.receive()
            assert isinstance(answer, Puback | Pubrec)
            if answer.reason_code < 0x80:
                return
        pytest.fail("there is never room again")


async def test_what_cannot_be_refused_waits_and_nothing_is_lost() -> None:
    async with (
        running(FEW) as server,
        connected(port_of(server), "a") as a,
        connected(port_of(server)) as all_,
    ):
        await listening(server, all_)
        began_at = time.monotonic()
        a.send(*(Publish(f"t/{number % 7}", b"%d" % number) for number in range(80)))
        found = [await all_.receive() for _ in range(80)]
        assert [each.payload for each in found if isinstance(each, Publish)] == [b"%d" % n for n in range(80)]
        assert time.monotonic() - began_at >= 0.5
        assert part_of(server, QuotasPart).exceeded > 0
        # Whoever publishes no more than it may waits for nothing, and meanwhile others did not.
        a.send(b"\xc0\x00")
        assert await a.receive() is not None


async def test_each_client_has_its_own_and_a_user_all_together(tmp_path: Path) -> None:
    settings = QuotasConfig(client_messages=30, user_messages=40)
    users = with_users(tmp_path, "anna", "bert")
    as_anna, as_bert = ({"username": name, "password": PASSWORD.encode()} for name in ("anna", "bert"))
    async with running(settings, **users) as server:
        port = port_of(server)
        async with (
            connected(port, "a", **as_anna) as a,
            connected(port, "b", **as_anna) as b,
            connected(port, "c", **as_bert) as c,
        ):
            burst = [Publish("t", b"", 1, packet_id=number) for number in range(1, 31)]
            taken = []
            for client in (a, b, c):
                client.send(*burst)
                answers = [await client.receive() for _ in burst]
                taken.append(sum(isinstance(each, Puback) and each.reason_code < 0x80 for each in answers))
            assert taken[0] == 30
            assert 10 <= taken[1] <= 30 - REFUSED_AT_ONCE
            assert taken[2] == 30


async def test_bytes_and_listeners_count_too() -> None:
    settings = QuotasConfig(client_bytes=10_000, listener_messages=1_000)
    async with running(settings, mqtt=LOOPBACK, ws=LOOPBACK) as server, connected(port_of(server), "a") as a:
        a.send(Publish("t", b"x" * 15_000, 1, packet_id=1), Publish("t", b"", 1, packet_id=2))
        codes = [
            each.reason_code for each in [await a.receive(), await a.receive()] if isinstance(each, Puback)
        ]
        assert codes[0] < 0x80
        assert codes[1] == Reason.QUOTA_EXCEEDED
        quotas = part_of(server, QuotasPart)
        assert len(quotas.listeners) == 1
        assert len(quotas.clients) == 1


async def test_quotas_are_reloaded() -> None:
    async with running(QuotasConfig(client_messages=1)) as server, connected(port_of(server), "a") as a:
        a.send(*(Publish("t", b"", 0) for _ in range(2_000)))
        await until(lambda: part_of(server, QuotasPart).exceeded > 0, "the quota to be exceeded")
        config = server.config
        server.read_again = lambda: replace(config, rooms={QuotasConfig: QuotasConfig(client_messages=0)})
        server.reload()
        await until(lambda: server.broker.stats.publish_received == 2_000, "all of them to be taken")
        a.send(b"\xc0\x00")
        assert await a.receive() is not None


async def test_who_comes_again_has_the_debts_of_before() -> None:
    async with running(QuotasConfig(client_messages=10)) as server:
        async with connected(port_of(server), "a") as a:
            a.send(*(Publish("t", b"", 1, packet_id=number) for number in range(1, 11)))
            for _ in range(10):
                await a.receive()
        async with connected(port_of(server), "a") as a:
            a.send(*(Publish("t", b"", 1, packet_id=number) for number in range(1, 11)))
            codes = [
                each.reason_code
                for each in [await a.receive() for _ in range(10)]
                if isinstance(each, Puback)
            ]
            assert Reason.QUOTA_EXCEEDED in codes


async def test_http_is_under_the_quota_of_its_user(tmp_path: Path) -> None:
    settings, said = with_tokens(tmp_path, door="publish@anna")
    async with showing(settings, QuotasConfig(user_messages=1), **with_users(tmp_path, "anna")) as shown:
        door = Asker(shown.server, said["door"])
        asked = await asyncio.gather(*(door.ask("POST", "/publish", {"topic": "a"}) for _ in range(6)))
        statuses = sorted(told.status for told in asked)
        assert statuses[0] == 200
        assert statuses[-1] == 429
        assert "retry-after" in next(told for told in asked if told.status == 429).headers


def test_paho_and_mosquitto_pub_get_along_with_it(tmp_path: Path) -> None:
    program = need_program("mosquitto_pub")
    with run_node(tmp_path, "--quota-client-messages", "20") as node:
        codes: list[Any] = []
        done = threading.Event()

        def published(client: Any, data: Any, mid: int, code: Any, properties: Any) -> None:
            codes.append(code.value)
            if len(codes) == 40:
                done.set()

        client = paho.Client(CallbackAPIVersion.VERSION2, "paho", protocol=MQTTProtocolVersion.MQTTv5)
        client.on_publish = published
        client.max_inflight_messages_set(100)
        client.connect("127.0.0.1", node.port("mqtt"))
        client.loop_start()
        wait_until(client.is_connected, "paho to be connected")
        for number in range(40):
            client.publish("t", str(number), 1)
        assert done.wait(20)
        client.disconnect()
        client.loop_stop()
        assert Reason.QUOTA_EXCEEDED in codes
        assert 20 <= sum(code < 0x80 for code in codes) < 40
        where = ("-h", "127.0.0.1", "-p", str(node.port("mqtt")), "-t", "t", "-l")
        lines = "".join(f"{number}\n" for number in range(40))
        for version, qos in (("311", "0"), ("311", "1"), ("5", "1")):
            command = (program, "-V", version, "-q", qos, "-i", f"m{version}{qos}", *where)
            ended = subprocess.run(
                command, input=lines, capture_output=True, text=True, timeout=30, check=False
            )
            assert ended.returncode == 0, ended.stderr
            assert ("Quota exceeded" in ended.stderr + ended.stdout) is (version == "5")
