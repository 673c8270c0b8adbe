"""An agent's connection to one broker: probes and their answers, what other agents say, what `$SYS` says.

A probe is a publication to a topic of this agent's own, which the broker has to bring back. There are two
places for such topics: below `$hedgerow`, which no bridge with a topic line `#` carries, and below `hedgerow`
at brokers that refuse the first. Both are tried until one of them answers.

The connection is not kept by waiting: when it is lost, it is dialled again at once, and then a few times in
every probe interval. So an attempt that is refused, or ends before its CONNACK, says that nobody is there,
long before probes go unanswered. A connection over which none comes back for the detection time is given up
too, since after a silent cut a new one works long before TCP sends again on the old one.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from typing import Protocol

from hedgerow.agent.io.broker_list import BrokerEntry
from hedgerow.bridges.fabric_key import Envelopes
from hedgerow.client.driver import ClientDriver
from hedgerow.client.options import DriverOptions
from hedgerow.errors import ConnectError, HedgerowError
from hedgerow.message import Message
from hedgerow.mqtt.client.events import (
    Connected,
    ConnectOptions,
    Event,
    MessageReceived,
    Published,
    Subscribed,
)
from hedgerow.mqtt.packets import MQTT_5, Subscription
from hedgerow.mqtt.reasons import FAILURE, Reason, describe

PREFIXES = ("$hedgerow", "hedgerow")
VERSION_TOPIC = "$SYS/broker/version"
BRIDGE_TOPICS = "$SYS/broker/bridge/"
CONNECTION_TOPICS = "$SYS/broker/connection/"
WATCHED = (
    VERSION_TOPIC,
    f"{BRIDGE_TOPICS}result",
    f"{BRIDGE_TOPICS}+/state",
    f"{CONNECTION_TOPICS}+/state",
)

AGENT_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
MIN_OPEN_S = 1.0  # A handshake over a long way, with TLS, takes several round trips.
RETRIES_PER_PROBE = 4
MAX_PACKET_BYTES = 1 << 20  # A broker could send anything; states and versions are short.
MAX_UNANSWERED = 1_000  # Commands to a broker that never acknowledges one.


class ConnectionListener(Protocol):
    """What a connection tells; `broker` is the entry's id."""

    def receive_answer(self, broker: str) -> None: ...
    def receive_refused(self, broker: str) -> None: ...
    def receive_announcement(self, agent_id: str) -> None: ...
    def receive_system(self, broker: str, topic: str, payload: bytes) -> None: ...
    def receive_complete(self, broker: str) -> None:
        """What is retained below `$SYS` has been heard."""

    def receive_stray(self, broker: str, token: str) -> None:
        """A probe of this agent that another connection sent, in a place that no bridge carries."""

    def receive_lost(self, broker: str) -> None: ...
    def receive_problem(self, broker: str, reason: str) -> None: ...


class BrokerConnection:
    """`start` it and `stop` it; between them it tells `listener` what it hears."""

    def __init__(
        self,
        entry: BrokerEntry,
        agent_id: str,
        listener: ConnectionListener,
        probe_interval_s: float,
        detection_s: float,
        envelopes: Envelopes | None = None,
    ) -> None:
        self.entry = entry
        self._envelopes = envelopes
        """By which agents prove their announcements to each other; None: all are believed."""
        self._agent_id = agent_id
        self._listener = listener
        self._retry_s = probe_interval_s / RETRIES_PER_PROBE
        self._detection_s = detection_s
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._driver: ClientDriver | None = None
        self._is_connected = False
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._problem = ""
        self._version = MQTT_5
        self._is_version_known = False
        self.prefix: str | None = None
        """Of the topics that answered."""
        self._refused_prefixes: set[str] = set()
        self.token = ""
        """What its probes begin with."""
        self._count = 0
        self._connected_at = self._heard_at = 0.0
        self._is_left = False
        self._is_complete = False
        self._commands: dict[int, Callable[[str], None]] = {}

    def start(self) -> None:
        self._task = self._loop.create_task(self._run(), name=f"agent at {self.entry.id}")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await asyncio.gather(*self._closing, return_exceptions=True)

    def move(self, entry: BrokerEntry) -> None:
        """The broker is at another address now."""
        self.entry = entry
        self._is_version_known = False
        self._give_up()
        if self._is_left:
            self._is_left = False
            self.start()

    def leave(self, reason: str) -> None:
        """There is nothing to be had from this address."""
        if self._task is not None and not self._is_left:
            self._is_left = True
            self._task.cancel()
            self._tell_problem(reason)

    # Out

    def probe(self) -> None:
        driver = self._driver
        if driver is None or not self._is_connected:
            return
        if self._loop.time() - self._heard_at > self._detection_s:
            self._give_up()
            return
        self._count += 1
        payload = f"{self.token} {self._count}".encode()
        for prefix in self._prefixes():
            self._publish(driver, Message(probe_topic(prefix, self._agent_id), payload))

    def announce(self, agent_id: str) -> None:
        if self._driver is not None and self._is_connected:
            for prefix in self._prefixes():
                topic, payload = announce_topic(prefix), agent_id.encode()
                if self._envelopes is not None:
                    payload = self._envelopes.wrap(topic, payload, time.time())
                self._publish(self._driver, Message(topic, payload))

    def command(self, topic: str, payload: bytes, on_refused: Callable[[str], None]) -> None:
        """Publish at QoS 1. What a lost connection takes with it is not sent again: the agent repeats it."""
        if self._driver is None or not self._is_connected:
            on_refused("not connected")
            return
        if len(self._commands) >= MAX_UNANSWERED:
            self._commands.clear()
        handle = self._publish(self._driver, Message(topic, payload, qos=1))
        self._commands[handle] = on_refused

    def _publish(self, driver: ClientDriver, message: Message) -> int:
        if not driver.client.connected:  # It was ended in the same breath in which it was made.
            return 0
        try:
            handle = driver.client.publish(message, driver.clock())
        except HedgerowError as error:  # larger than the broker takes, or a QoS that it does not know
            self._tell_problem(f"does not take {message.topic}: {error}")
            return 0
        driver.line.flush()
        return handle

    def _prefixes(self) -> list[str]:
        if self.prefix is not None:
            return [self.prefix]
        # The first alone, until it had the time to answer.
        usable = [prefix for prefix in PREFIXES if prefix not in self._refused_prefixes] or [PREFIXES[-1]]
        return usable if self._count > 1 else usable[:1]

    # Connecting, again and again

    async def _run(self) -> None:
        while True:
            began_at = self._loop.time()
            await self._connect()
            # One that ends at once each time, as when another has our client identifier.
            await asyncio.sleep(max(0.0, began_at + self._retry_s - self._loop.time()))

    async def _connect(self) -> None:
        """One connection, from dialling to its end."""
        self._ended = self._loop.create_future()
        self.token = secrets.token_hex(8)
        self._count = 0
        try:
            driver = ClientDriver(
                self.entry.address, self._options(), self._handle, lambda change: None, self._fail
            )
        except HedgerowError as error:  # a file of TLS that is gone
            self._tell_problem(str(error))
            return
        self._driver = driver
        try:
            open_s = max(MIN_OPEN_S, self._detection_s)
            async with asyncio.timeout(open_s):
                await driver.open()
            self._is_version_known = True
            self._version = driver.client.options.version
            await self._ended
        except TimeoutError:
            pass  # It says nothing, and that is what probes are for.
        except HedgerowError as error:
            self._judge(error)
        finally:
            was_connected, self._is_connected = self._is_connected, False
            self._driver = None
            self._commands.clear()
            if self.prefix is None and self._count and was_connected:
                self._refused_prefixes.add(PREFIXES[0])  # Some hang up on whoever publishes there.
            self._close(driver)
        if was_connected:
            self._listener.receive_lost(self.entry.id)

    def _options(self) -> DriverOptions:
        address = self.entry.address
        password = address.password
        connect = ConnectOptions(
            # With the broker's name: two connections to one broker must not end each other.
            client_id=f"hedgerow-agent-{self._agent_id}-{self.entry.id}",
            version=self._version,
            username=address.username,
            password=None if password is None else password.encode(),
            keep_alive_s=max(5, int(4 * self._detection_s)),
            maximum_packet_size=MAX_PACKET_BYTES if self._version == MQTT_5 else None,
            # Later than our own time limit: what ends before it was ended by the broker.
            connect_timeout_s=10 * max(MIN_OPEN_S, self._detection_s),
        )
        return DriverOptions(
            connect,
            version_may_fall=not self._is_version_known,
            tls=self.entry.tls,
            reconnect=False,
            dial_timeout_s=10 * max(MIN_OPEN_S, self._detection_s),
        )

    def _judge(self, error: HedgerowError) -> None:
        """Nobody is there, or something else is wrong."""
        cause = error.__context__
        if (
            isinstance(error, ConnectError)
            and error.reason_code is None
            # Not "no route to host" and the like: it may be this machine that has lost its network.
            and (isinstance(cause, ConnectionError) or not isinstance(cause, OSError))
        ):
            self._listener.receive_refused(self.entry.id)
        else:
            self._tell_problem(str(error))

    def _tell_problem(self, reason: str) -> None:
        if reason != self._problem:
            self._problem = reason
            self._listener.receive_problem(self.entry.id, reason)

    def _fail(self, error: HedgerowError) -> None:
        reason_code = error.reason_code if isinstance(error, ConnectError) else None
        if reason_code is not None and reason_code >= FAILURE:
            hint = "; another agent has this name" if reason_code == Reason.SESSION_TAKEN_OVER else ""
            self._tell_problem(f"{error}{hint}")
        self._give_up()

    def _give_up(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _close(self, driver: ClientDriver) -> None:
        """In the background: a dead link is waited for, and the next one must not wait with it."""
        task = self._loop.create_task(driver.close({}))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # In

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            if self._is_left:
                return
            match event:
                case MessageReceived():
                    self._receive(event)
                case Connected():
                    self._subscribe()
                case Subscribed():
                    self._receive_subscribed(event)
                case Published():
                    on_refused = self._commands.pop(event.handle, None)
                    if on_refused is not None and event.reason_code >= FAILURE:
                        on_refused(event.reason or describe(event.reason_code))

    def _subscribe(self) -> None:
        assert self._driver is not None
        self._is_connected = True
        self._is_complete = False
        self._connected_at = self._heard_at = self._loop.time()
        own = [probe_topic(prefix, self._agent_id) for prefix in PREFIXES]
        filters = [*WATCHED, *own, *map(announce_topic, PREFIXES)]
        client, now = self._driver.client, self._driver.clock()
        try:
            # Each by itself: some brokers end a connection over one filter that they do not like, some
            # refuse the whole packet.
            for topic_filter in filters:
                client.subscribe([Subscription(topic_filter)], now)
        except HedgerowError as error:  # It has no wildcard subscriptions.
            self._tell_problem(str(error))
        self.probe()

    def _receive_subscribed(self, event: Subscribed) -> None:
        for subscription, reason_code in zip(event.subscriptions, event.reason_codes, strict=True):
            if reason_code >= FAILURE:
                if subscription.topic_filter.startswith(f"{PREFIXES[0]}/"):
                    self._refused_prefixes.add(PREFIXES[0])
                else:
                    self._tell_problem(f"refuses to say {subscription.topic_filter}")

    def _receive(self, message: MessageReceived) -> None:
        topic = message.topic
        if topic.startswith("$SYS/"):
            self._listener.receive_system(self.entry.id, topic, message.payload)
            return
        prefix, _, rest = topic.partition("/")
        if rest == f"agent/{self._agent_id}/probe":
            # Bridges may carry what is below the other prefix: another connection's probe says nothing here.
            token = message.payload.decode(errors="replace").split(" ")[0]
            if token == self.token:
                self._receive_answer(prefix)
            elif prefix == PREFIXES[0]:
                self._listener.receive_stray(self.entry.id, token)
        elif rest == "agent/announce" and not message.retain:  # A retained one says that somebody was there.
            self._receive_announcement(topic, message.payload)

    def _receive_announcement(self, topic: str, payload: bytes) -> None:
        said: bytes | None = payload
        if self._envelopes is not None:
            before = self._envelopes.forged, self._envelopes.untimely
            # By the system's time: what is set while the agent runs is what the others go by.
            said = self._envelopes.unwrap(topic, payload, time.time())
            if self._envelopes.forged != before[0]:
                self._tell_problem("somebody announces an agent there without the key")
            elif self._envelopes.untimely != before[1]:
                self._tell_problem("an agent there does not count: its clock is over five minutes from ours")
        agent_id = (said or b"").decode(errors="replace")
        if AGENT_ID.fullmatch(agent_id):
            self._listener.receive_announcement(agent_id)

    def _receive_answer(self, prefix: str) -> None:
        self.prefix = prefix
        self._heard_at = self._loop.time()
        if self._heard_at - self._connected_at > self._detection_s:
            self._problem = ""  # One that comes back with every connection is told once.
        self._listener.receive_answer(self.entry.id)
        if not self._is_complete:
            self._is_complete = True
            self._listener.receive_complete(self.entry.id)


def probe_topic(prefix: str, agent_id: str) -> str:
    return f"{prefix}/agent/{agent_id}/probe"


def announce_topic(prefix: str) -> str:
    return f"{prefix}/agent/announce"
