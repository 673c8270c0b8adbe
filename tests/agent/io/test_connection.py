"""One connection to a broker: what it tells, whatever the broker does."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from hedgerow.agent.io.broker_list import read_words
from hedgerow.agent.io.connection import BrokerConnection
from hedgerow.bridges.fabric_key import Envelopes, FabricKey
from hedgerow.client.connect import connect
from hedgerow.node.passwords import set_password
from hedgerow_workshop.programs import free_port
from tests.conftest import StartMosquitto, StartNode
from tests.waiting import until

INTERVAL_S = 0.1
DETECTION_S = 0.3


class Heard:
    """All that a connection told."""

    def __init__(self) -> None:
        self.answers = 0
        self.refusals = 0
        self.losses = 0
        self.agents: set[str] = set()
        self.system: dict[str, bytes] = {}
        self.system_when_complete: set[str] = set()
        self.problems: list[str] = []
        self.strays: list[str] = []

    def receive_answer(self, broker: str) -> None:
        self.answers += 1

    def receive_refused(self, broker: str) -> None:
        self.refusals += 1

    def receive_announcement(self, agent_id: str) -> None:
        self.agents.add(agent_id)

    def receive_system(self, broker: str, topic: str, payload: bytes) -> None:
        self.system[topic] = payload

    def receive_complete(self, broker: str) -> None:
        self.system_when_complete = set(self.system)

    def receive_stray(self, broker: str, token: str) -> None:
        self.strays.append(token)

    def receive_lost(self, broker: str) -> None:
        self.losses += 1

    def receive_problem(self, broker: str, reason: str) -> None:
        self.problems.append(reason)


def envelopes(life: int, secret: bytes = b"the key that all agents share") -> Envelopes:
    return Envelopes(FabricKey(secret), life)


@asynccontextmanager
async def connected(
    place: str, agent_id: str = "m", envelopes: Envelopes | None = None
) -> AsyncIterator[tuple[BrokerConnection, Heard]]:
    """A connection that is probed in time."""
    heard = Heard()
    (entry,) = read_words([f"b={place}"])
    connection = BrokerConnection(entry, agent_id, heard, INTERVAL_S, DETECTION_S, envelopes)
    connection.start()

    async def probe() -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            connection.probe()

    task = asyncio.create_task(probe())
    try:
        yield connection, heard
    finally:
        task.cancel()
        await connection.stop()


async def test_a_node_answers_and_has_told_all_by_then(hedgerow_node: StartNode) -> None:
    port = hedgerow_node().port()
    async with connected(f"127.0.0.1:{port}") as (_, heard):
        await until(lambda: heard.answers >= 3, "three answers")
        assert "$SYS/broker/version" in heard.system_when_complete
        assert heard.problems == []


async def test_a_mosquitto_answers_and_agents_hear_each_other_there(mosquitto: StartMosquitto) -> None:
    place = f"127.0.0.1:{mosquitto()}"
    async with connected(place) as (_, heard), connected(place, "n") as (other, answered):
        await until(lambda: heard.answers >= 3 and answered.answers >= 1, "answers")
        other.announce("n")
        await until(lambda: heard.agents == {"n"}, "the announcement")
        assert heard.system["$SYS/broker/version"].startswith(b"mosquitto version ")


async def test_with_a_key_only_what_its_holders_announce_counts_and_only_once(
    hedgerow_node: StartNode,
) -> None:
    """Whoever may write there says that an agent with a low id is there, or says a true one's words again."""
    place = f"127.0.0.1:{hedgerow_node().port()}"
    async with (
        connected(place, "m", envelopes(1)) as (_, heard),
        connected(place, "b", envelopes(2)) as (true, ready),
        connected(place, "a", envelopes(3, b"another key, of strangers")) as (stranger, stranger_ready),
        connect(f"mqtt://{place}", client_id="mallory") as mallory,
        mallory.subscribe("$hedgerow/agent/announce") as recorded,
    ):
        await until(
            lambda: min(each.answers for each in (heard, ready, stranger_ready)) >= 1, "answers for all"
        )
        for payload in (b"0", b"0" + bytes(32), b""):
            await mallory.publish("$hedgerow/agent/announce", payload, qos=1)
        stranger.announce("a")
        true.announce("b")
        await until(lambda: heard.agents == {"b"}, "the true announcement")
        said = aiter(recorded)
        words = [(await anext(said)).payload for _ in range(5)]
        heard.agents.clear()
        for payload in words:
            await mallory.publish("$hedgerow/agent/announce", payload, qos=1)
        true.announce("c")
        await until(lambda: bool(heard.agents), "another true one")
        assert heard.agents == {"c"}
        assert heard.problems == ["somebody announces an agent there without the key"]
        # Without a key nobody takes those for the names of agents.
        async with connected(place, "n") as (plain, plainly):
            await until(lambda: plainly.answers >= 1, "an answer")
            true.announce("d")
            stranger.announce("e")
            plain.announce("f")
            await until(lambda: plainly.agents == {"f"}, "the one in clear")


async def test_an_agent_with_another_time_is_told_of(hedgerow_node: StartNode) -> None:
    """It would act beside the others, and nobody would know why."""
    place = f"127.0.0.1:{hedgerow_node().port()}"
    late = envelopes(2)
    async with (
        connected(place, "m", envelopes(1)) as (_, heard),
        connect(f"mqtt://{place}", client_id="late") as client,
    ):
        await until(lambda: heard.answers >= 1, "an answer")
        topic = "$hedgerow/agent/announce"
        await client.publish(topic, late.wrap(topic, b"b", time.time() - 600), qos=1)
        await until(lambda: bool(heard.problems), "the problem")
        assert "over five minutes from ours" in heard.problems[0]
        assert not heard.agents
        await client.publish(topic, late.wrap(topic, b"b", time.time()), qos=1)
        await until(lambda: heard.agents == {"b"}, "its announcement, once its clock is set")


async def test_a_broker_that_refuses_dollar_topics_is_probed_elsewhere(
    mosquitto: StartMosquitto, tmp_path: Path
) -> None:
    (tmp_path / "acl").write_text("topic readwrite #\ntopic read $SYS/#\n")
    port = mosquitto(f"acl_file {tmp_path / 'acl'}")
    async with connected(f"127.0.0.1:{port}") as (connection, heard):
        await until(lambda: heard.answers >= 3, "answers")
        assert connection.prefix == "hedgerow"


async def test_nobody_there_is_known_at_once_and_a_return_soon(hedgerow_node: StartNode) -> None:
    node = hedgerow_node()
    async with connected(f"127.0.0.1:{node.port()}") as (_, heard):
        await until(lambda: heard.answers >= 1, "an answer")
        node.kill9()
        await until(lambda: heard.refusals >= 1, "a refusal")
        assert heard.losses == 1
        answers = heard.answers
        node.start()
        await until(lambda: heard.answers > answers, "an answer again")


async def test_a_silent_broker_is_not_refused_and_answers_when_it_goes_on(hedgerow_node: StartNode) -> None:
    node = hedgerow_node()
    assert node.process is not None
    async with connected(f"127.0.0.1:{node.port()}") as (_, heard):
        await until(lambda: heard.answers >= 1, "an answer")
        os.kill(node.process.pid, signal.SIGSTOP)
        try:
            await until(lambda: heard.losses == 1, "the connection to be given up")
            assert heard.refusals == 0
            answers = heard.answers
        finally:
            os.kill(node.process.pid, signal.SIGCONT)
        await until(lambda: heard.answers > answers, "an answer again")


async def test_a_wrong_password_is_told_once_in_words(hedgerow_node: StartNode, tmp_path: Path) -> None:
    # Soon checked, so that the answer comes before the connection is given up, however busy the machine is.
    set_password(tmp_path / "passwords", "u", b"right", iterations=1, create=True)
    port = hedgerow_node("--passwords", str(tmp_path / "passwords")).port()
    async with connected(f"mqtt://u:wrong@127.0.0.1:{port}") as (_, heard):
        await until(lambda: bool(heard.problems), "the reason")
        await asyncio.sleep(3 * INTERVAL_S)
        assert len(heard.problems) == 1
        assert "wrong" not in heard.problems[0]
        assert (heard.answers, heard.refusals) == (0, 0)


@asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    port = free_port()
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield port
    finally:
        server.close()


async def test_who_hangs_up_before_connack_is_not_there() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with listening(hang_up) as port, connected(f"127.0.0.1:{port}") as (_, heard):
        await until(lambda: heard.refusals >= 2, "refusals")


async def test_garbage_is_survived() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x20\x03\x00\x00\x00" + os.urandom(500))  # CONNACK, and then anything
        await writer.drain()
        writer.close()

    async with listening(talk) as port, connected(f"127.0.0.1:{port}") as (_, heard):
        await until(lambda: heard.losses >= 3, "connections to be lost")
        assert heard.answers == 0


async def test_a_connection_that_ends_in_the_breath_in_which_it_was_made_is_told_once() -> None:
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))

    async def take_over(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x20\x03\x00\x00\x00" + b"\xe0\x01\x8e")  # CONNACK, and DISCONNECT
        await writer.drain()
        writer.close()

    async with listening(take_over) as port, connected(f"127.0.0.1:{port}") as (_, heard):
        await until(lambda: heard.losses >= 3, "connections to be lost")
        (problem,) = heard.problems
        assert problem.endswith("session taken over; another agent has this name")
    assert failures == []


async def test_a_retained_announcement_is_no_agent(hedgerow_node: StartNode) -> None:
    place = f"127.0.0.1:{hedgerow_node().port()}"
    async with connect(f"mqtt://{place}") as bus:
        await bus.publish("$hedgerow/agent/announce", b"a", qos=1, retain=True)
        await bus.publish("hedgerow/agent/announce", b"b", qos=1, retain=True)
        async with connected(place) as (_, heard):
            await until(lambda: heard.answers >= 2, "answers, before which it was told what is retained")
            assert heard.agents == set()
            await bus.publish("hedgerow/agent/announce", b"c", qos=1)
            await until(lambda: heard.agents == {"c"}, "an agent that is there")


async def test_who_refuses_and_does_not_hang_up_is_given_up_in_order() -> None:
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    serving: list[asyncio.Task[None] | None] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        writer.write(b"\x20\x03\x00\x87\x00")  # CONNACK: not authorized
        await asyncio.sleep(1.2)  # longer than a connection may take to be made
        writer.close()
        with suppress(ConnectionResetError):  # its CONNECT was never read
            await writer.wait_closed()

    async with listening(refuse) as port:
        async with connected(f"127.0.0.1:{port}") as (_, heard):
            await until(lambda: len(serving) >= 2, "a second connection")
            assert heard.answers == 0
        await asyncio.gather(*(task for task in serving if task is not None))
    assert failures == []
