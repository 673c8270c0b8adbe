"""A federation with a key, through a real Mosquitto: whoever reads everything there reads nothing of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import hedgerow
from hedgerow.federation.config import FederationConfig
from hedgerow.federation.part import FederationPart
from tests.faults.federated import KEY, linked, mosquittos, sidecar, url_at
from tests.node.peers import part_of, port_of, running
from tests.waiting import until


async def listen(bus: hedgerow.Bus, topic_filter: str, heard: list[tuple[str, bytes]]) -> None:
    async with bus.subscribe(topic_filter) as messages:
        async for message in messages:
            heard.append((message.topic, message.payload))  # noqa: PERF401 (they are looked at as they come)


async def test_what_passes_through_a_mosquitto_is_sealed(tmp_path: Path) -> None:
    frames: list[tuple[str, bytes]] = []
    heard: list[tuple[str, bytes]] = []
    async with mosquittos(tmp_path, "m") as (m,), sidecar("s", m.port, key=KEY) as s:
        member = FederationConfig(neighbours=(url_at(m.port),), key=KEY)
        async with running(member, id="n1") as n1, running(member, id="n2") as n2:
            await linked(n1, s, n2)
            at = [hedgerow.connect(f"mqtt://127.0.0.1:{port}") for port in (m.port, port_of(n1), port_of(n2))]
            async with at[0] as spy, at[1] as speaker, at[2] as reader, asyncio.TaskGroup() as tasks:
                listening = [
                    tasks.create_task(listen(spy, "hedgerow/federation/#", frames)),
                    tasks.create_task(listen(reader, "secret/#", heard)),
                ]
                machine = part_of(n1, FederationPart).machine
                await until(
                    lambda: "secret/#" in (machine.neighbour_sessions()[0][1].subscriptions or ()), "it"
                )
                await speaker.publish("secret/door", b"the code is 4711", qos=1)
                await until(lambda: heard == [("secret/door", b"the code is 4711")], "the message")
                for task in listening:
                    task.cancel()
    carried = [payload for topic, payload in frames if "/state/" not in topic]
    assert len(carried) > 4
    assert not [payload for payload in carried if b"4711" in payload or b"secret" in payload]
